from collections import Counter

from bough.curation.rounds import sample_rounds
from bough.types import Call
from tests.curation.records import episode, turn


def test_at_most_so_many_rounds_of_each_trajectory_in_order():
    filed = [episode("a", *"uvwxyz"), episode("b", "x", success=False), episode("c", "x", success=None)]
    rounds = sample_rounds(filed, 3, seed=0)
    assert [one.item.trajectory.id for one in rounds] == ["a", "a", "a", "b"], "an unknown outcome is not looked into"
    turns = [one.at for one in rounds[:3]]
    assert turns == sorted(set(turns)) and all(one.reason == "counterfactual" for one in rounds)


def test_the_seed_decides():
    filed = [episode(str(number), *"uvwxyz") for number in range(20)]
    drawn = [[one.at for one in sample_rounds(filed, 1, seed)] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_rounds_where_the_model_was_unsure_are_drawn_more_often():
    def said(action: str, logprob: float) -> object:
        return turn(action).model_copy(
            update={"call": Call(prompt_ids=[1], completion_ids=[2, 3], logprobs=[logprob, 0.0], text=action)}
        )

    # The second reply had probability exp(-0.1), so a tenth as much was open there as at the first.
    filed = [episode(str(number), said("x", -3.0), said("y", -0.1)) for number in range(2000)]  # type: ignore[arg-type]
    count = Counter(one.at for one in sample_rounds(filed, 1, 0))
    # (1 − e^−3) / ((1 − e^−3) + (1 − e^−0.1)) = 0.950 / 1.045
    assert abs(count[0] / 2000 - 0.909) < 0.02


def test_a_certain_reply_can_still_be_drawn_when_there_is_no_other():
    sure = turn("x").model_copy(update={"call": Call(prompt_ids=[1], completion_ids=[2], logprobs=[0.0])})
    assert len(sample_rounds([episode("a", sure)], 1, 0)) == 1
