import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bough.config.run_folder import MetricsFile
from bough.data.reader import read
from bough.errors import BoughError, InputError
from bough.methods.grpo import GRPOConfig, train_grpo
from bough.online.source import Watch
from bough.policy.policy import Policy
from bough.rollouts.collect import LocalRunner
from bough.training.plan import PausedError
from bough.training.step import Step
from bough.types import Group, Trajectory
from tests.environments.judging_server import judging
from tests.online import letters

LETTERS = "tests.online.letters:Letters"


def settings(folder: Path, **more: Any) -> GRPOConfig:
    values: dict[str, Any] = {
        "model": "tiny", "environment": LETTERS, "output_dir": folder, "max_steps": 4, "batch_size": 2, "group_size": 4,
        "max_new_tokens": 8, "learning_rate": 1e-3, "lr_scheduler": "constant", "warmup_ratio": 0.0, "logging_steps": 1,
        "save_steps": 100, "watch": False, "use_lora": True,
    }  # fmt: skip
    return GRPOConfig(**{**values, **more})


def metrics(folder: Path) -> list[dict[str, Any]]:
    return list(MetricsFile.read(folder / "metrics.jsonl"))


def test_the_reward_rises_in_a_world_that_is_played_in(tmp_path: Path):
    few = {"max_new_tokens": 4, "top_k": 12, "batch_size": 4, "group_size": 8, "eval_tasks": 8}
    train_grpo(settings(tmp_path, max_steps=8, use_lora=True, learning_rate=1e-2, eval_every=7, **few))
    lines = metrics(tmp_path)
    assert lines[-1]["reward"] > 2 * lines[0]["reward"], [line["reward"] for line in lines]
    evaluated = [line["eval_success"] for line in lines if "eval_success" in line]
    assert len(evaluated) == 2 and evaluated[1] > evaluated[0]
    assert all(line["logprob_gap_max"] < 1e-4 for line in lines), "the sampler reads the weights that are trained"
    assert lines[0]["start_kl"] == pytest.approx(0, abs=1e-6) and lines[-1]["start_kl"] > 0.01
    assert lines[0]["ratio"] == pytest.approx(1), "one update a batch is on-policy"


@pytest.mark.parametrize("more", [{}, {"use_lora": False}, {"max_staleness": 1}], ids=str)
def test_online_a_run_that_memory_runs_out_for_goes_on_with_gradient_checkpointing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, more: dict[str, Any]
):
    """The sampler reads the same model before and after it is switched on, or a copy of its own."""
    real, tried = Step.run, list[int]()

    def run(self: Step, *given: Any, **options: Any) -> Any:
        tried.append(1)
        if len(tried) in (2, 3):
            raise torch.cuda.OutOfMemoryError("no memory")
        return real(self, *given, **options)

    monkeypatch.setattr(Step, "run", run)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    counters = train_grpo(settings(tmp_path, max_steps=3, max_new_tokens=4, token_budget=1024, **more)).counters
    assert (counters.step, counters.budget, counters.gradient_checkpointing) == (3, 512, True)
    assert "trying step 2 again with gradient checkpointing" in caplog.text
    assert all(line["logprob_gap_max"] < 1e-4 for line in metrics(tmp_path) if not more.get("max_staleness"))


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Two at least, also where tests in several processes share the cores: sums must not depend on them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(2, threads))
    yield
    torch.set_num_threads(threads)


