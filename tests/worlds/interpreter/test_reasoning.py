import asyncio
import inspect
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

from bough.errors import InputError
from bough.sandbox.pool import Sandbox
from bough.worlds.interpreter import reasoning, scoring

NAMES = ["chain_sum", "letter_jumble"]


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
    sum_ = made[0][0]
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
            with pytest.raises(InputError, match="makes another problem of chain_sum"):
                await reasoning.grade("1", sum_ | {"problem": "What?"}, sandbox)
            return scores

    assert asyncio.run(play()) == [1.0, 0.0, 1.0]


def test_no_scorer_that_evaluates_answers_is_used():
    pytest.importorskip("reasoning_gym")
    from reasoning_gym.factory import DATASETS

    sources = {name: inspect.getsource(kind.score_answer) for name, (kind, _) in DATASETS.items()}
    evaluating = {name for name, text in sources.items() if re.search(r"\b(eval|exec|parse_expr|sympify)\(", text)}
    assert evaluating <= {*reasoning.NOT_GRADED, *scoring.COMPARED}


class Kept:
    """A generator's first problems, made once."""

    def __init__(self, name: str, size: int) -> None:
        gym = pytest.importorskip("reasoning_gym")
        self.name, self.size = name, size
        self.entries = gym.create_dataset(name, seed=SEED, size=size)
        self.made = [self.entries[index] for index in range(size)]

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.made[index]

    def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
        return float(self.entries.score_answer(answer, entry))

    def mean(self, answer: Callable[[dict[str, Any]], str]) -> float:
        """The mean score of the answers, as the sandbox would score them."""
        return sum(self.score(index, answer(entry)) for index, entry in enumerate(self.made)) / self.size

    def score(self, index: int, answer: str) -> float:
        place = (self.name, SEED, index, self.size)
        try:
            return scoring.score(*place, self.made[index]["question"], answer) or 0.0
        except Exception:  # in the sandbox, a scorer that breaks gives nothing
            return 0.0


SEED = 5
# A composite is made of the others, by its settings. Others take seconds for one problem.
COMPOSITE, SLOW = "composite", {"knight_swap", "futoshiki", "zebra_puzzles", "sudoku"}


@pytest.fixture(scope="module")
def kept() -> Iterator[dict[str, Kept]]:
    pytest.importorskip("reasoning_gym")
    from reasoning_gym.factory import DATASETS

    ungraded = {COMPOSITE, *reasoning.NOT_GRADED}
    found = {name: Kept(name, 1 if name in SLOW else 3) for name in DATASETS if name not in ungraded}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reasoning_gym.create_dataset", lambda name, **_: found[name])
        yield found


def numbers(question: str) -> list[str]:
    return re.findall(r"-?\d+(?:\.\d+)?", question)


