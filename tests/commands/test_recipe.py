"""A recipe from Python, in an environment that the program handed in."""

import asyncio
from pathlib import Path

import bough
from bough.commands.objects import environment_name
from tests.commands.letters import WriteLetter

RECIPE = """\
name: letters
model: tiny
defaults: {environment: WriteLetter, max_new_tokens: 4, tasks: 3}
stages:
  - collect: {model: expert}
  - demos: {}
  - sft: {max_steps: 1}
  - eval: {}
"""


def test_all_stages_run_inside_a_running_loop(tmp_path: Path):
    recipe = tmp_path / "letters.yaml"
    recipe.write_text(RECIPE)
    environment_name(WriteLetter)

    async def notebook() -> bough.RecipeRun:
        return bough.run(recipe, output_dir=tmp_path / "run", report_to=["none"])

    found = asyncio.run(notebook())
    assert found.folder == tmp_path / "run" and [row.episodes for row in found.evaluations] == [3]
    assert "success" in repr(found)
