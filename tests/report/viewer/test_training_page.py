"""The training page in a real browser: runs overlaid, smoothed, zoomed, and their settings side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bough.report.viewer.server import export
from tests.experiments.family import FAMILY, REPORT
from tests.report.viewer.conftest import Server, serving
from tests.report.viewer.tab import Tab
from tests.report.viewer.test_pages import CONTRAST
from tests.report.viewer.test_runs import evolved

LINES = "document.querySelectorAll('.plot path.line').length"
TICKS = "[...document.querySelectorAll('.plot .tick.{}')].map(e => e.textContent)"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two runs of 60 steps whose losses jump up and down, with one setting that differs."""
    path = tmp_path_factory.mktemp("two")
    for name, rate in (("fast", 2e-3), ("slow", 5e-4)):
        folder = path / f"run/{name}"
        folder.mkdir(parents=True)
        losses = [4.0 - 0.05 * step + (0.2 if step % 2 else 0.0) for step in range(1, 61)]
        rows = [{"step": step, "loss": loss, "learning_rate": rate} for step, loss in enumerate(losses, 1)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        settings = {"learning_rate": rate, "seed": 0, "lora": {"r": 8}, "output_dir": f"out/{name}"}
        (folder / "config.yaml").write_text(json.dumps(settings))
        (folder / "report.json").write_text("{}")
    with serving(path / "run") as server:
        yield server


async def test_a_second_run_is_laid_over_the_first(two: Server, tab: Tab):
    await tab.goto(f"{two.address}#/training?smoothing=0")
    await tab.until(f"{LINES} === 2")
    assert await tab.evaluate("document.querySelector('.compared') === null")
    await tab.click("#run-1")
    await tab.until(f"{LINES} === 4")
    assert (await tab.text(".chart .legend")).split() == ["fast", "slow"]
    assert "also=slow" in await tab.evaluate("location.hash")
    text = await tab.text(".compared")
    assert "learning_rate" in text and "0.002" in text and "5e−4" in text
    assert "seed" not in text and "output_dir" not in text
    await tab.click("#only-differences")
    assert "lora.r" in await tab.text(".compared") and "seed" in await tab.text(".compared")


async def test_noisy_curves_are_smoothed_and_schedules_are_not(two: Server, tab: Tab):
    await tab.goto(f"{two.address}#/training")
    await tab.until(f"{LINES} === 3")
    assert await tab.evaluate("document.querySelectorAll('.plot path.raw').length") == 1
    # Jumps of 0.2 between steps: what is left of them after smoothing is small.
    jumps = """(path => { const y = path.getAttribute('d').match(/ [\\d.]+/g).map(Number);
        return Math.max(...y.slice(20).map((v, i) => Math.abs(v - y[19 + i]))); })"""
    raw = await tab.evaluate(f"{jumps}(document.querySelector('path.raw'))")
    soft = await tab.evaluate(f"{jumps}(document.querySelector('path.smooth'))")
    assert soft < raw / 2
    await tab.evaluate(
        "(e => { e.value = 0; e.dispatchEvent(new Event('input')); })(document.querySelector('#smoothing'))"
    )
    await tab.until(f"{LINES} === 2")
    assert "smoothing=0" in await tab.evaluate("location.hash")


async def test_dragging_across_a_chart_zooms_all_of_them_and_back(two: Server, tab: Tab):
    await tab.goto(f"{two.address}#/training")
    await tab.until(f"{LINES} === 3")
    assert await tab.evaluate(TICKS.format("middle")) == ["20", "40", "60"] * 2
    box = await tab.evaluate("(b => [b.x, b.y, b.width])(document.querySelector('.plot svg').getBoundingClientRect())")
    for kind, part in (("mousePressed", 0.5), ("mouseMoved", 0.6), ("mouseMoved", 0.8), ("mouseReleased", 0.8)):
        at = {"x": box[0] + part * box[2], "y": box[1] + 80}
        await tab.call("Input.dispatchMouseEvent", type=kind, **at, button="left", clickCount=1)
    await tab.until("!!document.querySelector('#zoom-out')")
    first, last = await tab.evaluate("['from', 'to'].map(n => Number(document.querySelector('#zoom-' + n).value))")
    assert 20 < first < 35 and 40 < last < 55
    await tab.until("document.querySelectorAll('.plot svg').length === 2")
    steps = [int(tick) for tick in await tab.evaluate(TICKS.format("middle"))]
    assert steps and min(steps) >= first and max(steps) <= last
    assert f"from={first}&to={last}" in await tab.evaluate("location.hash")
    await tab.click("#zoom-out")
    await tab.until("document.querySelector('#zoom-from').value === '' && !location.hash.includes('from')")


async def test_ticks_are_round_written_alike_and_finite(two: Server, tab: Tab):
    expected = {
        (0.0, 0.0021): ["0.0000", "0.0005", "0.0010", "0.0015", "0.0020", "0.0025"],
        (3.3, 7.4): ["3", "4", "5", "6", "7", "8"],
        (1e-7, 9e-7): ["0", "2e−7", "4e−7", "6e−7", "8e−7", "10e−7"],
        (100, 64_000): ["0", "20k", "40k", "60k", "80k"],
        (-0.31, 0.12): ["−0.4", "−0.3", "−0.2", "−0.1", "0.0", "0.1", "0.2"],
        (0, 5e-324): ["−0.6", "−0.4", "−0.2", "0.0", "0.2", "0.4", "0.6"],
        (5, 5): ["4.4", "4.6", "4.8", "5.0", "5.2", "5.4", "5.6"],
    }
    extreme = [(-1.7e308, 1.7e308), (1.7e308, 1.7e308), (-1e308, 5.0), (1e17, 1e17 + 16)]
    finite = "(a => a.high > a.low && a.ticks.every(Number.isFinite) && a.ticks.length)(m.axis(low, high, 5))"
    found = []
    await tab.goto(two.address)
    for ranges, made in ((list(expected), "m.labels(m.axis(low, high, 5))"), (extreme, finite)):
        each = f"{json.dumps(ranges)}.map(([low, high]) => {made})"
        found.append(await tab.evaluate(f"import('/assets/scale.js').then(m => {each})"))
    assert dict(zip(expected, found[0], strict=True)) == expected
    assert all(2 <= ticks <= 12 for ticks in found[1])


async def test_a_run_of_very_many_short_lines_is_drawn(tmp_path: Path, tab: Tab):
    (tmp_path / "run").mkdir()
    # More than a function of JavaScript can be called with.
    lines = (f'{{"step":{step},"loss":{step % 7}e307}}\n' for step in range(130_000))
    (tmp_path / "run/metrics.jsonl").write_text("".join(lines))
    (tmp_path / "run/config.yaml").write_text("seed: 0")
    with serving(tmp_path / "run") as server:
        await tab.goto(f"{server.address}#/training?smoothing=0")
        await tab.until(f"{LINES} === 1")
        assert "NaN" not in await tab.evaluate("document.querySelector('.plot path.line').getAttribute('d')")


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
