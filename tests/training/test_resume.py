"""A run that is killed, however often and whenever, ends in the very bits of one that never was."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bough import bit_exact
from bough.cli import main
from bough.config.run_folder import MetricsFile
from tests.training.killed_run import KilledRuns

ROOT = Path(__file__).parents[2]
DPO = ["dpo", "--train-file", "household-pairs.jsonl", "--learning-rate", "1e-2"]
SFT = ["sft", "--train-file", "household.jsonl", "--curriculum", "--no-use-lora"]
COMMON = ["--model", "tiny", "--max-steps", "8", "--save-steps", "2", "--batch-size", "2", "--token-budget", "512"]


@pytest.fixture(autouse=True)
def _short_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The four shortest records of each example, the episodes without their later turns: kills are what takes time."""
    for name in ("household.jsonl", "household-pairs.jsonl"):
        lines = (ROOT / "examples" / name).read_text().splitlines()
        records = [json.loads(line) for line in sorted(lines, key=len)[:4]]
        for number, record in enumerate(records):
            if "conversations" in record:
                del record["conversations"][6 + 2 * number :]
        (tmp_path / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KilledRuns]:
    with KilledRuns(tmp_path_factory.mktemp("logs")) as runs:
        yield runs


@pytest.mark.bit_exact
@pytest.mark.parametrize(
    ("arguments", "weights"),
    [([*DPO, "--lora-dropout", "0.1", "--lora-r", "4"], "adapter_model.safetensors"), (SFT, "model.safetensors")],
    ids=["dpo with a dropout adapter", "sft of all weights"],
)
def test_kills_do_not_change_a_bit_of_the_result(tmp_path: Path, runs: KilledRuns, arguments: list[str], weights: str):
    command = [*arguments, *COMMON, "--resume", "--output-dir"]
    assert runs.finish(tmp_path, [*command, "whole"], kills=0, seed=11)[0] == 0
    assert runs.finish(tmp_path, [*command, "killed"], kills=4, seed=11)[0] >= 2
    whole, killed = ((tmp_path / name / "final" / weights).read_bytes() for name in ("whole", "killed"))
    assert whole == killed
    assert told(tmp_path / "whole") == told(tmp_path / "killed")


def told(run: Path) -> list[dict[str, Any]]:
    """The metrics, without what depends on the clock."""
    clock = {"seconds", "tokens_per_s", "raw_tokens_per_s"}
    return [{k: v for k, v in line.items() if k not in clock} for line in MetricsFile.read(run / "metrics.jsonl")]


@pytest.mark.bit_exact
def test_a_resumed_run_says_where_the_machine_may_change_its_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(bit_exact, "same_anywhere", lambda *_: False)
    bit_exact.warn_if_runs_differ.cache_clear()
    command = [*SFT, "--model", "tiny", "--batch-size", "2", "--output-dir", str(tmp_path / "run")]
    said = "a resumed run may differ in the last bits from one that was never stopped"
    assert main([*command, "--max-steps", "1"]) == 0 and said not in caplog.text
    assert main([*command, "--max-steps", "2", "--resume"]) == 0 and caplog.text.count(said) == 1
    bit_exact.warn_if_runs_differ.cache_clear()
