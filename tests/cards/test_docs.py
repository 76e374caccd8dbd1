"""Every block of the page on cards runs as it stands there, on the tiny model for speed."""

import re
import shlex
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from bough.cli import main

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```sh\n(.*?)```", (ROOT / "docs/card.md").read_text(), flags=re.DOTALL)


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    ran = 0
    for line in filter(None, map(str.strip, "".join(BLOCKS).splitlines())):
        words = shlex.split(line.replace("smollm2", "tiny"))
        # A model made for tests is not on the Hub; the push needs a name for it there.
        extra = ["--base-model", "org/base"] if words[1] == "push" else []
        assert words[0] == "bough" and main([*words[1:], *extra]) == 0, line
        ran += 1
    assert ran == 6
    assert "household-agent" in (tmp_path / "runs/dpo/final/README.md").read_text()


def test_the_example_is_a_card_and_names_no_folder_of_anybodys():
    card = ModelCard.load(ROOT / "docs/example-card.md")
    assert card.data.library_name == "peft" and card.data.eval_results
    assert not re.search(r"/(home|root|tmp|Users|work|mnt|var)/", card.content)
