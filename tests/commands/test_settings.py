"""Keyword settings are the fields of the command's Config, and nothing else."""

import inspect

import pytest

import bough
from bough.config.groups import CollectConfig

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
