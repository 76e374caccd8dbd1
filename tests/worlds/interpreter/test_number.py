from fractions import Fraction

import pytest

from bough.worlds.interpreter.number import MAX_LENGTH, MAX_TERMS, PLAIN, read_number, read_unit


def test_roots_pi_and_i_are_parts_of_their_own():
    found = read_number("\\frac{1-3\\sqrt{5}}{2}")
    assert found is not None and found[0].simple
    assert found[0].parts == {PLAIN: Fraction(1, 2), (5, 0, 0): Fraction(-3, 2)}
    for one, other in [
        ("2\\pi/3", "\\frac{2}{3}\\pi"),
        ("3-4i", "-4i+3"),
        ("\\frac{1}{\\sqrt{3}}", "\\frac{\\sqrt{3}}{3}"),
    ]:
        left, right = read_number(one), read_number(other)
        assert left is not None and right is not None and left[0].parts == right[0].parts
        assert left[0].simple and right[0].simple


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("6/3", 2),
        ("\\frac{2}{4}", Fraction(1, 2)),
        ("5/1", 5),
        ("2\\frac{2}{4}", Fraction(5, 2)),
        ("1\\frac{5}{4}", Fraction(9, 4)),
        ("15\\times 10^{2}", 1500),
        ("2+3", 5),
        ("5(7)", 35),
        ("(3)(4)", 12),
        ("\\sqrt{16}", 4),
        ("\\sqrt{2}\\sqrt{8}", 4),
        ("\\frac{1.5}{2}", Fraction(3, 4)),
        ("\\frac{\\frac{1}{2}}{2}", Fraction(1, 4)),
        ("2\\frac{1}{2}(4)", 10),
        ("0/5", 0),
    ],
)
def test_what_is_still_to_be_calculated_is_a_number_but_not_simple(text: str, value: Fraction):
    found = read_number(text)
    assert found is not None and not found[0].simple
    assert found[0].parts == ({PLAIN: value} if value else {})


@pytest.mark.parametrize("text", ["", "x", "--5", "1/0", "\\frac{1}{0}", "\\sqrt{-1}", "\\frac{1}{2", "(4,112)", "."])
def test_what_is_no_number_is_none(text: str):
    assert read_number(text) is None


@pytest.mark.parametrize(
    "text",
    ["1" * (MAX_LENGTH + 1), "(" * 400 + "1" + ")" * 400, "1e999999999", "\\sqrt{99999999999999999999}",
     "(1+\\sqrt{2})(1+\\sqrt{3})(1+\\sqrt{5})(1+\\sqrt{7})", "(1+\\pi)" * MAX_TERMS],
)  # fmt: skip
def test_what_would_take_long_is_not_read(text: str):
    assert read_number(text) is None


def test_the_square_in_a_root_is_found_whatever_its_size():
    cases = [(1, 2), (2, 3), (12, 35), (99_991, 1), (1, 99_989 * 99_991), (3 * 211, 7 * 199), (2_153, 2_143)]
    for square, rest in cases:
        found = read_number(f"\\sqrt{{{square * square * rest}}}")
        assert found is not None and found[0].parts == {(rest, 0, 0): square}


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("", ""),
        ("\\text{ cm}", "cm"),
        (" centimeters", "cm"),
        ("\\text{ square centimeters}", "cm^2"),
        ("\\mbox{ cm}^2", "cm^2"),
        (" sq. cm", "cm^2"),
        (" cubic inches", "in^3"),
        ("^\\circ", "deg"),
        ("^\\circ\\text{C}", "deg c"),
        ("\\%", "%"),
        (" miles per hour", "mi/h"),
        (" mph", "mi/h"),
        ("\\text{ dogs}", "dog"),
        (" clips.", "clip"),
        ("\\text{ m}", "m"),
        ("_{12}", "base 12"),
    ],
)
def test_spellings_of_one_unit_are_one_unit(text: str, unit: str):
    assert read_unit(text) == unit


@pytest.mark.parametrize(
    "text",
    ["m", "x", "xy", "=5", ",7", "\\text{ or }6", "\\text{ or six}", "\\text{ thousand}", " million dollars", "^2",
     "\\times 3", " mod 5", "!", "\\sin", " sin", "\\text{ a b c d e}", "\\pm 1"],
)  # fmt: skip
def test_what_goes_on_as_something_else_is_no_unit(text: str):
    assert read_unit(text) is None
