"""Whole runs that stream: with fresh weights like a loop without any concurrency, and with batches ahead."""

import re
from collections.abc import Iterable, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from bough.config.run_folder import RunDir
from bough.data.reader import read
from bough.methods.grpo import GRPOConfig, train_grpo
from bough.online.gather import Gathered, Gatherer, batch_metrics
from bough.online.player import EpisodeStream, Job
from bough.online.schedule import Outcome
from bough.online.source import OnlineSource
from bough.policy.policy import Policy
from bough.training.plan import Batch
from bough.training.step import BatchGradients
from bough.types import Call, Group, Trajectory
from tests.online import letters
from tests.online.test_online import batch, metrics, settings
from tests.warm import Warm

UNEVEN = "tests.online.letters:Uneven"
CLOCK = ("seconds", "_per_s", "_share", "episodes_in_flight", "episodes_surplus")


def play_one_by_one(self: Gatherer, number: int) -> Gathered:
    """A batch without concurrency: one episode after the other, and one task after the other."""
    tried: list[Outcome] = []
    for task_number in count(self.pace.next_number):
        task, attempts = self.player.attempts(task_number)
        records = []
        for attempt in attempts:
            self.player.stream.submit([Job(task_number, attempt)])
            records += [result.episode for result in self.player.stream.results() if result.episode]
        group = Group(task=task, attempts=records, info={"number": task_number})
        tried.append(self._judged(Outcome(task_number, group, {})))
        chosen = [one for one in tried if one.teaches]
        if len(chosen) == self.pace.size or len(tried) == self.pace.budget:
            break
    assert chosen, "the tests' tasks are not that bad"
    self.pace.next_number += len(tried)
    self._count(tried)
    groups, examples = [one.group for one in chosen if one.group], [one.example for one in chosen if one.example]
    values = batch_metrics(groups, [one.played for one in tried if one.played], self.player.reward)
    values |= {f"groups_{reason}": dropped for reason, dropped in self.groups.dropped.items()}
    return Gathered(groups, examples, values)


def files(folder: Path) -> dict[str, bytes]:
    """What was learnt from, and the weights that came of it."""
    found = {path.name: path.read_bytes() for path in (folder / "rollouts").glob("*.jsonl")}
    return found | {"weights": (folder / "final/adapter_model.safetensors").read_bytes()}


def unclocked(folder: Path) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in line.items() if not any(word in name for word in CLOCK)}
        for line in metrics(folder)
    ]


@pytest.mark.bit_exact
def test_streaming_ends_in_the_same_bits_as_one_episode_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    more = {"environment": UNEVEN, "batch_size": 3, "max_steps": 2, "group_size": 3, "max_new_tokens": 5}
    streamed = {slots: train_grpo(settings(tmp_path / str(slots), concurrency=slots, **more)) for slots in (2, 32)}
    monkeypatch.setattr(Gatherer, "batch", play_one_by_one)
    plain = train_grpo(settings(tmp_path / "plain", **more))
    assert plain.ledgers[0]["dropped"]["zero_variance"] >= 2
    assert metrics(tmp_path / "32")[1]["episodes_surplus"] > 0, "some were started that the second batch did not need"
    for slots, trained in streamed.items():
        assert files(tmp_path / str(slots)) == files(tmp_path / "plain")
        assert trained.ledgers == plain.ledgers
        lines = [
            {name: value for name, value in line.items() if not name.startswith("staleness")}
            for line in unclocked(tmp_path / str(slots))
        ]
        assert lines == unclocked(tmp_path / "plain")


def calls_of(folder: Path, number: int) -> list[Call]:
    turns = [turn for group in batch(folder, number) for attempt in group.attempts for turn in attempt.turns]
    return [turn.call for turn in turns if turn.call and turn.trained]


def first_step(call: Call) -> int:
    return int((call.policy or "").split("..")[0].removeprefix("step-"))


@pytest.fixture(scope="module")
def ahead(tmp_path_factory: pytest.TempPathFactory) -> GRPOConfig:
    """A run with one batch ahead, with the weights of every step."""
    folder = tmp_path_factory.mktemp("ahead")
    every = {"save_steps": 1, "save_total_limit": 99}
    config = settings(
        folder, environment=UNEVEN, max_staleness=1, max_steps=6, learning_rate=5e-3, concurrency=6, **every
    )
    train_grpo(config)
    return config


