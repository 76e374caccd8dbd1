import pytest

from bough.worlds.web.actions import Line
from bough.worlds.web.experts.puzzles import fits_shape, tic_tac_toe
from bough.worlds.web.experts.scene import Scene


def shape(kind, name="", fill="red", size="10x10"):
    return Line(name, 1, kind, facts={"fill": fill, "size": size})


@pytest.mark.parametrize(
    ("line", "words", "fits"),
    [
        (shape("circle"), "red circle", True),
        (shape("circle"), "blue circle", False),
        (shape("polygon"), "triangles", True),
        (shape("rect", size="18x18"), "large rectangle", True),
        (shape("rect"), "large rectangle", False),
        (shape("letter", "I", size="4x20"), "large letter", True),
        (shape("letter", "7"), "digit", True),
        (shape("letter", "7"), "shape", False),
        (shape("letter", "O"), "red O", True),
        (shape("letter", "O"), "red z", False),
        (shape("letter", "y"), "red ys", True),
        (shape("letter", "s"), "red ss", True),
        (shape("letter", "s"), "red ys", False),
        (shape("circle"), "small item", True),
    ],
)
def test_a_shape_is_what_the_words_say(line, words, fits):
    assert fits_shape(line, words) is fits


def board(marks):
    classes = {"X": {"class": "mark-x"}, "O": {"class": "mark-o"}, ".": {}}
    lines = [Line("", place + 1, "span", facts=classes[mark]) for place, mark in enumerate(marks)]
    return int(tic_tac_toe(Scene("win", lines)).call.arguments["0"]) - 1


def test_it_wins_before_it_defends_and_else_takes_the_middle():
    assert board("XX.OO....") == 2
    assert board("X..OO....") == 5
    assert board("X........") == 4
