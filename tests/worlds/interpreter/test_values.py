import contextlib
import datetime
import json
import math
import random
from collections import Counter, OrderedDict, deque
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy
import pytest

from bough.worlds.interpreter.values import ValueRefusedError, decoded, encoded


class Node:
    def __init__(self, value: Any, next: Any = None) -> None:
        self.value, self.next = value, next

    def method(self) -> None: ...


def crossed(value: Any) -> Any:
    message = json.loads(json.dumps(encoded(value, {"Node": Node})[0]))
    return decoded(message, {"Node": Node})[0]


VALUES = [
    None, True, False, 0, -1, 1 << 53, (1 << 53) + 1, -(10**4000), 0.1, -0.0, math.inf, -math.inf, 1 + 2j, "", "é",
    "\ud800", b"\0\xff", bytearray(b"x"), [], (), {}, set(), [1, [2, (3, {4: [5]})]], {(1, 2): {3}, None: "x"},
    frozenset([1, frozenset()]), deque([1]), Counter("aab"), OrderedDict(b=1, a=2), range(1, 9, 2), Decimal("1.10"),
    Fraction(1, 3), datetime.date(2020, 1, 2), datetime.time(1, 2), datetime.datetime(2020, 1, 2, 3),
    datetime.timedelta(-1, 2, 3),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:40])
def test_a_plain_value_crosses_as_it_is(value: Any):
    found = crossed(value)
    assert found == value and type(found) is type(value) and repr(found) == repr(value)


def test_views_long_numbers_and_not_a_number_cross():
    assert crossed({1: 2}.keys()) == {1: 2}.keys()
    assert list(crossed({1: 2, 3: 2}.values())) == [2, 2]
    assert crossed({1: 2}.items()) == {1: 2}.items()
    assert crossed(10**100_000) == 10**100_000 and math.isnan(crossed(math.nan))


def test_what_is_shared_stays_shared_and_circles_close():
    inner: list[Any] = []
    one, two = crossed([inner, inner])
    assert one is two
    inner.append((inner,))
    found = crossed(inner)
    assert found[0][0] is found


def test_depth_does_not_matter():
    value: Any = 0
    for _ in range(20_000):
        value = [value]
    found = crossed(value)
    for _ in range(20_000):
        (found,) = found
    assert found == 0


def test_subclasses_of_plain_types_cross_as_the_plain_type():
    class Yes(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    class Many(list):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return iter("lies")

    assert type(crossed(Yes(3))) is int and crossed(Yes(3)) != 4
    assert crossed(Many([1])) == [1] and type(crossed(Many([1]))) is list


def test_objects_of_the_tasks_classes_cross_as_their_attributes():
    node = Node(1, Node([2]))
    node.next.next = node
    found = crossed(node)
    assert type(found) is Node and found.value == 1 and found.next.value == [2] and found.next.next is found
    node.method = 1  # type: ignore[method-assign, assignment]
    with pytest.raises(ValueRefusedError, match="Node whose method is replaced"):
        crossed(node)


@pytest.mark.parametrize("value", [object(), print, int, iter([]), ValueError(), [object()]], ids=type)
def test_anything_else_is_refused(value: Any):
    with pytest.raises(ValueRefusedError, match="is not a plain value"):
        encoded(value, {})


@pytest.mark.parametrize(
    "message",
    [
        None, [], {}, {"value": 1}, {"value": {}, "heap": []}, {"value": [0], "heap": []},
        {"value": [0, 0], "heap": [["list"]]}, {"value": [True], "heap": [["list"], ["list"]]},
        {"value": [-1], "heap": [["list"]]}, {"value": 1, "heap": [[]]}, {"value": 1, "heap": [["exec", "x"]]},
        {"value": 1, "heap": [["builtin", "eval"]]}, {"value": 1, "heap": [["int", 3]]},
        {"value": 1, "heap": [["list", [9]]]}, {"value": 1, "heap": [["dict", 1]]},
        {"value": 1, "heap": [["tuple", [0]]]}, {"value": 1, "heap": [["tuple", [1]], ["tuple"]]},
        {"value": 1, "heap": [["class", "Node"]]}, {"value": 1, "heap": [["class", "Node", ["a"]]]},
        {"value": 1, "heap": [["class", "Node", [1], 2]]}, {"value": 1, "heap": [["array", "O", [1], 2]]},
        {"value": 1, "heap": [["array", "<i8", [2], 2]]}, {"value": 1, "heap": [["array", "<i8", [-1, -1], 2]]},
        {"value": 1, "heap": [["array", "<i8", [1] * 65, 2]]},
        {"value": 1, "heap": [["array", "<i8", [1 << 99, 0]]]},
        {"value": 1, "heap": [["object", "x"]]}, {"value": 1, "heap": [["iterator"]]},
        {"value": 1, "heap": [[["list"]]]},
    ],
    ids=str,
)  # fmt: skip
def test_a_message_of_another_shape_is_not_read(message: Any):
    with pytest.raises((ValueRefusedError, ValueError, TypeError, LookupError, OverflowError)):
        decoded(message, {"Node": Node})


def test_whatever_is_read_is_a_plain_value():
    rng = random.Random(0)
    tags = ["list", "tuple", "dict", "set", "int", "float", "range", "class", "array", "named", "dict_items", "Decimal"]
    plain = (list, tuple, dict, set, int, float, range, Node, numpy.ndarray, Decimal, str, type({}.items()), type(None))

    def part() -> Any:
        return rng.choice([None, 1, "x", "0x1f", [rng.randrange(6)], ["a"], "<i8", [1], [], "Node", 1.5, {}])

    read = 0
    for _ in range(20_000):
        heap = [[rng.choice(tags), *[part() for _ in range(rng.randrange(4))]] for _ in range(rng.randrange(5))]
        with contextlib.suppress(ValueRefusedError, ValueError, TypeError, LookupError, ArithmeticError):
            value, made = decoded({"value": part(), "heap": heap}, {"Node": Node})
            assert all(isinstance(one, plain) for one in (value, *made))
            read += 1
    assert read > 500
