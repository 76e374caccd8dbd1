import asyncio
from itertools import islice

import pytest

from bough.environments.interpreter import reasoning
from bough.errors import InputError
from bough.sandbox.base import Limits
from bough.sandbox.pool import Sandbox

NAMES = ["chain_sum", "leg_counting"]


def test_generators_take_turns_and_a_seed_gives_its_problems():
    pytest.importorskip("reasoning_gym")
    one, same, other = (list(islice(reasoning.problems(NAMES, seed), 6)) for seed in (1, 1, 2))
    assert one == same and [problem["generator"] for problem in one] == NAMES * 3
    assert {problem["problem"] for problem in one}.isdisjoint(problem["problem"] for problem in other)


def test_a_generators_own_scorer_grades_in_the_sandbox():
    gym = pytest.importorskip("reasoning_gym")
    problem = next(reasoning.problems(["chain_sum"], 1))
    entry = gym.create_dataset("chain_sum", seed=problem["seed"], size=reasoning.BATCH)[problem["index"]]
    assert entry["question"] == problem["problem"]

    async def play() -> list[float]:
        async with Sandbox(Limits(memory_mb=4096, timeout_s=60), workers=1, warm_up=reasoning.WARM_UP) as sandbox:
            answers = [
                f"So <answer>{entry['answer']}</answer>.",
                "<answer>none</answer>",
                f"\\boxed{{{entry['answer']}}}",
            ]
            return [(await reasoning.grade(answer, problem, sandbox)).score for answer in answers]

    right, wrong, boxed = asyncio.run(play())
    assert (right, boxed) == (1.0, 1.0) and wrong < 0.5


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>1</answer> no, <answer> 2 </answer>", "2"),
        ("\\boxed{3}", "3"),
        (" plain ", "plain"),
    ],
)
def test_the_answer_is_in_its_tags_or_its_box_or_all_there_is(text: str, answer: str):
    assert reasoning.final_answer(text) == answer


def test_an_unknown_generator_is_told_with_its_nearest():
    pytest.importorskip("reasoning_gym")
    with pytest.raises(InputError, match="did you mean chain_sum"):
        next(reasoning.problems(["chain_sun"], 0))


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reasoning, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install"):
        next(reasoning.problems(["chain_sum"], 0))
