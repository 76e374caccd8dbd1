"""Experts on the real pages."""

import asyncio
from random import Random

from benchmarks.experts import outcome

from bough.types import Task
from bough.worlds.web.environment import EXPERTS, Web
from tests.worlds.web.conftest import web


async def two_at_a_time(episodes):
    """Their results. The browser starts a process for each page that is played beside others."""
    turns = asyncio.Semaphore(2)

    async def one(episode):
        async with turns:
            return await episode

    return await asyncio.gather(*map(one, episodes))


async def wins(page, seed, *actions):
    """Whether the expert wins after these actions."""
    env = web(page, seed)
    try:
        await env.start()
        for action in actions:
            assert not (await env.step(action)).done
        for _ in range(env.max_turns):
            seen = await env.step(await env.expert() or "")
            assert seen.error is None, env.history
            if seen.done:
                return seen.success
        return False
    finally:
        await env.close()


def test_ninety_pages_have_an_expert():
    assert len(EXPERTS) == 91


def test_experts_of_every_family_win(run):
    """On seeds that no expert was written on; the second finds the page loaded. Then from states to be undone."""
    pages = (
        "click-button", "click-menu", "click-tab-2", "choose-list", "choose-date-medium", "use-slider", "read-table",
        "count-shape", "odd-or-even", "email-inbox-reply", "social-media-some", "drag-items-grid", "form-sequence-3",
        "highlight-text", "use-autocomplete", "enter-date", "navigate-tree", "find-greatest",
    )  # fmt: skip
    cases = [(page, seed) for page in pages for seed in (70_000, 70_001)]
    cases += [
        ("social-media", 4508517, "click('16')"),  # the menu of another post
        ("form-sequence-3", 4508527, "fill('3', 'No')", "select_option('1', '6ft 2in')"),  # a list over the buttons
    ]
    won = run(two_at_a_time(wins(*case) for case in cases))
    assert [case[0] for case, success in zip(cases, won, strict=True) if not success] == []


def test_experts_go_on_from_random_states(run):
    """Pages on which a random agent leaves something to be undone."""
    pages = ("email-inbox", "social-media-all", "click-shades", "form-sequence-2", "copy-paste", "click-collapsible-2")
    tasks = [Task(id=page, seed=70_000, data={"page": page}) for page in pages]
    outcomes = run(two_at_a_time(outcome(Web, task, Random(at)) for at, task in enumerate(tasks)))
    assert {page: word for page, (word, _) in zip(pages, outcomes, strict=True) if word != "won"} == {}
