import asyncio
import json
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from bough.cli import main
from bough.config.groups import LimitsConfig
from bough.data.reader import read
from bough.data.writer import Writer
from bough.rollouts.agents import ExpertAgent
from bough.rollouts.collect import collect
from bough.rollouts.runner import LocalRunner, attempts
from bough.types import Group, Pair, Task, Trajectory
from tests.curation.players import NoisyExpert
from tests.environments.worlds import Counting

COUNTING = "tests.environments.worlds:Counting"

EXAMPLES = Path(__file__).parents[2] / "examples"


def short_reward(trajectory: Trajectory) -> float:
    return 1.0 / len(trajectory.turns)


def hanging_reward(trajectory: Trajectory) -> float:
    time.sleep(60)
    return 1.0


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `bough collect` leaves it: five tasks, six attempts each, about half of them successes."""
    folder = tmp_path_factory.mktemp("collect")
    tasks: list[Task] = list(islice(Counting.tasks(None), 5))
    wanted = [*attempts(tasks, 6, 0)]
    with Writer(folder / "trajectories.jsonl") as writer:
        limits = LimitsConfig(max_turns=5, max_errors=0, max_repeats=0)
        asyncio.run(collect(LocalRunner.of(Counting, NoisyExpert(0.6), limits), wanted, lambda t, _: writer.write(t)))
    (folder / "config.yaml").write_text("environment: counting\n")
    (folder / "report.json").write_text("{}")
    return folder


def write_experts(file: Path, tasks: list[Task]) -> None:
    wanted = attempts(tasks, 1, 0)
    with Writer(file) as writer:
        asyncio.run(
            collect(
                LocalRunner.of(Counting, ExpertAgent(), LimitsConfig()), wanted, lambda played, _: writer.write(played)
            )
        )


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_demos_keeps_the_shortest_successes(collection: Path, tmp_path: Path, capsys: Any):
    output = tmp_path / "demos.jsonl"
    code, out, err = run(capsys, "demos", collection, "-o", output, "--per-task", "1")
    assert code == 0, err
    found = [record for record in read(output) if isinstance(record, Trajectory)]
    every = [record for record in read(collection / "trajectories.jsonl") if isinstance(record, Trajectory)]
    for task in {t.task.id for t in every if t.success}:
        [kept] = [t for t in found if t.task.id == task]
        assert len(kept.turns) == min(len(t.turns) for t in every if t.task.id == task and t.success)
    ledger = json.loads((tmp_path / "demos.ledger.json").read_text())
    [numbers] = ledger["ledgers"]
    assert numbers["in"] == 30 == numbers["kept"] + sum(numbers["dropped"].values()) and numbers["kept"] == len(found)
    assert "30 trajectories in" in out and str(output) in out and ledger["sources"] == [str(collection)]


def test_groups_are_scored_by_a_rubric_with_a_function_of_ones_own(collection: Path, tmp_path: Path, capsys: Any):
    output = tmp_path / "groups.jsonl.zst"
    rewards = ["outcome=1", f"{__name__}:short_reward=0.5", "overlong=0"]
    code, out, err = run(capsys, "groups", collection, "-o", output, "--rewards", *rewards)
    assert code == 0 and "30 of 30 have no reward overlong" in err
    found = [record for record in read(output) if isinstance(record, Group)]
    assert 0 < len(found) <= 5 and all(len(group.attempts) == 6 for group in found)
    for attempt in found[0].attempts:
        value = attempt.rewards
        assert value["overlong"] is None
        assert value["total"] == pytest.approx(float(bool(attempt.success)) + 0.5 / len(attempt.turns))
    report = json.loads((tmp_path / "groups.ledger.json").read_text())
    assert set(report["rewards"]) == {"outcome", "short_reward", "overlong", "total"} and "rewards: outcome" in out
    assert report["not_scored"]["overlong"]["failed"] == 30


def test_pairs_of_every_kind_come_from_one_collection_and_again_the_same(collection: Path, tmp_path: Path, capsys: Any):
    output = tmp_path / "a" / "new" / "pairs.jsonl"
    words = [
        "pairs", collection, "--environment", COUNTING, "--kinds", "episode", "parting", "failure_mode", "right_step",
        "--shares", "invalid_action=0.4", "--caps", "parting=3",
    ]  # fmt: skip
    for path in (output, tmp_path / "again.jsonl"):
        code, _, err = run(capsys, *words, "-o", path)
        assert code == 0, err
    assert output.read_bytes() == (tmp_path / "again.jsonl").read_bytes()
    found = [record for record in read(output) if isinstance(record, Pair)]
    report = json.loads((output.parent / "pairs.ledger.json").read_text())
    reasons = report["reasons"]
    assert {"success_over_failure", "parting", "invalid_action", "right_step"} <= set(reasons)
    assert reasons["parting"] <= 3 and reasons["invalid_action"] <= 0.4 * len(found)
    assert sum(reasons.values()) == len(found)
    names = [ledger["item"] for ledger in report["ledgers"]]
    assert names[0] == "trajectories" and names[-1] == "pairs" and len(names) == 7
    assert all("history" in p.info or "chosen" in p.info for p in found)


def test_an_experts_episodes_can_be_added(collection: Path, tmp_path: Path, capsys: Any):
    tasks = list(islice(Counting.tasks(None), 5))
    expert = tmp_path / "expert.jsonl"
    write_experts(expert, tasks)
    output = tmp_path / "pairs.jsonl"
    words = ["pairs", collection, "--also", expert, "-o", output, "--match", "shortest_success"]
    assert run(capsys, *words)[0] == 0
    every = read(collection / "trajectories.jsonl")
    failed = {record.task.id for record in every if isinstance(record, Trajectory) and not record.success}
    assert {pair.task.id for pair in read(output)} == failed != set()
    sources = json.loads((tmp_path / "pairs.ledger.json").read_text())["sources"]
    assert sources == [str(collection), str(expert)]


def renamed(source: Path, target: Path, environment: str) -> Path:
    with Writer(target) as writer:
        for record in read(source):
            writer.write(
                record.model_copy(update={"task": record.task.model_copy(update={"environment": environment})})
            )
    return target


def test_a_record_cannot_make_pairs_run_a_file(collection: Path, tmp_path: Path, capsys: Any):
    evil, ran = tmp_path / "evil.py", tmp_path / "ran"
    evil.write_text(f"open({str(ran)!r}, 'w')\nfrom tests.environments.worlds import Counting as X\n")
    data = renamed(collection / "trajectories.jsonl", tmp_path / "data.jsonl", f"{evil}:X")
    for kind in ("failure_mode", "right_step"):
        words = ["pairs", data, "-o", tmp_path / "pairs.jsonl", "--kinds", kind]
        code, _, err = run(capsys, *words)
        assert code == 2 and "data.jsonl:" in err and f"give --environment {evil}:X" in err
        assert not ran.exists()
    assert run(capsys, "pairs", data, "-o", tmp_path / "pairs.jsonl", "--kinds", "episode", "parting")[0] == 0
    assert not ran.exists()
    words = ["pairs", data, "-o", tmp_path / "pairs.jsonl", "--overwrite", "--kinds", "failure_mode"]
    code, _, err = run(capsys, *words, "--environment", f"{evil}:X")
    assert code == 0 and ran.exists(), err


def test_a_world_that_is_not_installed_stops_only_what_needs_it(collection: Path, tmp_path: Path, capsys: Any):
    moved = renamed(collection / "trajectories.jsonl", tmp_path / "moved.jsonl", "gone")
    assert run(capsys, "pairs", moved, "-o", tmp_path / "pairs.jsonl", "--kinds", "failure_mode")[0] == 0
    code, _, err = run(capsys, "corrections", moved, "-o", tmp_path / "corrections.jsonl")
    assert code == 2 and "there is no environment 'gone'" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["demos", "nowhere", "-o", "x.jsonl"], "nowhere: there is no such file or folder"),
        (["demos", str(EXAMPLES / "household.jsonl"), "-o", "x.json"], "must end in .jsonl"),
        (["pairs", "nowhere", "-o", "x.jsonl", "--caps", "loop=-3"], "caps"),
        (["pairs", "nowhere", "-o", "x.jsonl", "--shares", "loop"], "must be written as reason=number"),
        (["groups", "nowhere", "-o", "x.jsonl", "--rewards", "outcome=much"], "it must be a number"),
    ],
)
def test_bad_input_is_named(words: list[str], said: str, capsys: Any):
    code, _, err = run(capsys, *words)
    assert code == 2 and said in err


def test_nothing_found_is_said_with_its_reasons_and_nothing_is_written(tmp_path: Path, capsys: Any):
    file = tmp_path / "successes.jsonl"
    write_experts(file, list(islice(Counting.tasks(None), 2)))
    code, _, err = run(capsys, "pairs", file, "-o", tmp_path / "pairs.jsonl")
    assert code == 2 and "2 only_successes" in err and [path.name for path in tmp_path.iterdir()] == ["successes.jsonl"]


@pytest.mark.parametrize("command", ["groups", "demos"])
def test_a_reward_that_hangs_ends_the_command_and_leaves_no_file(
    command: str, collection: Path, tmp_path: Path, capsys: Any
):
    output = tmp_path / "out.jsonl"
    words = ["--rewards", f"{__name__}:hanging_reward=1", "--reward-timeout-s", "0.2"]
    code, _, err = run(capsys, command, collection, "-o", output, *words)
    assert code == 1 and "the reward hanging_reward took longer than 0.2 s (" in err and "test_curation.py:" in err
    assert not output.exists() and (collection / "trajectories.jsonl").exists()
