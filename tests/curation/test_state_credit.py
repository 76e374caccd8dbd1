import random
from statistics import fmean

import pytest
from benchmarks.credit import Chain, by_graph, by_state, measure, plain
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.curation.advantages import (
    Step,
    compare_by_state,
    graph_values,
    group_advantages,
    state_call_advantages,
)
from bough.errors import RowError
from bough.methods.grpo import GRPO, GRPOConfig
from bough.types import Group, Message, Task, Trajectory, Turn

TASK = Task(id="t")
WORLD = Chain(4)


def attempt(states: str, outcome: float | None, **more: object) -> Trajectory:
    """An attempt that passes the states that letters name: `"ab"` is a step from a, then one from b."""
    turns = [Turn(reply=Message(role="assistant", content="go"), state=state) for state in states]
    start = [Message(role="user", content="Begin.")]
    return Trajectory(id="t#0", task=TASK, start=start, turns=turns, rewards={"outcome": outcome}, **more)


def group(*attempts: Trajectory) -> Group:
    return Group(task=TASK, attempts=list(attempts))


def played(count: int, seed: int = 0) -> list[list[Step]]:
    rng = random.Random(seed)
    return [WORLD.play(rng)[0] for _ in range(count)]


def test_steps_from_one_state_are_compared_by_their_discounted_return():
    # From a both go on; from b the first succeeds in one step, the second fails.
    found = state_call_advantages(
        group(attempt("ab", 1.0), attempt("abc", 0.0)), level="state", discount=0.5, normalise=False
    )
    # The attempts: ±1/2. From a: returns 1/2 and 0, so ±1/4; from b: 1 and 0, so ±1/2; c is the second's alone.
    assert found == [[0.75, 1.0], [-0.75, -1.0, -0.5]]


def test_both_parts_have_their_weight():
    both = group(attempt("ab", 1.0), attempt("abc", 0.0))
    found = state_call_advantages(both, level="state", discount=0.5, normalise=False, attempt_weight=0.0)
    assert found == [[0.25, 0.5], [-0.25, -0.5, 0.0]]


def test_each_state_is_normalised_by_its_own_deviation():
    steps = [[Step("a", 0.0, None)], [Step("a", 0.0, None)], [Step("b", 0.0, None)], [Step("b", 0.0, None)]]
    found = compare_by_state([*steps], [[4.0], [0.0], [0.1], [0.0]])
    half = 2**-0.5
    assert found == [pytest.approx([half]), pytest.approx([-half]), pytest.approx([half]), pytest.approx([-half])]


def test_over_the_graph_a_failed_attempts_good_step_is_credited():
    # The second attempt reaches b, from where the first succeeded; the third gives up at once.
    attempts = group(attempt("ab", 1.0), attempt("abc", 0.0), attempt("a", 0.0))
    alone = {"normalise": False, "attempt_weight": 0.0, "discount": 1.0}
    by_graph = state_call_advantages(attempts, level="graph", **alone)  # type: ignore[arg-type]
    # V(c) = 0, V(b) = 1/2; from a: 1/2, 1/2, 0 with mean 1/3.
    assert by_graph == [pytest.approx([1 / 6, 0.5]), pytest.approx([1 / 6, -0.5, 0.0]), pytest.approx([-1 / 3])]
    by_return = state_call_advantages(attempts, level="state", **alone)  # type: ignore[arg-type]
    assert by_return[1] == pytest.approx([-1 / 3, -0.5, 0.0])


def test_values_over_the_graph_are_those_of_dynamic_programming():
    found, truth = graph_values(played(4_000), 1.0), WORLD.values()
    assert [found[str(room)] for room in WORLD.rooms] == pytest.approx(truth, abs=0.03)


def test_a_loop_is_solved_not_walked():
    # Nine of ten steps from a lead back to a: V = 0.9 V + 0.1.
    loop = [*[Step("a", 0.0, "a")] * 9, Step("a", 1.0, None)]
    assert graph_values([loop], 1.0) == {"a": pytest.approx(1.0)}
    assert graph_values([loop], 0.5) == {"a": pytest.approx(0.1 / 0.55)}


def test_with_many_attempts_a_steps_advantage_is_the_true_one():
    rng, truth = random.Random(1), WORLD.advantages()
    both = [WORLD.play(rng) for _ in range(3_000)]
    found: dict[tuple[int, int], list[float]] = {}
    for (_, done), values in zip(both, by_graph([steps for steps, _ in both]), strict=True):
        for place, value in zip(done, values, strict=True):
            found.setdefault(place, []).append(value)
    assert len(found) == 3 * WORLD.length
    for (room, action), values in found.items():
        assert fmean(values) == pytest.approx(truth[room][action], abs=0.04)


