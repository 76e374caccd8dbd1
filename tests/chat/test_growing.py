"""Growing prompts equal whole renderings, for templates of every kind and contents of every kind."""

import logging
from copy import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.chat.growing import GrowingPrompt, Locality, Prompts
from bough.chat.template import ChatTemplate
from bough.errors import RowError
from bough.types import Message, ToolCall, conversation
from tests.chat.conftest import FAMILIES, assistant, household, system, template_of, tokenizer_of, user
from tests.chat.test_locality import LOCAL, NOT_LOCAL

SEARCH = {"type": "function", "function": {"name": "search", "description": "", "parameters": {"type": "object"}}}


TEMPLATES = {family: template_of(family) for family in FAMILIES}
for name, source in {**LOCAL, **NOT_LOCAL}.items():
    if name != "another name for the conversation":  # which no conversation of two messages shows
        tokenizer = copy(TEMPLATES["chatml"].tokenizer)
        tokenizer.chat_template = source
        TEMPLATES[name] = ChatTemplate(tokenizer, name)
tokenizer = tokenizer_of("chatml")
tokenizer.add_special_tokens({"extra_special_tokens": ["<tool_call>", "</tool_call>"]})
tokenizer.chat_template = LOCAL["qwen2.5"]
TEMPLATES["tool calls with control tokens"] = ChatTemplate(tokenizer, "tool calls with control tokens")
PIECES = [
    "go to shelf 1", " ", "\n", "\n\n", "", "THOUGHT: ", "é", "<think>\nHm.\n</think>\n\n", "</think>", "<|im_end|>",
    "</s>", "[INST]", "<tool_response>", "7184605239318456", "<tool_call>", "{{ 1 }}", "\N{EM SPACE}", "\t", "x" * 50,
]  # fmt: skip
texts = st.lists(st.sampled_from(PIECES), max_size=4).map("".join)
observed = st.builds(
    Message,
    role=st.sampled_from(["user", "user", "tool"]),
    content=texts,
    hint=st.sampled_from([None, None, "\nAVAILABLE ACTIONS: look", " "]),
    tool_call_id=st.sampled_from([None, "abcdefghi"]),
    name=st.sampled_from([None, "search"]),
)
calls = st.lists(st.just(ToolCall(name="search", arguments={"x": 1}, id="abcdefghi")), max_size=2)
replies = st.one_of(
    st.builds(assistant, texts),
    st.builds(assistant, texts),
    st.builds(assistant, texts, tool_calls=calls, reasoning=st.sampled_from([None, "Hm."])),
)
turns = st.tuples(replies, st.lists(observed, min_size=0, max_size=3)).map(lambda turn: [turn[0], *turn[1]])
usual_turns = st.tuples(st.builds(assistant, texts), st.builds(user, texts)).map(list)
starts = st.sampled_from(
    [[user("Hi")], [system("Be brief."), user(" Hi ")], [system("S")], [user("a"), user("b")], [assistant("Hello")]]
)


def whole(template: ChatTemplate, messages: list[Message], tools: list[dict[str, Any]]) -> str:
    try:
        return template.prompt(messages, tools)
    except RowError as error:
        return f"refused: {error}"


def grown(growing: GrowingPrompt, messages: list[Message], tools: list[dict[str, Any]]) -> str:
    try:
        return growing.prompt(messages, tools)
    except RowError as error:
        return f"refused: {error}"


CONVERSATIONS = given(
    start=starts,
    rounds=st.one_of(st.lists(usual_turns, min_size=3, max_size=6), st.lists(turns, max_size=6)),
    tools=st.sampled_from([[], [], [SEARCH]]),
)


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name not in NOT_LOCAL])
@CONVERSATIONS
@settings(max_examples=25)
def test_every_prompt_equals_the_whole_rendering(name: str, start: Any, rounds: Any, tools: Any):
    compare(TEMPLATES[name], start, rounds, tools)


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name in NOT_LOCAL])
@CONVERSATIONS
@settings(max_examples=5)
def test_a_template_that_is_not_local_renders_all_prompts_whole(name: str, start: Any, rounds: Any, tools: Any):
    compare(TEMPLATES[name], start, rounds, tools)


def compare(template: ChatTemplate, start: Any, rounds: Any, tools: Any) -> None:
    prompts = Prompts(template)
    prompts.unchecked = 0  # or a gap in the proof would be mended by the first check
    growing, messages = prompts.begin(), list(start)
    assert grown(growing, messages, tools) == whole(template, messages, tools)
    for added in rounds:
        messages += added  # the caller's list grows, too
        assert grown(growing, messages, tools) == whole(template, messages, tools)


