"""The study of `bough evolve`: its arms use as many tokens, and its table says by how much they differ."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks import evolve_study
from benchmarks.evolve_study import ARMS, WORLDS, Study, arm_config
from benchmarks.evolve_study_budget import Budget, Demonstrated
from benchmarks.evolve_study_jobs import Job, run_jobs
from benchmarks.evolve_study_table import Arm, table

from bough.evaluation.results import ModelResult, Outcome
from bough.training.method import Example
from bough.types import Call

WORLD = replace(WORLDS["household"], members=8, generations=5, steps=4)
# 8 members, 5 generations: 4 updates of 100 tokens and a measurement of 50 each.
BUDGET = Budget.of(WORLD, update=100, measure=50)


@pytest.mark.parametrize(
    ("arm", "steps"),
    [
        ("fixed", 180),  # (18,000 - 50) / 100
        ("random", 22),  # (18,000 - 8 · 50) / 800
        ("halving", 7),  # 8, 4 and 2 members: (18,000 - 14 · 50) / (8 · 1 + 4 · 2 + 2 · 4) / 100
    ],
)
def test_every_arm_uses_up_the_budget(arm: str, steps: int):
    assert BUDGET.tokens == 18_000
    assert BUDGET.steps(WORLD, arm) == steps


def test_what_an_update_costs_follows_from_the_demonstrations():
    """Two episodes with the same first prompt of 4 tokens: 3 + 2 answered tokens, and 5 that came between."""
    first = Call(prompt_ids=[1, 2, 3, 4], completion_ids=[5, 6, 7])
    then = Call(prompt_ids=[*first.prompt_ids, *first.completion_ids, *range(20, 25)], completion_ids=[8, 9])
    other = Call(prompt_ids=[1, 2, 3, 4], completion_ids=[30, 31, 32, 33, 34])
    shown = Demonstrated([Example(calls=[first, then]), Example(calls=[other])])
    assert shown.answered == 5
    # The last token of an answer is predicted and not read.
    assert shown.of_batch(1) == ((4 + 3 + 5 + 1) + (4 + 4)) / 2
    assert shown.of_batch(2) == 4 + (3 + 5 + 1) + 4
    assert shown.of_group(8) == 8 * (5 + shown.of_batch(1) - 4) + 4


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("arm", ARMS)
def test_the_settings_of_every_arm_are_valid(name: str, arm: str, tmp_path: Path):
    world = WORLDS[name]
    data: dict[str, Any] = {"model": "tiny"} | ({"train_file": "demos.jsonl"} if world.method == "sft" else {})
    config = arm_config(arm, world, 1, BUDGET, tmp_path, **data)
    assert config.population.size == (1 if arm == "fixed" else world.members)
    assert config.population.halving == (arm == "halving") and not config.resume
    if arm != "halving":
        assert config.population.generations == (world.generations if arm == "evolve" else 1)


def arm(name: str, seed: int, wins: int) -> Arm:
    outcomes = [Outcome(task=f"{seed}-{n}", attempt=0, success=n < wins, digest=f"{n}") for n in range(10)]
    facts = {"arm": name, "seed": seed, "tokens": 100 if name == "evolve" else 90, "updates": 7, "shrinkage": 0.25}
    return Arm(facts, ModelResult(name=name, outcomes=outcomes))


def test_the_table_compares_every_arm_with_evolve_on_the_same_seeds():
    found = [arm("evolve", 0, 8), arm("evolve", 1, 6), arm("fixed", 0, 5)]
    first, second = (line.split(" | ") for line in table(found).splitlines()[2:4])
    assert first[0] == "| evolve" and first[1].startswith("70.0% (") and first[2] == "80.0 60.0"
    assert first[3:5] == ["", ""] and first[5:7] == ["200", "1.00"]
    assert second[1].startswith("50.0% (") and second[3].startswith("-30.0 (") and second[5:7] == ["90", "0.90"]
    assert table([]) == "No arm has finished."


def job(name: str, code: str, folder: Path) -> Job:
    return Job(name, ["-c", code], folder / f"{name}.txt")


def test_jobs_run_side_by_side_and_a_failure_stops_no_other(tmp_path: Path):
    """Each of the first two waits for the other, so they end only if both run."""
    wait = "import pathlib, sys, time\npathlib.Path(sys.argv[1]).touch()\n"
    wait += "while not pathlib.Path(sys.argv[2]).exists(): time.sleep(0.01)"
    first, second = job("first", wait, tmp_path), job("second", wait, tmp_path)
    first.words += [str(tmp_path / "a"), str(tmp_path / "b")]
    second.words += [str(tmp_path / "b"), str(tmp_path / "a")]
    third = job("third", "print('what went wrong'); raise SystemExit(2)", tmp_path)
    ended: dict[str, int] = {}
    run_jobs([first, third, second], ["-S"], 2, lambda one, code: ended.update({one.name: code}))
    assert ended == {"first": 0, "second": 0, "third": 2}
    assert "what went wrong" in third.log.read_text()


def test_an_interrupt_stops_what_runs(tmp_path: Path):
    def interrupt(_one: Job, _code: int) -> None:
        raise KeyboardInterrupt

    endless = job("endless", "import time\nwhile True: time.sleep(1)", tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_jobs([endless, job("short", "pass", tmp_path)], ["-S"], 2, interrupt)
    assert endless.process is not None and endless.process.returncode not in (None, 0)


def test_only_what_is_missing_is_made_first_and_then_an_arm_runs_on_all_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rounds: list[list[list[str]]] = []
    monkeypatch.setattr(evolve_study, "run_jobs", lambda jobs, *_: rounds.append([one.words for one in jobs]))
    study = Study("household", WORLD, tmp_path)
    ready = tmp_path / "seed-1" / "start" / "demonstrations.jsonl"
    ready.parent.mkdir(parents=True)
    ready.touch()
    study.run_side_by_side([0, 1], ["evolve", "fixed"], 4, ["-m", "study"], gpu_share=0.5)
    starts, arms = ([words[words.index("--seeds") + 1 :] for words in one] for one in rounds)
    assert starts == [["0", "--arms"]]
    assert [f"{words[0]} {words[2]}" for words in arms] == ["0 evolve", "1 evolve", "0 fixed", "1 fixed"]
    assert all(words[words.index("--gpu-share") + 1] == "0.1250" for one in rounds for words in one)