class WholeRuns:
    """Runs to their ends with all checkpoints, one for each number of updates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *, updates: int = 1) -> Path:
        folder = self.folder / f"{updates}"
        if not (folder / "final").exists():
            train_grpo(settings(folder, save_steps=1, save_total_limit=9, updates=updates))
        return folder

    def cut_after(self, folder: Path, step: int, *, updates: int = 1) -> None:
        """A run as it is after a kill after `step`, with the rollouts of later batches already on file."""
        finished = shutil.ignore_patterns("final", "ledger.json", "report.json")
        shutil.copytree(self.run(updates=updates), folder, ignore=finished, dirs_exist_ok=True)
        checkpoints = {int(path.name.rpartition("-")[2]): path for path in (folder / "checkpoints").iterdir()}
        assert step in checkpoints
        for later, path in checkpoints.items():
            if later > step:
                shutil.rmtree(path)


@pytest.fixture(scope="module")
def whole_runs(tmp_path_factory: pytest.TempPathFactory) -> WholeRuns:
    return WholeRuns(tmp_path_factory.mktemp("whole"))


@pytest.mark.bit_exact
@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("updates", "killed_after"), [(1, 2), (2, 1), (2, 2), (2, 3)])
def test_a_run_that_was_cut_short_ends_in_the_same_bits(
    tmp_path: Path, whole_runs: WholeRuns, updates: int, killed_after: int
):
    whole = whole_runs.run(updates=updates)
    whole_runs.cut_after(tmp_path, killed_after, updates=updates)
    resumed = train_grpo(settings(tmp_path, updates=updates, resume=True))
    weights = [(folder / "final/adapter_model.safetensors").read_bytes() for folder in (whole, tmp_path)]
    assert weights[0] == weights[1]
    assert resumed.ledgers == json.loads((whole / "ledger.json").read_text())


def batch(folder: Path, number: int) -> list[Group]:
    return [record for record in read(folder / f"rollouts/{number:05}.jsonl") if isinstance(record, Group)]


def longest_reply(folder: Path, number: int) -> int:
    calls = [turn.call for group in batch(folder, number) for a in group.attempts for turn in a.turns]
    return max(len(call.completion_ids) for call in calls if call)


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is played from now on, by id."""
    return note_what_is_played(monkeypatch)


@pytest.mark.parametrize(("updates", "step"), [(1, 1), (2, 2), (2, 3)])
def test_a_batch_on_file_is_replayed_again_if_nothing_has_changed(
    tmp_path: Path, whole_runs: WholeRuns, replayed: list[str], updates: int, step: int
):
    whole_runs.cut_after(tmp_path, step, updates=updates)
    replayed.clear()
    # Neither the learning rate nor a longer run changes what is on file.
    train_grpo(settings(tmp_path, updates=updates, max_steps=4 if updates == 2 else 2, resume=True, learning_rate=1e-4))
    assert replayed == []


@pytest.mark.parametrize(("updates", "step"), [(1, 1), (2, 2), (2, 3)])
def test_a_batch_of_other_settings_is_played_again(
    tmp_path: Path, whole_runs: WholeRuns, caplog: pytest.LogCaptureFixture, updates: int, step: int
):
    number = step // updates
    whole_runs.cut_after(tmp_path, step, updates=updates)
    assert longest_reply(tmp_path, number) == 8
    shorter = settings(tmp_path, updates=updates, max_steps=(number + 1) * updates, resume=True, max_new_tokens=3)
    trained = train_grpo(shorter)
    assert f"{number:05}.jsonl was sampled with different settings or weights" in caplog.text
    assert longest_reply(tmp_path, number) == 3
    assert metrics(tmp_path)[step]["reply_tokens"] <= 3, "the log has the numbers of what was learnt from"
    assert trained.ledgers[0]["in"] == 2 * (number + 1), "the batch that was replaced does not count"


def test_a_batch_of_other_weights_is_played_again(tmp_path: Path, whole_runs: WholeRuns, replayed: list[str]):
    """With another learning rate the weights after the resumed step are not those that sampled the next batch."""
    whole_runs.cut_after(tmp_path, 1)
    replayed.clear()
    train_grpo(settings(tmp_path, max_steps=3, resume=True, learning_rate=0.1))
    assert len(replayed) == 8, "batch 1 is of the weights of the checkpoint, batch 2 is not"
    assert metrics(tmp_path)[2]["mismatch_kl"] < 1e-6


