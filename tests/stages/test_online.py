import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import bough
from bough.errors import BoughError, InputError
from bough.stages.player import Player
from bough.stages.watch import Watch
from bough.training.metrics_file import MetricsFile
from bough.training.source import PausedError
from bough.trajectories.reader import read
from bough.types import Group

LETTERS = "tests.stages.letters:Letters"


def settings(folder: Path, **more: Any) -> bough.GRPOConfig:
    values: dict[str, Any] = {
        "model": "tiny", "environment": LETTERS, "output_dir": folder, "max_steps": 4, "batch_size": 2, "group_size": 4,
        "max_new_tokens": 8, "learning_rate": 1e-3, "lr_scheduler": "constant", "warmup_ratio": 0.0, "logging_steps": 1,
        "save_steps": 1, "watch": False, "use_lora": True,
    }  # fmt: skip
    return bough.GRPOConfig(**{**values, **more})


def metrics(folder: Path) -> list[dict[str, Any]]:
    return list(MetricsFile.read(folder / "metrics.jsonl"))


def test_the_reward_rises_in_a_world_that_is_played_in(tmp_path: Path):
    few = {"max_new_tokens": 4, "top_k": 12, "batch_size": 4, "group_size": 8, "eval_tasks": 8}
    bough.grpo(settings(tmp_path, max_steps=8, use_lora=True, learning_rate=1e-2, eval_every=7, **few))
    lines = metrics(tmp_path)
    assert lines[-1]["reward"] > 2 * lines[0]["reward"], [line["reward"] for line in lines]
    evaluated = [line["eval_success"] for line in lines if "eval_success" in line]
    assert len(evaluated) == 2 and evaluated[1] > evaluated[0]
    assert all(line["logprob_gap_max"] < 1e-4 for line in lines), "the sampler reads the weights that are trained"
    assert lines[0]["start_kl"] == pytest.approx(0, abs=1e-6) and lines[-1]["start_kl"] > 0.01
    assert lines[0]["ratio"] == pytest.approx(1), "one update a batch is on-policy"


def test_every_batch_is_on_file_with_its_tokens(tmp_path: Path):
    trained = bough.grpo(settings(tmp_path, max_steps=2))
    groups = [record for number in range(2) for record in read(tmp_path / f"rollouts/{number:05}.jsonl")]
    assert len(groups) == 4 and all(isinstance(group, Group) and len(group.attempts) == 4 for group in groups)
    assert len({group.task.id for group in groups}) == 4, "no task comes twice before all have come"
    calls = [turn.call for g in groups if isinstance(g, Group) for a in g.attempts for turn in a.turns]
    assert {call.policy for call in calls if call} == {"step-0", "step-1"}
    assert trained.ledgers[0] == {"item": "groups", "in": 4, "kept": 4, "dropped": {}}


def test_mini_batches_and_passes_leave_the_policy_behind(tmp_path: Path):
    bough.grpo(settings(tmp_path, max_steps=4, updates=2, passes=2))
    lines = metrics(tmp_path)
    assert [line["epoch"] for line in lines] == [0, 0, 0, 0]
    assert lines[0]["ratio"] == pytest.approx(1, abs=1e-4)
    assert lines[3]["approx_kl"] > 1e-6, "the fourth update's data is of the policy before the first"
    assert [path.name for path in sorted((tmp_path / "rollouts").iterdir())] == ["00000.json", "00000.jsonl"]


@pytest.mark.parametrize("updates", [1, 2])
def test_a_run_that_was_cut_short_ends_in_the_same_bits(tmp_path: Path, updates: int):
    whole = bough.grpo(settings(tmp_path / "whole", updates=updates))
    bough.grpo(settings(tmp_path / "cut", updates=updates))
    # As if it had been killed behind step 2, with the rollouts of a later batch already on file.
    cut = tmp_path / "cut"
    for path in sorted((cut / "checkpoints").iterdir()):
        if int(path.name.rpartition("-")[2]) > 2:
            shutil.rmtree(path)
    bough.grpo(settings(cut, updates=updates, resume=True))
    weights = [(folder / "final/adapter_model.safetensors").read_bytes() for folder in (whole.weights.parent, cut)]
    assert weights[0] == weights[1]


def test_groups_that_teach_nothing_are_replaced_up_to_a_budget(tmp_path: Path):
    config = settings(tmp_path, environment="tests.stages.letters:Hopeless", resample=3.0)
    said = r"the first tasks teach nothing \(24 groups in, 0 kept, 24 dropped \(24 zero_variance\)"
    with pytest.raises(BoughError, match=said):
        bough.grpo(config)


