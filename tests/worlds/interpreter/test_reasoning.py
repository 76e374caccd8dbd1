import asyncio
import inspect
import re
from itertools import islice
from typing import Any

import pytest

from bough.errors import InputError
from bough.sandbox.pool import Sandbox
from bough.worlds.interpreter import reasoning

# The second hangs on the order of sets, and so on the process that makes it.
NAMES = ["chain_sum", "polynomial_multiplication"]


@pytest.fixture(scope="module")
def made() -> list[list[dict[str, Any]]]:
    """The first problems of two seeds."""
    pytest.importorskip("reasoning_gym")
    return [list(islice(reasoning.problems(NAMES, seed), 4)) for seed in (1, 2)]


def test_generators_take_turns_and_seeds_share_no_problem(made: list[list[dict[str, Any]]]):
    one, other = made
    assert [problem["generator"] for problem in one] == NAMES * 2
    assert {problem["problem"] for problem in one}.isdisjoint(problem["problem"] for problem in other)


def test_a_generators_own_scorer_grades_in_the_sandbox(made: list[list[dict[str, Any]]]):
    gym = pytest.importorskip("reasoning_gym")
    sum_, poly = made[0][:2]
    entry = gym.create_dataset("chain_sum", seed=sum_["seed"], size=reasoning.BATCH)[sum_["index"]]
    assert entry["question"] == sum_["problem"]

    async def play() -> list[float]:
        async with Sandbox(reasoning.LIMITS, workers=1, warm_up=reasoning.WARM_UP) as sandbox:
            answers = [
                f"So <answer>{entry['answer']}</answer>.",
                "<answer>none</answer>",
                f"\\boxed{{{entry['answer']}}}",
            ]
            scores = [(await reasoning.grade(answer, sum_, sandbox)).score for answer in answers]
            scores.append((await reasoning.grade("<answer>x</answer>", poly, sandbox)).score)
            with pytest.raises(InputError, match="makes another problem of chain_sum"):
                await reasoning.grade("1", sum_ | {"problem": "What?"}, sandbox)
            return scores

    right, wrong, boxed, poly_wrong = asyncio.run(play())
    assert (right, boxed, poly_wrong) == (1.0, 1.0, 0.0) and wrong < 0.5


def test_every_scorer_that_evaluates_its_answers_is_guarded_and_still_takes_right_ones():
    gym = pytest.importorskip("reasoning_gym")
    from reasoning_gym.factory import DATASETS

    sources = {name: inspect.getsource(kind.score_answer) for name, (kind, _) in DATASETS.items()}
    evaluating = {name for name, text in sources.items() if re.search(r"\b(eval|exec|parse_expr|sympify)\(", text)}
    # It evaluates the entry's own text.
    assert evaluating - {"number_sorting"} == set(reasoning.EVALUATED)
    for name, accepted in reasoning.EVALUATED.items():
        entries = gym.create_dataset(name, seed=1, size=4)
        refused = [entry["answer"] for entry in entries if not accepted(entry["answer"].strip())]
        # An integral that is only written down answers nothing.
        assert [answer for answer in refused if "Integral" not in answer] == []


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>1</answer> no, <answer> 2 </answer>", "2"),
        ("<answer>1 < 2 <b></answer>", "1 < 2 <b>"),
        ("<answer>1<answer>2\n3</answer></answer>", "2\n3"),
        ("<answer>not closed", "<answer>not closed"),
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


def test_a_generator_that_prints_does_not_disturb_its_problems():
    pytest.importorskip("reasoning_gym")
    first = next(reasoning.problems(["bf"], 1))
    assert first["generator"] == "bf" and "BF" in first["problem"]


def test_a_generator_that_cannot_be_made_is_named_with_its_reason(capfd: pytest.CaptureFixture[str]):
    pytest.importorskip("reasoning_gym")
    with pytest.raises(InputError, match="no problem of composite: AssertionError: Must specify at least one dataset"):
        next(reasoning.problems(["chain_sum", "composite"], 0))
    assert "Traceback" not in capfd.readouterr().err
