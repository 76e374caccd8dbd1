"""The simulator of online RL on a cluster beside what was measured, and its committed results."""

import json

import pytest
from benchmarks.scale import (
    ENGINES,
    GPUS,
    RESULTS,
    SIZES,
    STREAMING,
    compare_workers,
    constants,
    load,
    row,
    scenarios,
    streaming_runs,
    tables,
    workers_table,
)

from tests.blocks import ROOT


@pytest.mark.parametrize("max_staleness", STREAMING)
def test_measured_batches_are_predicted_from_those_of_staleness_0(max_staleness: int):
    measured = STREAMING[max_staleness]
    for engine in ENGINES:
        runs = streaming_runs(max_staleness, engine, 20)
        seconds, staleness = (sum(run[key] for run in runs) / 20 for key in ("seconds_per_batch", "staleness"))
        assert seconds == pytest.approx(measured["seconds_per_batch"], rel=0.25)
        assert staleness == pytest.approx(measured["staleness"], abs=0.15)


def test_measured_workers_are_predicted_from_one():
    found = compare_workers(json.loads((RESULTS / "scale-workers.json").read_text()))
    assert all(abs(row["error_episodes_per_cpu_s"]) < 0.2 for row in found), found


def test_every_constant_is_measured_in_a_committed_file_or_assumed():
    for name, one in constants().items():
        assert one["source"] == "assumed" or (RESULTS / one["source"]).is_file(), name
        assert one["how"] and one["unit"] and one["value"] > 0, name


def test_committed_predictions_are_those_of_the_simulator_and_its_constants():
    found = load()
    assert found["constants"] == constants()
    sizes = {(row["GPUs"], row["weights"]) for row in found["rows"] if row["table"] == "workers write"}
    assert sizes == {(gpus, size) for gpus in GPUS for size in SIZES}
    shown, cluster = next(scenarios())
    committed = found["rows"][0]
    assert shown == {"table": "one writer", "GPUs": 8} and committed.items() >= shown.items()
    # Logarithms may differ in the last bit from one machine to the next.
    assert row(shown, cluster) == {name: _about(value) for name, value in committed.items()}


def _about(value: object) -> object:
    return pytest.approx(value, rel=0.05, abs=0.01) if isinstance(value, float) else value


def test_the_page_has_the_committed_tables():
    page = (ROOT / "docs" / "notes" / "scale-2026-11.md").read_text()
    found = load()
    missing = [title for title, table in tables(found).items() if table not in page]
    assert missing == []
    assert workers_table(found["workers"]["rows"]) in page


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("training/step.py", "out of GPU memory in "),
        ("training/step.py", " tokens does not fit one GPU"),
        ("training/step.py", " even with gradient checkpointing"),
        ("training/step.py", "--qlora or --shard over more GPUs"),
        ("trees/pack.py", "longer than the token budget of"),
    ],
)
def test_troubleshooting_quotes_the_message_about_a_call_that_is_too_long(file: str, words: str):
    assert words in (ROOT / "docs" / "troubleshooting.md").read_text()
    assert words in (ROOT / "src" / "bough" / file).read_text()
