"""Every block of the page on evaluation runs as it stands there, on the tiny model for speed."""

import re
import shlex
from pathlib import Path

import pytest

from bough.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text()
BLOCKS = re.findall(r"```(sh|python)\n(.*?)```", PAGE, flags=re.DOTALL)


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    ran = 0
    for language, text in BLOCKS:
        if language == "python":
            exec(compile(text, "evaluation.md", "exec"), {})
            ran += 1
            continue
        for line in filter(None, map(str.strip, text.splitlines())):
            words = shlex.split(line.replace("smollm2", "tiny"))
            assert words[0] == "bough" and main(words[1:]) == 0, line
            ran += 1
    assert ran == 9
