"""No program gets a mark that it did not earn, and none gets its episode lost."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from bough.environments.interpreter import code
from bough.environments.interpreter.code import Exam
from bough.environments.interpreter.grade import Grade
from bough.sandbox.pool import Sandbox
from tests.environments.interpreter.cheats import PROGRAMS

CHECK = "def check(candidate):\n    assert candidate(1) == 2\n    assert candidate(10) == 20\n"
DOUBLE = Exam(code.split(CHECK), "f")
Grader = Callable[..., Grade]


@pytest.fixture(scope="module")
def grade() -> Iterator[Grader]:
    with asyncio.Runner() as runner:

        async def made() -> tuple[Sandbox, Sandbox]:
            return Sandbox(code.LIMITS, workers=1), Sandbox(code.LIMITS, workers=1)

        rooms = runner.run(made())
        yield lambda text, exam=DOUBLE: runner.run(code.grade(f"```python\n{text}\n```", exam, *rooms))
        for room in rooms:
            runner.run(room.close())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "TEST_S", 0.5)
    monkeypatch.setattr(code, "RUN_S", 2.0)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_no_cheat_passes_a_test(grade: Grader, program: str):
    found = grade(program)
    assert found.score == 0, found
    assert found.details.get("reason")


NODE = """
class Node:
    def __init__(self, value, next=None):
        self.value, self.next = value, next
    def same(self, other):
        return self.value == other.value

def is_same(one, other):
    while one and other and one.value == other.value:
        one, other = one.next, other.next
    return one is other
"""
LIKE = "class Like:\n    def __init__(self, *a): pass\n    def __getattr__(self, name): return lambda *a: True\n"
LIKE += "".join(
    f"    def __{name}__(self, *a): return {value}\n"
    for name, value in {
        "sub": 0, "rsub": 0, "abs": 0, "contains": True, "iter": "iter([6])", "len": 6, "getitem": 6, "eq": True,
        "lt": True, "gt": True, "bool": True, "index": 6, "float": 6.0, "int": 6, "hash": 6, "round": 6,
    }.items()
)  # fmt: skip
# Tests in the ways people write them, each with a program that would pass if it were asked how to compare.
OTHERS = {
    "a difference": ("assert abs(candidate(3) - 6) < 1e-6", f"{LIKE}def f(x): return Like()"),
    "isclose": ("import math\nassert math.isclose(candidate(3), 6)", f"{LIKE}def f(x): return Like()"),
    "isclose of its own": ("assert isclose(candidate(3), 6)", "isclose = lambda *a: True\ndef f(x): return 5", "from math import *"),
    "a rounded number": ("assert round(candidate(3)) == 6", f"{LIKE}def f(x): return Like()"),
    "membership": ("assert 6 in candidate(3)", f"{LIKE}def f(x): return Like()"),
    "a set": ("assert set(candidate(3)) == {6}", f"{LIKE}def f(x): return Like()"),
    "an item": ("assert candidate(3)[0] == 6", f"{LIKE}def f(x): return Like()"),
    "truth": ("assert not candidate(3)", "class No:\n    def __bool__(self): return False\ndef f(x): return No()"),
    "a method of texts": ("assert candidate(3).startswith('6')", f"{LIKE}def f(x): return Like()"),
    "a method of a text of its own": (
        "assert candidate(3).startswith('6')",
        "class Text(str):\n    def startswith(self, *a): return True\ndef f(x): return Text('5')",
    ),
    "a method of a made object's text": (
        "assert Thing(3).name.startswith('6')",
        f"{LIKE}class Thing:\n    def __init__(self, x): self.name = Like()\ndef f(x): return 5",
    ),
    "a made object and a value": ("assert Thing(3) == 6", f"{LIKE}Thing = Like\ndef f(x): return 5"),
    "a made object in an order": ("assert Thing(3) > 6", f"{LIKE}Thing = Like\ndef f(x): return 5"),
    "the argument, changed": ("a = [3, 1]\nassert candidate(a) == sorted(a)", "def f(x):\n    x.clear()\n    return x"),
    "an exception that leaves": (
        "try:\n    candidate(3)\n    assert False\nexcept Exception:\n    pass",
        "import os\ndef f(x): os._exit(1)",
    ),
    "an exception that is no plain value": (
        "try:\n    candidate(3)\n    assert False\nexcept:\n    pass",
        "def f(x): return object()",
    ),
    "evaluated text": (
        "assert eval(candidate(3)) == 6",
        "def f(x): return '[c for c in ().__class__.__base__.__subclasses__()] and 6'",
    ),
    "evaluated text that judges": (
        "assert eval(candidate(3)) == 6",
        "def f(x): return '__import__(\"builtins\").__dict__.update(AssertionError=None) or 6'",
    ),
    "a helper of the task's, replaced": (
        "assert is_same(candidate(3), Node(6))",
        "is_same = lambda *a: True\ndef f(x): return Node(5)",
        NODE,
    ),
    "a method of the task's, replaced": (
        "assert candidate(3).same(Node(6))",
        "def f(x):\n    n = Node(5)\n    n.same = lambda other: True\n    return n",
        NODE,
    ),
    "a method of the task's, replaced by a value": (
        "assert candidate(3).same",
        "def f(x):\n    n = Node(5)\n    n.same = True\n    return n",
        NODE.replace("return self", "raise ValueError; return self"),
    ),
    "a class of the task's, replaced": (
        "assert candidate(3).same(Node(6))",
        "class Node:\n    def __init__(self, value): self.value = value\n    def same(self, other): return True\n"
        "def f(x): return Node(5)",
        NODE,
    ),
    "a circle": ("assert is_same(candidate(3), Node(6))", "def f(x):\n    n = Node(6)\n    n.next = n\n    return n", NODE),
    "an endless iterator": ("assert list(candidate(3)) == [6]", "def f(x):\n    while True: yield 6"),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS.values(), ids=OTHERS)
def test_no_cheat_passes_a_test_of_another_form(grade: Grader, case: tuple[str, ...]):
    test, program, *prelude = case
    exam = Exam(code.split(test), "f", *prelude)
    assert sum(counts for _, counts in code.marked(exam.sources)) == 1
    assert grade(program, exam).score == 0


HUMANEVAL = """
METADATA = {'author': 'x'}
def check(candidate):
    import math, random
    assert candidate([1.0, 2.0]) == [2.0, 4.0]
    def close(one, other):
        return all(math.isclose(a, b) for a, b in zip(one, other, strict=True))
    assert close(candidate([0.1]), [0.2])
    rng = random.Random(1)
    for _ in range(20):
        values = [rng.random() for _ in range(5)]
        assert close(candidate(values), [2 * v for v in values])
    assert candidate([]) == []
