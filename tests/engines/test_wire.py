"""Conversations and answers as JSON."""

from __future__ import annotations

from typing import Any

import pytest

from bough.chat.template import ChatTemplate, load_template
from bough.engines.base import EngineError
from bough.engines.openai import conversation, read_answer, read_tokens
from bough.types import Message, ToolCall

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return load_template("tiny")


def read(message: dict[str, Any], finish: str = "stop", template: ChatTemplate | None = None, **choice: Any) -> Any:
    response = {"choices": [{"message": message, "finish_reason": finish} | choice], "model": "m"}
    if "token_ids" in choice:
        response["prompt_token_ids"] = [1, 2, 3]
    return read_answer(response, template=template, where="http://host")


def test_tool_calls_and_their_results_find_each_other():
    calls = [ToolCall(name="f", arguments={"x": "ä"}), ToolCall(name="g", id="mine"), ToolCall(name="h")]
    messages = [
        Message(role="user", content="Go."),
        Message(role="assistant", tool_calls=calls),
        Message(role="tool", content="one"),
        Message(role="tool", content="two", tool_call_id="mine", name="g"),
        Message(role="tool", content="three"),
    ]
    _, calling, one, two, three = conversation(messages, [TOOL], None)[0]
    assert calling["tool_calls"] == [
        {"id": "call_1_0", "type": "function", "function": {"name": "f", "arguments": '{"x": "ä"}'}},
        {"id": "mine", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        {"id": "call_1_2", "type": "function", "function": {"name": "h", "arguments": "{}"}},
    ]
    assert one == {"role": "tool", "content": "one", "tool_call_id": "call_1_0"}
    assert two == {"role": "tool", "content": "two", "tool_call_id": "mine", "name": "g"}
    assert three == {"role": "tool", "content": "three", "tool_call_id": "call_1_2"}


def test_thinking_is_sent_and_read_under_both_its_names():
    messages = [Message(role="user", content="?"), Message(role="assistant", content="!", reasoning="Hm.")]
    thinking = {"reasoning_content": "Hm.", "reasoning": "Hm."}
    assert conversation(messages, [], None)[0][1] == {"role": "assistant", "content": "!", **thinking}
    assert [read({"content": "!", key: "Hm."}).message.reasoning for key in thinking] == ["Hm.", "Hm."]


def test_tools_that_the_models_template_does_not_know_are_said_in_words(template):
    messages = [Message(role="user", content="Go.")]
    assert conversation(messages, [TOOL], None) == ([{"role": "user", "content": "Go."}], [TOOL])
    written, tools = conversation(messages, [TOOL], template)
    assert tools == []
    assert [message["role"] for message in written] == ["system", "user"] and "<tools>" in written[0]["content"]


def test_structured_tool_calls_become_ours():
    function = {"name": "look", "arguments": '{"at": "shelf 1"}'}
    answer = read(
        {"content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]}, "tool_calls"
    )
    assert answer.message == Message(
        role="assistant", tool_calls=[ToolCall(name="look", arguments={"at": "shelf 1"}, id="c1")]
    )
    assert answer.finish == "stop"


DEEP = '{"at": ' + "[" * 300 + "]" * 300 + "}"


@pytest.mark.parametrize("arguments", ['{"at": ', "[1]", '"text"', '{"at": NaN}', '{"at": "\\ud800"}', DEEP])
def test_a_tool_call_that_cannot_be_read_stays_text(arguments):
    good = {"id": "1", "function": {"name": "a", "arguments": ""}}
    bad = {"id": "2", "function": {"name": "look", "arguments": arguments}}
    message = read({"content": "Well.", "tool_calls": [good, bad]}).message
    assert message.tool_calls == [ToolCall(name="a", id="1")]
    assert message.content == f'Well.\n<tool_call>\n{{"name": "look", "arguments": {arguments}}}\n</tool_call>'


def test_half_a_surrogate_pair_in_a_tools_name_is_the_models_mistake():
    message = read({"content": None, "tool_calls": [{"function": {"name": "\ud800", "arguments": "{}"}}]}).message
    assert message.tool_calls == [] and '"name": "\\ud800"' in message.content


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("stop", "stop"), ("length", "length"), ("tool_calls", "stop"), ("content_filter", "abort"), ("abort", "abort")],
)
def test_reasons_to_finish(reason, finish):
    assert read({"content": "x"}, reason).finish == finish


def test_tokens_make_a_call(template):
    ids = template.tokenizer("Go north.", add_special_tokens=False)["input_ids"] + [template.end_of_turn_id]
    content = [{"token": "?", "logprob": -float(i)} for i in range(len(ids))]
    answer = read({"content": "Go north."}, template=template, token_ids=ids, logprobs={"content": content})
    assert answer.call.model_dump(exclude_defaults=True) == {
        "prompt_ids": [1, 2, 3],
        "completion_ids": ids,
        "logprobs": [-float(i) for i in range(len(ids))],
        "text": "Go north.",
        "finish": "stop",
        "policy": "m",
    }
    assert (answer.num_prompt_tokens, answer.num_completion_tokens) == (3, len(ids))


