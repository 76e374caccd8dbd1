"""The simulator of online RL on a cluster beside what was measured, and its committed results."""

import json

import pytest
from benchmarks import scale_report
from benchmarks.scale import row as row_of
from benchmarks.scale_scenarios import FILE, GPUS, RESULTS, SIZES, constants, scenarios
from benchmarks.scale_simulator import simulate
from benchmarks.scale_validation import BATCHES, ENGINES, STREAMING, compare_workers, streaming_cluster, workers_table

from tests.blocks import ROOT


@pytest.mark.parametrize("max_staleness", STREAMING)
def test_measured_batches_are_predicted_from_those_of_staleness_0(max_staleness: int):
    measured = STREAMING[max_staleness]
    for engine in ENGINES.values():
        cluster = streaming_cluster(max_staleness, engine)
        runs = [simulate(cluster, batches=BATCHES, warm_up=1, seed=seed, to_the_end=True) for seed in range(20)]
        seconds = sum(run.seconds for run in runs) / BATCHES / len(runs)
        assert seconds == pytest.approx(measured["seconds_per_batch"], rel=0.25)
        staleness = sum(run.staleness for run in runs) / len(runs)
        assert staleness == pytest.approx(measured["staleness"], abs=0.15)


def test_measured_workers_are_predicted_from_one():
    measured = json.loads((RESULTS / "scale-workers.json").read_text())
    found = compare_workers(measured)
    assert all(abs(row["error_episodes_per_cpu_s"]) < 0.2 for row in found), found


def test_every_constant_is_measured_in_a_committed_file_or_assumed():
    found = constants()
    for name, constant in found.items():
        assert constant.source == "assumed" or (RESULTS / constant.source).is_file(), name
        assert constant.how and constant.unit and constant.value > 0, name


def test_committed_predictions_are_those_of_the_simulator_and_its_constants():
    found = scale_report.load()
    assert {name: one["value"] for name, one in found["constants"].items()} == {
        name: one.value for name, one in constants(FILE).items()
    }
    sizes = {(row["GPUs"], row["weights"]) for row in found["rows"] if row["table"] == "workers write"}
    assert sizes == {(gpus, size) for gpus in GPUS for size in SIZES}
    (scenario,) = (one for one in scenarios(constants()) if one.table == "one writer" and one.shown == {"GPUs": 8})
    (row,) = (row for row in found["rows"] if row["table"] == "one writer" and row["GPUs"] == 8)
    # Logarithms may differ in the last bit from one machine to the next.
    assert row_of(scenario) == {name: _about(value) for name, value in row.items()}


def _about(value: object) -> object:
    return pytest.approx(value, rel=0.05, abs=0.01) if isinstance(value, float) else value


def test_the_page_has_the_committed_tables():
    page = (ROOT / "docs" / "notes" / "scale-2026-11.md").read_text()
    found = scale_report.load()
    missing = [title for title, table in scale_report.tables(found).items() if table not in page]
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
