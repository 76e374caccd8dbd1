from bough.worlds.web.actions import LONGEST_NAME, Line, read_line, render


def test_an_element_has_its_number_kind_name_and_facts():
    line = Line("Okay", 3, "button", "#ok", {"id": "ok", "disabled": True, "checked": False, "value": ""})
    assert render([line]) == "[3] button 'Okay' id=ok disabled value=''"


def test_with_selectors_the_selector_stands_for_number_and_id():
    line = Line("Okay", 3, "button", "#ok", {"id": "ok", "focused": True})
    assert render([line], selectors=True) == "button 'Okay' focused selector=\"#ok\""


def test_text_is_shown_as_it_is():
    assert render([Line("User name"), Line("", 1, "text", "#a", {"value": "x"})]) == "User name\n[1] text value='x'"


def test_options_are_listed_and_quotes_change_where_they_must():
    line = Line("", 2, "select", "select", {"options": ["a", "b's"], "value": "a"})
    assert render([line]) == "[2] select options='a', \"b's\" value='a'"


def test_a_name_without_end_is_cut():
    assert render([Line("x" * 1000, 1, "div")]) == f"[1] div '{'x' * LONGEST_NAME}…'"


def test_what_the_page_says_becomes_lines():
    assert read_line({"text": "Hello"}) == Line("Hello")
    seen = {"number": 4, "kind": "link", "name": "More", "selector": "a", "facts": {"selected": True}}
    assert read_line(seen) == Line("More", 4, "link", "a", {"selected": True})
