import pytest

from bough.worlds.interpreter import statements


@pytest.mark.parametrize(
    ("sources", "entry", "problem", "wanted", "missing"),
    [
        (["assert f(1) == 1"], None, "", ["f"], []),
        (["assert f(1) == 1"], None, "Write f.", ["f"], []),
        (["assert f(1) == g(1)"], None, "Write functions `f(x)` and `g(x)`.", ["f", "g"], []),
        (["assert f(1) == g(1)"], None, "Implement:\n- f(x)\n- g(x)", ["f", "g"], []),
        (["assert f(1) == g(1)"], None, "Write a function that doubles.", [], ["f", "g"]),
        (["s = Stack()", "assert s.pop() == 1"], None, "Write a class Stack with a method pop.", ["Stack"], []),
        (["assert f([Pair(1, 2)]) == 1"], None, "Find the longest chain.", ["Pair", "f"], []),
        (["assert Pair(f(1), 2)"], None, "Find the longest chain.", ["f"], ["Pair"]),
        (["assert candidate(Node(1)) == 1"], "f", "", ["Node"], []),
        (["assert candidate(1) == Node(1)"], "f", "", [], ["Node"]),
        (["assert isclose(f(1), 1)"], None, "Write f, which is tested with isclose.", ["f"], ["isclose"]),
        (["assert isclose(candidate(1), 1)"], "f", "", [], ["isclose"]),
        (["from math import isclose", "assert isclose(candidate(1), 1)"], "f", "", [], []),
        (["assert math.isclose(f(1), 1)"], None, "", ["f"], []),
        (["assert queue.push(1)"], None, "", ["queue"], []),
        (["assert sum(1, 2) == 4"], None, "", ["sum"], []),
        (["assert Solution().f(1)"], "Solution().f", "", ["Solution"], []),
        (["assert sum(1)"], "sum", "", ["sum"], []),
        (["assert sum(candidate(1))"], "sum", "", [], []),
        (["def near(f, b):\n    return f - b < eps", "assert near(f(1), 1)"], None, "Write f.", ["f"], ["eps"]),
        (["assert [x for x in f(1)] == [(y := 1)] + [y]"], None, "", ["f"], []),
    ],
)
def test_a_program_defines_what_it_is_asked_for(
    sources: list[str], entry: str | None, problem: str, wanted: list[str], missing: list[str]
):
    assert statements.program_names(sources, entry, "", problem) == (wanted, missing)


def test_a_prelude_defines_its_global_names():
    assert statements.defined("import os.path, a as b\nx = 1\nclass C:\n    y = 2\ndef f(z): w = 3") == {
        "os", "b", "x", "C", "f",
    }  # fmt: skip
    assert statements.defined("for i in []:\n    from c import d") == {"i", "d"}
    assert {"isclose", "inf"} <= (statements.defined("from math import *") or set())


def test_what_a_foreign_module_defines_is_not_guessed():
    assert statements.defined("from numpy import *") is None
    assert statements.program_names(["assert allclose(f(1), 1)"], None, "from numpy import *", "Write f.") == (
        ["f"],
        [],
    )


@pytest.mark.parametrize(
    ("source", "surely", "maybe", "given"),
    [
        ("r = f(3)\ne = [6]", "r", "r", ""),
        ("vs = [1]\nr = [x for x in f(vs)]", "x", "r x", "vs"),
        ("found = []\nfound.append(f(1))\nnp.array(f(2))", "", "found", ""),
        ("d = {}\nfor k in 'ab': d[k] = f(k)", "", "d", "k"),
        ("for a, b in zip(f(1), [2]): pass", "", "a b", ""),
        ("a, *b = f(1)\nwith f(1) as c: pass", "a b c", "a b c", ""),
        ("def same(a, b): return a == b", "", "a b same", ""),
        ("try:\n    f(1)\nexcept ValueError as e: pass", "", "e", ""),
        ("match f(1):\n    case [a, *b]: pass", "a b", "a b", ""),
    ],
)
def test_values_are_followed_from_the_program(source: str, surely: str, maybe: str, given: str):
    found = statements.origins([source], {"f"})
    assert [names - {"f", ""} for names in found] == [set(names.split()) for names in (surely, maybe, given)]
