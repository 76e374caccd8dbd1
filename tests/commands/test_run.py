import asyncio
from pathlib import Path
from typing import Any

import yaml

import bough
from bough.cli import main
from bough.commands.objects import environment_name
from bough.config.base import flattened
from bough.config.groups import CollectConfig
from tests.commands.letters import LETTERS, WriteLetter
from tests.report import folders

COUNTING = "defaults.environment=tests.environments.worlds:Counting"
RECIPE = """\
stages:
  - collect: {model: expert, tasks: 3}
  - demos:
  - eval: {model: [expert], tasks: 4}
"""


def test_a_run_ends_with_its_success_rates_and_is_listed_and_shown(tmp_path: Path, capsys: Any):
    (tmp_path / "mine.yaml").write_text(RECIPE + 'about: "\\e[31mred"\n')
    folder = tmp_path / "runs" / "mine"
    assert main(["run", str(tmp_path / "mine.yaml"), "-o", str(folder), "--set", COUNTING]) == 0
    out = capsys.readouterr().out
    assert "03-eval     100.0%" in out and "51.0% – 100.0%" in out, out
    assert main(["runs", "list", str(tmp_path / "runs")]) == 0
    assert "mine  recipe mine  3 of 3 stages  last stage: eval" in capsys.readouterr().out
    assert main(["runs", "show", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "mine: ␛[31mred" in shown and "01-collect  done" in shown and "100.0%" in shown


def test_lost_episodes_are_shown_beside_those_that_ended(tmp_path: Path, capsys: Any):
    run = folders.recipe(tmp_path / "run", {"eval": {}})
    folders.evaluation(run / "01-eval", {"smollm2": "1" * 9 + "x" * 7}, goes_on_with="smollm2")
    assert main(["runs", "show", str(run)]) == 0
    assert "01-eval     100.0%   33.2% – 100.0%  9, 7 lost" in capsys.readouterr().out


def test_one_broken_run_does_not_hide_the_others(tmp_path: Path, capsys: Any):
    for name, text in (("broken", "stages: 3"), ("whole", RECIPE + "name: whole\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.yaml").write_text(text)
    assert main(["runs", "list", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "is not a valid recipe" in out and "whole   recipe whole  0 of 3 stages" in out, out


def test_what_is_no_run_is_named(tmp_path: Path, capsys: Any):
    assert main(["runs", "show", str(tmp_path)]) == 2
    assert "there is no recipe.yaml in it" in capsys.readouterr().err
    assert main(["run", "no-such-recipe"]) == 2
    assert "there is no recipe 'no-such-recipe'" in capsys.readouterr().err
    assert main(["runs", "list", str(tmp_path / "nowhere")]) == 2


def test_settings_are_printed_as_in_a_recipe(tmp_path: Path, capsys: Any):
    (tmp_path / "mine.yaml").write_text(
        "stages:\n  - collect: {model: expert, tasks: 2, overwrite: true, max_turns: null}\n"
    )
    paths = [str(tmp_path / "mine.yaml"), "-o", str(tmp_path / "mine")]
    command = ["run", *paths, "--set", COUNTING, "--report-to", "none"]
    assert main([*command, "--dry-run"]) == 0
    planned = capsys.readouterr().out
    assert "    overwrite: true\n" in planned and "    max_turns: null\n" in planned
    assert main(command) == 0
    capsys.readouterr()
    assert main(["runs", "show", str(tmp_path / "mine" / "01-collect")]) == 0
    shown = capsys.readouterr().out
    assert "    overwrite: true\n" in shown and "    adapter: null\n" in shown
    settings = yaml.safe_load("\n".join(line.strip() for line in shown.splitlines() if line.startswith("    ")))
    on_file = yaml.safe_load((tmp_path / "mine" / "01-collect" / "config.yaml").read_text())
    assert on_file.pop("command") == "collect"
    assert settings == flattened(CollectConfig, on_file)


def test_all_stages_run_inside_a_running_loop(tmp_path: Path):
    recipe = tmp_path / "letters.yaml"
    recipe.write_text(LETTERS)
    environment_name(WriteLetter)

    async def notebook() -> bough.RecipeRun:
        return bough.run(recipe, output_dir=tmp_path / "run", report_to=["none"])

    found = asyncio.run(notebook())
    assert found.folder == tmp_path / "run" and [row.episodes for row in found.evaluations] == [3]
    assert "success" in repr(found)
