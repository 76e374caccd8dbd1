import pytest

from bough.worlds.interpreter.units import read_unit, same_unit


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


def test_an_answer_may_leave_the_unit_out_but_not_change_it():
    assert same_unit("", "cm") and same_unit("cm", "cm") and not same_unit("km", "cm")
    assert same_unit("$", "") and same_unit("%", ""), "a reference often leaves it to the question"
    assert not same_unit("base 2", ""), "another number"
