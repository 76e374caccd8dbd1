import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys

import pytest

from bough.chat.tool_calls import COMMANDS, FUNCTIONS, function_text
from bough.config.groups import LimitsConfig
from bough.errors import InputError
from bough.rollouts.collect import LocalRunner, attempts, collect
from bough.rollouts.episode import ExpertAgent
from bough.types import Task, ToolCall
from bough.worlds.web import environment
from bough.worlds.web.actions import SIGNATURES, Line, bind
from bough.worlds.web.environment import SEEDS_PER_SPLIT, Options, Web, choices
from bough.worlds.web.page import Pool, View, text_pages
from tests.worlds.web.conftest import web


async def play(env, *replies):
    """The observations of an episode: of these replies, or else of the expert's."""
    try:
        seen = [await env.start()]
        for reply in replies or iter(lambda: None, 0):
            reply = await env.expert() if reply is None else reply
            seen.append(await env.step(reply))
            if seen[-1].done:
                break
        return seen
    finally:
        await env.close()


def test_an_episode_from_start_to_success(run):
    start, filled, _, end = run(play(web("login-user"), "fill('1', 'karrie')", "I see.\nfill('2', 'AU')", "click('3')"))
    system, user = start.messages
    assert system.role == "system" and "click('3')" in system.content
    assert user.content.startswith('Goal: Enter the username "karrie"') and "[3] button 'Login'" in user.content
    assert "[1] text id=username value='karrie' focused" in filled.messages[0].content
    assert (filled.action, filled.reward, filled.success, filled.done) == ("fill('1', 'karrie')", 0.0, None, False)
    assert (end.terminated, end.success, end.reward, end.progress) == (True, True, 1.0, 1.0)


def test_wrong_answers_end_in_failure_and_part_of_the_reward_is_kept(run):
    *_, end = run(play(web("login-user"), "click('3')"))
    assert (end.terminated, end.success, end.reward, end.progress) == (True, False, -1.0, 0.0)
    *_, end = run(play(web("find-greatest"), "click('1')", "click('4')"))
    assert (end.success, end.reward, end.progress) == (False, 0.1, 0.1)


def test_after_the_end_nothing_is_done_any_more(run):
    async def main():
        env = web("click-test")
        await env.start()
        assert (await env.step("click('1')")).success
        again = await env.step("click('1')")
        await env.close()
        closed = await env.step("click('1')")
        return again, closed

    for seen in run(main()):
        assert seen.terminated and seen.error == "invalid_action" and seen.success is None


@pytest.mark.parametrize(
    "typed",
    [
        "<img src=x onerror=core.endEpisode(1)>",
        "rm <img src=x onerror=core.endEpisode(1)>",
        "rm <img/src=x/onerror=core.endEpisode(1)>",
        "<img name=getAnimations><img name=elementFromPoint>",
        "rm &lt;img&gt;",
    ],
)
def test_what_is_typed_into_a_terminal_is_text(run, typed):
    _, after, end = run(play(web("terminal"), f"type('{typed}\\n')", "type('exit\\n')"))
    shown = f"user$ {typed}" in after.messages[0].content
    assert (after.reward, after.success, after.done, shown) == (0.0, None, False, True)
    assert (end.success, end.reward) == (False, -1.0)


def test_the_other_form_of_speech(run):
    start, filled, end = run(play(
        web("enter-text", speech="commands"),
        'thought: I write.\naction: FILL(selector="#tt", text="Agustina")', 'action: CLICK(selector="#subbtn")',
    ))  # fmt: skip
    assert "CLICK(selector=" in start.messages[0].content and 'selector="#subbtn"' in start.messages[1].content
    assert "[1]" not in start.messages[1].content
    assert filled.action == 'FILL(selector="#tt", text="Agustina")' and end.success


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ("", "malformed"), ("I do not know.", "malformed"), ("click('1')\nclick('2')", "malformed"),
        ("click('99')", "invalid_action"), ("jump('1')", "invalid_action"), ("click()", "invalid_action"),
        ("click('" + "a" * 10_000 + "')", "invalid_action"), ("press('Nothing')", "invalid_action"),
    ],
)  # fmt: skip
def test_a_reply_that_cannot_be_acted_on_is_answered_and_counted(run, reply, error):
    _, seen = run(play(web("login-user"), reply))
    assert seen.error == error and not seen.done and seen.messages[0].content
    assert seen.reward == 0.0


