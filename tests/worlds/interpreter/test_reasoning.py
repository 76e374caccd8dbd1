import asyncio
import inspect
import json
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import islice
from typing import Any

import pytest

from bough.errors import InputError
from bough.sandbox.pool import Sandbox
from bough.worlds.interpreter import reasoning, scoring

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
        if self.name in reasoning.EVALUATED and not reasoning.EVALUATED[self.name](answer):
            return 0.0
        place = (self.name, SEED, index, self.size)
        try:
            return scoring.score(*place, self.made[index]["question"], answer, None) or 0.0
        except Exception:  # in the sandbox, a scorer that breaks gives nothing
            return 0.0


SEED = 5
# A composite is made of the others, by its settings. Others take seconds for one problem.
COMPOSITE, SLOW = "composite", {"knight_swap", "futoshiki", "intermediate_integration", "zebra_puzzles", "sudoku"}


@pytest.fixture(scope="module")
def kept() -> Iterator[dict[str, Kept]]:
    pytest.importorskip("reasoning_gym")
    from reasoning_gym.factory import DATASETS

    ungraded = {COMPOSITE, *reasoning.NOT_GRADED}
    found = {name: Kept(name, 1 if name in SLOW else 3) for name in DATASETS if name not in ungraded}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reasoning_gym.create_dataset", lambda name, **_: found[name])
        yield found


def test_there_is_a_problem_of_every_generator(kept: dict[str, Kept]):
    assert len(kept) >= 104


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
    assert len(known) >= 99
    wrong = [
        name
        for name, made in known.items()
        if name != "intermediate_integration" and made.mean(lambda entry: entry["answer"].strip()) != 1
    ]
    assert wrong == []


def test_a_right_answer_in_another_format_and_a_longer_solution_keep_their_part(kept: dict[str, Kept]):
    """Sudoku's cells without spaces, a path that takes a detour, a matrix as a Python list."""
    sudoku, spiral = kept["sudoku"], kept["spiral_matrix"]
    assert sudoku.score(0, sudoku[0]["answer"].replace(" ", "")) == pytest.approx(0.9)
    wrong = sudoku[0]["answer"].replace(" ", "")
    assert sudoku.score(0, ("2" if wrong[0] == "1" else "1") + wrong[1:]) == 0
    assert spiral.score(0, f"[{', '.join(spiral[0]['answer'].split())}]") == pytest.approx(0.1)
    hanoi = kept["tower_of_hanoi"]
    first = hanoi[0]["answer"].splitlines()[0]
    back = re.sub(r"from Peg (\d) to Peg (\d)", r"from Peg \2 to Peg \1", first)
    assert 0.5 < hanoi.score(0, "\n".join([first, back, hanoi[0]["answer"]])) < 1
    assert hanoi.score(0, first) == 0


def test_a_generator_that_one_constant_solves_is_refused():
    with pytest.raises(InputError, match="propositional_logic: a formula such as"):
        next(reasoning.problems(["propositional_logic"], 0))


def test_moves_that_do_nothing_are_refused(kept: dict[str, Kept]):
    """Else a list of all moves, over and over, would solve every problem."""
    boxes = kept["boxnet"]
    squares = [square.split("_") for square in boxes[0]["metadata"]["initial_state"]]
    for index in range(boxes.size):
        state = boxes[index]["metadata"]["initial_state"]
        plan = solve_boxes(state)
        assert boxes.score(index, json.dumps(plan)) == 1
        x, y = squares[0]
        assert boxes.score(index, json.dumps([{f"Agent[{x}, {y}]": "move(box_pink, target_pink)"}, *plan])) == 0
    cars = kept["rush_hour"]
    everything = " ".join(f"{car}{sign}1" for car in "ABCDEFGHIJKLMNOP" for sign in "+-")
    assert cars.mean(lambda entry: everything * 20 + " A+1 A+1 A+1 A+1") == 0