def test_a_batch_that_teaches_nothing_is_not_yet_the_end(tmp_path: Path):
    trained = bough.grpo(settings(tmp_path, environment="tests.stages.letters:Late", resample=1.0, max_steps=1))
    assert trained.ledgers[0] == {"item": "groups", "in": 6, "kept": 1, "dropped": {"zero_variance": 5}}


def test_a_task_that_comes_again_in_a_batch_is_played_anew(tmp_path: Path):
    config = settings(tmp_path, environment="tests.stages.letters:Few", max_steps=1, batch_size=4, resample=4.0)
    bough.grpo(config)
    groups = [record for record in read(tmp_path / "rollouts/00000.jsonl") if isinstance(record, Group)]
    replies = [tuple(str(attempt.turns[0].reply) for attempt in group.attempts) for group in groups]
    assert len(groups) == 4 and len({group.task.id for group in groups}) == 2
    assert len(set(replies)) == 4


def test_a_divergence_from_weights_that_are_gone_is_refused_before_playing(tmp_path: Path):
    with pytest.raises(InputError, match="--kl-coef with --environment needs an adapter"):
        bough.grpo(settings(tmp_path, use_lora=False, kl_coef=0.1))
    assert not (tmp_path / "rollouts").exists()


def test_held_out_tasks_come_from_a_file_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("train", "held-out"):
        tasks = [{"id": f"{name}-{number}", "data": {"number": number}} for number in range(4)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    played: list[str] = []
    monkeypatch.setattr(Player, "_play", _noting(played, Player._play))
    files = {"task_file": tmp_path / "train.jsonl", "eval_task_file": tmp_path / "held-out.jsonl"}
    bough.grpo(settings(tmp_path / "run", max_steps=2, eval_every=1, eval_tasks=3, **files))
    names = {id.partition("#")[0] for id in played}
    assert {name for name in names if "held-out" in name} == {f"held-out-{n}" for n in range(3)}
    assert {name for name in names if "held-out" not in name} == {f"train-{n}" for n in range(4)}


def _noting(played: list[str], play: Any) -> Any:
    def noted(self: Player, wanted: Any, temperature: float) -> Any:
        order = list(wanted)
        played.extend(attempt.id for attempt in order)
        return play(self, order, temperature)

    return noted


def test_a_rubric_decides_what_is_compared(tmp_path: Path):
    bough.grpo(settings(tmp_path, max_steps=1, rewards={"outcome": 2.0, "steps": 0.0}))
    [line] = metrics(tmp_path)
    assert line["reward"] == pytest.approx(2 * line["reward/outcome"]) and "reward/total" in line


def test_a_file_or_a_world_but_not_both(tmp_path: Path):
    with pytest.raises(InputError, match="groups come from train_file or from an environment"):
        bough.GRPOConfig(output_dir=tmp_path)
    with pytest.raises(InputError, match="max_steps is required with environment"):
        bough.grpo(settings(tmp_path, max_steps=None))


def test_a_watch_pauses_and_a_paused_run_goes_on_when_told(tmp_path: Path):
    config = settings(tmp_path, max_steps=8, watch=True, watch_kl=1e-9, learning_rate=5e-3)
    with pytest.raises(PausedError, match=r"paused before batch 5: the policy is .* away from its start"):
        bough.grpo(config)
    trained = bough.grpo(settings(tmp_path, max_steps=8, resume=True, learning_rate=5e-3))
    assert trained.counters.step == 8


def alarm(batches: list[dict[str, float]], **more: Any) -> str | None:
    watch = Watch(settings(Path("unused"), watch=True, **more))
    for batch in batches:
        watch.see(batch)
    return watch.alarm()


def test_each_thing_that_goes_wrong_has_its_alarm():
    calm = {"reward": 0.5, "reply_tokens": 10.0, "turns": 3.0, "entropy": 1.0, "start_kl": 0.1}
    assert alarm([calm] * 8) is None
    assert "tokens a reply went from 10 to 40" in str(alarm([calm] * 5 + [{**calm, "reply_tokens": 40.0}] * 3))
    assert "turns an episode went from 3 to 0.5" in str(alarm([calm] * 5 + [{**calm, "turns": 0.5}] * 3))
    assert "entropy fell from 1 to 0.05" in str(alarm([calm] * 5 + [{**calm, "entropy": 0.05}] * 3))
    assert "1.5 nats a token away" in str(alarm([calm] * 5 + [{**calm, "start_kl": 1.5}] * 3))
    better, worse = {**calm, "eval_success": 0.6}, {**calm, "eval_success": 0.4, "reward": 0.9}
    assert "held-out success fell from 60.0% to 40.0% while the reward rose" in str(alarm([better, worse]))
    assert alarm([better, {**worse, "reward": 0.1}]) is None, "an agent that gets worse everywhere games nothing"
