import pytest
from pydantic import Field

from bough.config.base import Config
from bough.config.groups import EnvironmentConfig, make_options
from bough.errors import InputError


class Options(Config):
    pages: list[str] = Field([], description="pages")
    size: int | None = Field(None, description="size")


def test_words_of_the_command_line_are_read_as_yaml():
    config = EnvironmentConfig(name="web", options=["pages=[a, b]", "size=3", "deep-name=yes", "empty="])
    assert config.options == {"pages": ["a", "b"], "size": 3, "deep_name": True, "empty": ""}


def test_a_mapping_stays_what_it_is_and_a_word_without_a_value_is_named():
    assert EnvironmentConfig(name="web", options={"pages": ["a=b"]}).options == {"pages": ["a=b"]}
    with pytest.raises(InputError, match="'pages' must be written as key=value"):
        EnvironmentConfig(name="web", options=["pages"])


def test_text_for_a_list_is_split_at_its_commas():
    made = make_options(Options, {"pages": "a, b,,c", "size": 2})
    assert made == Options(pages=["a", "b", "c"], size=2)
    with pytest.raises(InputError, match="sise is not a setting; did you mean size"):
        make_options(Options, {"sise": 2})
