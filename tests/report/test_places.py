from pathlib import Path

from bough.report.card import without_places


def test_folders_of_the_machine_are_not_named():
    places = [Path("/home/ann"), Path("/home/ann/work"), Path("/")]
    text = "in /home/ann/work/x and /home/ann, not in /home/anna, /home/ann.old, a/home/ann, / or /srv"
    assert without_places(text, places) == "in …/x and …, not in /home/anna, /home/ann.old, a/home/ann, / or /srv"
