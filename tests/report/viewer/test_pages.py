"""Every page in a real browser, with real data: opened, clicked through, free of complaints."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path
from typing import Any

from bough.chat import tool_calls
from bough.commands import table
from bough.config import flags
from bough.types import Message, ToolCall, Turn
from tests.report.viewer.conftest import Server, serving
from tests.report.viewer.hostile import fill_hostile
from tests.report.viewer.samples import group, trajectory, turn, write
from tests.report.viewer.tab import Tab


async def test_from_the_runs_page_to_an_evaluation_and_its_episodes(server: Server, tab: Tab):
    await tab.goto(server.address)
    text = await tab.text()
    assert "played" in text and "a run to look at" in text and "05-dpo" in text
    assert "made from train 03-pairs, model smollm2" in text
    assert "not significant: kept the old one" in text
    assert "100.0%" in await tab.text(".ladder")
    assert "sampler–trainer gap 4.8e−7" in text
    await tab.click(".ladder a")
    await tab.until("location.hash.startsWith('#/evaluation') && !!document.querySelector('.matrix')")
    text = await tab.text()
    assert "−100.0" in await tab.text(".matrix") and "McNemar exact" in text and "max turns" in text
    await tab.click(".bars a")
    await tab.until("location.hash.startsWith('#/trajectories') && !!document.querySelector('tbody tr[data-row]')")
    assert await tab.evaluate("document.querySelectorAll('tbody tr').length") == 6
    assert await tab.evaluate("[...document.querySelectorAll('tbody .outcome')].every(e => e.innerText === 'failure')")


async def test_branches_of_a_session_are_marked(tmp_path: Path, tab: Tab):
    question = Message(role="user", content="a question of its own")
    turns = [turn("look"), turn("go", prompt=[question]), turn("stay")]
    write(tmp_path / "run/a.jsonl", trajectory("a#0", [], turns=turns))
    with serving(tmp_path / "run") as server:
        await tab.goto(f"{server.address}#/trajectory?at=a.jsonl:1")
        assert "outside the conversation" in await tab.text(".turn.aside")
        assert await tab.evaluate("document.querySelectorAll('.turn.aside, .strip .aside').length") == 2
        await tab.click(".branch-head summary")
        assert "a question of its own" in await tab.text(".branch-head")


async def test_curves_grow_while_the_run_goes_on(tmp_path: Path, tab: Tab):
    (tmp_path / "run").mkdir()
    file = tmp_path / "run/metrics.jsonl"
    file.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.5}\n')
    (tmp_path / "run/config.yaml").write_text("seed: 0\n")
    with serving(tmp_path / "run") as server:
        await tab.goto(f"{server.address}#/training")
        assert await tab.text(".live") == "live"
        with file.open("a") as stream:
            stream.write('{"step": 3, "loss": 1.25}\n')
        await tab.until("document.querySelector('.readout').innerText === '1.25'", 15)


async def test_trajectories_are_filtered_searched_and_sorted(server: Server, tab: Tab):
    rows = "document.querySelectorAll('tbody tr').length"
    await tab.goto(f"{server.address}#/trajectories")
    await tab.until(f"{rows} === 25")
    await tab.evaluate(
        "(e => { e.value = 'success'; e.dispatchEvent(new Event('change')); })"
        "(document.querySelector('#filter-outcome'))"
    )
    await tab.until(f"{rows} < 25")
    assert "outcome=success" in await tab.evaluate("location.hash")
    await tab.goto(f"{server.address}#/trajectories")
    await tab.press("/")
    await tab.type("sampled")
    await tab.until(f"{rows} === 1")
    assert await tab.evaluate("document.activeElement.id") == "search"
    await tab.goto(f"{server.address}#/trajectories")
    await tab.click("thead th:nth-child(5) button")
    await tab.until("document.querySelector('thead th:nth-child(5)').getAttribute('aria-sort') === 'ascending'")
    turns = await tab.evaluate("[...document.querySelectorAll('tbody td:nth-child(5)')].map(e => Number(e.innerText))")
    assert turns == sorted(turns) and turns[0] == 2


async def test_tokens_are_coloured_by_the_gap_between_sampler_and_trainer(server: Server, tab: Tab):
    await tab.goto(f"{server.address}#/trajectory?at=07-sampled%2Ftrajectories.jsonl%3A1")
    await tab.until("!!document.querySelector('.turn')")
    await tab.press("j")
    await tab.press("t")
    await tab.until("!!document.querySelector('.tokens .token')")
    names = await tab.evaluate("[...document.querySelectorAll('.tokens .buttons button')].map((b) => b.textContent)")
    assert names == ["trained", "log-probability", "gap to the trainer"]
    await tab.click(".tokens .buttons button:nth-child(3)")
    kinds = await tab.evaluate("[...document.querySelectorAll('.tokens .answer .token')].map((t) => t.className)")
    assert kinds[:3] == ["token surprise-0", "token surprise-3", "token surprise-0"]
    title = await tab.evaluate("document.querySelectorAll('.tokens .answer .token')[1].title")
    assert "trainer's log-probability −0.52, gap 0.020" in title
    assert "at most 0.020" in await tab.text(".tokens .legend")


async def test_the_keyboard_reaches_a_trajectory_its_turns_and_its_tokens(server: Server, tab: Tab):
    await tab.goto(f"{server.address}#/runs")
    await tab.press("3")
    await tab.until("location.hash === '#/trajectories' && !!document.querySelector('tbody tr')")
    await tab.goto(f"{server.address}#/trajectories?file=07-sampled%2Ftrajectories.jsonl")
    await tab.press("j")
    assert await tab.evaluate("document.activeElement.className") == "row-link"
    await tab.press("Enter")
    await tab.until("location.hash.startsWith('#/trajectory?') && !!document.querySelector('.turn')")
    await tab.until("document.querySelector('img.screen').naturalWidth === 1")
    await tab.press("j")
    await tab.press("j")
    await tab.press("t")
    await tab.until("!!document.querySelector('.tokens .token')")
    assert "take mug 1" in (await tab.text(".tokens .answer"))
    assert "shared with the previous call" in await tab.text(".tokens summary")
    assert await tab.evaluate(
        "document.querySelector('.tokens .token').title.includes('log-probability −0.25 (77.9%)')"
    )
    await tab.click(".tokens .buttons button:first-child")
    assert await tab.evaluate("document.querySelectorAll('.tokens .answer .token.trained').length") > 0
    await tab.press("?")
    assert await tab.evaluate("document.querySelector('dialog').open")
    await tab.press("Escape")
    await tab.press("d")
    assert await tab.evaluate("document.documentElement.dataset.theme") == "dark"
    await tab.press("d")


async def test_a_pair_folds_what_is_shared_and_shows_where_it_parts(server: Server, tab: Tab):
    await tab.goto(f"{server.address}#/pairs?reason=parting")
    await tab.click("tbody tr a")
    await tab.until("!!document.querySelector('.sides')")
    text = await tab.text()
    assert "from here on they differ" in text and "the shared history" in text and "parting" in text
    assert await tab.evaluate("document.querySelector('details.start').open") is False
    assert await tab.evaluate("document.querySelectorAll('.side.success .turn').length") >= 1
    before = await tab.evaluate("location.hash")
    await tab.press("n")
    await tab.until(f"location.hash !== {json.dumps(before)} && !!document.querySelector('.sides')")


async def test_a_tree_shows_where_attempts_part_and_leads_to_each(server: Server, tab: Tab):
    await tab.goto(f"{server.address}#/groups")
    assert "1 of 4 succeed" in await tab.text("tbody")
    await tab.click("tbody tr a")
    await tab.until("!!document.querySelector('svg.tree')")
    assert "1 of 4 attempts succeed" in await tab.text()
    assert await tab.evaluate("document.querySelectorAll('svg.tree .leaf').length") == 4
    assert await tab.evaluate("document.querySelectorAll('svg.tree .leaf.success').length") == 1
    await tab.evaluate("document.querySelector('svg.tree .knot:last-of-type').focus()")
    await tab.press("Enter")
    assert "only" in await tab.text(".panel h2") or "shared by" in await tab.text(".panel h2")
    await tab.click("svg.tree .leaf-name")
    await tab.until("location.hash.startsWith('#/trajectory?') && !!document.querySelector('.turn')")
    assert "advantage" in await tab.text(".turn-head")
    await tab.press("n")
    await tab.until(
        "location.hash.includes('attempt=1') && document.querySelector('.crumbs').innerText.includes('attempt 2 of 4')"
    )


async def test_every_control_has_a_name_and_every_picture_a_text(server: Server, tab: Tab):
    pages = ["runs", "training", "trajectories", "pairs", "groups", "evaluation", "tree?at=04-groups/groups.jsonl%3A1",
             "pair?at=03-pairs/pairs.jsonl%3A1", "trajectory?at=07-sampled/trajectories.jsonl%3A1"]  # fmt: skip
    nameless = """[...document.querySelectorAll('button, input, select, a, [role=button], img, [role=img]')].filter(e =>
        !(e.getAttribute('aria-label') || e.innerText || e.textContent || e.alt || '').trim()
        ).map(e => e.outerHTML.slice(0, 120))"""
    for page in pages:
        await tab.goto(f"{server.address}#/{page}")
        assert await tab.evaluate(nameless) == [], page
        assert await tab.evaluate("document.querySelectorAll('main h1').length") == 1
        assert await tab.evaluate("document.documentElement.lang") == "en"


# What WCAG asks of text: 4.5 to 1 against what is behind it.
CONTRAST = """(() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgb = (colour) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => { const f = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
  const behind = (e) => { for (; e; e = e.parentElement) {
    const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] > 250) return c; } return [255, 255, 255]; };
  const low = [];
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || e.closest('svg') || e.disabled || !e.getClientRects().length || e.closest('.token')) continue;
    const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) low.push(`${e.className} ${e.innerText.slice(0, 30)} ${ratio.toFixed(2)}`);
  }
  return low.slice(0, 10);
})()"""


async def test_text_can_be_read_in_light_and_in_dark(server: Server, tab: Tab):
    for page in ("runs", "trajectories", "evaluation", "pair?at=03-pairs/pairs.jsonl%3A1"):
        await tab.scheme("dark")
        await tab.goto(f"{server.address}#/{page}")
        await tab.evaluate("delete document.documentElement.dataset.theme")
        for scheme in ("dark", "light"):
            await tab.scheme(scheme)
            assert await tab.evaluate(CONTRAST) == [], (scheme, page)


async def test_a_phone_shows_every_page_without_sideways_scrolling(server: Server, tab: Tab):
    await tab.size(390, 800, mobile=True)
    try:
        for page in (
            "runs",
            "training",
            "trajectories",
            "pairs",
            "groups",
            "evaluation",
            "tree?at=04-groups/groups.jsonl%3A1",
        ):
            await tab.goto(f"{server.address}#/{page}")
            assert await tab.evaluate("document.documentElement.scrollWidth") <= 390, page
    finally:
        await tab.size(1280, 860)


async def test_lists_have_a_column_and_a_filter_for_stage_and_agent(server: Server, tab: Tab):
    column = "[...new Set([...document.querySelectorAll('tbody td[data-label={}]')].map(e => e.innerText))]"
    choose = "(e => {{ e.value = {!r}; e.dispatchEvent(new Event('change')); }})(document.querySelector('#filter-{}'))"
    await tab.goto(f"{server.address}#/trajectories")
    assert await tab.evaluate(column.format("stage")) == [
        "01-demonstrations", "02-rollouts", "06-eval", "07-sampled",
    ]  # fmt: skip
    await tab.evaluate(choose.format("06-eval", "stage"))
    await tab.until("document.querySelectorAll('tbody tr').length === 12")
    assert await tab.evaluate(column.format("agent")) == ["expert", "random"]
    await tab.evaluate(choose.format("random", "agent"))
    await tab.until("document.querySelectorAll('tbody tr').length === 6")
    await tab.goto(f"{server.address}#/groups")
    assert await tab.evaluate(column.format("agents")) == ["random, expert"]


async def test_tool_calls_are_decoded_in_turns_and_in_the_tree(tmp_path: Path, tab: Tab):
    code = "total = 1\nprint(total)"
    call = tool_calls.call_text(ToolCall(name="python", arguments={"code": code}))
    look = Message(role="assistant", tool_calls=[ToolCall(name="look", arguments={"at": "shelf", "n": 2})])
    turns = [Turn(reply=Message(role="assistant", content=call), action=call), Turn(reply=look)]
    write(tmp_path / "run/g.jsonl", group(trajectory("a#0", [], turns=turns), trajectory("a#1", ["go"], False)))
    with serving(tmp_path / "run") as server:
        await tab.goto(f"{server.address}#/trajectory?at=g.jsonl%3A1&attempt=0")
        text = await tab.text(".turns")
        assert "tool_call" not in text and "{" not in text
        assert "python" in text and code in text and 'look(at="shelf", n=2)' in text
        await tab.goto(f"{server.address}#/tree?at=g.jsonl%3A1")
        labels = await tab.evaluate("[...document.querySelectorAll('.tree-said')].map(e => e.textContent)")
        assert any(label.startswith('python(code="total') for label in labels)
        assert "tool_call" not in await tab.text()


async def test_an_empty_page_names_a_command_that_fills_it(tmp_path: Path, tab: Tab):
    (tmp_path / "run").mkdir()
    with serving(tmp_path / "run") as server:
        for page in ("runs", "training", "trajectories", "pairs", "groups", "evaluation", "evolution"):
            await tab.goto(f"{server.address}#/{page}")
            assert "yet." in await tab.text(".nothing b"), page
            program, verb, *words = shlex.split(await tab.text(".nothing code"))
            config = table.command(verb).config
            flags.parse(config, flags.build(config, f"{program} {verb}", ""), words)


async def test_no_field_of_a_record_becomes_a_script(tmp_path: Path, tab: Tab):
    fill_hostile(tmp_path / "run")
    with serving(tmp_path / "run") as server:
        answers = server.answers
        ats = [row["at"] for kind in ("trajectory",) for row in answers.known["records"]({"kind": kind})["rows"]]
        at = json.dumps(ats[0])
        pages = ["runs", "training", "evaluation", "evolution", "trajectories", "pairs", "groups",
                 "pair?at=p.jsonl%3A1", "tree?at=g.jsonl%3A1",
                 "tree?at=t.jsonl%3A1", "trajectory?at=g.jsonl%3A1&attempt=1", "trajectory?at=t.jsonl%3A1"]  # fmt: skip
        pages += [await tab.evaluate(f"'trajectory?at=' + encodeURIComponent({at})")]
        for page in pages:
            await tab.goto(f"{server.address}#/{page}")
            assert "onerror" in await tab.text("body"), page
            await tab.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true; })")
            await tab.evaluate(
                "document.querySelectorAll('svg .knot, svg .member').forEach(e => e.dispatchEvent(new Event('click')))"
            )
            await tab.until("!document.querySelector('.tokens [role=status]')")
            assert await tab.evaluate("window.pwned") is None
            assert await tab.evaluate("[...document.scripts].length") == 1
            assert (
                await tab.evaluate(
                    "document.querySelectorAll('main svg [onload], [onerror], [href^=\"javascript\"]').length"
                )
                == 0
            )
        await tab.leave()
        # The record names pictures that are none; the browser may say so, and nothing else.
        tab.complaints[:] = [one for one in tab.complaints if "/api/image" not in one]


async def test_a_hash_from_elsewhere_is_only_words(server: Server, tab: Tab):
    for words in (
        "trajectory?at=<img src=x onerror=window.pwned=1>",
        "trajectories?q=<script>window.pwned=1</script>",
        "__proto__",
        "constructor",
        "%E0%A4%A",
    ):
        await tab.goto(f"{server.address}#/{words}")
        assert await tab.evaluate("window.pwned") is None
    await tab.goto(f"{server.address}#/trajectory?at=nowhere:1")
    assert "This cannot be shown" in await tab.text()
    # An answer of 404 is written to the console by the browser itself.
    tab.complaints[:] = [one for one in tab.complaints if "404" not in one]


async def test_a_record_of_megabytes_does_not_stall_the_page(tmp_path: Path, tab: Tab):
    write(tmp_path / "run/a.jsonl", trajectory("a#0", ["x" * 2_000_000, *["look"] * 1500]))
    with serving(tmp_path / "run") as server:
        begun = time.monotonic()
        await tab.goto(f"{server.address}#/trajectory?at=a.jsonl%3A1")
        assert time.monotonic() - begun < 60
        assert await tab.evaluate("document.querySelectorAll('.turns .turn').length") == 60
        text = await tab.text(".turns .turn")
        assert "more characters" in text and len(text) < 10_000
        await tab.evaluate("document.querySelector('article > button').click()")
        assert await tab.evaluate("document.querySelectorAll('.turns .turn').length") == 1501


async def test_of_very_many_calls_and_arguments_the_first_are_drawn(tmp_path: Path, tab: Tab):
    arguments: dict[str, Any] = {f"<img src=x onerror=alert({i})>": "x" for i in range(150_000)}
    calls = [ToolCall(name="<b>f</b>", arguments=arguments), *[ToolCall(name="g")] * 400]
    reply = Message(role="assistant", tool_calls=calls)
    write(tmp_path / "run/a.jsonl", trajectory("a#0", [], turns=[Turn(reply=reply)]))
    with serving(tmp_path / "run") as server:
        await tab.goto(f"{server.address}#/trajectory?at=a.jsonl%3A1")
        await tab.until("document.querySelector('.arguments') !== null")
        assert await tab.evaluate("document.querySelectorAll('.arguments dt').length") == 100
        assert await tab.evaluate("document.querySelectorAll('.message.assistant .part').length") == 100
        assert await tab.evaluate("document.querySelectorAll('.message img, .message b:not(.tool-name)').length") == 0
        shown = await tab.evaluate("document.querySelector('.message.assistant').textContent")
        assert "and 149,900 more arguments" in shown and "and 301 more parts" in shown