LISTINGS: dict[str, Callable[[dict[str, Any]], str]] = {
    "all digits": lambda entry: "0123456789",
    "all digits, apart": lambda entry: " ".join("0123456789"),
    "all digits in a list": lambda entry: "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]",
    "a hundred numbers": lambda entry: ", ".join(map(str, range(-9, 100))),
    "all options": lambda entry: "Yes No True False on off undetermined Peng Chi Pass infeasible",
    "yes and no": lambda entry: "Yes, No",
    "true and false": lambda entry: "True or False",
    "all letters": lambda entry: "A, B, C, D, E, F",
    "the question": lambda entry: entry["question"],
    "its words": lambda entry: ",".join(re.findall(r"\w+", entry["question"])),
    "its numbers": lambda entry: " ".join(numbers(entry["question"])),
    "its numbers as a list": lambda entry: f"[{', '.join(numbers(entry['question']))}]",
    "nothing": lambda entry: "",
    "quotes": lambda entry: "''",
    "a long text": lambda entry: "1 " * (reasoning.LONGEST // 2),
}


@pytest.mark.parametrize("listing", LISTINGS)
def test_a_list_of_candidates_pays_nothing_to_any_generator(kept: dict[str, Kept], listing: str):
    paid = {name: made.mean(LISTINGS[listing]) for name, made in kept.items()}
    assert {name: score for name, score in paid.items() if score > 0.05} == {}


@pytest.mark.parametrize("between", ["\n", ", ", " or "])
@pytest.mark.parametrize("first", [False, True])
def test_the_answer_among_those_to_other_problems_pays_nothing(kept: dict[str, Kept], between: str, first: bool):
    paid = {}
    for name, made in kept.items():
        answers = [str(entry["answer"]) for entry in made.made]
        others = [(index, answer, list(set(answers) - {answer})) for index, answer in enumerate(answers)]
        lists = [(index, [answer, *rest] if first else [*rest, answer]) for index, answer, rest in others if rest]
        paid[name] = sum(made.score(index, between.join(texts)) for index, texts in lists)
    assert {name: score for name, score in paid.items() if score > 0.05} == {}


def test_another_number_with_the_same_digits_pays_nothing(kept: dict[str, Kept]):
    changes = ("-{}", "{}/7", "{}.5", "{}e1", "{}%", "{} 0", "{}+1")
    numbers = [
        (made, index, entry["answer"])
        for made in kept.values()
        for index, entry in enumerate(made.made)
        if re.fullmatch(r"[1-9]\d*", str(entry["answer"]))
    ]
    paid = [
        (made.name, change.format(answer))
        for made, index, answer in numbers
        for change in changes
        if made.score(index, change.format(answer))
    ]
    assert len(numbers) > 50 and paid == []


CONSTANTS = ["0", "1", "2", "3", "-1", "Yes", "No", "True", "False", "on", "Pass", "infeasible", "[]", "{}", "0, 0",
             "0 0\n0 0", "Monday", "red", "1/2", "0.5", "00:00:00", "9 days", "x", "A", "C", "[[0, 0]]"]  # fmt: skip


def test_a_constant_pays_only_where_it_is_the_answer(kept: dict[str, Kept]):
    paid = [
        (name, constant, made[index]["answer"])
        for name, made in kept.items()
        for index in range(made.size)
        for constant in CONSTANTS
        if made.score(index, constant) and not same_value(constant, str(made[index]["answer"]))
    ]
    assert paid == []


def same_value(one: str, other: str) -> bool:
    try:
        return complex(one) == complex(other.replace(" ", "").replace("i", "j"))
    except ValueError:
        return one.lower() == other.strip().lower()


def test_the_answer_that_a_generator_knows_is_right(kept: dict[str, Kept]):
    known = {name: made for name, made in kept.items() if all(entry["answer"] is not None for entry in made.made)}
    assert len(known) >= 85
    assert [name for name, made in known.items() if made.mean(lambda entry: entry["answer"].strip()) != 1] == []


def test_a_rare_event_is_not_an_impossible_one():
    rare = "3.051757812e-05"

    def same(text: str, known: str) -> bool:
        return scoring.COMPARED["coin_flip"](text, {"answer": known})

    assert [same(text, rare) for text in ("0", "0.0001", "3.05e-5", "0.0000305", "1/32768")] == [0, 0, 1, 1, 1]
    assert [same(text, "0.109375") for text in ("0.1094", "7/64", "0.11")] == [1, 1, 0]


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


def test_a_calculation_uses_the_numbers_of_its_problem_once():
    entry = {"metadata": {"numbers": [6, 4, 3, 3], "target": 24}}
    right = ["6*4*(3/3)", "-(3 - 3) + 6*4", "(6+3-3)*4"]
    wrong = ["24", "6*4", "6*4*3*3", "6**4", "6*4*3//3", "target", "6*4*(3/3) # 2", "(6*4)*3/3+0", "٦*4*(3/3)"]
    assert [scoring.COMPARED["countdown"](text, entry) for text in right + wrong] == [True] * 3 + [False] * 9


@pytest.mark.parametrize(
    ("name", "why"),
    [("propositional_logic", "takes wrong answers"), ("n_queens", "as code"), ("chain_sun", "did you mean chain_sum")],
)
def test_a_generator_that_is_unknown_or_not_sound_is_refused(name: str, why: str):
    pytest.importorskip("reasoning_gym")
    with pytest.raises(InputError, match=f"{name}.*{why}"):
        next(reasoning.problems(["chain_sum", name], 0))


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
