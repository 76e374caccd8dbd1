"""A stranger's task: an environment with tools, collected, trained and evaluated in under 60 lines of own code."""

import re
import runpy

from tests.blocks import ROOT

FILE = ROOT / "examples" / "stranger.py"


def test_the_agent_is_better_than_the_model_it_started_from():
    result = runpy.run_path(str(FILE))["main"]()
    assert result.success["tiny"] == 0.0 and result.success["tiny+sft"] > 0.3, str(result)
    [comparison] = result.comparisons
    assert comparison["significant"] and comparison["second"] == "tiny+sft"


def test_it_uses_only_what_the_package_offers():
    text = FILE.read_text()
    assert len(text.splitlines()) < 60
    assert re.findall(r"^(?:from|import) .*bough.*", text, flags=re.MULTILINE) == ["import bough"]
