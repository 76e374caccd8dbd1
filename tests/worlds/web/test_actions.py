import pytest

from bough.types import ToolCall
from bough.worlds.web.actions import MAX_TEXT, Action, UnknownActionError, bind


def bound(name, **arguments):
    return bind(ToolCall(name=name, arguments={key.lstrip("_"): value for key, value in arguments.items()}))


def test_arguments_are_bound_by_place_or_by_name():
    expected = Action("fill", {"element": 3, "text": "x"})
    assert (
        bound("fill", _0="3", _1="x")
        == bound("fill", element=3, text="x")
        == bound("FILL", _0="[3]", text="x")
        == expected
    )


def test_a_selector_names_an_element_too():
    assert bound("click", selector="#ok") == Action("click", {"element": "#ok"})


def test_what_is_optional_may_be_left_out():
    assert bound("scroll", _0="down") == Action("scroll", {"direction": "down", "element": None})
    assert bound("type", text="a", selector="#b") == Action("type", {"text": "a", "element": "#b"})


def test_one_option_is_a_list_of_one():
    assert bound("select_option", _0=1, _1="a").arguments["option"] == ["a"]
    assert bound("select_option", _0=1, _1=["a", 2]).arguments["option"] == ["a", "2"]


def test_numbers_may_be_written_as_text_and_text_as_numbers():
    assert bound("mouse_click", _0="4.5", _1=3).arguments == {"x": 4.5, "y": 3.0}
    assert bound("fill", _0=1, _1=42).arguments["text"] == "42"
    assert bound("press", _0=7).arguments["key"] == "7"


def test_an_action_that_does_not_exist_is_named_with_its_nearest():
    with pytest.raises(UnknownActionError, match=r"no action clik; did you mean click\?"):
        bound("clik", _0="3")


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
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
        ("type", {}, r"type\(text, element\?\)"),
    ],
)
def test_what_does_not_fit_is_explained(name, arguments, said):
    with pytest.raises(UnknownActionError, match=said):
        bound(name, **arguments)


def test_a_number_beyond_all_pages_is_refused():
    with pytest.raises(UnknownActionError, match="must be a number of pixels"):
        bound("mouse_move", x=10**400, y=1)


@pytest.mark.parametrize("name", ["type", "fill", "select_text"])
def test_a_text_that_takes_minutes_to_type_is_refused(name):
    more = {"element": 1} if name == "fill" else {}
    assert bind(ToolCall(name=name, arguments={"text": "x" * MAX_TEXT, **more}))
    with pytest.raises(UnknownActionError, match="text has 1,001 characters; at most 1,000 can be written at once"):
        bind(ToolCall(name=name, arguments={"text": "x" * (MAX_TEXT + 1), **more}))
