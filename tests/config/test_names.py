import pytest

from bough.config.base import is_name


@pytest.mark.parametrize("name", ["a", "own-play", "_x", "1.5", "after-sft_2", "-", "a..b", "x" * 100])
def test_a_name_is_one_part_of_a_path(name: str):
    assert is_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "../a", "a\\b", "a b", "a\n", "a\0", "é", "x" * 101, "a:b"]
)
def test_what_could_lead_elsewhere_is_no_name(name: str):
    assert not is_name(name)
