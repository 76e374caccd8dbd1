import pytest

from bough.worlds.web.actions import Action, Line
from bough.worlds.web.experts.scene import Scene, StuckError, check_then, fill_then, first, ordinal

NAME = Line("", 1, "text", facts={"value": ""})
BOX = Line("a", 2, "checkbox", facts={"checked": False})
GO = Line("Submit", 3, "button")
DONE = [Action("click", {"element": 1})]
SCENE = Scene('Write "x y" and "z" into the 2nd field', [Line("Label"), NAME, BOX, GO], DONE)


def test_a_scene_tells_elements_from_text():
    assert SCENE.elements == [NAME, BOX, GO] and SCENE.texts == ["Label"]
    assert SCENE.quoted == ["x y", "z"] and ordinal(SCENE) == 2
    assert SCENE.submit() is GO and SCENE.named("a") is BOX
    assert SCENE.all("text", value="") == [NAME] and SCENE.all("text", value="q") == []
    assert list(SCENE.after_text("Label")) == [NAME, BOX, GO] and list(SCENE.after_text("Other")) == []
    assert len(SCENE.done("click")) == 1 and SCENE.done("fill") == []


def test_what_is_not_there_leaves_the_expert_stuck():
    looks = [
        lambda: SCENE.named("nobody"),
        lambda: first([]),
        lambda: SCENE.goal_match("zzz"),
        lambda: SCENE.text_match("zzz"),
    ]
    for look in looks:
        with pytest.raises(StuckError):
            look()


def test_fields_are_filled_one_after_the_other_and_then_sent():
    other = Line("", 5, "text", facts={"value": "done"})
    assert fill_then([(other, "done"), (NAME, "x")], GO).call.arguments == {"0": "1", "1": "x"}
    assert fill_then([(other, "done"), (NAME, "")], GO).call.arguments == {"0": "3"}


def test_boxes_are_checked_and_unchecked():
    checked = Line("b", 4, "checkbox", facts={"checked": True})
    assert check_then([checked, BOX], lambda box: box.name == "a", GO).call.arguments == {"0": "4"}
    assert check_then([checked, BOX], lambda box: True, GO).call.arguments == {"0": "2"}
    assert check_then([checked, BOX], lambda box: box.name == "b", GO).call.arguments == {"0": "3"}


@pytest.mark.parametrize(
    ("words", "number"), [("1st", 1), ("2nd", 2), ("3rd", 3), ("4th", 4), ("11th", 11), ("12th", 12)]
)
def test_ordinals(words, number):
    assert ordinal(Scene(f"the {words} one", [])) == number
