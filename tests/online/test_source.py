"""Batches that are played; what a whole run makes of them is in test_online.py."""

import json
import os
import re
import shutil
import signal
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bough.config.run_folder import MetricsFile
from bough.data.reader import read
from bough.methods.grpo import train_grpo
from bough.online.files import BatchFile
from bough.online.source import shares
from bough.training.method import GroupExample
from bough.trees.build import TokenTree
from bough.types import Call, Group
from tests.online.test_distill import save_teacher
from tests.online.test_online import settings
from tests.training.pair import Pair, alone, one_thread, told  # noqa: F401  a fixture of all tests


def test_the_values_of_a_batch_are_logged_as_they_are_on_file(tmp_path: Path):
    train_grpo(settings(tmp_path, max_steps=1))
    on_file: dict[str, Any] = BatchFile(tmp_path / "rollouts", 0).numbers()
    logged = MetricsFile.read(tmp_path / "metrics.jsonl")[0]
    del on_file["ledgers"], on_file["stamp"], on_file["entropy"]  # the loss measures the last one too
    assert {name: logged[name] for name in on_file} == on_file


def group(first: int, *lengths: int) -> GroupExample:
    """Calls with a common prompt of four tokens and answers of these lengths, which differ from their first token."""
    prompt = [first] * 4
    calls = [Call(prompt_ids=prompt, completion_ids=[100 + c] * length) for c, length in enumerate(lengths)]
    return GroupExample(
        calls=calls,
        advantages=tuple(float(c) for c in range(len(calls))),
        weights=tuple(c + 0.5 for c in range(len(calls))),
        old_logprobs=tuple(torch.full((length,), float(c)) for c, length in enumerate(lengths)),
        denominator=float(sum(lengths)),
    )


def tokens(share: list[GroupExample]) -> int:
    return sum(len(TokenTree.of(example.calls)) for example in share)


def test_whole_groups_are_dealt_out_by_the_tokens_of_their_trees():
    groups = [group(1, 3, 3), group(2, 2, 2), group(3, 9), group(4, 5)]
    # 3 prompt tokens, the last of which predicts, then answers without their last token: 8, 6, 12 and 8 nodes.
    assert [tokens([one]) for one in groups] == [8, 6, 12, 8]
    assert shares(groups, 2) == [[groups[1], groups[2]], [groups[0], groups[3]]]


def test_a_group_larger_than_a_fair_share_is_cut_and_keeps_its_numbers():
    large, small = group(1, 9, 9, 9, 9), group(2, 2)
    first, second = shares([large, small], 2)
    assert abs(tokens(first) - tokens(second)) <= 12
    pieces = [one for share in (first, second) for one in share if one.calls[0].prompt_ids == [1] * 4]
    assert len(pieces) > 1
    found = sorted(
        (call.completion_ids[0], advantage, weight, float(old[0]))
        for one in pieces
        for call, advantage, weight, old in zip(one.calls, one.advantages, one.weights, one.old_logprobs, strict=True)
    )
    assert found == [(100 + c, float(c), c + 0.5, float(c)) for c in range(4)]
    assert sum(one.denominator for one in pieces) == large.denominator


def test_a_group_whose_calls_answered_nothing_is_dealt_out_too():
    empty = group(1, 0)
    assert shares([empty, group(2, 3)], 2)[1] == [empty]


COMMAND = [
    *("grpo", "--model", "tiny", "--batch-size", "3", "--group-size", "3", "--max-new-tokens", "6"),
    *("--learning-rate", "1e-4", "--lr-scheduler", "constant", "--warmup-ratio", "0", "--logging-steps", "1"),
    *("--save-steps", "1", "--save-total-limit", "9", "--no-watch", "--token-budget", "128", "--max-steps", "2"),
]
LETTERS = [*COMMAND, "--environment", "tests.online.letters:Letters"]


def replies(run: Path) -> list[list[int]]:
    """The sampled tokens of all batches."""
    groups = [record for file in sorted((run / "rollouts").glob("*.jsonl")) for record in read(file)]
    attempts = [attempt for group in groups if isinstance(group, Group) for attempt in group.attempts]
    return [turn.call.completion_ids for attempt in attempts for turn in attempt.turns if turn.call]


