"""The training page in a real browser: runs overlaid, smoothed, zoomed, and their settings side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.report.viewer.conftest import Server, serving
from tests.report.viewer.tab import Tab

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