@pytest.mark.parametrize("missing", ["00001.safetensors", "00001.jsonl", None], ids=str)
def test_half_of_a_batch_or_another_in_its_place_is_not_resumed_in_its_middle(
    tmp_path: Path, whole_runs: WholeRuns, replayed: list[str], missing: str | None
):
    """Without the log-probabilities before the first update those after it would be taken for them."""
    whole_runs.cut_after(tmp_path, 3, updates=2)
    if missing:
        (tmp_path / "rollouts" / missing).unlink()
    else:
        for path in (tmp_path / "rollouts").glob("00000.*"):
            shutil.copy(path, path.with_stem("00001"))
    replayed.clear()
    train_grpo(settings(tmp_path, updates=2, resume=True))
    assert len(replayed) == 8
    assert metrics(tmp_path)[3]["approx_kl"] == pytest.approx(0, abs=1e-6), "it was played with the weights of step 3"


def test_a_world_that_is_broken_from_the_start_is_an_error_with_its_own_words(tmp_path: Path):
    config = settings(tmp_path, environment="tests.online.letters:Broken", retries=0)
    with pytest.raises(BoughError, match=r"batch 0 .*: 8 of 8 episodes were lost; .*the browser is gone") as error:
        train_grpo(config)
    assert error.value.exit_code == 1 and not (tmp_path / "final").exists()


def test_a_world_that_breaks_for_good_stops_the_run_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    world = {"environment": "tests.online.letters:BrokenLater", "retries": 0, "max_steps": 3}
    with pytest.raises(PausedError, match=r"(?s)batch 2.*: 8 of 8 episodes were lost; .*the browser is gone.*--resume"):
        train_grpo(settings(tmp_path, **world))
    assert not (tmp_path / "final").exists()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000002"]
    monkeypatch.setattr(letters.BrokenLater, "begin", 1000)
    assert train_grpo(settings(tmp_path, resume=True, **world)).counters.step == 3


def slow_judge(trajectory: Trajectory) -> float:
    """Hangs from the third batch on, which the policy of step 2 plays."""
    call = trajectory.turns[0].call
    if slow_judge.hangs and call is not None and call.policy == "step-2":  # type: ignore[attr-defined]
        time.sleep(60)
    return float(len(trajectory.turns[0].reply.content) % 7)


def test_a_reward_that_hangs_stops_the_run_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slow_judge, "hangs", True, raising=False)
    judged = {"rewards": {f"{__name__}:slow_judge": 1.0}, "reward_timeout_s": 1.0, "max_steps": 3}
    said = r"(?s)batch 2 cannot be played: the reward slow_judge took longer than 1 s \(.*test_online\.py:\d+.*--resu"
    with pytest.raises(PausedError, match=said):
        train_grpo(settings(tmp_path, **judged))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000002"]
    monkeypatch.setattr(slow_judge, "hangs", False)
    assert train_grpo(settings(tmp_path, resume=True, **judged)).counters.step == 3


def test_a_few_lost_episodes_are_counted_and_their_groups_go_on_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(letters.Counting, "begun", Counter())
    config = settings(tmp_path, environment="tests.online.letters:Flaky", retries=0, max_steps=1)
    trained = train_grpo(config)
    groups, calls, episodes = trained.ledgers
    assert groups == {"item": "groups", "in": 3, "kept": 2, "dropped": {"lost": 1}}
    assert calls == {"item": "calls", "in": 6, "kept": 6, "dropped": {}}
    assert episodes == {"item": "episodes", "in": 12, "kept": 6, "dropped": {"lost": 6}}
    assert [len(group.attempts) for group in batch(tmp_path, 0)] == [3, 3]
    [line] = metrics(tmp_path)
    assert (line["episodes"], line["episodes_lost"], line["groups_lost"]) == (6, 6, 1)
    outcomes = [attempt.rewards["outcome"] or 0.0 for group in batch(tmp_path, 0) for attempt in group.attempts]
    assert line["reward"] == pytest.approx(sum(outcomes) / 6), "what was lost is not a reward of 0"


