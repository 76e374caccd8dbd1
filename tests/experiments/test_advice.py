from pathlib import Path

import pytest

from bough.errors import InputError
from bough.experiments.evolve import evolve, in_own_words, own_words
from bough.experiments.evolve_settings import EvolveConfig
from tests.experiments.small import config, pairs_file

CONFIG = EvolveConfig(train_file=Path("pairs.jsonl"))


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("drop with --on-error skip", "drop with --set on_error=skip"),
        ("--max-length leaves out the oldest steps", "--set max_length=… leaves out the oldest steps"),
        ("try a smaller --token-budget, or", "try a smaller --set token_budget=…, or"),
        ("give --beta 0.1", "give --set beta=0.1"),
        # Flags of its own, and those of a command that is named, stay.
        ("give another --output-dir, or --overwrite", "give another --output-dir, or --overwrite"),
        ("bough dpo --loss-type kto learns", "bough dpo --loss-type kto learns"),
        ("see bough pairs --help", "see bough pairs --help"),
    ],
)
def test_flags_of_the_methods_command_become_settings(said: str, wanted: str):
    assert own_words(CONFIG, said) == wanted


def test_an_error_keeps_its_kind_and_its_hint():
    class OfItsOwnError(InputError):
        pass

    with pytest.raises(OfItsOwnError) as caught, in_own_words(CONFIG):
        raise OfItsOwnError("bad rows:", ["--on-error skip"], hint="or --max-length 5")
    assert str(caught.value) == "bad rows:\n  - --set on_error=skip\nor --set max_length=5"


def test_a_bad_row_is_said_with_the_setting_that_skips_it(tmp_path: Path):
    path = pairs_file(tmp_path)
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(InputError, match=r"has 1 bad row \(drop with --set on_error=skip\)"):
        evolve(config(tmp_path))