def test_each_call_has_the_log_probabilities_of_the_weights_that_sampled_it(ahead: GRPOConfig):
    by_step: dict[str, list[Call]] = {}
    for number in range(6):
        for call in calls_of(ahead.output_dir, number):
            by_step.setdefault(call.policy or "", []).append(call)
    whole = {name: calls for name, calls in by_step.items() if ".." not in name}
    assert len(whole) >= 3
    for name, calls in whole.items():
        step = int(name.removeprefix("step-"))
        saved = RunDir(ahead.output_dir).checkpoints / f"step-{step:08}" / "weights" if step else None
        policy = Policy.load("tiny", adapter=saved).eval() if saved else Policy.load("tiny").eval()
        with torch.no_grad():
            found = policy.logprobs(calls)
        for call, logprobs in zip(calls, found, strict=True):
            assert torch.allclose(logprobs, torch.tensor(call.logprobs), atol=1e-4), name


def test_batches_are_played_ahead_and_no_call_is_older_than_allowed(ahead: GRPOConfig):
    lines = metrics(ahead.output_dir)
    for number, line in enumerate(lines):
        ages = [number - first_step(call) for call in calls_of(ahead.output_dir, number)]
        assert 0 <= min(ages) <= max(ages) <= 1
        assert (line["staleness_mean"], line["staleness_max"]) == (pytest.approx(sum(ages) / len(ages)), max(ages))
    assert lines[0]["staleness_max"] == 0 and max(line["staleness_max"] for line in lines) == 1
    assert max(line["mismatch_kl"] for line in lines[1:]) > 1e-6, "what the sampler's weights were is corrected for"


def test_calls_of_weights_that_are_too_old_are_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(letters.Held, "released", letters.threading.Event())
    monkeypatch.setattr(letters.Held, "ended", letters.threading.Semaphore(0))
    take = OnlineSource.batch

    def released_later(self: OnlineSource, step: int) -> Batch | None:
        if step == 4:
            letters.Held.released.set()
        if step == 5:
            assert all(letters.Held.ended.acquire(timeout=60) for _ in range(2)), "both attempts at the first task"
        return take(self, step)

    monkeypatch.setattr(OnlineSource, "batch", released_later)
    config = settings(tmp_path, environment="tests.online.letters:Held", max_staleness=1, max_steps=8, group_size=2)
    trained = train_grpo(config)
    held = [group for number in range(8) for group in batch(tmp_path, number) if group.info["number"] == 0]
    assert len(held) == 1, "it enters a batch when it is complete"
    turns = [attempt.turns for attempt in held[0].attempts]
    assert [[turn.trained for turn in of_attempt] for of_attempt in turns] == [[False, True]] * 2
    calls = trained.ledgers[1]
    assert calls["item"] == "calls" and calls["dropped"]["stale"] >= 2
    assert metrics(tmp_path)[-1]["calls_stale"] == calls["dropped"]["stale"]
    assert all(line["staleness_max"] <= 1 for line in metrics(tmp_path))


def test_the_next_batch_is_sampled_while_the_policy_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Episodes of the second batch begin when the first one trains, and the training step waits for their ends."""
    training, ended = letters.threading.Event(), letters.threading.Semaphore(0)
    monkeypatch.setattr(letters.Later, "training", training)
    monkeypatch.setattr(letters.Later, "ended", ended)
    backward = BatchGradients.backward

    def long(self: BatchGradients, *args: Any, **options: Any) -> Any:
        before = [weight.detach().clone() for weight in self.policy.parameters()]
        if not training.is_set():
            training.set()
            for _ in range(2 * 3):
                assert ended.acquire(timeout=60), "the next batch was not played during the step"
        assert all(map(torch.equal, before, self.policy.parameters())) and self.policy.training
        return backward(self, *args, **options)

    monkeypatch.setattr(BatchGradients, "backward", long)
    config = settings(tmp_path, environment="tests.online.letters:Later", max_staleness=1, max_steps=2, group_size=3)
    train_grpo(config)
    played = [group for group in batch(tmp_path, 1) if group.info["number"] in (2, 3)]
    calls = [turn.call for group in played for attempt in group.attempts for turn in attempt.turns if turn.call]
    assert {call.policy for call in calls} == {"step-0"}, "the weights before the step"
    assert metrics(tmp_path)[1]["overlap_share"] > 0


def test_without_staleness_nothing_is_computed_by_the_sampler_while_the_policy_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The number of the engine's steps is the same before and after every step of the trainer."""
    steps: list[tuple[str, int]] = []
    take = OnlineSource.batch

    def noted(self: OnlineSource, step: int) -> Batch | None:
        assert self.player._sampler.tokens.twin is None, "the sampler reads the weights that are trained"
        steps.append(("asked", self.player._sampler.tokens.num_steps))
        found = take(self, step)
        steps.append(("given", self.player._sampler.tokens.num_steps))
        return found

    monkeypatch.setattr(OnlineSource, "batch", noted)
    train_grpo(settings(tmp_path, environment=UNEVEN, max_steps=3, concurrency=6))
    trained = [(then - now) for (what, now), (_, then) in pairwise(steps) if what == "given"]
    assert len(trained) == 2 and set(trained) == {0}
    assert sum(then - now for (what, now), (_, then) in pairwise(steps) if what == "asked") > 0
    assert all(line["overlap_share"] == 0 for line in metrics(tmp_path))


