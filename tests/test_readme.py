"""The README: its blocks run, what it names exists, and it stays short."""

import re
from pathlib import Path

import pytest

from bough.commands import table
from tests.blocks import ROOT, run_page

README = (ROOT / "README.md").read_text()


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run_page(README, tmp_path) == 5


def test_files_commands_and_links_that_it_names_exist():
    for path in re.findall(r"`((?:src|examples|benchmarks|docs)/[\w./-]+)`", README):
        assert (ROOT / path).exists(), path
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", README):
        assert (ROOT / target).exists(), target
    for verb in re.findall(r"`bough (\w+)", README):
        assert any(name.split()[0] == verb for name in table.TABLE), verb


def test_it_has_at_most_900_words():
    assert len(README.split()) <= 900


def test_its_tables_are_those_of_the_results():
    """The demo's table as printed, and ratios and rates that the pages of results have too."""
    results, speed = ((ROOT / "docs" / name).read_text() for name in ("results.md", "speed.md"))
    (table,) = re.findall(r"^```text\n(evaluation .*?)^```", README, flags=re.DOTALL | re.MULTILINE)
    assert table in results
    for ratio in re.findall(r"\*\*([\d.]+×)\*\*", README):
        assert f"**{ratio}**" in speed, ratio
    for rate in re.findall(r"\d+\.\d%", README):
        assert rate in results, rate
