from bough.rewards.progress import progress
from tests.rewards.records import trajectory, turn


def test_the_last_known_progress_counts_not_the_highest():
    assert progress(trajectory(turn(progress=0.8), turn(progress=0.6), turn(), success=False)) == 0.6


def test_a_success_is_whole():
    assert progress(trajectory(turn(progress=0.8), success=True)) == 1.0


def test_a_world_that_tells_no_progress_gives_none():
    assert progress(trajectory(turn(), success=False)) is None


def test_no_progress_at_all_is_0_and_not_unknown():
    assert progress(trajectory(turn(progress=0.0), success=False)) == 0.0
