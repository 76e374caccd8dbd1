import pytest

from bough.chat.call_form import read_calls
from bough.types import ToolCall

BUY = ToolCall(name="buy", arguments={"item": "apple"})
TEXT = '{"name": "buy", "arguments": {"item": "apple"}}'


@pytest.mark.parametrize(
    "reply",
    [
        f"```json\n{TEXT}\n```",
        f"I will buy one.\n```json\n{TEXT}\n```\nThat should do.",
        f"```\n{TEXT}\n```",
        TEXT,
        f"[{TEXT}]",
        '```json\n{"name": "buy", "parameters": {"item": "apple"}}\n```',
    ],
)
def test_a_call_in_a_block_or_alone_is_read(reply: str):
    assert read_calls(reply, ["buy", "sell"]) == (BUY,)


def test_several_calls_keep_their_order():
    sell = ToolCall(name="sell")
    reply = f'```json\n{TEXT}\n{{"name": "sell"}}\n```\nthen\n```json\n{TEXT}\n```'
    assert read_calls(reply, ["buy", "sell"]) == (BUY, sell, BUY)


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "The answer is 5.",
        f"Call {TEXT}",
        '```json\n{"total": 5}\n```',
        '```json\n{"name": "steal", "arguments": {}}\n```',
        '```json\n{"name": "buy", "arguments": [1]}\n```',
        '```json\n{"name": "buy", "arguments": {}, "because": "x"}\n```',
        f"```json\n{TEXT[:-1]}\n```",
        '{"name": "buy", "arguments": {"item": NaN}}',
        '{"name": ["buy"]}',
        f"```json\n{TEXT}\n```\n```json\nnot JSON\n```",
        "[" * 100_000,
        "```" + " " * 1_000_000,
        "```json" + "\t" * 1_000_000,
        f"[{','.join([TEXT] * 101)}]",
        f"```python\n{TEXT}\n```",
    ],
)
def test_anything_else_is_not_a_call(reply: str):
    assert read_calls(reply, ["buy", "sell"]) == ()
