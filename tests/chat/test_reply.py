"""Tool calls in a template's own form: read from what the model wrote, and shown in the next prompts."""

import asyncio
from itertools import pairwise

import pytest

from bough.chat.template import ChatTemplate, read_reply
from bough.config.groups import SamplingConfig
from bough.engines.chat import TemplateEngine
from bough.types import Message
from tests.chat.conftest import TEMPLATES, tokenizer_of, user
from tests.engines.test_chat import Scripted, ids_of

TOOL = {"type": "function", "function": {"name": "look", "description": "", "parameters": {"type": "object"}}}
CALLS = {
    "mistral": '[TOOL_CALLS][{"name": "look", "arguments": {"at": "shelf"}, "id": "abcdefghi"}]',
    "llama3.1": '{"name": "look", "parameters": {"at": "shelf"}}',
}


def template_of(name: str) -> ChatTemplate:
    tokenizer = tokenizer_of(name.removesuffix(".1"))
    tokenizer.chat_template = (TEMPLATES / f"{name}.jinja").read_text()
    return ChatTemplate(tokenizer, name)


@pytest.fixture(scope="module")
def families() -> dict[str, ChatTemplate]:
    return {name: template_of(name) for name in ["qwen3", "chatml", *CALLS]}


def test_only_templates_with_a_form_of_their_own_have_one(families: dict[str, ChatTemplate]):
    assert {name for name, template in families.items() if template.call_form} == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_a_model_that_calls_tools_in_its_own_way_goes_on_with_their_results(
    name: str, families: dict[str, ChatTemplate]
):
    template = families[name]
    ids = [*ids_of(template, CALLS[name]), template.end_of_turn_id]

    async def play() -> tuple[Scripted, list[Message]]:
        tokens = Scripted(ids, ids, ids)
        chat = TemplateEngine(tokens, template, SamplingConfig()).open("e", seed=0)
        messages = [user("Where is it?")]
        for _ in range(3):
            answer = await chat.answer(messages, [TOOL])
            [call] = answer.message.tool_calls
            assert (call.name, call.arguments, answer.message.content) == ("look", {"at": "shelf"}, "")
            assert answer.call is not None and answer.call.text == CALLS[name]
            result = Message(role="tool", content="a mug", tool_call_id=call.id, name="look")
            messages += [answer.message, result]
        return tokens, messages

    tokens, messages = asyncio.run(play())
    prompts = [prompt for _, prompt, _, _ in tokens.asked]
    for before, after in pairwise(prompts):
        assert after[: len(before) + len(ids)] == before + ids, "the template writes what the model wrote"
    assert len({message.tool_calls[0].id for message in messages if message.tool_calls}) == (
        1 if name == "mistral" else 3
    ), "the model's own id, or one for each call"


def test_what_the_template_could_not_show_again_stays_text(families: dict[str, ChatTemplate]):
    two = f"{CALLS['llama3.1']}; {CALLS['llama3.1']}"
    assert read_reply(families["llama3.1"], two, place=0) == Message(role="assistant", content=two)


def test_hermes_calls_stay_text(families: dict[str, ChatTemplate]):
    text = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    for template in (families["qwen3"], families["chatml"]):
        assert read_reply(template, text, place=0) == Message(role="assistant", content=text)
