"""Keyword settings are the fields of the command's Config, and nothing else."""

import inspect
import re
import runpy
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import bough
from bough.commands import table
from bough.config.groups import CollectConfig
from bough.errors import InputError
from tests.blocks import ROOT

FUNCTIONS = [name for name in bough.__all__ if inspect.isfunction(getattr(bough, name))]


def test_a_misspelt_setting_is_named_with_the_function_and_what_was_meant():
    with pytest.raises(bough.InputError) as error:
        bough.collect("tiny", "household", taks=3, max_turn=2)
    text = str(error.value)
    assert "bough.collect() has 2 problems" in text
    assert "taks is not a setting; did you mean tasks?" in text and "did you mean max_turns?" in text


def test_the_signature_lists_the_settings_with_their_defaults():
    parameters = inspect.signature(bough.collect).parameters
    assert list(parameters)[:2] == ["model", "environment"]
    assert parameters["attempts"].default == CollectConfig.model_fields["attempts"].default == 1
    assert parameters["attempts"].kind is inspect.Parameter.KEYWORD_ONLY
    assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def test_the_docstring_ends_with_the_help_of_the_settings():
    description = CollectConfig.model_fields["attempts"].description
    assert f"attempts: {description}" in (bough.collect.__doc__ or "")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_says_what_it_does(name: str):
    assert len((getattr(bough, name).__doc__ or "").split()) > 5


def test_what_is_a_parameter_or_belongs_to_the_command_line_is_no_setting():
    with pytest.raises(bough.InputError, match=r"bough\.pairs\(\) has no setting file"):
        bough.pairs("runs/x", file="runs/y")
    with pytest.raises(bough.InputError, match=r"bough\.collect\(\) has no setting as_json"):
        bough.collect("tiny", "household", as_json=True)
    assert "as_json" not in inspect.signature(bough.collect).parameters


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
