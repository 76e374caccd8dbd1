"""Batches that are played; what a whole run makes of them is in test_online.py."""

from pathlib import Path
from typing import Any

from bough.chat.builder import CallBuilder
from bough.chat.template import load_template
from bough.config.run_folder import MetricsFile
from bough.ledger import Ledger
from bough.methods.grpo import GRPO, train_grpo
from bough.online.files import BatchFile
from bough.online.method import GroupExample
from bough.training.method import CallSource
from tests.online.test_online import settings


def test_the_values_of_a_batch_are_logged_as_they_are_on_file(tmp_path: Path):
    train_grpo(settings(tmp_path, max_steps=1))
    on_file: dict[str, Any] = BatchFile(tmp_path / "rollouts", 0).numbers()
    logged = metrics_of(tmp_path)
    assert {name: logged[name] for name in on_file if name not in ("ledgers", "stamp", "entropy")} == {
        name: value for name, value in on_file.items() if name not in ("ledgers", "stamp", "entropy")
    }


def metrics_of(folder: Path) -> dict[str, Any]:
    return MetricsFile.read(folder / "metrics.jsonl")[0]


def examples_on_file(folder: Path, number: int) -> list[GroupExample]:
    source = CallSource(CallBuilder(load_template("tiny")), Ledger("calls"))
    method = GRPO(settings(folder))
    return [method.example(group, source) for group in BatchFile(folder / "rollouts", number).groups()]