@pytest.mark.bit_exact
@pytest.mark.parametrize("max_staleness", [0, 1])
def test_episodes_that_were_finished_before_an_interrupt_are_not_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_staleness: int
):
    def config(name: str, **more: Any) -> GRPOConfig:
        every = {"environment": UNEVEN, "max_steps": 2, "concurrency": 5, "save_steps": 1}
        return settings(tmp_path / name, max_staleness=max_staleness, **every, **more)

    ended: list[int] = []
    end, drop = Gatherer._end, Gatherer._drop
    surplus: set[int] = set()  # tasks that are started again for a later batch, with its weights

    def interrupted(self: Gatherer, number: int) -> None:
        ended.append(number)
        if len(ended) == 5:
            raise KeyboardInterrupt
        end(self, number)

    def dropped(self: Gatherer, numbers: Sequence[int]) -> int:
        surplus.update(numbers)
        return drop(self, numbers)

    monkeypatch.setattr(Gatherer, "_end", interrupted)
    monkeypatch.setattr(Gatherer, "_drop", dropped)
    with pytest.raises(KeyboardInterrupt):
        train_grpo(config("cut"))
    monkeypatch.undo()
    interrupted_batch = len(list((tmp_path / "cut/rollouts").glob("*.jsonl")))
    on_disk = {
        (int(path.stem), record.id): record
        for path in (tmp_path / "cut/episodes").iterdir()
        for record in read(path)
        if isinstance(record, Trajectory)
    }
    played: list[tuple[int, str]] = []
    submit = EpisodeStream.submit

    def noted(self: EpisodeStream, jobs: Iterable[Job]) -> None:
        jobs = list(jobs)
        played.extend((job.number, job.attempt.id) for job in jobs)
        submit(self, jobs)

    monkeypatch.setattr(EpisodeStream, "submit", noted)
    monkeypatch.setattr(Gatherer, "_drop", dropped)
    train_grpo(config("cut", resume=True))
    assert len(on_disk) >= 4 and played
    again = {number for number, _ in on_disk.keys() & set(played)}
    if max_staleness == 0:  # tasks that were started early: for the next batch they are played with its weights
        last = max(group.info["number"] for group in batch(tmp_path / "cut", interrupted_batch))
        again = {number for number in again if number <= last}
    assert again <= surplus
    learnt = {
        (group.info["number"], attempt.id): [turn.call for turn in attempt.turns]
        for number in range(2)
        for group in batch(tmp_path / "cut", number)
        for attempt in group.attempts
    }
    taken_up = [key for key in on_disk if key in learnt]
    assert taken_up and all(learnt[key] == [turn.call for turn in on_disk[key].turns] for key in taken_up)
    if max_staleness == 0:
        train_grpo(config("whole"))
        assert files(tmp_path / "cut") == files(tmp_path / "whole")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of runs that were killed twice, and the program's lines about them."""
    folder = tmp_path_factory.mktemp("killed")
    with (folder / "errors.txt").open("wb") as errors:
        program = Warm("tests.online.killed_stream", "2", "7", "0", "1", folder=folder, errors=errors)
        (folder / "said.txt").write_text(program.communicate())
    assert program.wait() == 0, (folder / "errors.txt").read_text()[-2000:]
    return folder


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_kills_lose_no_finished_episode_and_use_none_twice(killed: Path, max_staleness: int):
    said = [line for line in (killed / "said.txt").read_text().splitlines() if re.fullmatch(r"\d+ \d+", line)]
    kills, taken_up = map(int, said[max_staleness].split())
    assert len(said) == 2 and kills == 2 and taken_up > 0


@pytest.mark.bit_exact
def test_a_run_with_fresh_weights_that_is_killed_ends_in_the_same_bits(tmp_path: Path, killed: Path):
    whole = {"max_steps": 3, "learning_rate": 5e-3, "save_steps": 2, "environment": UNEVEN}
    train_grpo(settings(tmp_path, **whole))
    assert files(killed / "0") == files(tmp_path)
