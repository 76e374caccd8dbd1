import json
from typing import Any

import pytest

from bough.config.groups import SamplingConfig
from bough.engines.server.chat import (
    MAX_DEPTH,
    MAX_MESSAGES,
    MAX_STOPS,
    MAX_VALUES,
    RefusedError,
    read_request,
)
from tests.engines.server.fake import TOOL, body, user

HUGE = 10**400
DEEP = "[" * 150 + "]" * 150
LOOK = {"function": {"name": "look", "arguments": "{}"}}
CALL = {"function": {"name": "look", "arguments": f'{{"at": {DEEP}}}'}}


def read(**more: Any) -> Any:
    return read_request(json.dumps(body(user("Hello"), **more)).encode())


def test_the_parameters_of_a_request_are_read():
    request = read(
        temperature=0.5, top_p=0.9, top_k=7, max_tokens=10, stop="END", seed=-1, n=1, stream=True,
        stream_options={"include_usage": True}, logprobs=True, tools=[TOOL], tool_choice="auto", user="someone",
    )  # fmt: skip
    assert request.sampling == {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "max_new_tokens": 10, "stop": ["END"]}
    assert request.seed == (1 << 56) - 1
    assert (request.stream, request.stream_usage, request.logprobs) == (True, True, True)
    assert request.tools == [TOOL]


def test_max_completion_tokens_counts_before_max_tokens():
    assert read(max_tokens=10, max_completion_tokens=5).sampling == {"max_new_tokens": 5}


def test_a_tool_choice_of_none_offers_no_tools():
    assert read(tools=[TOOL], tool_choice="none").tools == []


def test_what_is_not_given_is_the_servers():
    defaults = SamplingConfig(temperature=0.3, max_new_tokens=50, stop=["A"])
    assert read(temperature=0.9).sampled(defaults, fixed=False) == defaults.model_copy(update={"temperature": 0.9})


def test_with_fixed_sampling_a_client_can_only_shorten_and_stop_replies():
    defaults = SamplingConfig(temperature=0.3, max_new_tokens=50, stop=["A"])
    sampled = read(temperature=0.9, top_p=0.1, max_tokens=10, stop=["B"]).sampled(defaults, fixed=True)
    assert sampled == defaults.model_copy(update={"max_new_tokens": 10, "stop": ["A", "B"]})
    assert read(max_tokens=100).sampled(defaults, fixed=True).max_new_tokens == 50


@pytest.mark.parametrize(
    ("more", "param", "words"),
    [
        ({"n": 0}, "n", "n is 0: Input should be greater than or equal to 1"),
        ({"n": 2}, "n", "less than or equal to 1"),
        ({"n": 1.5}, "n", "valid integer"),
        ({"temperature": -1}, "temperature", "temperature is -1: Input should be greater than or equal to 0"),
        ({"temperature": "hot"}, "temperature", "temperature is 'hot': Input should be a valid number"),
        ({"temperature": HUGE}, "temperature", "temperature is "),
        ({"top_k": HUGE}, "top_k", "less than or equal to 2147483647"),
        ({"max_tokens": True}, "max_tokens", "valid integer"),
        ({"max_tokens": HUGE}, "max_tokens", "less than or equal to 2147483647"),
        ({"max_completion_tokens": HUGE}, "max_completion_tokens", "less than or equal to 2147483647"),
        ({"stop": 7}, "stop", "stop is 7: it may be a text of up to 1000 characters, or a list of up to 64 of them"),
        ({"stop": ["x"] * (MAX_STOPS + 1)}, "stop", "stop is ['x', 'x'"),
        ({"stop": "x" * 10_000}, "stop", "up to 1000 characters"),
        ({"stream": "yes"}, "stream", "stream is 'yes': Input should be a valid boolean"),
        ({"tool_choice": "required"}, "tool_choice", "this server cannot force a tool call"),
        ({"tools": [TOOL] * 1025}, "tools", "there are 1,025 tools; at most 1,024 are read"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [LOOK] * 16_385}]},
            "messages",
            "there are 16,385 tool calls",
        ),
        ({"prediction": {"type": "text"}}, "prediction", "prediction is not supported"),
        ({"response_format": "auto"}, "response_format", "response_format is not supported"),
        ({"tools": [{"type": "function"}]}, "tools", "tools[0] has no function with a name"),
        ({"tools": [{**TOOL, "more": json.loads(DEEP)}]}, "tools", f"nested deeper than {MAX_DEPTH} levels"),
        ({"response_format": {"type": "json_object"}}, "response_format", "response_format is not supported"),
        ({"frequency_penalty": 0.5}, "frequency_penalty", "frequency_penalty is not supported"),
        ({"messages": [{"role": "assistant", "tool_calls": [CALL]}]}, "messages", "a tool call is nested deeper"),
        ({"messages": [user("x")] * (MAX_MESSAGES + 1)}, "messages", "at most 16384 items"),
        ({"messages": []}, "messages", "at least 1 item"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages", "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "only text"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(more: dict[str, Any], param: str, words: str):
    with pytest.raises(RefusedError) as caught:
        read(**more)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert words in str(caught.value)


def test_a_temperature_that_no_float32_can_be_divided_by_means_the_most_likely_token():
    assert read(temperature=1e-40).sampling == {"temperature": 0.0}
    assert read_request(b'{"messages": [{"role": "user", "content": ""}], "temperature": 0.01}').sampling == {
        "temperature": 0.01
    }
    with pytest.raises(RefusedError, match="temperature is inf: "):
        read_request(b'{"messages": [{"role": "user", "content": ""}], "temperature": 1e400}')


@pytest.mark.parametrize("given", [b"", b"{", b"[]", b"\xff\xfe", b'{"messages": NaN}', b"[" * 100_000])
def test_garbage_is_refused(given: bytes):
    with pytest.raises(RefusedError, match="the body is"):
        read_request(given)
    with pytest.raises(RefusedError, match="messages is missing"):
        read_request(b"{}")


@pytest.mark.parametrize("name", ["response_format", "frequency_penalty", "logit_bias", "user"])
def test_a_value_that_asks_for_nothing_is_no_reason_to_refuse(name: str):
    values: dict[str, Any] = {"response_format": {"type": "text"}, "frequency_penalty": 0, "logit_bias": {}}
    read(**{name: values.get(name, "a, [b]" * MAX_VALUES)})


MANY = json.dumps([0] * (MAX_VALUES + 1))


@pytest.mark.parametrize("more", [{"metadata": [0] * MAX_VALUES}, {"tools": MANY}, {"tools": ['"', MANY]}])
def test_more_values_than_a_request_needs_are_refused_before_they_are_read(more: dict[str, Any]):
    with pytest.raises(RefusedError, match="more than 262,144 JSON values") as caught:
        read(**more)
    assert caught.value.status == 413
