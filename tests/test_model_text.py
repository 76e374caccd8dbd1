"""What a model writes costs its readers time in proportion to its length, whatever it is."""

import pytest

from tests.warm import Warm

# CPU time, which does not depend on how busy the machine is. A reader that looks at every character once needs two
# seconds for all of it; one that looks at all of the text for every tag, half a minute for each.
LIMIT_S = 15
READERS = [
    "bough.chat.tool_calls:parse",
    "bough.chat.tool_calls:parse_function",
    "bough.chat.tool_calls:parse_command",
    "bough.chat.tool_calls:parse_line",
    "bough.worlds.interpreter.code:last_block",
    "tests.model_text:tagged",
    "bough.worlds.household.mistakes:names",
    "tests.model_text:steps",
    "tests.model_text:look",
    "tests.model_text:repeat",
]


@pytest.mark.parametrize("reader", READERS)
def test_a_text_made_to_hold_up_its_reader_is_read_in_time(reader: str):
    module, _, name = reader.partition(":")
    code = f"""
import resource
resource.setrlimit(resource.RLIMIT_CPU, ({LIMIT_S}, {LIMIT_S}))
from {module} import {name}
from tests.model_text import read_all
read_all({name})
"""
    with Warm(None, code=code) as program:
        assert program.wait() == 0