def assert_same(one: Path, two: Path) -> None:
    """The same episodes; losses, gradient norms and weights that differ by rounding only."""
    assert replies(one) == replies(two)
    for name in ("loss", "grad_norm", "reward", "token_accuracy"):
        assert told(one, name) == pytest.approx(told(two, name), rel=1e-5, abs=1e-5), name
    (file,) = (one / "final").glob("*.safetensors")
    weights = [load_file(run / "final" / file.name) for run in (one, two)]
    assert weights[0].keys() == weights[1].keys()
    for name, weight in weights[0].items():
        assert (weight - weights[1][name]).abs().max() < 1e-5, name


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run of one process, with all its checkpoints."""
    folder = tmp_path_factory.mktemp("one")
    torch.set_num_threads(1)
    alone(LETTERS, folder)
    return folder


@pytest.mark.cluster
@pytest.mark.parametrize("more", [[], ["--shard"]], ids=["whole weights", "sharded"])
def test_two_learners_train_what_one_trains(tmp_path: Path, one: Path, two: Pair, more: list[str]):
    said = two.run([*LETTERS, *more, "--output-dir", str(tmp_path)])
    assert_same(one, tmp_path)
    assert said.count("weights in") == 1
    assert json.loads((tmp_path / "ledger.json").read_text()) == json.loads((one / "ledger.json").read_text())


@pytest.mark.cluster
def test_two_learners_distill_what_one_distills(tmp_path: Path, two: Pair):
    teacher = str(save_teacher(tmp_path / "teacher"))
    values = {"--model": "tiny", "--teacher": teacher, "--batch-size": "3", "--max-new-tokens": "6", "--max-steps": "1"}
    values |= {"--environment": "tests.online.letters:Letters", "--temperature": "0.7", "--logging-steps": "1"}
    command = ["distill", *(word for pair in values.items() for word in pair), "--no-watch"]
    alone(command, tmp_path / "one")
    two.run([*command, "--output-dir", str(tmp_path / "two")])
    assert_same(tmp_path / "one", tmp_path / "two")


def cut_after(whole: Path, folder: Path, step: int) -> None:
    """A run as it is after a kill after `step`, with the rollouts of later batches already on file."""
    later = [f"step-{number:08}" for number in range(step + 1, 9)]
    shutil.copytree(whole, folder, ignore=shutil.ignore_patterns("final", "ledger.json", "report.json", *later))


@pytest.mark.cluster
def test_a_run_that_one_learner_began_is_resumed_by_two(tmp_path: Path, one: Path, two: Pair):
    cut_after(one, tmp_path / "two", 1)
    said = two.run([*LETTERS, "--resume", "--output-dir", str(tmp_path / "two")])
    assert "Resuming from step 1." in said
    assert "00001.jsonl was sampled" not in said  # the batch on file is learnt from
    assert_same(one, tmp_path / "two")


@pytest.mark.cluster
def test_a_run_that_two_learners_began_is_resumed_by_one(tmp_path: Path, two: Pair, caplog: pytest.LogCaptureFixture):
    """With sharded weights, several updates per batch, and batches that are played while an earlier one trains.

    Which weights sample an episode is then a matter of time, so the steps of both are those on the same batch.
    """
    stale = [*LETTERS, "--no-use-lora", "--updates", "2", "--max-staleness", "1", "--max-steps", "4"]
    two.run([*stale, "--shard", "--output-dir", str(tmp_path / "two")])
    cut_after(tmp_path / "two", tmp_path / "one", 2)
    alone([*stale, "--resume"], tmp_path / "one")
    assert "played again" not in caplog.text
    assert told(tmp_path / "one", "staleness_max") == [0, 1]
    assert_same(tmp_path / "one", tmp_path / "two")


@pytest.mark.cluster
def test_an_error_of_the_first_learner_ends_both_with_its_words(tmp_path: Path, two: Pair):
    broken = [*COMMAND, "--environment", "tests.online.letters:BrokenLater", "--retries", "0", "--max-steps", "3"]
    two.start([*broken, "--output-dir", str(tmp_path)], wait=True)
    assert two.finish() == 1
    said = two.log.read_text()
    # Of both processes; how many episodes were in flight depends on how early tasks were started.
    assert len(re.findall(r"Error: batch 2 cannot be played: (\d+) of \1 episodes were lost", said)) == 2, said
    assert said.count("the weights of step 2 are saved, --resume continues") == 2
    assert (tmp_path / "checkpoints" / "step-00000002").exists()


@pytest.mark.cluster
def test_a_learner_ends_when_the_first_fails_while_it_does_not_wait_for_a_batch(tmp_path: Path, two: Pair):
    (tmp_path / "checkpoints").touch()  # no folder can be made there
    two.start([*LETTERS, "--output-dir", str(tmp_path)], wait=True)
    assert two.finish() == 1
    said = two.log.read_text()
    assert said.count("Error: ") == 2 and "cannot be written: Not a directory" in said, said
    assert "Error: another process of this run has ended; its own message says why" in said


@pytest.mark.cluster
def test_an_interrupt_of_the_first_learner_ends_both(tmp_path: Path, two: Pair):
    held = [*COMMAND, "--environment", "tests.online.letters:Held", "--output-dir", str(tmp_path)]
    first, _ = two.start(held, wait=True)
    while not list((tmp_path / "episodes").glob("*")):  # it plays, and waits for an episode that never ends
        os.kill(first, 0)
        time.sleep(0.005)
    os.kill(first, signal.SIGINT)
    assert two.finish() == 130
    assert two.log.read_text().count("Stopped before the first step.") == 2


@pytest.mark.cluster
@pytest.mark.parametrize("rank", [0, 1])
def test_an_interrupt_of_either_learner_saves_a_checkpoint_that_one_process_resumes(
    tmp_path: Path, one: Path, two: Pair, rank: int
):
    sparse = ["99" if word == "1" and before == "--save-steps" else word for before, word in pairwise(["", *LETTERS])]
    two.start([*sparse, "--output-dir", str(tmp_path)], wait=True, interrupted=(rank, 1))
    assert two.finish() == 130
    said = two.log.read_text()
    assert said.count(f"Stopped after step 1; its checkpoint is in {tmp_path}/checkpoints.") == 2, said
    alone([*LETTERS, "--resume"], tmp_path)
    assert_same(one, tmp_path)