def test_a_calls_text_is_what_the_tokens_say_not_what_a_servers_parser_left(template):
    text = 'Hm.<tool_call>{"name": "f"}</tool_call>'
    ids = template.tokenizer(text, add_special_tokens=False)["input_ids"]
    message = {"content": None, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}
    answer = read(message, "length", template=template, token_ids=ids)
    assert answer.call.text == text and answer.call.logprobs is None
    assert answer.message.content == "" and answer.message.tool_calls


def test_without_a_template_the_tokens_spell_what_a_servers_parser_took_apart():
    spelled = ["Hm", ".", "<tool_call>", '{"name": "f"}', "</tool_call>", "<|im_end|>"]
    message = {"content": None, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}
    given = {
        "token_ids": [1, 2, 3, 4, 5, 6],
        "logprobs": {"content": [{"token": token, "logprob": -1.0} for token in spelled]},
    }
    whole = 'Hm.<tool_call>{"name": "f"}</tool_call>'
    assert read(message, "tool_calls", **given).call.text == whole
    assert read(message, "length", **given).call.text == whole + "<|im_end|>"
    assert read({"content": "f", "reasoning": "Hm."}, **given).call.text == whole


def test_without_a_template_an_end_of_turn_in_the_text_is_taken_off():
    tokens = [{"token": "Hi", "logprob": -1.0}, {"token": "<|im_end|>", "logprob": -0.1}]
    given = {"token_ids": [5, 2], "logprobs": {"content": tokens}}
    ended = read({"content": "Hi<|im_end|>"}, stop_reason=None, **given)
    assert ended.call.text == ended.message.content == "Hi"
    assert ended.call.completion_ids == [5, 2]
    # A stop text is the model's own, whatever it looks like; so is what was cut by length.
    assert read({"content": "Hi<|im_end|>"}, stop_reason="<|im_end|>", **given).message.content == "Hi<|im_end|>"
    assert read({"content": "Hi<|im_end|>"}, "length", **given).message.content == "Hi<|im_end|>"
    assert read({"content": "Hi"}, stop_reason=None, **given).call.text == "Hi"


@pytest.mark.parametrize(("prompt", "ids"), [(None, [1]), ([1], None), ("1", [1]), ([], [1])])
def test_half_of_the_tokens_is_no_call(prompt, ids):
    response = {"choices": [{"message": {"content": "x"}, "token_ids": ids}], "prompt_token_ids": prompt}
    response["usage"] = {"prompt_tokens": 9, "completion_tokens": 4}
    answer = read_answer(response, template=None, where="")
    assert answer.call is None
    assert (answer.num_prompt_tokens, answer.num_completion_tokens) == (9, 4)


@pytest.mark.parametrize("logprobs", [None, {"content": [{"logprob": None}] * 2}, {"content": "ab"}, [1, 2]])
def test_log_probabilities_that_are_not_given_are_none(logprobs):
    assert read_tokens({"prompt_token_ids": [1]}, {"token_ids": [2, 3], "logprobs": logprobs}) == ([1], [2, 3], None)


@pytest.mark.parametrize("id", [-1, 1.0, "1", True, None, [1], 1 << 31, 10**400])
def test_a_token_id_that_is_none_is_an_engine_error(id):
    for tokens in ({"token_ids": [2, id]}, {"token_ids": [2], "prompt_token_ids": [id]}):
        with pytest.raises(EngineError, match="gave the token id"):
            read_tokens({}, {"prompt_token_ids": [1], **tokens})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 0.5, "-1", True, [-1], 10**400, None])
def test_a_log_probability_that_is_none_is_an_engine_error(value):
    for given in ({"content": [{"logprob": -1.0}, {"logprob": value}]}, {"token_logprobs": [-1.0, value]}):
        with pytest.raises(EngineError, match="gave the log-probability"):
            read_tokens({"prompt_token_ids": [1]}, {"token_ids": [2, 3], "logprobs": given})


def test_log_probabilities_of_plain_completions_are_as_many_as_tokens():
    choice = {"prompt_token_ids": [1], "token_ids": [2, 3], "logprobs": {"token_logprobs": [-1, -0.25]}}
    assert read_tokens({}, choice) == ([1], [2, 3], [-1.0, -0.25])
    with pytest.raises(EngineError, match="gave 2 log-probabilities for 1 tokens"):
        read_tokens({}, choice | {"token_ids": [2]})


@pytest.mark.parametrize("response", [[], {}, {"choices": []}, {"choices": [None]}, {"choices": [{}]}, "text", None])
def test_an_answer_without_an_answer_in_it_is_an_engine_error(response):
    with pytest.raises(EngineError, match="http://host answered without"):
        read_answer(response, template=None, where="http://host")
