import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.chat.template import (
    MAX_TEMPLATE,
    ChatTemplate,
    Encoder,
    GrowingPrompt,
    load_template,
    without_system,
    without_tools,
)
from bough.chat.tokenizer import ControlTokens
from bough.errors import InputError, RowError
from bough.models.resolve import load_tokenizer, resolve
from bough.types import Message, ToolCall
from tests.chat.conftest import END_OF_TURN, FAMILIES, assistant, system, template_of, tokenizer_of, user

SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Looks a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}


def calling(text: str = "") -> Message:
    return assistant(text, tool_calls=[ToolCall(name="search", arguments={"word": "bough"}, id="abcdefghi")])


def test_the_end_of_turn_is_found_by_looking(family: str, template: ChatTemplate):
    assert template.end_of_turn == END_OF_TURN[family]
    assert template.tokenizer.convert_tokens_to_ids(END_OF_TURN[family]) == template.end_of_turn_id


def test_each_family_is_known_for_what_it_can_express(templates: dict[str, ChatTemplate]):
    assert {f for f in FAMILIES if templates[f].knows_tools} == {"qwen3", "mistral"}
    assert {f for f in FAMILIES if templates[f].knows_system} == {"chatml", "qwen3", "llama3", "mistral"}


def with_template(folder: Path, text: str) -> str:
    source = Path(resolve("tiny"))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / file, folder)
    (folder / "chat_template.jinja").write_text(text)
    return str(folder)


def test_a_models_own_template_has_the_size_limit_of_one_that_is_given(tmp_path: Path):
    with pytest.raises(InputError, match=r"the chat template of .* is larger than 1,024 KiB"):
        load_template(with_template(tmp_path, "x" * (MAX_TEMPLATE + 1)))


def test_a_template_that_does_not_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rounds = "{% for a in range(1000) %}{% for b in range(2000) %}{% endfor %}{% endfor %}"
    monkeypatch.setattr("bough.chat.template.MAX_LOADING_S", 0.05)
    with pytest.raises(InputError, match=r"the chat template of .* did not render in 0\.05 s"):
        load_template(with_template(tmp_path, rounds))


def test_a_plain_reply_is_answered_to_the_letter(family: str, template: ChatTemplate):
    reply = assistant("  THOUGHT: two  spaces.\n\nACTION: look ")
    assert template.answer([user("Hi")], reply, []) == "  THOUGHT: two  spaces.\n\nACTION: look "


HERMES = '<tool_call>\n{"name": "search", "arguments": {"word": "bough"}}\n</tool_call>'


def test_tool_calls_and_reasoning_are_written_as_the_template_does(templates: dict[str, ChatTemplate]):
    qwen3, mistral = templates["qwen3"], templates["mistral"]
    assert qwen3.answer([user("Find it")], calling("I search."), [SEARCH]) == f"I search.\n{HERMES}"
    thinking = assistant("ACTION: look", reasoning="What is here?")
    assert qwen3.answer([user("Go")], thinking, []) == "<think>\nWhat is here?\n</think>\n\nACTION: look"
    asked = Message(role="user", content="Where to?", hint=" Left or right.")
    assert qwen3.answer([asked], thinking, []) == "<think>\nWhat is here?\n</think>\n\nACTION: look"
    text = mistral.answer([user("Find it")], calling(), [SEARCH])
    assert text == '[TOOL_CALLS][{"name": "search", "arguments": {"word": "bough"}, "id": "abcdefghi"}]'


@pytest.mark.parametrize("name", ["chatml", "llama3", "gemma"])
def test_a_template_without_tools_speaks_hermes(name: str, templates: dict[str, ChatTemplate]):
    template = templates[name]
    found = Message(role="tool", content="a branch", tool_call_id="abcdefghi")
    prompt = template.prompt([user("Find it"), calling("I search."), found], [SEARCH])
    expected = ['"name": "search"', HERMES, "<tool_response>\na branch\n</tool_response>"]
    assert all(text in prompt for text in expected)


