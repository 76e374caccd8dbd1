"""The traps of MiniWoB++'s pages, each on a page that has it."""

import asyncio

import pytest

from bough.environments.web.actions import bind
from bough.environments.web.elements import render
from bough.environments.web.page import Page, RefusedError
from bough.environments.web.pool import Pool
from bough.speech.functions import read_call


async def shown(page_name, seed=0, *actions):
    """What a page shows after some actions."""
    pool = Pool.here()
    page = await pool.take()
    try:
        view = await page.start(page_name, seed, "train")
        for action in actions:
            view = await page.act(bind(read_call(action)))
        return view
    finally:
        await pool.give_back(page, sound=False)


def test_elements_are_numbered_and_text_between_them_is_kept(run):
    view = run(shown("login-user"))
    assert view.goal == 'Enter the username "karrie" and the password "AU" into the text fields and press login.'
    assert render(view.lines).splitlines() == [
        "Username", "[1] text id=username value=''", "Password", "[2] password id=password value=''",
        "[3] button 'Login' id=subbtn",
    ]  # fmt: skip


def test_a_box_takes_its_name_from_its_label(run):
    assert render(run(shown("click-checkboxes")).lines) == (
        "[1] checkbox 'AU' id=ch0\n[2] checkbox 'HF2' id=ch1\n[3] button 'Submit' id=subbtn"
    )


def test_what_only_listens_is_found_too(run):
    assert [line.name for line in run(shown("click-link")).lines if line.number] == [
        "ridiculus", "eget", "malesuada", "Eget", "pretium",
    ]  # fmt: skip


def test_numbers_stay_with_their_elements(run):
    before, after = run(shown("click-collapsible-2")), run(shown("click-collapsible-2", 0, "click('2')"))
    assert {line.number: line.name for line in before.lines} == {1: "Section #1", 2: "Section #2", 3: "Section #3"}
    numbers = {line.name: line.number for line in after.lines if line.kind == "tab"}
    assert numbers == {"Section #1": 1, "Section #2": 2, "Section #3": 3} and len(after.lines) > 3


def test_icons_are_there_when_the_page_is_first_read(run):
    icons = [line.facts.get("class") for line in run(shown("email-inbox-delete")).lines if line.kind == "span"]
    assert icons.count("trash") == icons.count("star") == 3


def test_colours_and_shapes_are_told(run):
    assert [line.facts["color"] for line in run(shown("click-color")).lines] == ["red", "blue", "grey", "white"]
    letter = run(shown("click-shape")).lines[0]
    assert (letter.kind, letter.name, letter.facts["fill"]) == ("letter", "O", "aqua")
    assert "rgb(1, 152, 227)" in run(shown("use-colorwheel-2")).goal


def test_a_table_row_is_a_line(run):
    assert "Last name | Reynolds" in [line.name for line in run(shown("read-table")).lines]


def test_a_click_lands_on_an_element_whose_middle_is_covered(run):
    async def main():
        for seed in (6, 34):  # there TWO lies over the middle of ONE
            view = await shown("click-test-2", seed, "click('1')")
            assert view.done and view.reward == 1, seed

    run(main())


def test_an_element_that_lies_under_another_is_refused(run):
    with pytest.raises(RefusedError, match="Element 2 is covered"):
        run(shown("click-pie", 0, "click('2')"))


def test_a_disabled_element_is_refused(run):
    view = run(shown("login-user-popup", 1, "click('1')"))
    assert any(line.name == "Cancel" for line in view.lines)
    with pytest.raises(RefusedError, match="Element 3 is disabled"):
        run(shown("login-user-popup", 1, "click('1')", "click('3')"))


@pytest.mark.parametrize(
    ("page", "action", "said"),
    [
        ("login-user", "click('9')", "There is no element 9"),
        ("login-user", "click('#nothing')", 'There is no element "#nothing"'),
        ("login-user", "click('a[')", "not a CSS selector"),
        ("login-user", "click('#query')", "There is no element"),
        ("login-user", "fill('3', 'x')", "Element 3 is not a text field"),
        ("sign-agreement", "fill('2', 'x')", "Element 2 cannot be changed"),
        ("login-user", "select_option('1', 'x')", "Element 1 is not a list"),
        ("choose-list", "select_option('1', 'Nobody')", 'Element 1 has no option "Nobody"'),
        ("choose-list", "select_option('1', ['Helli', 'Fredra'])", "Element 1 takes one option"),
        ("enter-date", "fill('1', 'tomorrow')", "does not take"),
        ("login-user", "select_text('nowhere to be seen')", "is not on the page"),
    ],
)
def test_what_cannot_be_done_is_refused_in_words(run, page, action, said):
    with pytest.raises(RefusedError, match=said):
        run(shown(page, 0, action))


