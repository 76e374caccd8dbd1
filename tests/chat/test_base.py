import pytest

from bough.chat import commands, functions, hermes, lines
from bough.chat.forms import MAX_CALLS, MAX_REPLY, MalformedError, Speech

SPEECHES: list[Speech] = [hermes, functions, commands, lines]


@pytest.mark.parametrize("speech", SPEECHES)
def test_a_reply_that_is_too_long_is_refused_with_a_sentence(speech: Speech):
    with pytest.raises(MalformedError, match=r"The reply has 1,000,001 characters; at most 1,000,000 are read"):
        speech.parse("a" * (MAX_REPLY + 1))


def test_so_many_calls_are_refused():
    call = '<tool_call>{"name": "f"}</tool_call>'
    assert len(hermes.parse(call * MAX_CALLS).calls) == MAX_CALLS
    with pytest.raises(MalformedError, match="more than 100 tool calls"):
        hermes.parse(call * (MAX_CALLS + 1))
    with pytest.raises(MalformedError, match="That is 100 actions"):
        functions.parse("f(1)\n" * MAX_CALLS)
    with pytest.raises(MalformedError, match="more than 100 lines with calls"):
        functions.parse("f(1)\n" * (MAX_CALLS + 1))