def test_a_system_message_goes_to_the_user_where_the_template_has_none(templates: dict[str, ChatTemplate]):
    prompt = templates["gemma"].prompt([system("Be brief."), user("Hi")], [])
    assert prompt == "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n"


def test_an_answer_that_holds_the_end_of_turn_is_refused(template: ChatTemplate):
    with pytest.raises(RowError, match="end-of-turn token") as error:
        template.encode_answer(f"ACTION: look{template.end_of_turn}ACTION: again")
    assert error.value.reason == "end_of_turn_inside"


def test_a_conversation_the_template_refuses_is_a_row_error(templates: dict[str, ChatTemplate]):
    with pytest.raises(RowError, match="must alternate") as error:
        templates["mistral"].prompt([user("one"), user("two")], [])
    assert error.value.reason == "template_refused"


@pytest.mark.parametrize(
    ("jinja", "complaint"),
    [
        ("{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}", "no end-of-turn"),
        ("{% for m in messages %}{{ m['role'] }}{% endfor %}", "does not render an assistant"),
        (None, "--chat-template"),
    ],
)
def test_a_template_that_is_absent_or_ends_no_turn_is_refused(jinja: str | None, complaint: str):
    tokenizer = tokenizer_of("chatml")
    tokenizer.chat_template = jinja
    with pytest.raises(InputError, match=complaint):
        ChatTemplate(tokenizer)


def test_a_template_file_replaces_the_models_own(tmp_path: Any):
    file = tmp_path / "mine.jinja"
    file.write_text("{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}<|im_end|>{% endfor %}")
    assert load_template("tiny", file).prompt([user("Hi")], []) == "<user>Hi<|im_end|>"
    with pytest.raises(InputError, match="cannot be read"):
        load_template("tiny", tmp_path / "none.jinja")


def test_a_hint_is_said_only_while_its_message_is_the_newest(template: ChatTemplate):
    asked = Message(role="user", content="Where to?", hint="\nAVAILABLE ACTIONS: left, right")
    reply = Message(role="assistant", content="left")
    assert "AVAILABLE ACTIONS: left, right" in template.prompt([asked], [])
    later = template.prompt([asked, reply, Message(role="user", content="And now?")], [])
    assert "Where to?" in later and "AVAILABLE" not in later


FAULTY = ["{% for", "{{ 1 / 0 }}", "{{ raise_exception('no') }}", "{{ messages.x.y }}"]


@pytest.mark.parametrize("text", [*FAULTY, "{% for i in range(10**9) %}{% endfor %}"])
def test_a_faulty_template_is_named_with_what_is_wrong(tmp_path: Path, text: str):
    (tmp_path / "a.jinja").write_text(text)
    with pytest.raises(InputError, match=r"^tiny: the chat template cannot be used: "):
        load_template("tiny", tmp_path / "a.jinja")


def test_a_template_is_a_regular_file(tmp_path: Path):
    os.mkfifo(tmp_path / "a.jinja")
    with pytest.raises(InputError, match=r"a\.jinja: cannot be read: it is not a regular file"):
        load_template("tiny", tmp_path / "a.jinja")


TEXT_PIECES = [
    "<|im_start|>", "<|im_end|>", "\n", " ", "  ", "user", "go to shelf 1", "é", "<|im_", "end|>", "\n\n", "12",
]  # fmt: skip


@given(st.lists(st.lists(st.sampled_from(TEXT_PIECES), max_size=12).map("".join), min_size=1, max_size=5))
@settings(max_examples=200, deadline=None)
def test_texts_encode_as_they_would_alone(texts: list[str]):
    tokenizer = template_of("chatml").tokenizer
    encoder = Encoder(ControlTokens(tokenizer))
    for text in texts:
        assert encoder.encode(text) == tokenizer(text, add_special_tokens=False)["input_ids"]


