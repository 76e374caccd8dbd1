import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from bough.errors import InputError
from bough.report.viewer.index import Index
from bough.report.viewer.server import FolderAnswers, export, key
from tests.report.viewer.conftest import Server
from tests.report.viewer.hostile import fill_hostile
from tests.report.viewer.tab import Tab

Make = Callable[[Path], Index]


@pytest.fixture(scope="module")
def page(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from bough.report.viewer.contents import Root

    place = tmp_path_factory.mktemp("export")
    file = place / "page.html"
    written = export(FolderAnswers(Index(Root(folder))), file, 1000)
    assert written.left_out == 0 and written.records > 25
    assert abs(written.megabytes - file.stat().st_size / 1e6) < 1e-6
    return file


def test_the_file_stands_alone(page: Path):
    text = page.read_text()
    assert "<link" not in text and 'src="' not in text.partition('<script type="application/json"')[0]
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None and "default-src 'none'" in policy.group(1) and "unsafe" not in policy.group(1)


async def test_every_page_works_from_a_file(page: Path, tab: Tab):
    for words, expected in (
        ("runs", "05-dpo"), ("training", "loss"), ("trajectories", "of 25"), ("pairs", "parting"),
        ("groups", "1 of 4 succeed"),
        ("evaluation", "Comparison"), ("tree?at=04-groups/groups.jsonl%3A1", "attempts succeed"),
        ("pair?at=03-pairs/pairs.jsonl%3A1", "from here on they differ"),
        ("trajectory?at=07-sampled/trajectories.jsonl%3A1", "go to shelf 1"),
        ("trajectory?at=04-groups/groups.jsonl%3A1&attempt=0", "advantage"),
    ):  # fmt: skip
        await tab.goto(f"file://{page}#/{words}")
        assert expected in await tab.text(), words
    await tab.goto(f"file://{page}#/trajectories?q=sampled")
    assert await tab.evaluate("document.querySelectorAll('tbody tr').length") == 1
    await tab.goto(f"file://{page}#/trajectories?outcome=failure&min_turns=3&sort=turns")
    assert await tab.evaluate("[...document.querySelectorAll('tbody .outcome')].every(e => e.innerText === 'failure')")
    await tab.goto(f"file://{page}#/trajectory?at=07-sampled/trajectories.jsonl%3A1")
    await tab.until("document.querySelector('img.screen').naturalWidth === 1")
    await tab.press("j")
    await tab.press("t")
    await tab.until("!!document.querySelector('.tokens .token')")
    assert "go to shelf 1" in await tab.text(".tokens .answer")


async def test_a_hostile_folder_makes_a_harmless_file(tmp_path: Path, make_index: Make, tab: Tab):
    fill_hostile(tmp_path / "run")
    export(FolderAnswers(make_index(tmp_path / "run")), tmp_path / "page.html", 100)
    for words in (
        "runs",
        "trajectories",
        "trajectory?at=t.jsonl%3A1",
        "pair?at=p.jsonl%3A1",
        "tree?at=g.jsonl%3A1",
        "evaluation",
        "evolution",
        "training",
    ):
        await tab.goto(f"file://{tmp_path}/page.html#/{words}")
        assert "onerror" in await tab.text("body"), words
        assert await tab.evaluate("window.pwned") is None
        assert await tab.evaluate("document.querySelectorAll('[onerror], [onload]').length") == 0


def test_what_is_too_much_is_left_out_and_counted(folder: Path, make_index: Make, tmp_path: Path):
    written = export(FolderAnswers(make_index(folder)), tmp_path / "page.html", 2)
    text = (tmp_path / "page.html").read_text()
    data = json.loads(text.partition('id="bough-data">')[2].partition("</script>")[0])
    assert len(data["rows"]) == written.records == 6
    assert written.left_out == 25 - 2 + data["answers"]["overview"]["counts"]["pair"] - 2 + 3 - 2


def test_an_empty_folder_is_not_exported(tmp_path: Path, make_index: Make):
    (tmp_path / "run").mkdir()
    with pytest.raises(InputError, match="nothing to export"):
        export(FolderAnswers(make_index(tmp_path / "run")), tmp_path / "page.html", 10)


async def test_answers_are_called_by_the_same_name_as_the_page_calls_them(server: Server, tab: Tab):
    words = {"b": "ä b/c:1&=+!*'()~", "a": 3, "none": None}
    await tab.goto(server.address)
    found = await tab.evaluate(f"import('/assets/api.js').then(m => m.key('x', {json.dumps(words)}))")
    assert found == key("x", words)
