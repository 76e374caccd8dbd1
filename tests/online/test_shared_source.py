"""Two learner processes train online what one trains: the first plays, and both compute."""

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bough.trajectories.reader import read
from bough.types import Group
from tests.training.test_processes import Pair, alone, told

COMMAND = [
    *("grpo", "--model", "tiny", "--batch-size", "3", "--group-size", "3", "--max-new-tokens", "6"),
    *("--learning-rate", "1e-4", "--lr-scheduler", "constant", "--warmup-ratio", "0", "--logging-steps", "1"),
    *("--save-steps", "1", "--save-total-limit", "9", "--no-watch", "--token-budget", "128", "--max-steps", "3"),
]
LETTERS = [*COMMAND, "--environment", "tests.online.letters:Letters"]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = Pair(tmp_path_factory.mktemp("two"))
    yield pair
    pair.close()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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


@pytest.mark.parametrize("more", [[], ["--shard"]], ids=["whole weights", "sharded"])
def test_two_learners_train_what_one_trains(tmp_path: Path, one: Path, two: Pair, more: list[str]):
    said = two.run([*LETTERS, *more, "--output-dir", str(tmp_path)])
    assert_same(one, tmp_path)
    assert said.count("weights in") == 1
    assert json.loads((tmp_path / "ledger.json").read_text()) == json.loads((one / "ledger.json").read_text())


def test_two_learners_train_all_weights_ahead_of_the_sampler_as_one_does(tmp_path: Path, two: Pair):
    """Several updates per batch, whose old log-probabilities go to both, and batches that are played meanwhile."""
    more = ["--no-use-lora", "--learning-rate", "1e-5", "--updates", "2", "--max-staleness", "1", "--max-steps", "4"]
    alone([*LETTERS, *more], tmp_path / "one")
    two.run([*LETTERS, *more, "--shard", "--output-dir", str(tmp_path / "two")])
    assert_same(tmp_path / "one", tmp_path / "two")


def cut_after(whole: Path, folder: Path, step: int) -> None:
    """A run as it is after a kill after `step`, with the rollouts of later batches already on file."""
    later = [f"step-{number:08}" for number in range(step + 1, 9)]
    shutil.copytree(whole, folder, ignore=shutil.ignore_patterns("final", "ledger.json", "report.json", *later))


def test_a_run_goes_on_with_another_number_of_learners(tmp_path: Path, one: Path, two: Pair):
    cut_after(one, tmp_path / "then two", 1)
    said = two.run([*LETTERS, "--resume", "--output-dir", str(tmp_path / "then two")])
    assert "Resuming from step 1." in said
    assert "played again" not in said.replace("00002.jsonl", "")  # rounding: batch 2 is of other weights
    assert_same(one, tmp_path / "then two")

    cut_after(tmp_path / "then two", tmp_path / "then one", 2)
    alone([*LETTERS, "--resume"], tmp_path / "then one")
    assert_same(one, tmp_path / "then one")


def test_an_error_of_the_first_learner_ends_both_with_its_words(tmp_path: Path, two: Pair):
    broken = [*COMMAND, "--environment", "tests.online.letters:BrokenLater", "--retries", "0"]
    two.start([*broken, "--output-dir", str(tmp_path)])
    assert two.finish() == 1
    said = two.log.read_text()
    assert said.count("Error: batch 1 has nothing to learn from") == 2, said
    assert "the weights of step 1 are saved, --resume continues" in said
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]


def test_settings_that_the_first_learner_refuses_end_both(tmp_path: Path, two: Pair):
    two.start([*COMMAND, "--environment", "tests.online.letters:Absent", "--output-dir", str(tmp_path)])
    assert two.finish() == 2
    assert two.log.read_text().count("Absent") == 2


def test_an_interrupt_of_the_first_learner_ends_both(tmp_path: Path, two: Pair):
    first, _ = two.start([*COMMAND, "--environment", "tests.online.letters:Held", "--output-dir", str(tmp_path)])
    while not list((tmp_path / "episodes").glob("*")):  # it plays, and waits for an episode that never ends
        os.kill(first, 0)
        time.sleep(0.005)
    os.kill(first, signal.SIGINT)
    assert two.finish() == 130
    assert two.log.read_text().count("Interrupted.") == 2
