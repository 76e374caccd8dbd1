"""The rate of episodes that the benchmark of workers reports."""

import sys
from pathlib import Path

import pytest

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
