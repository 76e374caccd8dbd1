import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bough.errors import InputError
from bough.experiments.sweep import Sweep
from bough.files import locked, remove
from tests.experiments.counting import RECIPE, configured
from tests.standing_in import stand_in

TURNS = "after.max_turns=2,4"


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sweep, list[str]]:
    """A sweep of two values and two seeds, and what it said."""
    lines: list[str] = []
    sweep = configured(tmp_path_factory.mktemp("played"), TURNS)
    sweep.play(lines.append)
    return sweep, lines


def test_every_combination_is_evaluated_with_every_seed(played: tuple[Sweep, list[str]]):
    rows = played[0].rows()
    assert [(row.values, row.evaluation) for row in rows] == [
        ({}, "01-before"),
        ({"after.max_turns": 2}, "04-after"),
        ({"after.max_turns": 4}, "04-after"),
    ]
    assert [row.rates for row in rows] == [{0: 0.0, 1: 0.0}, {0: 1 / 3, 1: 1 / 3}, {0: 1.0, 1: 1.0}]
    assert [row.success.mean for row in rows] == [0.0, pytest.approx(1 / 3), 1.0]
    assert [row.success.episodes for row in rows] == [12, 12, 12]


def test_a_stage_with_the_same_settings_inputs_and_seed_is_computed_once(played: tuple[Sweep, list[str]]):
    sweep, lines = played
    computed = [line.strip() for line in lines if line.strip() in ("01-before", "02-played", "03-demos", "04-after")]
    assert sorted(computed) == ["01-before"] * 2 + ["02-played"] * 2 + ["03-demos"] * 2 + ["04-after"] * 4
    assert "  03-demos: the same as after.max_turns-2-seed-1/03-demos" in lines
    one, other = (sweep.folder / f"runs/after.max_turns-{n}-seed-1/02-played/trajectories.jsonl" for n in (2, 4))
    assert one.samefile(other), "linked, not copied"
    planned = [[source is None for _, source in stages] for _, stages in sweep.plan()]
    assert planned == [[True] * 4, [True] * 4, [False, False, False, True], [False, False, False, True]]


def test_seeds_are_added_to_every_seed_of_the_recipe(played: tuple[Sweep, list[str]]):
    for seed, name in ((0, "after.max_turns-2-seed-0"), (1, "after.max_turns-2-seed-1")):
        folder = played[0].folder / "runs" / name
        assert f"\nseed: {5 + seed * 100_003}\n" in (folder / "02-played/config.yaml").read_text()
        assert json.loads((folder / "04-after/results.json").read_text())["seed"] == seed * 100_003


def test_the_folder_has_the_table_and_the_figure(played: tuple[Sweep, list[str]]):
    folder = played[0].folder
    content = json.loads((folder / "results.json").read_text())
    assert content["rows"][1]["values"] == {"after.max_turns": 2} and content["failed"] == {}
    assert "| 2 | 04-after | 33.3% | " in (folder / "results.md").read_text()
    table = list(csv.DictReader((folder / "results.csv").open()))
    assert [(row["after.max_turns"], row["rates"]) for row in table][1:] == [("2", "0.333333 0.333333"), ("4", "1 1")]
    assert "04-after: success" in (ElementTree.parse(folder / "figure.svg").getroot()[0].text or "")


def interrupted_at(number: int) -> Callable[[str], None]:
    """A listener that interrupts the sweep when it says its line `number`."""
    said: list[str] = []

    def notify(line: str) -> None:
        said.append(line)
        if len(said) == number:
            raise KeyboardInterrupt

    return notify


def test_a_sweep_that_is_stopped_again_and_again_ends_with_the_same_numbers(
    played: tuple[Sweep, list[str]], tmp_path: Path
):
    for number in (3, 6, 11):  # before a stage, after a run, between two runs that share
        with pytest.raises(KeyboardInterrupt):
            configured(tmp_path, TURNS).play(interrupted_at(number))
    lines: list[str] = []
    sweep = configured(tmp_path, TURNS)
    sweep.play(lines.append)
    assert "  01-before: already done" in lines
    for name in ("results.csv", "results.md", "figure.svg"):
        assert (sweep.folder / name).read_text() == (played[0].folder / name).read_text()
    again: list[str] = []
    configured(tmp_path, TURNS).play(again.append)
    assert not any(line.strip() == "04-after" for line in again), "nothing is computed twice"


def test_values_can_be_added_later(tmp_path: Path):
    configured(tmp_path, "after.max_turns=2", seeds=1).play(lambda _: None)
    lines: list[str] = []
    rows = configured(tmp_path, "after.max_turns=3,2", seeds=1).play(lines.append)
    assert [line.strip() for line in lines].count("04-after") == 1
    assert [row.success.mean for row in rows if row.values] == [pytest.approx(2 / 3), pytest.approx(1 / 3)]


def test_a_failed_run_is_reported_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from bough.commands.evaluate import evaluate_command

    def fails(config: Any) -> int:
        if config.limits.max_turns == 2 and config.seed == 100_003:
            raise ZeroDivisionError("by design")
        return evaluate_command(config)

    stand_in(monkeypatch, "eval", fails)
    sweep = configured(tmp_path, TURNS)
    lines: list[str] = []
    rows = sweep.play(lines.append)
    assert sweep.failed == {"after.max_turns-2-seed-1": "ZeroDivisionError: by design"}
    assert [row.rates for row in rows if row.values] == [{0: 1 / 3}, {0: 1.0, 1: 1.0}]
    assert any("failed: ZeroDivisionError: by design; 2 of 4 runs done" in line for line in lines)
    assert "33.3 (1 of 2 missing)" in (sweep.folder / "results.md").read_text()
    stand_in(monkeypatch, "eval", evaluate_command)
    again = configured(tmp_path, TURNS)
    assert [row.rates for row in again.play(lines.append)][1] == {0: 1 / 3, 1: 1 / 3} and again.failed == {}


