"""Every block of the README runs as it stands there, on the tiny model for speed."""

import re
import shlex
import sys
from pathlib import Path

import pytest

import bough
from tests.blocks import ROOT, blocks, lay_out, lines, run

README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lay_out(tmp_path_factory.mktemp("readme"))


def test_every_block_runs(folder: Path):
    ran = 0
    for language, text in blocks(README, "sh", "python"):
        if language == "python":
            run([sys.executable, "-c", text], folder)
            ran += 1
            continue
        for line in lines(text):
            if line.startswith("bough "):
                run([sys.executable, "-m", *shlex.split(line)], folder)
                ran += 1
            else:
                target = line.split()[1]
                assert line.startswith("make ") and f"\n{target}:" in (ROOT / "Makefile").read_text()
    assert ran >= 10


def test_every_file_and_command_it_names_exists():
    for path in re.findall(r"`((?:src|examples|benchmarks|docs)/[\w./-]+)`", README):
        assert (ROOT / path).exists(), path
    from bough.verbs import VERBS

    for verb in re.findall(r"`bough (\w+)", README):
        assert any(name.split()[0] == verb for name in VERBS), verb


def test_what_the_package_offers_is_there():
    for name in bough.__all__:
        assert getattr(bough, name) is not None
    assert set(bough.__all__) == set(bough._HOME)
