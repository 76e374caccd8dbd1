"""An interrupted run saves a checkpoint and resumes to the very bits of a run that was never interrupted."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bough.cli import main
from bough.event_loop import Interrupts, request_stop
from bough.online.player import Player
from bough.training.checkpoint import checkpoints
from bough.training.loop import Trainer
from tests.online.letters import Interrupting
from tests.training.test_processes import episode
from tests.training.test_resume import told

SFT = ["sft", "--model", "tiny", "--max-steps", "4", "--save-steps", "99", "--logging-steps", "1", "--batch-size", "2"]
GRPO = [
    *("grpo", "--model", "tiny", "--environment", "tests.online.letters:Interrupting", "--no-watch"),
    *("--batch-size", "2", "--group-size", "3", "--max-new-tokens", "6", "--learning-rate", "1e-3"),
    *("--max-steps", "3", "--save-steps", "99", "--logging-steps", "1", "--lora-dropout", "0.1"),
]


def interrupt(number: signal.Signals = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture
def sft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """SFT with an adapter and dropout, so that random numbers count, of short episodes."""
    monkeypatch.chdir(tmp_path)
    episodes = [{"messages": episode(length)} for length in (2, 3, 2, 4)]
    Path("episodes.jsonl").write_text("".join(json.dumps(one) + "\n" for one in episodes))
    return [*SFT, "--train-file", "episodes.jsonl", "--lora-dropout", "0.1", "--output-dir"]


def in_step(monkeypatch: pytest.MonkeyPatch, number: int, *signals: signal.Signals) -> None:
    """These signals arrive while step `number` is computed."""
    backward = Trainer._update

    def update(trainer: Trainer, *given: Any) -> Any:
        if trainer.counters.step + 1 == number:
            for one in signals:
                interrupt(one)
        return backward(trainer, *given)

    monkeypatch.setattr(Trainer, "_update", update)


def steps(run: str) -> list[int]:
    return [checkpoint.step for checkpoint in checkpoints(Path(run) / "checkpoints")]


def weights(run: str) -> bytes:
    return (Path(run) / "final" / "adapter_model.safetensors").read_bytes()


@pytest.mark.bit_exact
@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGTERM, signal.SIGINT]])
def test_an_interrupted_run_from_files_ends_in_the_same_bits(
    sft: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    signals: list[signal.Signals],
):
    with monkeypatch.context() as patch:
        in_step(patch, 2, *signals)
        assert main([*sft, "cut"]) == 130
    assert caplog.text.count("Stopping after the current step, with a checkpoint. Ctrl-C again stops immediately.") == 1
    said = "Stopped after step 2; its checkpoint is in cut/checkpoints. The same command with --resume continues"
    assert said in capsys.readouterr().err
    assert steps("cut") == [2] and not Path("cut/final").exists()
    assert main([*sft, "cut", "--resume"]) == 0
    assert main([*sft, "whole"]) == 0
    assert weights("cut") == weights("whole") and told(Path("cut")) == told(Path("whole"))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_second_interrupt_ends_the_run_where_it_is(
    sft: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    in_step(monkeypatch, 2, signal.SIGINT, signal.SIGINT)
    assert main([*sft, "cut"]) == 130
    assert "\nInterrupted. The same command with --resume continues" in f"\n{capsys.readouterr().err}"
    assert steps("cut") == []


def test_an_interrupt_in_the_last_step_leaves_a_whole_run_and_no_next_stage(
    sft: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    in_step(monkeypatch, 4, signal.SIGINT)
    assert main([*sft, "run"]) == 130
    assert "Stopped after step 4, the last one; the weights are in run/final." in capsys.readouterr().err
    assert Path("run/report.json").exists() and weights("run")


@pytest.fixture
def interrupting() -> Iterator[type[Interrupting]]:
    """The environment of the online runs, which interrupts the process in one of its tasks."""
    Interrupting.begun.clear()
    yield Interrupting
    Interrupting.at = None


@pytest.mark.bit_exact
def test_an_interrupted_online_run_ends_in_the_same_bits(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    interrupting: type[Interrupting],
):
    """Twice: while the second batch is played, and while held-out tasks are played for the third."""
    monkeypatch.chdir(tmp_path)
    grpo = [*GRPO, "--eval-every", "2", "--eval-tasks", "2", "--eval-split", "unseen"]
    resume: list[str] = []
    for task, attempt, step in (("train-42-3", 1, 1), ("unseen-42-0", 2, 2)):
        interrupting.at = (task, attempt)
        assert main([*grpo, "--output-dir", "cut", *resume]) == 130
        said = f"Stopped after step {step}; its checkpoint is in cut/checkpoints. The same command with --resume"
        assert said in capsys.readouterr().err
        assert steps("cut")[-1] == step
        resume = ["--resume"]
    assert main([*grpo, "--output-dir", "cut", "--resume"]) == 0
    assert main([*GRPO, "--output-dir", "whole"]) == 0
    assert weights("cut") == weights("whole")
    cut, whole = (
        [file.read_bytes() for file in sorted(Path(run, "rollouts").glob("*.jsonl"))] for run in ("cut", "whole")
    )
    assert cut == whole and len(whole) == 3


def test_an_interrupt_cancels_the_episodes_in_flight_before_it_waits_for_the_sampler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupting: type[Interrupting]
):
    """Otherwise the sampler would be idle only after the last of them, which may be an hour later."""
    in_flight: list[int] = []
    pause = Player.pause

    def noting(player: Player) -> None:
        in_flight.append(len(player.stream._running) + len(player.stream._waiting))
        pause(player)

    monkeypatch.setattr(Player, "pause", noting)
    interrupting.at = ("train-42-0", 1)
    grpo = [arg.replace(":Interrupting", ":Endless") for arg in GRPO]
    assert main([*grpo, "--concurrency", "3", "--output-dir", str(tmp_path / "cut")]) == 130
    assert in_flight == [0]


def test_a_thread_that_no_signal_reaches_is_asked_to_stop():
    stopped = threading.Event()
    found: list[bool] = []

    def train() -> None:
        with Interrupts() as interrupts, interrupts.calling(stopped.set):
            found.append(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
            found.append(stopped.wait(60) and interrupts.requested)

    assert not request_stop()
    thread = threading.Thread(target=train)
    thread.start()
    while not request_stop():
        pass
    thread.join()
    assert found == [True, True]


def test_a_handler_of_the_user_stays():
    own = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        before = signal.getsignal(signal.SIGTERM)
        with Interrupts():
            assert signal.getsignal(signal.SIGTERM) is before
    finally:
        signal.signal(signal.SIGTERM, own)


def test_a_forked_process_ends_by_a_signal_as_ever():
    with Interrupts():
        child = os.fork()
        if child == 0:
            signal.raise_signal(signal.SIGTERM)
            os._exit(0)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM
