from fractions import Fraction

import pytest

from bough.worlds.interpreter import literals


@pytest.mark.parametrize(
    "text", ["1 2 3", "[[1, 2], [3, 4]]", "['a', 'b']", "ABCDE", "_ Q _\n_ _ Q", "-1", "(1, 2)", "{'a': 1}", "", "a b"]
)
def test_texts_and_literals_are_accepted(text: str):
    assert literals.is_text_or_literal(text)


@pytest.mark.parametrize(
    "text",
    ["oracle_answer", "f()", " exit() ", "a.b", "a[0]", "[x for x in y]", "lambda: 1", "f'{a}'", "(a := 1)", "(yield)",
     "await x", "[f()]", "not a", "x", "-" * 100_000 + "1"],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_what_a_scorer_would_compute_or_look_up_is_not(text: str):
    assert not literals.is_text_or_literal(text)


@pytest.mark.parametrize(
    "text", ["-4*(-2*x - 8)**(3/2)/3 + C", "x**2*sin(x)", "E**(2*x)", "sqrt(1 - x**2) + pi", "2.5*X"]
)
def test_formulas_are_accepted(text: str):
    assert literals.is_expression(text)


@pytest.mark.parametrize(
    "text",
    ["Integral(x, x)", "expand(x)", "x.subs(x, 1)", "sin(x, evaluate=False)", "S('x')", "x if x else x", "x; x",
     "9**9**9", "2**99999", "x = 1", "x\n", "x # y", "'x'", "x[0]", "sin", "sin(*[x])", "x // 2", "x @ x", "True", "é"],
)  # fmt: skip
def test_what_is_not_a_formula_is_refused(text: str):
    assert not literals.is_expression(text)


def test_a_polynomial_calls_nothing():
    assert literals.is_polynomial("3*x**2*y - 4") and not literals.is_polynomial("sin(x)")


def test_arithmetic_has_its_exact_value_and_its_numbers():
    assert literals.arithmetic("10*(8 - 5) - 6/4") == (Fraction(57, 2), [10, 8, 5, 6, 4])
    assert literals.arithmetic("-3 + 3") == (0, [3, 3])
    for text in ("1/0", "2**3", "1.5", "x", "7 // 2", "1 2", "", "5!", "(" * 5000 + "1" + ")" * 5000):
        assert literals.arithmetic(text) is None
