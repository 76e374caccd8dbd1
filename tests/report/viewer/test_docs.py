"""The documentation of the viewer: its commands exist, and so do its pictures."""

import re
import shlex
from pathlib import Path

from bough.commands.view import ViewConfig
from bough.config import flags
from tests.report.viewer.take_screenshots import PICTURES

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "viewer.md").read_text()


def test_every_command_is_understood():
    lines = [line for text in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL) for line in text.splitlines()]
    assert len(lines) == 3
    for line in lines:
        words = shlex.split(line)
        assert words[:2] == ["bough", "view"]
        flags.parse(ViewConfig, flags.build(ViewConfig, "bough view", ""), words[2:])


def test_every_flag_that_is_named_is_one():
    named = set(re.findall(r"`?(--[a-z][a-z-]*)", PAGE))
    assert named and named <= {"--" + name.replace("_", "-") for name in ViewConfig.model_fields}


def test_every_page_has_its_pictures_at_both_widths_and_they_are_small():
    named = re.findall(r"!\[[\w ]+\]\((screenshots/[\w-]+\.png)\)", PAGE)
    assert named == [f"screenshots/{name}{width}.png" for name in PICTURES for width in ("", "-phone")]
    assert {DOCS / name for name in named} == set((DOCS / "screenshots").iterdir())
    for name in named:
        assert 1000 < (DOCS / name).stat().st_size < 100_000