def test_only_what_is_new_is_encoded():
    tokenizer = template_of("chatml").tokenizer
    control = ControlTokens(tokenizer)
    encoder = Encoder(control)
    head = "<|im_start|>user\n" + "go to shelf 1 " * 500 + "<|im_end|>\n"
    encoder.encode(head)
    seen: list[str] = []
    encode = control.encode
    control.encode = lambda text: seen.append(text) or encode(text)
    encoder.encode(head + "<|im_start|>assistant\n")
    assert seen == ["<|im_end|>\n<|im_start|>assistant\n"]


CALL = Message(role="assistant", content="I look.", tool_calls=[ToolCall(name="search", arguments={"word": "été"})])


def result(text: str) -> Message:
    return Message(role="tool", content=text)


def test_neighbouring_results_share_one_user_message():
    spoken = without_tools([user("Hi"), CALL, result("one"), result("two"), user("And?")], [])
    assert [message.role for message in spoken] == ["user", "assistant", "user", "user"]
    assert spoken[2].content == "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>"


def test_signatures_join_the_system_message_or_become_one():
    with_system = without_tools([system("Be brief."), user("Hi")], [SEARCH])
    assert with_system[0].content.startswith("Be brief.\n\n# Tools")
    assert '"name": "search"' in with_system[0].content
    without = without_tools([user("Hi")], [SEARCH])
    assert [message.role for message in without] == ["system", "user"]


def test_without_tools_or_system_a_conversation_stays_and_a_lone_system_message_becomes_the_users():
    messages = [Message(role="user", content="Hi"), Message(role="assistant", content="Hello")]
    assert without_tools(messages, []) == messages == without_system(messages)
    assert without_system([Message(role="system", content="Be brief.")]) == [Message(role="user", content="Be brief.")]


LOCAL = (
    "{% for m in messages %}{% if loop.first and messages[0]['role'] != 'system' %}[S]{% endif %}"
    "{{ m['role'] }}: {{ m['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.mark.parametrize(
    ("template", "alone"),
    [
        (LOCAL, True),
        (LOCAL.replace("loop.first", "loop.last"), False),
        (LOCAL.replace("loop.first", "loop['first']"), False),
        (LOCAL.replace("messages[0]['role'] != 'system'", "messages[-1]['role'] == 'user'"), False),
        (LOCAL.replace("{% for m", "{% set seen = namespace(n=0) %}{% for m"), False),
        (LOCAL.replace("| trim", "| trim if add_generation_prompt else m['content']"), False),
        (LOCAL.replace("[S]", "{{ strftime_now('%S') }}"), False),
        (LOCAL.replace("in messages %}", "in messages[1:] %}"), False),
        (LOCAL.replace("in messages %}", "in messages if m['role'] != 'system' %}"), False),
        (LOCAL.replace("{% endfor %}", "{% endfor %}<|end|>"), False),
        (LOCAL.replace("assistant: {% endif %}", "assistant: {% else %}<|end|>{% endif %}"), False),
    ],
)
def test_only_new_messages_are_rendered_where_the_syntax_allows_it(template: str, alone: bool):
    tokenizer = load_tokenizer("tiny")
    tokenizer.chat_template = template
    chat = ChatTemplate(tokenizer)
    assert chat.writes_each_alone == alone
    prompts = GrowingPrompt(chat)
    said = [Message(role="system", content="rules"), Message(role="user", content=" a <|im_end|> ", hint="1")]
    for number in range(6):
        assert prompts.text(list(said), []) == chat.prompt(said, [])
        new = 2 if said[-1].hint else 1
        assert len(prompts.new([*said, said[-1]], [])) == (new if alone else len(said) + 1)
        hint = "h" if number in (1, 2, 4) else None
        said += [Message(role="assistant", content=f"r{number}"), Message(role="user", content="x", hint=hint)]
    other = [*said[:3], Message(role="user", content="edited"), said[4], said[5]]
    assert prompts.text(other, []) == chat.prompt(other, [])  # an earlier message was replaced
    assert prompts.text(other[1:], []) == chat.prompt(other[1:], [])
