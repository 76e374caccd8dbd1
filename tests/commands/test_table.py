"""Methods of installed packages that cannot be used."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from bough.commands import table
from bough.errors import InputError

NAMELESS = """
from bough.methods.base import training_command
from bough.methods.sft import SFT, SFTConfig
COMMANDS = {"broken": training_command(SFTConfig, SFT, reads="demonstrations")}
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nothing_of_this_name", "cannot be imported: No module named"),
        ("COMMANDS = {}", r"the module has no COMMANDS\['broken'\]"),
        (NAMELESS, "its settings have no `command = 'broken'`"),
    ],
)
def test_a_broken_method_is_named_and_other_stages_are_left(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    name = f"broken_{len(text)}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(table, "_installed", lambda: {"broken": EntryPoint("broken", name, table.GROUP)})
    with pytest.raises(InputError, match=f"the method 'broken' of {name}.*{said}"):
        table.command("broken")
    table.stages.cache_clear()
    try:
        assert "sft" in table.stages() and "broken" not in table.stages()
    finally:
        table.stages.cache_clear()
    assert "it cannot be a stage" in caplog.text