def test_held_out_tasks_that_cannot_be_played_are_an_error(tmp_path: Path):
    world = {"environment": "tests.online.letters:BrokenHeldOut", "retries": 0}
    with pytest.raises(BoughError, match=r"3 of 3 episodes were lost; .*the browser is gone"):
        train_grpo(settings(tmp_path, eval_every=1, eval_tasks=3, **world))


def test_at_another_temperature_the_first_update_is_on_policy(tmp_path: Path):
    train_grpo(settings(tmp_path, temperature=0.7, max_steps=2, updates=2, eval_every=1, eval_tasks=2))
    calls = [turn.call for group in batch(tmp_path, 0) for a in group.attempts for turn in a.turns if turn.call]
    assert {(call.temperature, call.logprobs_temperature) for call in calls} == {(0.7, 0.7)}
    model = Policy.load("tiny").eval().base
    with torch.no_grad():
        for call in calls:
            logits = model(input_ids=torch.tensor([call.prompt_ids + call.completion_ids])).logits[0]
            expected = (logits[len(call.prompt_ids) - 1 : -1] / 0.7).log_softmax(-1)
            at_tokens = expected[torch.arange(len(call.completion_ids)), call.completion_ids]
            assert torch.allclose(at_tokens, torch.tensor(call.logprobs), atol=1e-4)
    first, second = metrics(tmp_path)
    assert first["ratio"] == pytest.approx(1, abs=1e-4) and first["importance_weight"] == pytest.approx(1, abs=1e-4)
    assert first["logprob_gap_max"] < 1e-4 and first["mismatch_kl"] == pytest.approx(0, abs=1e-6)
    assert second["approx_kl"] > 1e-9 and second["mismatch_kl"] == pytest.approx(0, abs=1e-6)


