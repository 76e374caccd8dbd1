"""Random sets of calls: nested, duplicated, disjoint, one a start of another."""

from hypothesis import strategies as st

from bough.types import Call


def call(prompt_ids: list[int], completion_ids: list[int]) -> Call:
    return Call(prompt_ids=prompt_ids, completion_ids=completion_ids)


# Two answers in each round, so that the tree is deep; and another episode beside it that is not.
ROUNDS = [[*range(1, 4 + 3 * i)] for i in range(7)]
DEEP = [call(prompt, answer) for prompt in ROUNDS for answer in ([40, 41], [30 + len(prompt)])]
DEEP += [call([60, *prompt], [40, 41]) for prompt in ROUNDS[:3]] + [call([60, *ROUNDS[1]], [42])]


@st.composite
def call_sets(draw: st.DrawFn, max_calls: int = 7, max_new: int = 8) -> list[Call]:
    """Each call goes on from some point of an earlier one, or starts anew. Few tokens, so that accidents share too."""
    calls: list[Call] = []
    for _ in range(draw(st.integers(1, max_calls))):
        ids: list[int] = []
        if calls and draw(st.integers(0, 3)):
            earlier = draw(st.sampled_from(calls))
            ids = earlier.prompt_ids + earlier.completion_ids
            ids = ids[: draw(st.integers(1, len(ids)))]
        ids = ids + draw(st.lists(st.integers(0, 3), min_size=max(0, 2 - len(ids)), max_size=max_new))
        cut = draw(st.integers(1, len(ids) - 1))
        calls.append(call(ids[:cut], ids[cut:]))
    return calls
