"""Every block of the page on curation runs as it stands there."""

import re
import shlex
from pathlib import Path
from typing import get_args

import pytest

from bough.cli import main
from bough.config.curation import Kind, Reason
from bough.rewards.registry import REWARDS

PAGE = (Path(__file__).parents[2] / "docs" / "curation.md").read_text()


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    ran = 0
    for language, text in re.findall(r"```(sh|python)\n(.*?)```", PAGE, flags=re.DOTALL):
        if language == "python":
            exec(compile(text, "curation.md", "exec"), {})
            ran += 1
            continue
        for line in filter(None, map(str.strip, text.splitlines())):
            words = shlex.split(line)
            assert words[0] == "bough" and main(words[1:]) == 0, line
            ran += 1
    assert ran == 10


def test_every_kind_reason_and_reward_is_explained():
    for name in (*get_args(Kind), *get_args(Reason), *REWARDS):
        assert f"`{name}`" in PAGE, name