def test_cuts_are_said_to_be_off_policy(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    train_grpo(settings(tmp_path / "whole", max_steps=1))
    assert "off-policy" not in caplog.text
    train_grpo(settings(tmp_path / "cut", max_steps=2, top_p=0.9))
    assert caplog.text.count("training is slightly off-policy") == 1
    counts = {name: [line.get("calls_off_policy") for line in metrics(tmp_path / name)] for name in ("whole", "cut")}
    assert counts == {"whole": [None], "cut": [8, 8]}


@pytest.mark.parametrize("world", ["Hopeless", "Rounding"])
def test_groups_that_teach_nothing_are_replaced_up_to_a_budget(tmp_path: Path, world: str):
    few = {"group_size": 2, "max_new_tokens": 2}
    config = settings(tmp_path, environment=f"tests.online.letters:{world}", resample=3.0, **few)
    said = r"the first tasks give no training signal \(24 groups in, 0 kept, 24 dropped \(24 zero_variance\)"
    with pytest.raises(BoughError, match=said) as error:
        train_grpo(config)
    assert "in 24 of them all attempts failed (try easier tasks" in str(error.value)
    assert list((tmp_path / "rollouts").iterdir()) == [], "the same settings must not be stuck with it"
    assert train_grpo(settings(tmp_path, max_steps=1, resume=True, **few)).counters.step == 1


def test_a_run_that_ran_out_of_tasks_that_teach_goes_on_with_other_settings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    world = {"environment": "tests.online.letters:Gap", "group_size": 3, "max_new_tokens": 6, "max_steps": 3}
    ended = train_grpo(settings(tmp_path, resample=1.0, **world))
    assert "Batch 2 gives no training signal" in caplog.text and "all attempts failed (try easier tasks" in caplog.text
    assert ended.counters.step == 2 and not list((tmp_path / "rollouts").glob("00002*"))
    assert ended.ledgers[0] == {"item": "groups", "in": 12, "kept": 4, "dropped": {"zero_variance": 8}}
    resumed = train_grpo(settings(tmp_path, resample=8.0, resume=True, **world))
    assert resumed.counters.step == 3


def test_what_teaches_is_what_the_objective_can_tell_apart(tmp_path: Path):
    """Every attempt has one point, in its first turn or in its second."""
    config = settings(tmp_path, environment="tests.online.letters:Early", advantage="turn", max_steps=1)
    assert train_grpo(config).ledgers[0]["kept"] == 2


def test_tasks_that_teach_nothing_are_not_the_end_and_count_in_reward_and_success(tmp_path: Path):
    """Five tasks that pay nothing are played before the one that teaches."""
    config = settings(tmp_path, environment="tests.online.letters:Late", resample=1.0, max_steps=1)
    trained = train_grpo(config)
    assert trained.ledgers[0] == {"item": "groups", "in": 6, "kept": 1, "dropped": {"zero_variance": 5}}
    [line] = metrics(tmp_path)
    [group] = read(tmp_path / "rollouts/00000.jsonl")
    assert isinstance(group, Group)
    paid = sum(attempt.rewards["outcome"] or 0.0 for attempt in group.attempts)
    tokens = sum(len(turn.call.completion_ids) for a in group.attempts for turn in a.turns if turn.call)
    assert paid > 0 and line["episodes"] == 24
    assert line["reward"] == line["reward/outcome"] == pytest.approx(paid / 24)
    assert line["success"] == pytest.approx(sum(bool(attempt.success) for attempt in group.attempts) / 24)
    assert line["reply_tokens"] == pytest.approx(tokens / 4), "how long replies are is measured on what is learnt from"
    # Killed before the first checkpoint, the batch is on file without the episodes that taught nothing.
    shutil.rmtree(tmp_path / "checkpoints")
    train_grpo(config.model_copy(update={"resume": True}))
    [again] = metrics(tmp_path)
    assert {name: again[name] for name in ("episodes", "reward", "success")} == {
        name: line[name] for name in ("episodes", "reward", "success")
    }


def test_a_task_that_comes_again_in_a_batch_is_played_anew(tmp_path: Path):
    config = settings(tmp_path, environment="tests.online.letters:Few", max_steps=1, batch_size=4, resample=4.0)
    train_grpo(config)
    groups = [record for record in read(tmp_path / "rollouts/00000.jsonl") if isinstance(record, Group)]
    replies = [tuple(str(attempt.turns[0].reply) for attempt in group.attempts) for group in groups]
    assert len(groups) == 4 and len({group.task.id for group in groups}) == 2
    assert len(set(replies)) == 4


def test_held_out_tasks_come_from_a_file_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for first, name in enumerate(("train", "held-out")):
        tasks = [{"id": f"{name}-{number}", "data": {"number": 4 * first + number}} for number in range(4)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    played = note_what_is_played(monkeypatch)
    files = {"task_file": tmp_path / "train.jsonl", "eval_task_file": tmp_path / "held-out.jsonl"}
    train_grpo(settings(tmp_path / "run", max_steps=2, eval_every=1, eval_tasks=3, **files))
    names = {id.partition("#")[0] for id in played}
    assert {name for name in names if "held-out" in name} == {f"held-out-{n}" for n in range(3)}
    assert {name for name in names if "held-out" not in name} == {f"train-{n}" for n in range(4)}


@pytest.mark.parametrize("from_files", [True, False], ids=["files", "splits"])
def test_held_out_tasks_are_not_trained_on(from_files: bool, tmp_path: Path):
    """Where both come from the same tasks, under whatever ids, training goes without those that are held out."""
    shared: dict[str, Any] = {"split": "train", "eval_split": "train"}
    if from_files:
        for name, count in (("tasks", 8), ("held-out", 3)):
            rows = [
                json.dumps({"id": f"{name}-{number}", "data": {"number": number}}) + "\n" for number in range(count)
            ]
            (tmp_path / f"{name}.jsonl").write_text("".join(rows))
        shared = {"task_file": tmp_path / "tasks.jsonl", "eval_task_file": tmp_path / "held-out.jsonl"}
    train_grpo(settings(tmp_path / "run", max_steps=2, eval_every=1, eval_tasks=3, **shared))
    learnt = {group.task.data["number"] for number in range(2) for group in batch(tmp_path / "run", number)}
    assert metrics(tmp_path / "run")[0]["eval_episodes"] == 3
    assert learnt and not learnt & {0, 1, 2}


def test_a_split_whose_tasks_are_all_held_out_is_an_error_with_their_number(tmp_path: Path):
    with pytest.raises(InputError, match="no task is left to train on beside the 40 that are held out"):
        train_grpo(settings(tmp_path, split="train", eval_split="train", eval_every=1, eval_tasks=64))


def note_what_is_played(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    played: list[str] = []

    for name in ("play", "play_each"):
        whole = getattr(LocalRunner, name)

        def noted(runner: Any, asked: Any, *more: Any, whole: Any = whole, **named: Any) -> Any:
            played.extend(one.id for one in (asked if isinstance(asked, list) else [asked]))
            return whole(runner, asked, *more, **named)

        monkeypatch.setattr(LocalRunner, name, noted)
    return played


def test_a_rubric_decides_what_is_compared(tmp_path: Path):
    train_grpo(settings(tmp_path, max_steps=1, rewards={"outcome": 2.0, "steps": 0.0}))
    [line] = metrics(tmp_path)
    assert line["reward"] == pytest.approx(2 * line["reward/outcome"]) and "reward/total" in line


def test_a_judges_scores_are_compared_and_their_cost_is_a_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (tmp_path / "rubric.md").write_text("The most e.")
    with judging(lambda body: f'{{"score": {sum(str(body).encode()) % 10}}}') as server:
        judge = {"model": "m", "rubric": str(tmp_path / "rubric.md"), "base_url": server.url}
        train_grpo(settings(tmp_path, max_steps=1, rewards={"judge": judge}))
    [line] = metrics(tmp_path)
    assert 0 < line["reward"] == line["reward/judge"] < 1
    assert line["judge/requests"] == len(server.bodies) > 0
    assert line["judge/prompt_tokens"] == 100 * len(server.bodies)


def test_a_watch_pauses_and_a_paused_run_goes_on_when_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    few = {"group_size": 3, "max_new_tokens": 4, "learning_rate": 5e-3}
    monkeypatch.setattr("bough.online.source.FAR", 1e-9)
    config = settings(tmp_path, max_steps=6, watch=True, **few)
    with pytest.raises(PausedError, match=r"paused before batch 5: the policy is .* away from its start"):
        train_grpo(config)
    trained = train_grpo(settings(tmp_path, max_steps=6, resume=True, **few))
    assert trained.counters.step == 6


def alarm(batches: list[dict[str, float]]) -> str | None:
    watch = Watch()
    for batch in batches:
        watch.see(batch)
    return watch.alarm()


def test_each_thing_that_goes_wrong_has_its_alarm():
    calm = {"reward": 0.5, "reply_tokens": 10.0, "turns": 3.0, "entropy": 1.0, "start_kl": 0.1}
    assert alarm([calm] * 8) is None
    assert "tokens per reply went from 10 to 40" in str(alarm([calm] * 5 + [{**calm, "reply_tokens": 40.0}] * 3))
    assert "turns per episode went from 3 to 0.5" in str(alarm([calm] * 5 + [{**calm, "turns": 0.5}] * 3))
    assert "entropy fell from 1 to 0.05" in str(alarm([calm] * 5 + [{**calm, "entropy": 0.05}] * 3))
    assert "1.5 nats per token away" in str(alarm([calm] * 5 + [{**calm, "start_kl": 1.5}] * 3))
    better, worse = {**calm, "eval_success": 0.6}, {**calm, "eval_success": 0.4, "reward": 0.9}
    assert "held-out success fell from 60.0% to 40.0% while the reward rose" in str(alarm([better, worse]))
    assert alarm([better, {**worse, "reward": 0.1}]) is None, "an agent that gets worse everywhere games nothing"
