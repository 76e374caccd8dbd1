from collections.abc import Mapping
from functools import partial

from bough.environments.base import MistakeRules, Rule
from bough.environments.mistakes import (
    PLAIN,
    Mistake,
    all_rules,
    chosen,
    gained,
    invalid_action,
    loop,
    mistakes,
    premature_success,
)
from bough.types import Trajectory, Turn
from tests.curation.records import episode, turn


class ShopRules(MistakeRules):
    """A shop that says "Sold out." without marking an error, and where one pays only once."""

    def without_effect(self, turn: Turn) -> bool:
        return super().without_effect(turn) or turn.observation[0].content == "Sold out."

    def claims_success(self, turn: Turn) -> bool:
        return turn.action == "leave"

    def own(self) -> Mapping[str, Rule]:
        return {"paid_twice": lambda trajectory, at: "pay" in [one.action for one in trajectory.turns[:at]]}


SHOP = ShopRules()


def at(rule: Rule, *turns: Turn | str, **more: object) -> list[int]:
    trajectory = episode("a", *turns, **{"success": False} | more).trajectory
    return [number for number in range(len(trajectory.turns)) if rule(trajectory, number)]


def test_the_second_of_two_equal_actions_with_the_same_result_is_a_loop():
    assert at(loop, "look", "look", "look", "go") == [1, 2]
    assert at(loop, turn("next", "page 1"), turn("next", "page 2")) == []
    assert at(loop, turn("pump", progress=0.1), turn("pump", progress=0.2), turn("pump", progress=0.2)) == [2]
    sold_out = [turn("buy", "Bought."), turn("buy", "Sold out.")]
    assert at(partial(loop, rules=SHOP), *sold_out) == [1] and at(loop, *sold_out) == []
    assert at(loop, turn("x", "A."), turn("x", "B.", error="invalid_action")) == [1]


def test_a_cycle_is_a_loop_when_it_closes_for_the_second_time():
    assert at(loop, "a", "b", "a", "b", "a") == [3, 4]
    assert at(loop, "a", "b", "c", "a", "b", "c") == [5]
    assert at(loop, *"abcdeabcde") == [], "longer cycles may be a search that goes round"
    assert at(loop, "go to fridge 1", "go to shelf 1", "take apple 1 from shelf 1", "go to fridge 1") == []


def test_a_claim_of_success_counts_where_the_environment_knows_one():
    assert at(premature_success, "go", "I have finished", stop="premature_success") == [1]
    assert at(premature_success, "go", "I have finished", stop="max_turns") == []
    assert at(partial(premature_success, rules=SHOP), "leave", "leave", success=True) == [0]
    assert at(premature_success, "leave", "task succeeded", "leave") == []


def test_what_had_no_effect_is_invalid():
    turns = ["go", turn("fly", error="invalid_action"), turn("?", error="malformed"), turn("x", "Sold out.")]
    assert at(invalid_action, *turns) == [1, 2] and at(partial(invalid_action, rules=SHOP), *turns) == [1, 2, 3]


def test_an_environments_rules_come_after_the_generic_ones_and_may_replace_them():
    assert list(all_rules(PLAIN)) == ["premature_success", "loop", "invalid_action"]
    assert list(all_rules(SHOP)) == ["premature_success", "loop", "invalid_action", "paid_twice"]

    class Tolerant(ShopRules):
        def own(self) -> Mapping[str, Rule]:
            return {"loop": lambda trajectory, at: False}

    assert at(all_rules(Tolerant())["loop"], "look", "look") == []


def test_a_turn_is_blamed_for_one_thing_the_most_telling():
    trajectory: Trajectory = episode(
        "a", turn("fly", error="invalid_action"), turn("fly", error="invalid_action"), "pay", "pay", "look", "leave",
        success=False,
    ).trajectory  # fmt: skip
    assert list(mistakes(trajectory, all_rules(SHOP))) == [
        Mistake(0, "invalid_action"), Mistake(1, "loop"), Mistake(3, "loop"), Mistake(4, "paid_twice"),
        Mistake(5, "premature_success"),
    ]  # fmt: skip
    only = chosen(all_rules(SHOP), ["invalid_action"])
    assert [mistake.turn for mistake in mistakes(trajectory, only)] == [0, 1]
    assert chosen(all_rules(SHOP), []).keys() == all_rules(SHOP).keys()


def test_progress_is_gained_where_it_rises_as_far_as_it_is_told():
    assert gained([turn("x", progress=0.1), turn("x"), turn("x", progress=0.2)])
    assert not gained([turn("x", progress=0.2), turn("x", progress=0.1)]) and not gained([turn("x"), turn("x")])