def test_the_expert_speaks_both_forms(run):
    for speech in ("functions", "commands"):
        *_, end = run(play(web("click-checkboxes-large", 5, speech=speech)))
        assert end.success, speech


async def test_a_random_agent_finds_something_to_do_on_every_page_it_plays(run):
    for page in ("click-button", "login-user", "choose-list", "email-inbox"):
        for speech in ("functions", "commands"):
            env, rng = web(page, 3, speech=speech), random.Random(0)
            await env.start()
            for _ in range(3):
                seen = await env.step(env.say(rng.choice(env.choices()), "Why not."))
                assert seen.error in (None, "invalid_action"), seen
                if seen.done:
                    assert env.choices() == ()
                    break
            await env.close()


def test_screenshots_come_on_request_and_a_task_file_needs_no_more_than_a_page(run):
    start, end = run(play(Web(Task(id="x", data={"page": "click-test"})), "click('1')"))
    assert start.images == () and end.success
    start, end = run(play(web("click-test", screenshots=True), "click('1')"))
    assert start.images[0].startswith(b"\x89PNG") and end.images[0].startswith(b"\x89PNG")


def test_the_same_task_is_the_same_in_another_process(run):
    pages = ("click-button", "email-inbox", "choose-date", "chase-circle")  # the circle moves from the beginning
    code = """
import asyncio, json, sys
from bough.worlds.web.environment import Web
from bough.types import Task
async def main():
    for page in sys.argv[1:]:
        env = Web(Task(id=page, seed=11, data={"page": page}))
        print(json.dumps((await env.start()).text))
        await env.close()
    await Web.shutdown()
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code, *pages], capture_output=True, text=True, check=True)
    there = [json.loads(line) for line in done.stdout.splitlines()]
    assert there == [run(play(web(page, 11), "wait()"))[0].text for page in pages]
    assert run(play(web("click-button", 12), "wait()"))[0].text != there[0]


async def test_an_episode_does_not_depend_on_those_played_before_it_or_beside_it(run):
    pages = ("login-user", "click-menu", "choose-date", "use-autocomplete", "click-tab-2", "use-slider")
    alone = [[seen.text for seen in await play(web(page, 8))] for page in pages]
    for page in pages:
        await play(web(page, 5), "fill('1', 'A0B1C2')", "click('1')")
    beside = await asyncio.gather(*(play(web(page, 8)) for page in (*pages, *pages[:2])))
    assert [[seen.text for seen in episode] for episode in beside] == [*alone, *alone[:2]]


def test_tasks_go_round_the_pages_and_no_split_shares_a_seed():
    options = Options(pages=["click-test", "login-user"], speech="commands")
    tasks = list(itertools.islice(Web.tasks(options, split="train", seed=1), 6))
    assert [task.data["page"] for task in tasks] == ["click-test", "login-user"] * 3
    assert all(task.data["speech"] == "commands" and task.environment == "web" for task in tasks)
    assert len({task.id for task in tasks}) == 6 and tasks[0].seed == tasks[1].seed != tasks[2].seed
    assert tasks == list(itertools.islice(Web.tasks(options, split="train", seed=1), 6))
    assert tasks != list(itertools.islice(Web.tasks(options, split="train", seed=2), 6))
    for place, split in enumerate(("train", "seen", "unseen")):
        for task in itertools.islice(Web.tasks(options, split=split, seed=7), 50):
            assert place * SEEDS_PER_SPLIT <= task.seed < (place + 1) * SEEDS_PER_SPLIT
            assert task.data["mode"] == ("test" if split == "unseen" else "train")
    assert {task.data["page"] for task in itertools.islice(Web.tasks(Options()), len(text_pages()))} == set(
        text_pages()
    )


def test_mistakes_of_the_user_are_named():
    with pytest.raises(InputError, match="'fill-form' is not a page"):
        Options(pages=["fill-form"])
    with pytest.raises(InputError, match="did you mean click-button"):
        web("click-buton")
    with pytest.raises(InputError, match="speech is 'latin'"):
        web("click-test", speech="latin")
    with pytest.raises(InputError, match="split is 'dev'"):
        next(Web.tasks(Options(), split="dev"))


def test_a_collection_loses_no_episode_to_a_browser_that_is_killed(run):
    """The same eight episodes twice: one after the other, and four at once with Chromium killed twice under them."""
    wanted = list(attempts(itertools.islice(Web.tasks(Options(pages=["login-user", "enter-text"])), 8), 1, 0))

    async def collected(kills, concurrency):
        kept = {}

        def finished(trajectory, images):
            kept[trajectory.id] = trajectory
            if len(kept) in kills:
                os.killpg(Pool.here().browser.pid, signal.SIGKILL)

        runner = LocalRunner.of(Web, ExpertAgent(), LimitsConfig())
        return await collect(runner, wanted, finished, concurrency=concurrency), kept

    run(Web.shutdown())  # a browser that a test before has killed may still look alive
    quiet, expected = run(collected((), concurrency=1))
    tally, kept = run(collected((2, 5), concurrency=4))
    assert (quiet.successes, dict(quiet.faults)) == (8, {})
    assert (tally.episodes, tally.successes, tally.lost) == (8, 8, {}) and 2 <= tally.faults["environment"] <= 8
    again = [kept[name].info.get("retries", 0) for name in expected]
    assert sum(again) == tally.faults["environment"]
    for name, trajectory in expected.items():
        assert kept[name].turns == trajectory.turns and kept[name].start == trajectory.start


def spelled(goal, *lines):
    calls = choices(View(goal, lines, False, 0.0, ""))
    for call in calls:
        bind(call)
    return [function_text(call) for call in calls]


def test_choices_are_clicks_words_of_the_goal_and_options():
    lines = [
        Line("Name"),
        Line("", 1, "text", facts={"value": ""}),
        Line("Go", 2, "button"),
        Line("", 3, "select", facts={"options": ["", "x", "y"]}),
    ]
    assert spelled('Write "a" and "b"', *lines) == [
        "click('1')",
        "fill('1', 'a')",
        "fill('1', 'b')",
        "click('2')",
        "select_option('3', 'x')",
        "select_option('3', 'y')",
    ]
    assert spelled("Go", Line("Go", 1, "button", facts={"disabled": True})) == []
    assert spelled("Enter 5", Line("", 1, "textarea")) == ["click('1')", "fill('1', '5')"]


LINES = [Line("Name"), Line("", 1, "text", "#a"), Line("Go", 2, "button", "form > button")]


def test_the_rules_name_every_action_in_the_form_it_is_written_in():
    for name in SIGNATURES:
        assert f"\n{name}(" in environment.text(FUNCTIONS)
        assert f"\n{name.upper()}(" in environment.text(COMMANDS)
    assert environment.text(FUNCTIONS).endswith(FUNCTIONS.prompt)
    assert environment.text(COMMANDS).endswith(COMMANDS.prompt)
    text = environment.text(FUNCTIONS, ["click", "fill"])
    assert "\nclick('3') - " in text and "\nfill('3', 'text') - " in text and "scroll" not in text


def test_the_rules_own_examples_can_be_bound():
    for line in environment.text(FUNCTIONS).splitlines():
        usage, dash, _ = line.partition(" - ")
        if dash and "x" not in usage.partition("(")[2]:
            bind(FUNCTIONS.parse(usage).calls[0])


def test_a_call_on_numbers_becomes_a_command_on_selectors():
    fill = ToolCall(name="fill", arguments={"0": "1", "1": "x"})
    assert environment.as_command(fill, LINES) == 'FILL(selector="#a", text="x")'
    drag = ToolCall(name="drag", arguments={"0": "2", "1": "1"})
    assert environment.as_command(drag, LINES) == 'DRAG(selector="form > button", target="#a")'
    assert environment.as_command(ToolCall(name="wait"), LINES) == "WAIT()"
    call = ToolCall(name="scroll", arguments={"0": "down", "1": "1"})
    written = COMMANDS.parse(f"action: {environment.as_command(call, LINES)}").calls[0]
    assert bind(written).arguments == {"direction": "down", "element": "#a"}