def test_filling_replaces_and_typing_adds(run):
    async def value(*actions):
        return (await shown("enter-text", 0, *actions)).lines[0].facts["value"]

    assert run(value("fill('1', 'abc')", "fill('1', 'it''s é')")) == "its é"
    assert run(value("fill('1', 'abc')", "fill('1', '')")) == ""
    assert run(value("fill('1', 'abc')", "type('De 1!')")) == "abcDe 1!"
    assert run(value("type('x', '1')", "press('Backspace')", "press('y')")) == "y"
    assert run(value("fill('1', 'abc')", "press('Control+a')", "press('z')")) == "z"


def test_copying_and_pasting_keep_to_the_page(run):
    async def main():
        actions = [
            "fill('1', 'mine')",
            "press('Control+a')",
            "press('Control+c')",
            "press('End')",
            "press('Control+v')",
        ]
        one, other = await asyncio.gather(
            shown("enter-text", 0, *actions), shown("enter-text", 0, *[a.replace("mine", "your") for a in actions])
        )
        return one.lines[0].facts["value"], other.lines[0].facts["value"]

    assert run(main()) == ("minemine", "youryour")


def test_the_clock_stands_still_until_something_is_done(run):
    async def prices(pause_s):
        pool = Pool.here()
        page = await pool.take()
        views = [await page.start("stock-market", 0, "train")]
        for _ in range(2):
            await asyncio.sleep(pause_s)
            views.append(await page.act(bind(read_call("hover('1')"))))
        await pool.give_back(page, sound=True)
        return [next(line.name for line in view.lines if "price" in line.name) for view in views]

    # the price changes ten times a second by the page's clock, of which an action takes a tenth of a second
    assert run(prices(0)) == run(prices(0.35))
    assert len(set(run(prices(0)))) == 3


def test_animations_are_over_when_the_page_is_read(run):
    view = run(shown("choose-date", 0, "click('1')"))
    assert "December 2016" in [line.name for line in view.lines]
    day = next(line for line in view.lines if line.name == "15")
    done = run(shown("choose-date", 0, "click('1')", f"click('{day.number}')"))
    assert [line.kind for line in done.lines if line.number] == ["text", "button"]
    assert done.lines[1].facts["value"] == "12/15/2016"


def test_sorted_items_are_dropped_before_or_after(run):
    async def main():
        view = await shown("drag-sort-numbers", 0)
        names = [line.name for line in view.lines if line.kind == "li"]
        down = await shown("drag-sort-numbers", 0, "drag('1', '3')")
        up = await shown("drag-sort-numbers", 0, "drag('3', '1')")
        return (
            names,
            [line.name for line in down.lines if line.kind == "li"],
            [x.name for x in up.lines if x.kind == "li"],
        )

    (a, b, c, d), down, up = run(main())
    assert down == [b, c, a, d]
    assert up == [c, a, b, d]


def test_a_screenshot_is_a_png_of_the_task(run):
    async def main():
        pool = Pool.here()
        page = await pool.take()
        await page.start("click-button", 0, "train")
        image = await page.screenshot()
        await pool.give_back(page, sound=True)
        return image

    image = run(main())
    assert image.startswith(b"\x89PNG")
    assert (int.from_bytes(image[16:20]), int.from_bytes(image[20:24])) == (160, 210)


def test_every_selector_finds_its_own_element(run):
    async def main(name):
        pool = Pool.here()
        page: Page = await pool.take()
        view = await page.start(name, 0, "train")
        lines = [line for line in view.lines if line.number]
        found = await page._evaluate(
            "(" + str([line.selector for line in lines]) + ").map(s => document.querySelectorAll(s).length)"
        )
        await pool.give_back(page, sound=True)
        return lines, found

    for name in ("click-checkboxes", "email-inbox", "click-link", "social-media", "navigate-tree", "click-shape"):
        lines, found = run(main(name))
        assert found == [1] * len(lines), name
        assert len({line.selector for line in lines}) == len(lines)
