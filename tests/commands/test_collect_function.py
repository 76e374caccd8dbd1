"""Episodes as a list, in memory and on disk."""

import asyncio
import tempfile
import time
from pathlib import Path

import pytest

import bough
from tests.commands.letters import WriteLetter, length

FEW = {"tasks": 3, "attempts": 2, "max_new_tokens": 6}


def test_a_class_is_played_and_every_trajectory_returned_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    played = bough.collect("tiny", WriteLetter, **FEW)
    assert [trajectory.id for trajectory in played] == [f"train-0-{task}#{n}" for task in range(3) for n in range(2)]
    assert all(turn.call and turn.call.logprobs for trajectory in played for turn in trajectory.turns)
    assert played.report["episodes"] == 6 and "6 episodes, success" in repr(played) and played.path is None
    assert list(tmp_path.glob("bough-*")) == []  # no output, nothing left


def test_it_works_inside_a_running_event_loop():
    async def notebook() -> list[bough.Trajectory]:
        return bough.collect("tiny", WriteLetter, **FEW)

    assert asyncio.run(notebook()) == list(bough.collect("tiny", WriteLetter, **FEW))


def test_rewards_are_functions_and_end_up_on_disk_too(tmp_path: Path):
    played = bough.collect("expert", WriteLetter, tasks=2, rewards={length: 0.5, "outcome": 1}, output=tmp_path / "x")
    assert [trajectory.rewards for trajectory in played] == [{"outcome": 1.0, "length": 1.0, "total": 1.5}] * 2
    assert list(bough.read(tmp_path / "x" / "trajectories.jsonl")) == list(played)
    again = bough.collect("expert", WriteLetter, tasks=3, rewards=[length], output=tmp_path / "x")
    assert len(again) == 3 and again.report["episodes_this_run"] == 1


def test_a_reward_that_hangs_is_an_error_and_the_episodes_are_kept(tmp_path: Path):
    def slow(trajectory: bough.Trajectory) -> float:
        time.sleep(60)
        return 1.0

    settings = {"tasks": 2, "output": tmp_path / "x", "step_timeout_s": 5.0}
    with pytest.raises(bough.BoughError, match=r"the reward slow took longer than 5 s \(.*_function\.py:\d+"):
        bough.collect("expert", WriteLetter, rewards=[slow], **settings)
    again = bough.collect("expert", WriteLetter, rewards=[length], **settings)
    assert len(again) == 2 and again[0].rewards["length"] == 1.0 and again.report["episodes"] == 2


def test_a_loaded_model_plays_with_the_weights_of_the_moment():
    model = bough.load("tiny", lora=bough.Lora(r=4))
    before = bough.collect(model, WriteLetter, **FEW)
    assert [one.turns for one in before] != []
    for name, weights in model.policy.named_parameters():
        if "lora_B" in name:
            weights.data.normal_(std=0.5)
    after = bough.collect(model, WriteLetter, **FEW)
    replies = [[turn.reply.content for one in played for turn in one.turns] for played in (before, after)]
    assert replies[0] != replies[1]
    sampled = [turn.call for one in after for turn in one.turns if turn.call]
    for call, logprobs in zip(sampled, model.policy.logprobs(sampled), strict=True):
        assert call.logprobs == pytest.approx(logprobs.tolist(), abs=1e-4)


def test_a_loaded_model_does_not_go_to_a_cluster():
    with pytest.raises(bough.InputError, match="a model in memory cannot play on a cluster; save it"):
        bough.collect(bough.load("tiny"), WriteLetter, cluster="auto", **FEW)


def test_an_environment_that_never_finishes_an_episode_is_an_error():
    class Broken(WriteLetter):
        async def start(self) -> bough.Observation:
            raise OSError("no power")

    with pytest.raises(bough.BoughError, match="no power"):
        bough.collect("expert", Broken, tasks=1, retries=0)
