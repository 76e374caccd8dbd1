import pytest

from bough.sandbox.base import Result, SandboxLimits
from bough.types import ToolCall
from bough.worlds.interpreter import tool

LIMITS = SandboxLimits(timeout_s=5, memory_mb=100)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (Result(stdout="a\n", value="2"), "a\n2"),
        (Result(), "(no output)"),
        (Result(stdout="a\n", stderr="w\n", error="E: x"), "a\nw\nE: x"),
        (Result(value="<f at 0xffff9a2b3c40>"), "<f at 0x…>"),
        (Result(stdout="0x1f"), "0x1f"),
        (
            Result(stdout="a\n", timed_out=True, error="KeyboardInterrupt", alive=True),
            "a\nError: the code ran longer than 5 s and was stopped.",
        ),
        (
            Result(timed_out=True, killed="time"),
            "Error: the code ran longer than 5 s and was stopped.\nThe interpreter was restarted.",
        ),
        (
            Result(killed="memory"),
            "Error: the code used more than 100 MB of memory and was stopped.\nThe interpreter was restarted.",
        ),
    ],
)
def test_a_result_reads_as_in_a_notebook(result: Result, text: str):
    assert tool.result_text(result, LIMITS) == text


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (ToolCall(name="python", arguments={"code": "1"}), "there is no tool 'python'"),
        (ToolCall(name=tool.NAME), 'needs the argument "code"'),
        (ToolCall(name=tool.NAME, arguments={"code": 1}), "must be a text"),
        (ToolCall(name=tool.NAME, arguments={"code": "1", "language": "c"}), "no argument 'language'"),
    ],
)
def test_a_wrong_call_is_told(call: ToolCall, said: str):
    assert said in str(tool.misuse(call))


def test_a_right_call_is_right():
    assert tool.misuse(ToolCall(name=tool.NAME, arguments={"code": "1"})) is None


def test_the_schema_says_whether_names_live_on():
    assert "can be used in the next" in str(tool.schema(persistent=True))
    assert "starts from nothing" in str(tool.schema(persistent=False))
