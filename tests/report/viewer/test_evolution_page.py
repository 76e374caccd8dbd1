"""The page of an evolution in a real browser: members, family tree, drift, live, at both widths."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bough.report.viewer.export import export
from tests.experiments.family import FAMILY, REPORT
from tests.report.viewer.conftest import Server, serving
from tests.report.viewer.tab import Tab
from tests.report.viewer.test_pages import CONTRAST
from tests.report.viewer.test_training import evolved

ROWS = "[...document.querySelectorAll('tbody tr')].map(e => [...e.children].map(c => c.innerText.trim()))"
MEMBERS = "document.querySelectorAll('svg.family:not(.sample) .member').length"


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("grown")
    folder = evolved(path / "run/evolve", *FAMILY, report=REPORT)
    with (folder / "lineage.jsonl").open("a") as file:
        file.write("nonsense\n")
    with serving(path / "run") as server:
        yield server


async def test_the_runs_page_leads_to_members_family_tree_and_drift(grown: Server, tab: Tab):
    await tab.goto(grown.address)
    await tab.click(".stage a[href^='#/evolution']")
    await tab.until(f"{MEMBERS} === 6")
    text = await tab.text(".winner")
    assert "Winner g2-1" in text and "87.5% (50.0% – 100.0%) on 8 records" in text
    assert "62.5% (25.0% – 75.0%) on 8 records" in text and "+25.0 points" in text
    first, second = await tab.evaluate(ROWS)
    assert first[:6] == ["★ g2-1", "87.5% (43.8% – 93.8%)", "0.5", "0", "g1-1", "none"]
    assert second[:5] == ["g1-1", "unknown", "0.5", "1", "g0-1"]
    assert second[5:8] == ["learning rate 0.001 → 1e−4", "1e−4", "sigmoid"]
    # Two members live on; two are children.
    kinds = await tab.evaluate("[...document.querySelectorAll('svg.family:not(.sample) .kin')].map(e => "
                               "e.getAttribute('class').trim())")  # fmt: skip
    assert sorted(kinds) == ["kin child own", "kin child own", "kin lives", "kin lives"]
    shapes = await tab.evaluate("[...document.querySelectorAll('svg.family:not(.sample) .winner, "
                                "svg.family:not(.sample) .elite')].map(e => e.dataset.key)")  # fmt: skip
    assert shapes == ["1/g1-1", "2/g2-1"]
    labels = await tab.evaluate("[...document.querySelectorAll('.chart svg')].map(e => e.ariaLabel)")
    assert labels == [
        "learning rate: median 0.0055 in generation 0, 1e−4 in generation 2", "loss type: sigmoid 2",
    ]  # fmt: skip
    assert "log scale" in await tab.text(".chart .readout")
    ticks = await tab.evaluate("[...document.querySelector('.chart svg').querySelectorAll('.end')].map(e => "
                               "[e.textContent, Math.round(Number(e.getAttribute('y')))])")  # fmt: skip
    values, heights = [one[0] for one in ticks], [one[1] for one in ticks]
    assert values == ["1e−4", "0.001", "0.01"]
    assert abs(heights[0] - 2 * heights[1] + heights[2]) <= 1  # evenly spaced
    assert "lineage.jsonl:7: Invalid JSON" in await tab.text(".problems")


async def test_learning_rates_and_wide_ranges_have_a_logarithmic_axis(grown: Server, tab: Tab):
    members = [
        {"generation": n, "name": f"g0-{n}", "born": 0, "rank": 4, "settings": settings}
        for n, settings in enumerate([
            {"learning_rate": 1e-3, "beta": 0.1, "kl_coef": 1e-3, "nll_alpha": 0.0},
            {"learning_rate": 2e-3, "beta": 0.2, "kl_coef": 1e-1, "nll_alpha": 1.0},
        ])
    ]  # fmt: skip
    found = json.dumps({"members": members, "generations": 2, "leader": "g0-1", "winner": None})
    await tab.goto(grown.address)
    texts = "[...m.drift(found).at(-1).querySelectorAll('.readout')].map(e => e.textContent.startsWith('log'))"
    script = f"import('/assets/drift.js').then(m => {{ const found = {found}; return {texts}; }})"
    assert await tab.evaluate(script) == [True, False, True, False]


async def test_the_keyboard_walks_generations_and_descent(grown: Server, tab: Tab):
    await tab.goto(f"{grown.address}#/evolution")
    await tab.until(f"{MEMBERS} === 6")
    await tab.press("p")
    assert [row[0] for row in await tab.evaluate(ROWS)] == ["■ g1-1", "g0-0"]
    assert (await tab.evaluate(ROWS))[0][-1] == "elite, lives on, 1 child"
    assert "generation=1" in await tab.evaluate("location.hash")
    await tab.press("n")
    assert [row[0] for row in await tab.evaluate(ROWS)] == ["★ g2-1", "g1-1"]
    await tab.evaluate("document.querySelector('svg.family .member[tabindex=\"0\"]').focus()")
    for key, name in (("ArrowLeft", "g1-1 in generation 1"), ("ArrowDown", "g0-0 in generation 1"),
                      ("ArrowLeft", "g0-0 in generation 0"), ("ArrowUp", "g0-1 in generation 0"),
                      ("ArrowRight", "g1-1 in generation 1")):  # fmt: skip
        await tab.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=0)
        assert (await tab.text(".panel h2")).startswith(name)
    assert await tab.evaluate("document.activeElement.dataset.key") == "1/g1-1"


async def test_the_page_grows_with_the_run_and_keeps_the_focus(tmp_path: Path, tab: Tab):
    folder = evolved(tmp_path / "run", *FAMILY[:2])
    with serving(tmp_path / "run") as server:
        await tab.goto(f"{server.address}#/evolution")
        assert await tab.text(".live") == "live"
        await tab.until(f"{MEMBERS} === 2")
        await tab.evaluate("document.querySelector('[data-key=\"0/g0-1\"]').focus()")
        evolved(folder, *FAMILY[:4])
        await tab.until(f"{MEMBERS} === 4", 15)
        assert await tab.evaluate("document.activeElement.dataset.key") == "0/g0-1"
        assert await tab.text("select option:checked") == "generation 1"
        evolved(folder, *FAMILY, report=REPORT)
        await tab.until("!!document.querySelector('.winner h2') && !document.querySelector('.live')", 15)


async def test_it_can_be_read_at_both_widths_in_light_and_dark_and_from_a_file(grown: Server, tmp_path: Path, tab: Tab):
    export(grown.answers, tmp_path / "page.html", 10)
    nameless = (
        "[...document.querySelectorAll('button, select, a, [role=button], [role=img]')]"
        ".filter(e => !(e.getAttribute('aria-label') || e.textContent).trim()).length"
    )
    try:
        for scheme, width in (("light", 1280), ("dark", 390)):
            await tab.scheme(scheme)
            await tab.size(width, 800, mobile=width == 390)
            await tab.goto(f"file://{tmp_path}/page.html#/evolution")
            await tab.until(f"{MEMBERS} === 6")
            await tab.evaluate("delete document.documentElement.dataset.theme")
            assert await tab.evaluate(CONTRAST) == [], scheme
            assert await tab.evaluate("document.documentElement.scrollWidth") <= width
            assert await tab.evaluate(nameless) == 0
    finally:
        await tab.scheme("light")
        await tab.size(1280, 860)
