"""The benchmark of staleness: what it runs, how it stops runs, and the tables of what is in its folder."""

import json
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
FOREVER = "import time\nwhile True: time.sleep(1)"


@pytest.fixture
def staleness(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    import staleness

    handler = signal.getsignal(signal.SIGINT)
    yield staleness
    signal.signal(signal.SIGINT, handler)


def call(staleness: Any, monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["staleness.py", "--output", str(folder), *words])
    staleness.main()


def test_what_the_script_does_not_know_goes_to_grpo_and_options_to_both(
    staleness: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    commands: list[list[str]] = []

    class Ended:
        def __init__(self, command: list[str], **_: Any) -> None:
            commands.append(command)

        def poll(self) -> int:
            return 0

    monkeypatch.setattr(staleness.subprocess, "Popen", Ended)
    monkeypatch.setattr(staleness.subprocess, "run", lambda command, **_: commands.append(command))
    monkeypatch.setattr(staleness, "POLL_S", 0.0)
    words = ["--options", "types=[a]", "--seeds", "3", "--staleness", "2", "--eval-temperature", "1"]
    call(staleness, monkeypatch, tmp_path, *words)
    collect, _, grpo = commands
    for command in (collect, grpo):
        assert command[command.index("--options") + 1] == "types=[a]"
    assert "--max-staleness=2" in grpo and "--seed=3" in grpo
    assert grpo[-2:] == ["--eval-temperature", "1"]


def test_the_tables_of_a_killed_run_are_made_of_its_metrics(
    staleness: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    # Staleness 1 takes 2 s for a batch instead of 4 s, and has the same success after as many batches.
    for limit, seconds in ((0, 4.0), (1, 2.0)):
        folder = tmp_path / f"staleness-{limit}-seed-0"
        folder.mkdir()
        lines = [
            {"step": batch + 1, "batch_seconds": seconds, "eval_success": success}
            for batch, success in enumerate((0.4, 0.5, 0.6, 0.7))
        ]
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    call(staleness, monkeypatch, tmp_path, "--tables-only", "--seeds", "0", "--target", "0.7")
    text = (tmp_path / "staleness.md").read_text()
    assert "| 8 | 50.0% (50.0%–50.0%) | 70.0% (70.0%–70.0%) |\n" in text  # staleness 2 has not begun
    assert "| 0 | 16 | 16 |" in text and "| 1 | 8 | 8 |" in text
    assert "| 0 | 3 | 4.0 |" in text and "| 1 | 3 | 2.0 |" in text  # batches after the first, seconds for each
    assert len((tmp_path / "staleness.csv").read_text().splitlines()) == 1 + 8


@pytest.mark.parametrize("answers", [True, False])
def test_a_run_whose_time_is_over_is_asked_to_stop_before_it_is_killed(
    staleness: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answers: bool
):
    ignores = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    program = f"{'' if answers else ignores}print(1, flush=True)\n{FOREVER}"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    process.stdout.readline()
    run = staleness.Run(0, 0, Namespace(output=tmp_path, limit_s=0.0), process, time.monotonic())
    (run.folder / "checkpoints" / "step-1").mkdir(parents=True)
    monkeypatch.setattr(staleness, "PATIENCE_S", 3600.0)
    assert not run.ended()
    if answers:
        process.wait(60)
    else:
        assert not run.ended() and run.alive
        monkeypatch.setattr(staleness, "PATIENCE_S", 0.0)
    assert run.ended() and process.returncode == -(signal.SIGINT if answers else signal.SIGKILL)
    assert list(tmp_path.rglob("checkpoints")) == [] and run.over.exists()
    process.stdout.close()
