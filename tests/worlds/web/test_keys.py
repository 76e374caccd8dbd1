import pytest

from bough.worlds.web import actions


def test_a_letter_writes_itself():
    down, up = actions.strokes("a")
    assert down == {
        "type": "keyDown", "key": "a", "code": "KeyA", "windowsVirtualKeyCode": 65, "modifiers": 0, "text": "a",
    }  # fmt: skip
    assert up["type"] == "keyUp" and "text" not in up


def test_a_named_key_has_its_number_and_writes_only_if_it_is_for_writing():
    assert actions.strokes("Enter")[0]["text"] == "\r"
    tab = actions.strokes("Tab")[0]
    assert (tab["type"], tab["windowsVirtualKeyCode"]) == ("rawKeyDown", 9) and "text" not in tab


def test_with_control_nothing_is_written_and_the_editor_is_told():
    down = actions.strokes("Control+a")[0]
    assert (down["type"], down["modifiers"], down["commands"]) == ("rawKeyDown", 2, ["selectAll"])
    assert "text" not in down


def test_shift_still_writes():
    down = actions.strokes("Shift+A")[0]
    assert (down["text"], down["modifiers"]) == ("A", 8)


@pytest.mark.parametrize("combination", ["a", "Enter", "Control+a", "Control+Shift+Tab", "+", "Control++", "é", "7"])
def test_these_are_keys(combination):
    assert actions.known(combination) and len(actions.strokes(combination)) == 2


@pytest.mark.parametrize("combination", ["", "enter", "Ctrl+a", "ab", "Control+", "a+b"])
def test_these_are_not(combination):
    assert not actions.known(combination)