def test_a_failed_run_does_not_report_what_other_settings_gave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from bough.commands.collect import collect_command

    configured(tmp_path, TURNS).play(lambda _: None)

    def fails(config: Any) -> int:
        if config.seed == 5 + 100_003:  # the second seed
            raise ZeroDivisionError("by design")
        return collect_command(config)

    stand_in(monkeypatch, "collect", fails)
    harder = RECIPE.replace("tasks: 2, ", "tasks: 3, ").replace("name: after, tasks: 6", "name: after, tasks: 3")
    sweep = configured(tmp_path, TURNS, recipe=harder)
    rows = sweep.play(lambda _: None)
    assert sorted(sweep.failed) == ["after.max_turns-2-seed-1", "after.max_turns-4-seed-1"]
    assert [row.rates for row in rows] == [{0: 0.0}, {0: 1 / 3}, {0: 1.0}]
    assert [row.success.episodes for row in rows] == [6, 3, 3]


@pytest.mark.parametrize(
    ("vary", "problem"),
    [
        ("after.max_turn=1,2", "stages[3].eval: max_turn is not a setting; did you mean max_turns?"),
        ("after.max_turns=1,x", "stages[3].eval: max_turns is 'x'; it must be a whole number"),
        ("afer.max_turns=1,2", "there is no stage 'afer'; did you mean after?"),
        ("defaults.max_turn=1,2", "defaults.max_turn: no stage has such a setting; did you mean max_turns?"),
        ("after.max_turns=2,2.0", "after.max_turns has the value 2.0 twice"),
        ("demos.longest=2,3", "no evaluation depends on demos.longest=3: it gives the same numbers as demos.longest=2"),
        ("after.seed=1,2", "after.seed: seeds are varied with --seeds N"),
        ("max_turns=1,2", "only model, defaults.SETTING and STAGE.SETTING can be varied"),
        ("after.stop_width=null,0.2", "remove it, or --set after.stop_width=null"),
    ],
)
def test_what_cannot_be_varied_is_said_before_anything_runs(tmp_path: Path, vary: str, problem: str):
    with pytest.raises(InputError) as error:
        configured(tmp_path, vary)
    assert problem in str(error.value)
    assert not (tmp_path / "sweep").exists()


def test_a_recipe_needs_an_evaluation_of_its_own_model(tmp_path: Path):
    recipe = "name: r\nmodel: tiny\nstages:\n  - collect: {tasks: 2}\n  - eval: {model: expert, tasks: 2}\n"
    with pytest.raises(InputError, match=r"the recipe r does not evaluate its model in an environment.* `- eval"):
        configured(tmp_path, "collect.tasks=1,2", recipe=recipe)


def test_a_sweep_that_was_killed_while_it_wrote_its_first_files_starts(tmp_path: Path):
    sweep = configured(tmp_path, "after.max_turns=2", seeds=1)
    sweep.folder.mkdir()
    (sweep.folder / ".sweep.json.123.json").touch()
    with pytest.raises(KeyboardInterrupt):
        sweep.play(interrupted_at(1))
    sweep.runs[0].folder.mkdir(parents=True)
    (sweep.runs[0].folder / ".recipe.yaml.123.yaml").touch()
    sweep.play(lambda _: None)
    assert sweep.failed == {}


def test_a_folder_belongs_to_one_recipe_and_one_process(tmp_path: Path):
    sweep = configured(tmp_path, TURNS)
    sweep.folder.mkdir()
    with (
        locked(sweep.folder / ".lock", wait=False),
        pytest.raises(InputError, match="is in use by another `bough sweep`"),
    ):
        sweep.play(lambda _: None)
    (sweep.folder / "sweep.json").write_text('{"recipe": "counting"}')
    other = configured(tmp_path, TURNS, recipe=RECIPE.replace("name: counting", "name: other"))
    with pytest.raises(InputError, match="contains a sweep of another recipe than other"):
        other.play(lambda _: None)
    (sweep.folder / "sweep.json").rename(sweep.folder / "mine.json")
    with pytest.raises(InputError, match="contains other files"):
        sweep.play(lambda _: None)


def test_jobs_and_a_cluster_are_not_given_together(tmp_path: Path):
    with pytest.raises(InputError, match="jobs is the number of runs on this machine; with cluster use workers"):
        configured(tmp_path, "after.max_turns=2,4", jobs=2, cluster="auto")


@pytest.mark.parametrize("name", ["logs", "stages", "runs", "run"])
def test_a_link_in_the_folder_of_a_sweep_is_refused(tmp_path: Path, name: str):
    sweep = configured(tmp_path, TURNS, seeds=1)
    sweep.play(lambda _: None)
    (tmp_path / "other").mkdir()
    path = sweep.runs[0].folder if name == "run" else sweep.folder / name
    remove(path)
    path.symlink_to(tmp_path / "other")
    with pytest.raises(InputError, match=rf"{path.name} is a symbolic link.*--follow-links"):
        sweep.play(lambda _: None)
    assert list((tmp_path / "other").iterdir()) == []
