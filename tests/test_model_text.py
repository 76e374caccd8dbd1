"""What a model writes costs its readers time in proportion to its length, whatever it is."""

import subprocess
import sys

import pytest

# A reader that looks at every character once needs seconds for all of it; one that looks at all of the text for
# every tag, minutes for each.
LIMIT_S = 120
READERS = [
    "bough.speech.hermes:parse",
    "bough.speech.functions:parse",
    "bough.speech.commands:parse",
    "bough.speech.lines:parse",
    "bough.worlds.interpreter.code:last_block",
    "tests.model_text:tagged",
    "bough.worlds.household.locations:names",
    "tests.model_text:steps",
    "tests.model_text:look",
    "tests.model_text:repeat",
]


@pytest.mark.parametrize("reader", READERS)
def test_a_text_made_to_hold_up_its_reader_is_read_in_time(reader: str):
    module, _, name = reader.partition(":")
    code = f"from {module} import {name}; from tests.model_text import read_all; read_all({name})"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=LIMIT_S)
