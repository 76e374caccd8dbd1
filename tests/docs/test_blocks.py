"""The code blocks of every page: they run as they stand there, and the settings of their commands exist."""

from pathlib import Path

import pytest

from tests.blocks import blocks, check_page, run_page
from tests.docs.pages import PAGES

WITH_BLOCKS = [name for name, page in PAGES.items() if blocks(page, "sh", "bash", "python", "yaml")]


@pytest.mark.docs
@pytest.mark.parametrize("name", WITH_BLOCKS)
def test_every_block_runs(name: str, folder: Path):
    run_page(PAGES[name], folder)


@pytest.mark.parametrize("name", WITH_BLOCKS)
def test_every_command_reads_its_settings(name: str, folder: Path):
    check_page(PAGES[name], folder)
