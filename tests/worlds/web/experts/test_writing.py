from bough.worlds.web.experts import writing
from tests.worlds.web.experts.scenes import advice, lines

GOAL = "Using the text editor, give the text ipsum the style bold and press Submit."


def page(text="Lorem ipsum dolor", active="", *more):
    styles = ("ql-picker-label", "ql-bold", "ql-italic", "ql-underline")
    buttons = [("button", "", {"class": f"{name} ql-active" if name == active else name}) for name in styles]
    return [*buttons, ("div", text), ("button", "Submit"), *more]


def test_on_a_fresh_page_a_text_is_marked_and_given_its_style():
    steps = ["select_text('ipsum')", "click('2')", "click('6')"]
    for number, step in enumerate(steps):
        assert advice(writing.editor, GOAL, *page(), did=tuple(steps[:number])) == step


def test_after_other_actions_the_text_is_written_again_piece_by_piece():
    did, seen, shown = ["click('3')"], [lines(*page())], page()
    steps = [
        ("click('5')", page()), ("press('Control+a')", page()), ("press('Backspace')", page("")),
        ("type('Lorem ')", page("Lorem")), ("click('2')", page("Lorem", "ql-bold")),
        ("type('ipsum')", page("Lorem ipsum", "ql-bold")), ("click('2')", page("Lorem ipsum")),
        ("type(' dolor')", page()), ("click('6')", page()),
    ]  # fmt: skip
    for step, after in steps:
        assert advice(writing.editor, GOAL, *shown, did=tuple(did), seen=seen) == step
        did, seen, shown = [*did, step], [*seen, lines(*shown)], after


def test_a_colour_is_picked_from_the_open_palette():
    goal = "Using the text editor, give the text Lorem the color red."
    palette = [
        ("span", "", {"class": "ql-picker-item"}),
        ("span", "", {"class": "ql-picker-item", "color": "rgb(230, 0, 0)"}),
    ]
    did, seen = ("press('Backspace')",), [lines(*page("Lorem"))]
    assert advice(writing.editor, goal, *page(""), did=did, seen=seen) == "click('1')"
    opened = page("", "", *palette)
    did, seen = (*did, "click('1')"), [*seen, lines(*page(""))]
    assert advice(writing.editor, goal, *opened, did=did, seen=seen) == "click('8')"
    did, seen = (*did, "click('8')"), [*seen, lines(*opened)]
    assert advice(writing.editor, goal, *page("", "ql-picker-label"), did=did, seen=seen) == "type('Lorem')"
