import json
from typing import Any

import pytest

from bough.worlds.interpreter.stand_ins import FailedError, Held, Items, Program

VALUE = {"value": {"value": 3, "heap": []}}


def program(text: str) -> Program:
    """A program that always gives this answer."""
    found = Program(lambda _: text)
    found.stopwatch.start(60.0)
    return found


@pytest.fixture(autouse=True)
def stopped() -> Any:
    yield
    Program(str).stopwatch.stop()


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "[]", "{}", "[" * 100_000, '{"value": 3}', '{"value": {"value": 1, "heap": [["exec"]]}}',
     '{"raised": [["builtins", "KeyError"]], "said": ""}', '{"marks": [true]}', '{"value": ' + "9" * 5000 + "}",
     *(json.dumps({"raised": names, "said": "", **VALUE}) for names in ("KeyError", ["KeyError"], [["KeyError"]])),
     json.dumps({"raised": [["builtins", "KeyError"]], **VALUE}), '{"refused": "no"}'],
    ids=lambda text: text[:30],
)  # fmt: skip
def test_an_answer_of_another_shape_is_a_failure(text: str):
    found = program(text)
    with pytest.raises(FailedError):
        found.do("call")
    assert len(found.failures) == 1 and len(found.failures[0]) <= 200


def test_a_value_and_an_exception_are_read():
    assert program(json.dumps({**VALUE, "marks": [True]})).do("call") == 3
    with pytest.raises(KeyError, match="x") as error:
        program(json.dumps({"raised": [["builtins", "KeyError"]], "said": "x" * 5000, **VALUE})).do("call")
    assert len(error.value.args[0]) == 1000


@pytest.mark.parametrize("name", ["builtins.SystemExit", "builtins.eval", "bough.FailedError", "os.path", "x.y"])
def test_only_exceptions_of_python_are_raised_by_their_names(name: str):
    with pytest.raises(Exception, match="why") as error:
        program(json.dumps({"raised": [name.split(".")], "said": "why", **VALUE})).do("call")
    assert type(error.value).__mro__[1] is Exception


USES = {
    "a call": lambda held: held(),
    "a call of a method": lambda held: Held(held._program, 1)(),
    "an attribute": lambda held: held.size,
    "a new attribute": lambda held: setattr(held, "size", 1),
    "an item": lambda held: held[0],
    "a new item": lambda held: held.__setitem__(0, 1),
    "a length": len,
    "truth": bool,
    "a text": str,
    "what is shown": repr,
    "items": iter,
    "the next item": lambda held: next(Items(held._program, 1)),
    "equality": lambda held: held == Held(held._program, 2),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("name", ["StopIteration", "StopAsyncIteration", "AssertionError"])
def test_no_use_of_the_programs_objects_raises_what_loops_and_tests_take_for_an_end(name: str, use: Any):
    held = Held(program(json.dumps({"raised": [["builtins", name]], "said": "over", **VALUE})), 0, name="f")
    with pytest.raises(RuntimeError, match=f"the program raised {name}: over"):
        use(held)
