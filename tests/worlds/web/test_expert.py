import asyncio
from random import Random

from benchmarks.experts import outcome

from bough.types import Task
from bough.worlds.web.elements import Line
from bough.worlds.web.environment import Web
from bough.worlds.web.expert import EXPERTS, advise
from bough.worlds.web.page import View
from tests.worlds.web.conftest import web


def view(goal, *lines):
    return View(goal, lines, False, 0.0, "")


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

    async def main():
        turns = asyncio.Semaphore(4)

        async def one(page, seed):
            async with turns:
                return await play(page, seed)

        return await asyncio.gather(*(one(page, seed) for page in pages for seed in (70_000, 70_001)))

    assert [page for page, success in run(main()) if not success] == []


def test_experts_go_on_from_random_states(run):
    """Pages on which a random agent leaves something to be undone."""
    pages = (
        "email-inbox", "social-media-all", "order-food", "click-shades", "text-editor", "form-sequence-2", "copy-paste",
        "search-engine", "click-collapsible-2", "terminal",
    )  # fmt: skip

    async def main():
        tasks = [Task(id=page, seed=70_000, data={"page": page}) for page in pages]
        return await asyncio.gather(*(outcome(Web, task, Random(at)) for at, task in enumerate(tasks)))

    assert {page: word for page, (word, _) in zip(pages, run(main()), strict=True) if word != "won"} == {}