"""
STACK = "class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n"
STACK += "    def pop(self): return self.items.pop()\n    def __len__(self): return len(self.items)\n"
HONEST = {
    "mbpp": (["assert f(1, 2) == 3", "assert f(2, 2) == 4"], None, "", "def f(a, b): return a + b", 1.0),
    "mbpp, half": (["assert f(1, 2) == 3", "assert f(2, 2) == 5"], None, "", "def f(a, b): return a + b", 0.5),
    "named like a function of Python's": (["assert sum(1, 2) == 4", "assert sum(2, 2) == 5"], None, "", "def sum(a, b): return a + b + 1", 1.0),
    "sets": (["assert set(f('ab')) == set(['a', 'b'])", "assert f('ab') == {'b', 'a'}"], None, "", "def f(x): return set(x)", 1.0),
    "closeness": (["import math", "assert math.isclose(f(1), 1.2, rel_tol=1e-3)", "assert abs(f(1) - 1.2) < 1e-6"], None, "", "def f(x): return 1.2", 1.0),
    "truth": (["assert not f(1)", "assert f(2)", "assert f(3) is True"], None, "", "def f(x): return x > 1", 1.0),
    "nested calls and several functions": (["assert f(f(1)) == g(3)", "assert g(f(1)) == 2"], None, "", "def f(x): return x + 1\ndef g(x): return x if x < 3 else 3", 1.0),
    "humaneval": (HUMANEVAL, "double", "", "def double(xs):\n    return [2 * x for x in xs]", 1.0),
    "humaneval, three of four": (HUMANEVAL, "double", "", "def double(xs):\n    return [2 * x for x in xs] or None", 0.75),
    "an exception": (["try:\n    f(-1)\n    raise KeyError\nexcept ValueError as e:\n    assert 'low' in str(e)"], None, "", "def f(x): raise ValueError('too low')", 1.0),
    "a wrong exception": (["try:\n    f(-1)\n    assert False\nexcept ValueError:\n    assert True"], None, "", "def f(x): raise KeyError(x)", 0.0),
    "a class": (["s = Stack()\ns.push(3)\nassert s.pop() == 3", "assert len(Stack()) == 0", "assert Stack().items == []"], None, "", STACK, 1.0),
    "a class as the candidate": (["s = candidate()\ns.push([1])", "assert s.pop() == [1] and len(s) == 0"], "Stack", "", STACK, 1.0),
    "a method": (["assert Solution().f(1) == 2", "assert candidate(x=1) == 2"], "Solution().f", "", "class Solution:\n    def f(self, x): return x + 1", 1.0),
    "nodes of the task's": (["assert is_same(candidate(Node(1, Node(2))), Node(2, Node(1)))"], "f", NODE, "def f(n):\n    last = None\n    while n: n.next, last, n = last, n, n.next\n    return last", 1.0),
    "nodes defined again": (["assert candidate(Node(1)).same(Node(2))"], "f", NODE, "class Node:\n    def __init__(self, value, next=None): self.value = value\ndef f(n): return Node(n.value + 1)", 1.0),
    "an argument changed in place": (["a = [3, 1, [2]]\ncandidate(a)\nassert a == [[2], 1, 3]", "n = Node(1)\ncandidate([n])\nassert n.value == 1"], "f", NODE, "def f(x): x.reverse()", 1.0),
    "a helper that asserts": ("def close(a, b):\n    assert abs(a - b) < 0.1\ndef check(candidate):\n    close(candidate(1), 1)\n    close(candidate(2), 3)", "f", "", "def f(x): return x", 0.5),
    "iterators": (["assert list(f(3)) == [0, 1, 2]", "assert sum(f(5)) == 10", "assert next(g()) == 0"], None, "", "def f(n): yield from range(n)\ndef g():\n    import itertools\n    return itertools.count()", 1.0),
    "views and other containers": (["assert list(f({1: 2})) == [1]", "assert g('aab')['a'] == 2", "assert g('a') == {'a': 1}"], None, "", "from collections import Counter\ndef f(d): return d.keys()\ndef g(s): return Counter(s)", 1.0),
    "every kind of value": (["import datetime, decimal, fractions", "for v in (None, True, 1 << 90, 0.5, 1j, 'é\\ud800', b'x', (1, [2]), {1: {2}}, frozenset([3]), range(3), decimal.Decimal('1.10'), fractions.Fraction(1, 3), datetime.date(2020, 1, 2), datetime.timedelta(1, 2, 3)):\n    assert f(v) == v and type(f(v)) is type(v)"], None, "", "def f(x): return x", 1.0),
    "True is 1 to Python": (["assert f(1) == 1"], None, "", "def f(x): return True", 1.0),
    "numpy": (["import numpy as np", "assert np.allclose(f([1, 2]), np.array([2, 4]))", "assert g([1, 2]) == 1.5"], None, "", "import numpy as np\ndef f(x): return np.array(x) * 2\ndef g(x): return np.mean(x)", 1.0),
    "a namedtuple": (["assert f(1) == (1, 2)"], None, "", "from collections import namedtuple\nP = namedtuple('P', 'a b')\ndef f(x): return P(x, 2)", 1.0),
    "functions of Python's as arguments": (["assert f(len, 'abc') == 3", "assert f(str, 3) == '3'"], None, "", "def f(g, x): return g(x)", 1.0),
    "output on the way": (["assert f(1) == 2"], None, "", "def f(x):\n    print('thinking', x)\n    return x + 1", 1.0),
    "it leaves after its definitions": (["assert f(1) == 2"], None, "", "import sys\ndef f(x): return x + 1\nif __name__ == '__main__': sys.exit()", 1.0),
}  # fmt: skip


@pytest.mark.parametrize("case", HONEST.values(), ids=HONEST)
def test_honest_programs_get_what_they_earn(grade: Grader, case: tuple[list[str] | str, str | None, str, str, float]):
    tests, entry, prelude, program, score = case
    found = grade(program, Exam(code.split(tests), entry, prelude))
    assert found.score == score, found
