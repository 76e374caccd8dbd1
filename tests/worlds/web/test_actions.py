import pytest

from bough.types import ToolCall
from bough.worlds.web import actions
from bough.worlds.web.actions import LONGEST_NAME, MAX_TEXT, Action, Line, UnknownActionError, bind, read_line, render


def bound(name, **arguments):
    return bind(ToolCall(name=name, arguments={key.lstrip("_"): value for key, value in arguments.items()}))


def test_arguments_are_bound_by_place_or_by_name():
    expected = Action("fill", {"element": 3, "text": "x"})
    written = bound("fill", _0="3", _1="x"), bound("fill", element=3, text="x"), bound("FILL", _0="[3]", text="x")
    assert written == (expected, expected, expected)
    assert bound("click", selector="#ok") == Action("click", {"element": "#ok"})
    assert bound("scroll", _0="down") == Action("scroll", {"direction": "down", "element": None})
    assert bound("type", text="a", selector="#b") == Action("type", {"text": "a", "element": "#b"})


def test_arguments_become_what_their_parameters_are():
    assert bound("select_option", _0=1, _1="a").arguments["option"] == ["a"]
    assert bound("select_option", _0=1, _1=["a", 2]).arguments["option"] == ["a", "2"]
    assert bound("mouse_click", _0="4.5", _1=3).arguments == {"x": 4.5, "y": 3.0}
    assert bound("fill", _0=1, _1=42).arguments["text"] == "42"
    assert bound("press", _0=7).arguments["key"] == "7"


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("clik", {"_0": "3"}, r"no action clik; did you mean click\?"),
        ("click", {}, r"click is used as click\(element\)"),
        ("click", {"_0": "1", "_1": "2"}, "click is used as"),
        ("click", {"_0": "1", "element": "2"}, "click is used as"),
        ("click", {"where": "1"}, "click is used as"),
        ("click", {"_0": ""}, "number or its selector"),
        ("click", {"_0": True}, "number or its selector"),
        ("scroll", {"_0": "left"}, "'up', 'down', 'top', 'bottom'"),
        ("press", {"_0": "enter"}, "is not a key"),
        ("press", {"_0": ""}, "is not a key"),
        ("fill", {"_0": "1", "_1": ["x"]}, "text must be text"),
        ("select_option", {"_0": "1", "_1": []}, "option must be"),
        ("mouse_click", {"_0": "a", "_1": 1}, "x must be a number"),
        ("mouse_click", {"_0": 1, "_1": 1e9}, "y must be a number"),
        ("mouse_move", {"x": 10**400, "y": 1}, "must be a number of pixels"),
        ("type", {}, r"type\(text, element\?\)"),
    ],
)
def test_what_does_not_fit_is_explained(name, arguments, said):
    with pytest.raises(UnknownActionError, match=said):
        bound(name, **arguments)


@pytest.mark.parametrize("name", ["type", "fill", "select_text"])
def test_a_text_that_takes_minutes_to_type_is_refused(name):
    more = {"element": 1} if name == "fill" else {}
    assert bind(ToolCall(name=name, arguments={"text": "x" * MAX_TEXT, **more}))
    with pytest.raises(UnknownActionError, match="text has 1,001 characters; at most 1,000 can be written at once"):
        bind(ToolCall(name=name, arguments={"text": "x" * (MAX_TEXT + 1), **more}))


def test_a_letter_writes_itself():
    down, up = actions.strokes("a")
    assert down == {
        "type": "keyDown", "key": "a", "code": "KeyA", "windowsVirtualKeyCode": 65, "modifiers": 0, "text": "a",
    }  # fmt: skip
    assert up["type"] == "keyUp" and "text" not in up


def test_other_keys_write_only_if_they_are_for_writing():
    assert actions.strokes("Enter")[0]["text"] == "\r"
    tab, all_of_it, shifted = (actions.strokes(keys)[0] for keys in ("Tab", "Control+a", "Shift+A"))
    assert (tab["type"], tab["windowsVirtualKeyCode"]) == ("rawKeyDown", 9) and "text" not in tab
    assert (all_of_it["type"], all_of_it["modifiers"]) == ("rawKeyDown", 2) and "text" not in all_of_it
    assert all_of_it["commands"] == ["selectAll"], "the editor is told"
    assert (shifted["text"], shifted["modifiers"]) == ("A", 8)


def test_what_is_a_key():
    for combination in ("a", "Enter", "Control+a", "Control+Shift+Tab", "+", "Control++", "é", "7"):
        assert actions.known(combination) and len(actions.strokes(combination)) == 2
    for combination in ("", "enter", "Ctrl+a", "ab", "Control+", "a+b"):
        assert not actions.known(combination)


def test_an_element_has_its_number_kind_name_and_facts():
    facts = {"id": "ok", "disabled": True, "checked": False, "value": ""}
    line = Line("Okay", 3, "button", "#ok", facts)
    assert render([Line("User name"), line]) == "User name\n[3] button 'Okay' id=ok disabled value=''"
    assert render([line], selectors=True) == "button 'Okay' disabled value='' selector=\"#ok\""
    chosen = Line("", 2, "select", "select", {"options": ["a", "b's"], "value": "a"})
    assert render([chosen]) == "[2] select options='a', \"b's\" value='a'"
    assert render([Line("x" * 1000, 1, "div")]) == f"[1] div '{'x' * LONGEST_NAME}…'"


def test_what_the_page_says_becomes_lines():
    assert read_line({"text": "Hello"}) == Line("Hello")
    seen = {"number": 4, "kind": "link", "name": "More", "selector": "a", "facts": {"selected": True}}
    assert read_line(seen) == Line("More", 4, "link", "a", {"selected": True})
