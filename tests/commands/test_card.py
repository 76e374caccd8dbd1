"""The card of a real run: a recipe on the tiny model, and the code of its card run as a reader would."""

import re
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from bough.cli import main
from bough.experiments.recipe import load_recipe
from bough.experiments.run import Run
from bough.models.resolve import resolve

RECIPE = """\
about: Counts.
model: tiny
defaults: {max_new_tokens: 4, max_turns: 4}
stages:
  - collect: {name: expert, model: expert, tasks: 3}
  - demos:
  - sft: {max_steps: 1, max_length: 256}
  - eval: {model: [random, runs/03-sft/final], tasks: 4}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("card")
    (place / "count.yaml").write_text(RECIPE.replace("runs/", f"{place}/run/"))
    play(place)
    return place


def play(place: Path) -> list[str]:
    said: list[str] = []
    changes = {"defaults.environment": "tests.environments.worlds:Counting"}
    Run(load_recipe(place / "count.yaml", changes), place / "run").play(said.append)
    return said


def card(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["card", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_run_gets_its_card_beside_the_weights(folder: Path, capsys: pytest.CaptureFixture[str]):
    code, out, err = card(capsys, folder / "run", "--overwrite", "--license", "mit")
    path = folder / "run/03-sft/final/README.md"
    assert code == 0 and out == f"card written to {path}\n"
    assert "note: no licence" not in err and "--base-model org/name" in err and "--repo org/name" in err
    loaded = ModelCard.load(path)
    assert loaded.data.license == "mit" and loaded.data.base_model is None
    assert [result.metric_type for result in loaded.data.eval_results] == ["success_rate", "mean_reward"]
    for words in (
        "Counts.",
        "data: demonstrations.jsonl, 3 rows",
        "| 03-sft | trajectories | 3 | 3 | 0 |",
        "| **this adapter** |",
    ):
        assert words in loaded.text, words
    assert str(folder) not in loaded.content


def test_the_code_of_the_card_runs(folder: Path, capsys: pytest.CaptureFixture[str]):
    file = folder / "elsewhere/card.md"
    assert card(capsys, folder / "run/03-sft", "--repo", "org/name", "-o", file)[0] == 0
    [block] = re.findall(r"```python\n(.*?)```", file.read_text(), flags=re.DOTALL)
    base, adapter = resolve("tiny"), folder / "run/03-sft/final"
    code = block.replace('"path/to/base"', repr(str(base))).replace('"org/name"', repr(str(adapter)))
    assert code.count(str(adapter)) == 1 and code.count(str(base)) == 1
    names: dict[str, Any] = {}
    exec(compile(code, "card.md", "exec"), names)
    assert names["messages"][0] == {"role": "system", "content": "Count."}
    assert names["messages"][1]["content"].endswith("Begin with 1.")
    made = names["reply"].shape[1] - names["prompt"]["input_ids"].shape[1]
    assert 1 <= made <= 4, "as many tokens as the evaluation gave it"
    assert type(names["model"]).__name__.startswith("Peft")
    shown = names["tokenizer"].decode(names["reply"][0, -made:], skip_special_tokens=True)
    assert capsys.readouterr().out == f"{shown}\n"


def test_a_card_does_not_make_the_weights_others(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert card(capsys, folder / "run", "--overwrite")[0] == 0
    assert [line.partition(": ")[2] for line in play(folder)] == ["already done"] * 4


def test_a_card_that_is_there_stays_unless_it_may_go(folder: Path, capsys: pytest.CaptureFixture[str]):
    file = folder / "mine.md"
    file.write_text("mine")
    code, _, err = card(capsys, folder / "run", "-o", file)
    assert code == 2 and "exists; give --overwrite to replace it" in err and file.read_text() == "mine"
    assert card(capsys, folder / "run", "-o", file, "--overwrite")[0] == 0
    assert "library_name: peft" in file.read_text()
    code, _, err = card(capsys, folder / "run", "-o", folder)
    assert code == 2 and "is a folder" in err
    code, _, err = card(capsys, folder / "run", "-o", file / "card.md")
    assert code == 2 and "cannot be written" in err


def test_a_push_lists_what_would_go(folder: Path, capsys: pytest.CaptureFixture[str]):
    card(capsys, folder / "run", "--overwrite")
    words = ["push", str(folder / "run"), "--repo", "org/name", "--dry-run", "--private"]
    assert main(words) == 2
    assert "--base-model org/name" in capsys.readouterr().err
    assert main([*words, "--base-model", "org/base"]) == 0
    captured = capsys.readouterr()
    assert "adapter_config.json (the base model by its name on the Hub)" in captured.out
    assert "would be uploaded to org/name as a private repository; nothing was uploaded" in captured.out
    assert "the card does not mention org/name" in captured.err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["card"], "RUN is required"),
        (["card", "none"], "none: there is no such folder"),
        (["card", "none", "--repo", "name"], "--repo is 'name'; a name on the Hub is written org/name"),
        (["card", "none", "--base-model", "a/b/c"], "a name on the Hub is written org/name"),
        (["card", "none", "--license", "MIT License"], "a license is one of the Hub's identifiers"),
        (["card", "none", "--language", "english"], "a language is an ISO 639 code"),
        (["card", "none", "--datasets", "org/a", "b"], "a name on the Hub is written org/name"),
        (["push", "none"], "--repo is required"),
        (["push", "none", "--repo", "a--b/c"], "a name on the Hub is written org/name"),
        (["push", "none", "--repo", "org/name"], "none: there is no such folder"),
    ],
)
def test_bad_input_is_named(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]):
    assert main(words) == 2
    assert complaint in capsys.readouterr().err


def test_results_that_are_none_are_named(folder: Path, capsys: pytest.CaptureFixture[str]):
    code, _, err = card(capsys, folder / "run", "--evaluations", folder / "count.yaml", "--overwrite")
    assert code == 2 and "count.yaml: cannot be read as JSON" in err
