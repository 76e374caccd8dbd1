import asyncio
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from bough.config.groups import LimitsConfig
from bough.data.reader import read
from bough.data.writer import Writer
from bough.environments.base import EnvironmentFailedError
from bough.errors import BoughError, InputError
from bough.methods.grpo import GRPOConfig, train_grpo
from bough.online.player import Resets
from bough.rollouts.episode import Replayed, play
from bough.types import Group, Message, Task, Trajectory
from tests.online.letters import Far
from tests.rollouts.players import Script

TASK = Task(id="t", data={"number": 7})
LIMITS = LimitsConfig(max_repeats=0)


def played(*replies: str, replayed: Replayed | None = None) -> Trajectory:
    script = Script(list(replies))
    return asyncio.run(play(Far, TASK, script, id="t#0", seed=0, limits=LIMITS, replayed=replayed))[0]


def write(path: Path, records: list[Trajectory]) -> None:
    with Writer(path) as writer:
        for record in records:
            writer.write(record)


@pytest.fixture(scope="module")
def record() -> Trajectory:
    return played("a", "b", "go", "odd")


def test_an_episode_continues_where_the_recorded_one_was(record: Trajectory):
    found = played("even", replayed=Replayed(record, 3))
    assert [turn.reply.content for turn in found.turns] == ["a", "b", "go", "even"]
    assert [turn.trained for turn in found.turns] == [False, False, False, True]
    assert [turn.call is None for turn in found.turns] == [True, True, True, False]
    assert [turn.state for turn in found.turns] == ["0", "1", "2", "3"]
    assert (found.start, found.success, found.info["replayed_turns"]) == (record.start, False, 3)
    assert "replayed_turns" not in record.info


def test_the_agent_sees_the_recorded_turns(record: Trajectory):
    script = Script(["b", "go", "odd"])
    asyncio.run(play(Far, TASK, script, id="t#0", seed=0, limits=LIMITS, replayed=Replayed(record, 1)))
    assert [message.content for message in script.seen[0]] == ["Task 7.", "a", "Turn 1 after a."]


def test_a_recording_that_does_not_replay_is_a_failure_of_the_environment(record: Trajectory):
    other = record.model_copy(update={"start": [Message(role="user", content="Task 8.")]})
    with pytest.raises(EnvironmentFailedError, match="cannot be replayed: t#0: the start differs"):
        played("x", replayed=Replayed(other, 1))


def test_the_same_number_starts_in_the_same_state_and_all_states_occur(record: Trajectory):
    resets = Resets([record], share=0.75, seed=3)
    drawn = [resets.of(number) for number in range(400)]
    assert drawn == [resets.of(number) for number in range(400)]
    counts = Counter(one.turns if one else 0 for one in drawn)
    assert set(counts) == {0, 1, 2, 3} and all(70 < count < 130 for count in counts.values())


def test_a_turn_is_left_to_play_within_the_limit(tmp_path: Path, record: Trajectory):
    write(tmp_path / "won.jsonl", [record])
    resets = Resets.load(tmp_path / "won.jsonl", Far, 1.0, 0, max_turns=3)
    assert {one.turns for number in range(40) if (one := resets.of(number))} == {1, 2}
    with pytest.raises(InputError, match="--max-turns must be at least 2"):
        Resets.load(tmp_path / "won.jsonl", Far, 1.0, 0, max_turns=1)


def settings(folder: Path, **more: object) -> GRPOConfig:
    values: dict[str, object] = {
        "model": "tiny", "environment": "tests.online.letters:Far", "output_dir": folder, "max_steps": 1,
        "batch_size": 1, "group_size": 4, "max_new_tokens": 4, "watch": False, "resample": 8.0, "max_repeats": 0,
    }  # fmt: skip
    return GRPOConfig(**values | more)


def test_groups_near_the_goal_teach_what_groups_from_the_start_cannot(tmp_path: Path, record: Trajectory):
    with pytest.raises(BoughError, match="the first tasks teach nothing") as error:
        train_grpo(settings(tmp_path / "start", resample=1.0))
    assert "--reset-file with successful episodes" in str(error.value)
    write(tmp_path / "won.jsonl", [record])
    train_grpo(settings(tmp_path / "reset", reset_file=tmp_path / "won.jsonl"))
    [group] = read(tmp_path / "reset/rollouts/00000.jsonl")
    assert isinstance(group, Group) and group.task == TASK
    assert {attempt.info["replayed_turns"] for attempt in group.attempts} == {3}
    assert {tuple(turn.trained for turn in one.turns) for one in group.attempts} == {(False, False, False, True)}


def test_a_file_without_a_state_to_start_in_is_refused(tmp_path: Path, record: Trajectory):
    elsewhere = record.task.model_copy(update={"environment": "household"})
    short = record.model_copy(update={"turns": record.turns[:1]})
    write(tmp_path / "short.jsonl", [short, record.model_copy(update={"task": elsewhere})])
    with pytest.raises(InputError, match="no episode of this environment with two or more turns"):
        Resets.load(tmp_path / "short.jsonl", Far, 1.0, 0)
    with pytest.raises(ValueError, match="reset_share needs reset_file"):
        settings(tmp_path, reset_share=0.5)


def test_an_episode_of_a_held_out_task_is_refused(tmp_path: Path, record: Trajectory):
    [held_out] = islice(Far.tasks({}, split="unseen"), 1)
    recorded = held_out.model_copy(update={"environment": Far.name})
    write(tmp_path / "leaked.jsonl", [record, record.model_copy(update={"id": "e1", "task": recorded})])
    given = {"reset_file": tmp_path / "leaked.jsonl", "eval_tasks": 4}
    with pytest.raises(InputError, match=f"leaked.jsonl: e1 is an episode of the held-out task {held_out.id};"):
        train_grpo(settings(tmp_path / "measured", eval_every=1, **given))
