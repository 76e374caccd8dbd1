"""`bough evolve` on the command line, from flags and from recipes."""

import json
from pathlib import Path

import pytest

from bough.cli import main
from bough.commands import table
from bough.experiments.evolve_settings import EvolveConfig
from bough.experiments.recipe import load_recipe
from bough.experiments.record import StageRecord
from bough.experiments.run import Run
from tests.experiments.small import pairs_file

FLAGS = [
    *("--model", "tiny", "--train-file", "pairs.jsonl", "--test-size", "0.25", "--output-dir", "run"),
    *("--population-size", "2", "--generations", "1", "--steps", "1", "--mutate", "beta=0.05..0.5"),
    *("--set", "lora_r=2", "batch_size=2", "lora_target_modules=[q_proj]"),
]
RECIPE = """\
model: tiny
seed: 5
defaults: {max_turns: 3}
stages:
  - evolve:
      train_file: pairs.jsonl
      population: {size: 4, steps: 7}
      mutate: {beta: 0.1..1}
      set: {lora_r: 2, batch_size: 8}
  - eval: {eval_file: pairs.jsonl}
"""
SMALL = """\
model: tiny
stages:
  - evolve:
      train_file: pairs.jsonl
      population: {size: 2, steps: 1, generations: 1}
      mutate: {beta: 0.1..1}
      test_size: 0.25
      set: {lora_r: 2, batch_size: 2, lora_target_modules: [q_proj]}
  - eval: {eval_file: pairs.jsonl}
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pairs_file(tmp_path)
    (tmp_path / "breed.yaml").write_text(RECIPE)


def test_the_report_names_the_winner_and_both_measurements(capsys: pytest.CaptureFixture[str]):
    assert main(["evolve", *FLAGS]) == 0
    said = capsys.readouterr()
    assert "generation 0: 2 members, the fittest is" in said.err
    assert "when it was selected" in said.out and "on data that no member was selected on: shrinkage" in said.out
    assert "weights in run/final" in said.out
    assert main(["evolve", *FLAGS]) == 2 and "already contains a run" in capsys.readouterr().err
    assert main(["evolve", *FLAGS, "--resume", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["weights"] == "run/final" and report["generations"] == 1
    assert main(["runs", "list", "."]) == 0 and "evolve" in capsys.readouterr().out


def test_a_recipe_gives_the_settings_that_flags_change():
    config = EvolveConfig.load(None, {"recipe": "breed.yaml", "steps": "9", "set": ["batch_size=3"]})
    assert (config.model, config.seed, config.limits.max_turns) == ("tiny", 5, 3)
    assert (config.population.size, config.population.steps) == (4, 9)
    assert config.set == {"lora_r": 2, "batch_size": 3} and config.mutation.mutate == {"beta": {"min": 0.1, "max": 1.0}}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["demo"], "has no stage `evolve`"),
        (["breed.yaml", "--config", "breed.yaml"], "either a recipe or --config"),
        (["--mutate", "bta=1..2"], "bta is not a setting of dpo; did you mean beta?"),
        (["--train-file", "absent.jsonl"], "absent.jsonl"),
        (["--set", "num_epochs=3"], "num_epochs cannot be set for members"),
        (["--set", "loss_type=kto"], "loss_type kto cannot be evolved"),
        (["--halving", "--tournament-size", "3", "--mutate", "beta=1..2"], "halving selects by itself"),
        (["--halving", "--generations", "9", "--mutate", "beta=1..2"], "halving selects by itself"),
        (["--method", "sft", "--metric", "accuracy"], "accuracy is that of preferences"),
        (["--tournament-size", "9"], "tournament_size is 9, but the population has only 8 members"),
        (["--set", "beta=0.7", "--mutate", "beta=0.01..0.5"], "beta is set to 0.7, which is not in 0.01..0.5"),
        (["--set", "loss_type=simpo", "--mutate", "loss_type=ipo,hinge"], "is set to simpo, which is not one of ipo"),
    ],
)
def test_mistakes_are_named_before_anything_runs(words: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    given = [] if "--train-file" in words or words[0] in ("demo", "breed.yaml") else ["--train-file", "pairs.jsonl"]
    assert main(["evolve", *words, *given]) == 2
    assert said in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_stage_reads_the_newest_data_of_its_method(tmp_path: Path):
    stages = "model: tiny\nstages:\n  - collect: {environment: household}\n  - pairs:\n  - demos:\n"
    for method, source in (("dpo", "02-pairs/pairs.jsonl"), ("sft", "03-demos/demonstrations.jsonl")):
        (tmp_path / "r.yaml").write_text(f"{stages}  - evolve: {{method: {method}}}\n")
        *_, (stage, settings) = Run(load_recipe(tmp_path / "r.yaml", {}), tmp_path / "run").settings()
        assert stage.verb == "evolve" and settings["train_file"] == str(tmp_path / "run" / source)
    assert table.command("evolve").config is EvolveConfig


def test_a_stage_hands_its_winner_on(tmp_path: Path):
    (tmp_path / "small.yaml").write_text(SMALL)
    Run(load_recipe(tmp_path / "small.yaml", {}), tmp_path / "run").play(lambda _: None)
    evolved, measured = (StageRecord.read(tmp_path / "run" / name) for name in ("01-evolve", "02-eval"))
    assert evolved is not None and measured is not None and evolved.finished and measured.finished
    assert measured.inputs["model"] == evolved.outputs["model"] and measured.goes_on_with == "01-evolve/final"
    folder = tmp_path / "run" / "01-evolve"
    winner = json.loads((folder / "report.json").read_text())["winner"]["name"]
    trained, handed_on = (
        (folder / name / "adapter_model.safetensors").read_bytes()
        for name in (f"checkpoints/generation-00000-trained/{winner}", "final")
    )
    assert trained == handed_on
