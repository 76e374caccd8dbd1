"""The benchmark of workers: what it runs, and the rate of episodes that it reports."""

import sys
from argparse import Namespace
from pathlib import Path

import pytest

from bough.config.flags import build, parse
from bough.config.groups import CollectConfig

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def episodes_per_s(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    from collect_workers import episodes_per_s

    return episodes_per_s


def test_the_first_wave_counts_neither_its_episodes_nor_its_time(episodes_per_s):
    # Two waves of 4 episodes, 10 s each after 20 s of loading; the first wave is seen in two pieces.
    seen = [(0.0, 0), (29.9, 1), (30.0, 4), (39.9, 6), (40.0, 8)]
    assert episodes_per_s(seen, 4) == pytest.approx(0.4)


def test_without_episodes_after_the_first_wave_there_is_no_rate(episodes_per_s):
    assert episodes_per_s([(0.0, 0)], 4) is None
    assert episodes_per_s([(0.0, 0), (30.0, 3), (30.1, 4)], 4) is None


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_differ_only_in_their_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, workers: int):
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    from collect_workers import command_of

    options = Namespace(model="tiny", tasks=8, concurrency=4, turns=3, new_tokens=16, gpus_per_worker=0.25)
    command = command_of(workers, options, tmp_path)
    found = parse(CollectConfig, build(CollectConfig, "bough collect"), command[4:])
    assert isinstance(found, CollectConfig)
    assert command[1:4] == ["-m", "bough", "collect"]
    assert (found.limits.max_turns, found.sampling.max_new_tokens, found.output) == (3, 16, tmp_path)
    assert (found.limits.max_errors, found.limits.max_repeats, found.concurrency) == (0, 0, 4)
    assert (found.cluster.address, found.cluster.workers) == (("auto", 2) if workers else (None, None))
