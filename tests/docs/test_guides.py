"""Every block of every page in docs/guides/ runs as it stands there."""

from pathlib import Path

import pytest

from tests.blocks import ROOT, run_page

PAGES = sorted(path.name for path in (ROOT / "docs" / "guides").glob("*.md"))


@pytest.mark.parametrize("name", PAGES)
def test_every_block_runs(name: str, folder: Path):
    run_page((ROOT / "docs" / "guides" / name).read_text(), folder)
