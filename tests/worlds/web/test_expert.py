import asyncio
import itertools
from random import Random

from benchmarks.experts import outcome

from bough.types import Task
from bough.worlds.web.actions import Line
from bough.worlds.web.environment import EXPERTS, Web, advise
from bough.worlds.web.page import View
from tests.worlds.web.conftest import web


def view(goal, *lines):
    return View(goal, lines, False, 0.0, "")


async def two_at_a_time(episodes):
    """Their results. The browser starts a process for each page that is played beside others."""
    turns = asyncio.Semaphore(2)

    async def one(episode):
        async with turns:
            return await episode

    return await asyncio.gather(*map(one, episodes))


def test_a_page_without_an_expert_has_no_advice():
    assert advise("count-sides", view("Count"), []) is None


def test_an_expert_at_a_loss_says_nothing():
    assert advise("click-button", view('Click on the "Go" button.', Line("Stop", 1, "button")), []) is None
    assert advise("login-user", view("A goal without names."), []) is None
    assert advise("read-table", view("Enter the value of Age into the text field."), []) is None


def test_advice_is_a_call_and_a_thought():
    advice = advise("click-button", view('Click on the "Go" button.', Line("Go", 4, "button")), [])
    assert advice.call.name == "click" and advice.call.arguments == {"0": "4"} and advice.thought == "I click 'Go'."


def test_at_least_a_hundred_pages_have_an_expert():
    assert len(EXPERTS) >= 100


def test_experts_of_every_family_win(run):
    """One page of each family, on seeds that no expert was written on."""
    pages = (
        "click-button", "click-menu", "click-tab-2", "choose-list", "choose-date-medium", "use-slider", "read-table",
        "count-shape", "odd-or-even", "email-inbox-reply", "social-media-some", "drag-items-grid", "find-midpoint",
        "form-sequence-3", "terminal", "highlight-text", "hot-cold", "ascending-numbers", "drag-cube", "draw-circle",
        "order-food", "daily-calendar", "email-inbox-forward-nl", "simon-says", "circle-center",
    )  # fmt: skip

    async def play(page, seed):
        env = web(page, seed)
        try:
            await env.start()
            for _ in range(env.max_turns):
                seen = await env.step(await env.expert())
                if seen.done:
                    return page, seen.success
            return page, None
        finally:
            await env.close()

    async def both(page):
        return [await play(page, seed) for seed in (70_000, 70_001)]  # the second finds the page loaded

    played = itertools.chain(*run(two_at_a_time(both(page) for page in pages)))
    assert [page for page, success in played if not success] == []


def test_experts_go_on_from_random_states(run):
    """Pages on which a random agent leaves something to be undone."""
    pages = (
        "email-inbox", "social-media-all", "order-food", "click-shades", "text-editor", "form-sequence-2", "copy-paste",
        "search-engine", "click-collapsible-2", "terminal",
    )  # fmt: skip

    tasks = [Task(id=page, seed=70_000, data={"page": page}) for page in pages]
    outcomes = run(two_at_a_time(outcome(Web, task, Random(at)) for at, task in enumerate(tasks)))
    assert {page: word for page, (word, _) in zip(pages, outcomes, strict=True) if word != "won"} == {}


async def finished(env):
    """Whether the expert wins from here."""
    for _ in range(env.max_turns):
        seen = await env.step(await env.expert() or "")
        assert seen.error is None, env.history
        if seen.done:
            return seen.success
    return False


async def after(page, seed, *actions):
    env = web(page, seed)
    await env.start()
    for action in actions:
        assert not (await env.step(action)).done
    return env


def test_experts_undo_what_was_opened_covered_or_replaced(run):
    cases = [
        ("social-media", 4508517, "click('16')"),  # the menu of another post
        ("form-sequence-3", 4508527, "fill('3', 'No')", "select_option('1', '6ft 2in')"),  # a list over the buttons
        ("draw-line", 4508524, "mouse_drag(107, 59, 107, 109)", "click('1')"),  # the click replaces the line
        ("drag-circle", 4508519, "mouse_drag(96, 106, 96, 188)"),  # only its rim is inside the drawing
        ("click-button-sequence", 4508534, "drag('1', '1')"),
        ("daily-calendar", 4508530),  # another event lies over the first half hour
        ("click-pie", 4508529),  # the item is larger than others while the menu is closed
    ]

    async def play(page, seed, *actions):
        env = await after(page, seed, *actions)
        try:
            return await finished(env)
        finally:
            await env.close()

    wins = run(two_at_a_time(play(*case) for case in cases))
    assert [case[0] for case, won in zip(cases, wins, strict=True) if not won] == []
