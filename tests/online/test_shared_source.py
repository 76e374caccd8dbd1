"""Two learner processes train online what one trains: the first plays, and both compute.

`make test` only starts them, `make test-cluster` runs all.
"""

import json
import os
import re
import shutil
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bough.data.reader import read
from bough.types import Group
from tests.online.test_distill import save_teacher
from tests.training.pair import Pair, alone, one_thread, told  # noqa: F401  a fixture of all tests

COMMAND = [
    *("grpo", "--model", "tiny", "--batch-size", "3", "--group-size", "3", "--max-new-tokens", "6"),
    *("--learning-rate", "1e-4", "--lr-scheduler", "constant", "--warmup-ratio", "0", "--logging-steps", "1"),
    *("--save-steps", "1", "--save-total-limit", "9", "--no-watch", "--token-budget", "128", "--max-steps", "2"),
]
# The policy's entropy is above the floor: a learner that was not told so would add the bonus.
LETTERS = [*COMMAND, "--environment", "tests.online.letters:Letters", "--entropy-coef", "0.5", "--entropy-floor", "1"]


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
    assert len(re.findall(r"Error: batch 2 has nothing to learn from: (\d+) of \1 episodes were lost", said)) == 2, said
    assert said.count("the weights of step 2 are saved, --resume continues") == 2
    assert (tmp_path / "checkpoints" / "step-00000002").exists()


def test_settings_that_the_first_learner_refuses_end_both(tmp_path: Path, two: Pair):
    two.start([*COMMAND, "--environment", "tests.online.letters:Absent", "--output-dir", str(tmp_path)], wait=True)
    assert two.finish() == 2
    assert two.log.read_text().count("Error: environment 'tests.online.letters:Absent'") == 2


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