def solve_boxes(state: dict[str, list[str]]) -> list[dict[str, str]]:
    """Moves one box after the other along its row, then its column, to its target."""
    plan = []
    for square, items in state.items():
        for box in (item for item in items if item.startswith("box_")):
            target = box.replace("box_", "target_")
            end = next(place for place, there in state.items() if target in there)
            (x, y), (to_x, to_y) = ([float(part) for part in place.split("_")] for place in (square, end))
            while (x, y) != (to_x, to_y):
                at = f"Agent[{x}, {y}]"
                x, y = (x + (1 if to_x > x else -1), y) if x != to_x else (x, y + (1 if to_y > y else -1))
                plan.append({at: f"move({box}, square[{x}, {y}])"})
            plan.append({f"Agent[{x}, {y}]": f"move({box}, {target})"})
    return plan


def test_an_empty_reply_is_wrong_even_where_no_solution_is_the_answer():
    no_solution = {"answer": "", "metadata": {}}
    assert [scoring.REFUSED["polynomial_equations"](text, no_solution) for text in ("", '""', "x", "Yes, No")] == [
        False, False, True, True,
    ]  # fmt: skip
    problem = {"generator": "polynomial_equations", "seed": 1, "index": 0, "problem": "?"}
    grade = asyncio.run(reasoning.grade(" \n", problem, None))  # type: ignore[arg-type]
    assert (grade.score, grade.details["reason"]) == (0, "no answer")


def test_a_rare_event_is_not_an_impossible_one():
    rare = "3.051757812e-05"
    same = scoring.COMPARED["coin_flip"]
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


@pytest.mark.parametrize(
    "text", ["1 2 3", "[[1, 2], [3, 4]]", "['a', 'b']", "ABCDE", "_ Q _\n_ _ Q", "-1", "(1, 2)", "{'a': 1}", "", "a b"]
)
def test_texts_and_literals_are_accepted(text: str):
    assert reasoning.is_text_or_literal(text)


@pytest.mark.parametrize(
    "text",
    ["oracle_answer", "f()", " exit() ", "a.b", "a[0]", "[x for x in y]", "lambda: 1", "f'{a}'", "(a := 1)", "(yield)",
     "await x", "[f()]", "not a", "x", "-" * 100_000 + "1"],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_what_a_scorer_would_compute_or_look_up_is_not(text: str):
    assert not reasoning.is_text_or_literal(text)


@pytest.mark.parametrize(
    "text", ["-4*(-2*x - 8)**(3/2)/3 + C", "x**2*sin(x)", "E**(2*x)", "sqrt(1 - x**2) + pi", "2.5*X"]
)
def test_formulas_are_accepted(text: str):
    assert reasoning.is_expression(text)


@pytest.mark.parametrize(
    "text",
    ["Integral(x, x)", "expand(x)", "x.subs(x, 1)", "sin(x, evaluate=False)", "S('x')", "x if x else x", "x; x",
     "9**9**9", "2**99999", "x = 1", "x\n", "x # y", "'x'", "x[0]", "sin", "sin(*[x])", "x // 2", "x @ x", "True", "é"],
)  # fmt: skip
def test_what_is_not_a_formula_is_refused(text: str):
    assert not reasoning.is_expression(text)


def test_a_polynomial_calls_nothing():
    accepted = reasoning.EVALUATED["polynomial_multiplication"]
    assert accepted("3*x**2*y - 4") and not accepted("sin(x)")


def test_arithmetic_has_its_exact_value_and_its_numbers():
    assert reasoning.arithmetic("10*(8 - 5) - 6/4") == (Fraction(57, 2), [10, 8, 5, 6, 4])
    assert reasoning.arithmetic("-3 + 3") == (0, [3, 3])
    for text in ("1/0", "2**3", "1.5", "x", "7 // 2", "1 2", "", "5!", "(" * 5000 + "1" + ")" * 5000):
        assert reasoning.arithmetic(text) is None
