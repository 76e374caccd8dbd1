from bough.curation.curate import means, scored
from tests.curation.records import episode, turn


def test_every_trajectory_gets_its_rewards_and_keeps_its_place():
    filed = [episode("a", turn("x", progress=0.4), success=False), episode("b", "y", success=False)]
    with_rewards, rubric = scored(filed, {"outcome": 1.0, "progress": 0.5})
    assert [item.trajectory.rewards["total"] for item in with_rewards] == [0.2, None]
    assert with_rewards[1].place == filed[1].place and rubric.failed == {"progress": 1}


def test_means_are_over_those_that_have_the_reward():
    filed = [episode("a", turn("x", progress=0.4), success=False), episode("b", "y", success=False), episode("c", "z")]
    assert means(*scored(filed, {"outcome": 1.0, "progress": 0.5})) == {
        "outcome": 1 / 3, "progress": 0.7, "total": (0.2 + 1.5) / 2,
    }  # fmt: skip
    assert means(*scored([episode("b", "y", success=False)], {"progress": 1.0})) == {"progress": None, "total": None}
