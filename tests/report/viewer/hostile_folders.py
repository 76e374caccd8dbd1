"""Folders that are made to break or to hold up whoever looks at them, each beside a run that is in order."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bough.files import write_json
from bough.models.resolve import resolve
from tests.config.test_yaml_file import ALIAS_BOMB
from tests.data.bombs import token_bomb, zstd_bomb
from tests.report.viewer.samples import trajectory, write

DEEP = "a: " + "[" * 200_000
WITHOUT_END = "without-end"
# Ends after 10^15 rounds.
ENDLESS = "{% for n in range(99999) %}" * 3 + "{% endfor %}" * 3
GREEDY = "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}"


def stage(folder: Path, recipe: Any = None) -> Path:
    """A run of one stage, with a recipe."""
    write_json(folder / "01-sft/stage.json", {"verb": "sft", "finished": True})
    (folder / "recipe.yaml").write_text(recipe if isinstance(recipe, str) else json.dumps(recipe))
    return folder / "01-sft"


def rounds(folder: Path) -> None:
    stage(folder, {"name": "x", "stages": [{"repeat": {"rounds": 10**9, "stages": [{"sft": {}}]}}]})


def aliases(folder: Path) -> None:
    place = stage(folder, f"name: x\nstages: [{{sft: }}]\ndefaults:\n  {ALIAS_BOMB.replace(chr(10), chr(10) + '  ')}")
    settings(place, ALIAS_BOMB)


def deep(folder: Path) -> None:
    settings(stage(folder, DEEP), DEEP)


def settings(place: Path, text: str) -> None:
    """A training run with these settings, and data that name it."""
    write(place / "a.jsonl", trajectory("a#0", ["look"], info={}))
    (place / "metrics.jsonl").write_text('{"step": 1, "loss": 1}\n')
    (place / "config.yaml").write_text(text)


def pipes(folder: Path) -> None:
    place = stage(folder, {"name": "x", "stages": [{"sft": {}}]})
    (folder / "recipe.yaml").unlink()
    os.mkfifo(folder / "recipe.yaml")
    for number in range(2, 4):
        (folder / f"0{number}-x").mkdir()
    for name in (
        "a.jsonl", "b.jsonl.zst", "c.parquet", "metrics.jsonl", "config.yaml", "results.json", "report.json",
        "rescored.json", "../02-x/stage.json", "../03-x/results.json",
    ):  # fmt: skip
        os.mkfifo(place / name)


def bombs(folder: Path) -> None:
    folder.mkdir()
    (folder / "a.jsonl.zst").write_bytes(zstd_bomb(33_000))  # 131 KB become 4.3 GB
    (folder / "lines.jsonl.zst").write_bytes(zstd_bomb(5, b"\n"))
    (folder / "tokens.jsonl").write_bytes(token_bomb(9_000))
    write_json(folder / "results.json", [[]] * 100)


def model(folder: Path, name: str, template: str) -> None:
    """Demonstrations by a model of the folder's own, with this chat template."""
    write(folder / name / "a.jsonl", trajectory("a#0", ["look"], info={}))
    (folder / name / "config.yaml").write_text(json.dumps({"model": f"{folder.name}/{name}/model"}))
    shutil.copytree(resolve("tiny"), folder / name / "model")
    (folder / name / "model/chat_template.jinja").write_text(template)


def templates(folder: Path) -> None:
    model(folder, "broken", "{% for")
    model(folder, "greedy", GREEDY)
    model(folder, WITHOUT_END, ENDLESS)  # asked for last: it is the end of the process that renders


def links(folder: Path) -> None:
    stage(folder, {"name": "x", "stages": [{"sft": {}}]})
    (folder / "recipe.yaml").unlink()
    for name in ("recipe.yaml", "a.jsonl", "01-sft/metrics.jsonl", "01-sft/config.yaml", "01-sft/report.json", "self"):
        (folder / name).symlink_to(Path(name).name)
    (folder / "up").symlink_to("..")
    (folder / "b.jsonl").symlink_to("c.jsonl")
    (folder / "c.jsonl").symlink_to("b.jsonl")


def numbers(folder: Path) -> None:
    """Numbers that no float holds, and a name that is no text."""
    outcome = {"task": "a", "digest": "d", "success": True, "turns": 10**400, "prompt_tokens": 10**400}
    found = {"bough": "evaluation/1", "environment": "x", "seed": 0, "models": [{"name": "m", "outcomes": [outcome]}]}
    write_json(folder / "01-eval/results.json", found)
    write_json(folder / "01-eval/stage.json", {"verb": "eval", "seconds": 10**400, "finished": 10**400})
    write_json(folder / "01-eval/report.json", {"x": 10**400})
    (folder / "recipe.yaml").write_text('name: x\nstages: [{eval: {name: "../../../x"}}]')
    (Path(os.fsdecode(bytes(folder))) / os.fsdecode(b"\xff.jsonl")).write_text("{}\n")


HOSTILE: dict[str, Callable[[Path], None]] = {
    one.__name__: one for one in (rounds, aliases, deep, pipes, bombs, templates, links, numbers)
}
