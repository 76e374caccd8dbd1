import asyncio
import json
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import bough
from bough.cli import main
from bough.config.groups import LimitsConfig
from bough.data.reader import read
from bough.data.writer import Writer
from bough.rollouts.collect import LocalRunner, attempts, collect
from bough.rollouts.episode import ExpertAgent
from bough.types import Group, Pair, Task, Trajectory
from tests.commands.letters import WriteLetter, length
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
        (["pairs", "nowhere", "-o", "x.jsonl", "--shares", "loop"], "must be written as key=value"),
        (["groups", "nowhere", "-o", "x.jsonl", "--rewards", "outcome=much"], "its weight must be a number"),
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


@pytest.fixture(scope="module")
def played() -> list[bough.Trajectory]:
    return bough.collect("tiny", WriteLetter, tasks=8, attempts=4, max_new_tokens=6)


def test_pairs_set_a_success_against_a_failure_at_the_same_task(played: list[bough.Trajectory]):
    by_id = {one.id: one for one in played}
    found = bough.pairs(played)
    assert found and "pairs" in repr(found) and found.report["reasons"] == {"success_over_failure": len(found)}
    for pair in found:
        sources = [by_id[str(pair.info[side]["trajectory"])] for side in ("chosen", "rejected")]  # type: ignore[index]
        assert [one.success for one in sources] == [True, False] and sources[0].task == sources[1].task


def test_the_same_from_memory_and_from_the_folder_inside_a_running_loop(tmp_path: Path):
    async def notebook() -> tuple[list[bough.Pair], list[bough.Pair]]:
        kept = bough.collect("tiny", WriteLetter, tasks=4, attempts=4, max_new_tokens=6, output=tmp_path / "x")
        return bough.pairs(kept), bough.pairs(tmp_path / "x" / "trajectories.jsonl")

    memory, disk = asyncio.run(notebook())
    assert [pair.chosen for pair in memory] == [pair.chosen for pair in disk]


def test_demonstrations_are_the_successes(played: list[bough.Trajectory], tmp_path: Path):
    expert = bough.collect("expert", WriteLetter, tasks=2)
    found = bough.demos(played, also=expert, dedupe="none", output=tmp_path / "demos.jsonl")
    assert {one.id for one in found} == {one.id for one in [*played, *expert] if one.success}
    assert list(bough.read(tmp_path / "demos.jsonl")) == list(found) and found.path == tmp_path / "demos.jsonl"
    with pytest.raises(bough.InputError, match="exists"):
        bough.demos(played, output=tmp_path / "demos.jsonl")


def test_groups_hold_the_attempts_at_one_task_with_the_rewards_asked_for(played: list[bough.Trajectory]):
    found = bough.groups(played, rewards=[length], flat=True)
    assert len(found) == 8 and all(len(group.attempts) == 4 for group in found)
    assert all(one.rewards["total"] == length(one) for group in found for one in group.attempts)
    assert found.report["rewards"]["length"] == pytest.approx(sum(map(length, played)) / 32)


def test_nothing_found_is_an_empty_list_that_says_why():
    alone = bough.collect("expert", WriteLetter, tasks=2)
    found = bough.pairs(alone)
    assert found == [] and "only_successes" in repr(found)


def test_corrections_by_the_expert_are_trained_on(played: list[bough.Trajectory], tmp_path: Path):
    expert = bough.collect("expert", WriteLetter, tasks=2)
    found = bough.corrections(played, environment=WriteLetter, mix=expert, output=tmp_path / "corrections.jsonl")
    assert list(bough.read(tmp_path / "corrections.jsonl")) == list(found)
    own, added = found[: -len(expert)], found[-len(expert) :]
    assert list(added) == list(expert)
    for record in own:
        assert record.turns[0].correction is not None
        assert record.turns[0].correction.content == record.task.data["letter"]
    trained = bough.sft("tiny", own, max_steps=1, batch_size=2, max_length=256)
    assert trained.report["tokens_trained"] == 2 * 2  # the letter and the end of the turn


def test_a_loaded_model_labels_with_its_own_weights(played: list[bough.Trajectory]):
    teacher = bough.load("tiny")
    found = bough.corrections(played[:2], by=teacher, environment=WriteLetter, where="everywhere", max_new_tokens=2)
    assert found.report["labels"]["same action"] + found.report["labels"]["other action"] <= 2
