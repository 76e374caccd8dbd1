"""From episodes in memory to demonstrations, pairs and groups."""

import asyncio
from pathlib import Path

import pytest

import bough
from tests.commands.letters import WriteLetter, length


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