def test_the_graph_has_less_variance_than_grpo_and_the_same_direction():
    grpo, state, graph = (measure(WORLD, one, groups=150, seed=3) for one in (plain, by_state, by_graph))
    assert graph.deviation < 0.4 * grpo.deviation and graph.noise < 0.85 * grpo.noise
    assert graph.bias < 0.5 * grpo.bias and state.bias < 0.5 * grpo.bias
    assert min(grpo.cosine, state.cosine, graph.cosine) > 0.97


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.floats(-10, 10)), min_size=2, max_size=6),
    st.sampled_from(["state", "graph"]),
    st.booleans(),
)
def test_without_a_shared_state_it_is_plain_grpo(shapes, level, normalise):
    attempts = []
    for number, (count, outcome) in enumerate(shapes):
        one = attempt("s" * count, outcome)
        turns = [turn.model_copy(update={"state": f"{number} {t % 2}"}) for t, turn in enumerate(one.turns)]
        attempts.append(one.model_copy(update={"turns": turns}))
    expected = group_advantages([outcome for _, outcome in shapes], normalise=normalise)
    if expected.dropped:
        with pytest.raises(RowError, match="neither the attempts' rewards nor the steps"):
            state_call_advantages(group(*attempts), level=level, normalise=normalise)
        return
    found = state_call_advantages(group(*attempts), level=level, normalise=normalise)
    assert found == [[value] * count for value, (count, _) in zip(expected.values, shapes, strict=True)]


def test_without_a_name_the_observation_is_the_state():
    def told(texts: list[str], outcome: float) -> Trajectory:
        turns = [
            Turn(
                reply=Message(role="assistant", content="go"),
                observation=[Message(role="tool", content=text, tool_call_id=f"{outcome}")],
            )
            for text in texts
        ]
        start = [Message(role="user", content="Begin.")]
        return Trajectory(id="t#0", task=TASK, start=start, turns=turns, rewards={"outcome": outcome})

    settings = {"level": "state", "discount": 1.0, "normalise": False, "attempt_weight": 0.0}
    found = state_call_advantages(group(told(["hall", "won"], 1.0), told(["hall", "lost"], 0.0)), **settings)  # type: ignore[arg-type]
    assert found == [[0.5, 0.5], [-0.5, -0.5]]  # the start and the hall are shared
    found = state_call_advantages(group(told(["hall", "won"], 1.0), told(["yard", "lost"], 0.0)), **settings)  # type: ignore[arg-type]
    assert found == [[0.5, 0.0], [-0.5, 0.0]]


def test_attempts_that_all_succeed_still_teach_the_shorter_way():
    found = state_call_advantages(group(attempt("ab", 1.0), attempt("acb", 1.0)), level="state", discount=0.5)
    half = 2**-0.5
    # From a the returns are 1/2 and 1/4; from b both are 1.
    assert found == [pytest.approx([half, 0.0]), pytest.approx([-half, 0.0, 0.0])]


def test_an_unscored_attempt_is_in_no_comparison():
    found = state_call_advantages(
        group(attempt("a", 1.0), attempt("a", None), attempt("a", 0.0)), level="graph", normalise=False
    )
    assert found == [[1.0], [None], [-1.0]]
    with pytest.raises(RowError, match="fewer than two attempts are scored"):
        state_call_advantages(group(attempt("a", 1.0), attempt("a", None)), level="state")


def test_a_turn_outside_the_conversation_is_no_step():
    def with_sub_agent(outcome: float) -> Trajectory:
        one = attempt("aab", outcome)
        aside = one.turns[1].model_copy(update={"prompt": one.start, "state": None})
        return one.model_copy(update={"turns": [one.turns[0], aside, one.turns[2]]})

    found = state_call_advantages(
        group(with_sub_agent(1.0), with_sub_agent(0.0)), level="state", normalise=False, discount=0.5
    )
    assert found == [[0.75, 0.5, 1.0], [-0.75, -0.5, -1.0]]


def test_grpo_takes_its_settings():
    both = group(attempt("ab", 1.0), attempt("abc", 0.0))
    more = {"train_file": "x.jsonl", "normalise": False, "discount": 0.5}
    assert GRPO(GRPOConfig(advantage="state", **more)).advantages(both) == [[0.75, 1.0], [-0.75, -1.0, -0.5]]
    graph = GRPO(GRPOConfig(advantage="graph", attempt_weight=0, **more)).advantages(both)
    assert graph == [[0.0, 0.5], [0.0, -0.5, 0.0]]


def test_settings_without_effect_are_refused():
    with pytest.raises(ValueError, match="attempt_weight, discount needs advantage state or graph"):
        GRPOConfig(train_file="x.jsonl", discount=0.9, attempt_weight=2)
