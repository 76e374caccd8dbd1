"""What the page on the viewer says: its commands are ones that exist, its pictures are there."""

import re
import shlex
from pathlib import Path

from bough.config import flags
from bough.config.viewer import ViewConfig

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "viewer.md").read_text()


def test_every_command_is_understood():
    lines = [line for text in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL) for line in text.splitlines()]
    assert len(lines) == 3
    for line in lines:
        words = shlex.split(line)
        assert words[:2] == ["bough", "view"]
        flags.parse(ViewConfig, flags.build(ViewConfig, "bough view", ""), words[2:])


def test_every_flag_that_is_named_is_one():
    named = set(re.findall(r"`?(--[a-z-]+)", PAGE))
    assert named and named <= {"--" + name.replace("_", "-") for name in ViewConfig.model_fields}


def test_every_picture_is_there_and_small():
    pictures = re.findall(r"!\[\w+\]\((screenshots/[\w-]+\.png)\)", PAGE)
    assert len(pictures) == 7
    for name in pictures:
        assert 1000 < (DOCS / name).stat().st_size < 200_000