@pytest.mark.parametrize("name", ["chatml", "llama3", "gemma", "qwen2.5", "qwen3", "earlier qwen3"])
def test_the_template_renders_only_what_is_new_of_its_kind(name: str):
    prompts = Prompts(TEMPLATES[name])
    rendered: list[int] = []
    whole = prompts.whole
    prompts.whole = lambda messages, tools: rendered.append(len(messages)) or whole(messages, tools)  # type: ignore[method-assign]
    start, turns = household(12)
    if "qwen3" in name:
        said = [assistant(f"<think>\nHm, {i}.\n</think>\n\n{turn.reply.content}") for i, turn in enumerate(turns)]
        turns = [turn.model_copy(update={"reply": reply}) for turn, reply in zip(turns, said, strict=True)]
    expected = [TEMPLATES[name].prompt(conversation(start, turns[:i]), []) for i in range(len(turns))]

    def play() -> list[str]:
        growing = prompts.begin()
        return [growing.prompt(conversation(start, turns[:i]), []) for i in range(len(turns))]

    assert play() == expected
    # The start; a rule for the first turn and one for any other; two comparisons with the whole.
    assert rendered == [2, 2, 4, 4, 6, 8, 10]
    # Another attempt at the same task.
    del rendered[:]
    assert play() == expected
    assert rendered == []


def test_a_changed_history_is_rendered_again():
    growing = Prompts(TEMPLATES["chatml"]).begin()
    start, turns = household(6)
    messages = list(start)
    for turn in turns:
        growing.prompt(messages, [])
        messages += [turn.reply, *turn.observation]
    changed = [system("Another task."), *messages[1:]]
    assert growing.prompt(changed, []) == TEMPLATES["chatml"].prompt(changed, [])
    assert growing.prompt(changed[:4], []) == TEMPLATES["chatml"].prompt(changed[:4], [])
    with_tools = [*changed[:4], assistant("a"), user("b")]
    assert growing.prompt(with_tools, [SEARCH]) == TEMPLATES["chatml"].prompt(with_tools, [SEARCH])


def test_a_gap_in_the_proof_is_found_at_the_first_use():
    template = TEMPLATES["numbers messages"]
    prompts = Prompts(template)
    prompts.locality = Locality(parity=False)  # which is wrong
    growing = prompts.begin()
    start, turns = household(6)
    messages = list(start)
    for turn in turns:
        assert growing.prompt(messages, []) == template.prompt(messages, [])
        messages += [turn.reply, *turn.observation]
    assert prompts.locality is None


def test_a_template_that_rewrites_history_is_named_once(caplog: pytest.LogCaptureFixture):
    prompts = Prompts(TEMPLATES["mistral"])
    with caplog.at_level(logging.INFO, logger="bough"):
        for _ in range(2):
            growing, messages = prompts.begin(), [user("Hi")]
            for i in range(3):
                growing.prompt(messages, [])
                messages += [assistant(f"<think>\n{i}\n</think>\n\nok"), user("And?")]
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "mistral: the chat template may rewrite earlier messages, so each turn renders the whole conversation"
    ]


@pytest.mark.parametrize("name", ["qwen3", "earlier qwen3"])
@pytest.mark.parametrize("result", [Message(role="tool", content="7"), user("<tool_response>\n7\n</tool_response>")])
def test_thoughts_stay_while_tool_results_follow_a_question(name: str, result: Message):
    """Replies after the last question keep their thoughts, so these prompts are rendered whole."""
    prompts = Prompts(TEMPLATES[name])
    prompts.unchecked = 0
    growing, messages = prompts.begin(), [user("Hi")]
    said = []
    for i, observation in enumerate([user("And?"), user("Then?"), result, result, user("And?"), result, user("Then?")]):
        messages += [assistant(f"<think>\n{i}\n</think>\n\nok {i}"), observation]
        said.append(growing.prompt(messages, []))
        assert said[-1] == TEMPLATES[name].prompt(messages, [])
    assert [text.count("<think>") for text in said] == [0, 0, 1, 2, 0, 1, 0]


def test_a_hint_goes_when_its_message_is_no_longer_the_newest():
    growing = Prompts(TEMPLATES["chatml"]).begin()
    messages = [user("Start.")]
    for i in range(5):
        text = growing.prompt(messages, [])
        assert text == TEMPLATES["chatml"].prompt(messages, [])
        assert text.count("AVAILABLE") == (i > 0)
        messages += [assistant("go"), Message(role="user", content=f"Room {i}.", hint="\nAVAILABLE ACTIONS: look")]
