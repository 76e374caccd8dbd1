"""A real vLLM server on this CPU, asked as a token engine and as an OpenAI-compatible server: `make test-vllm`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from bough.chat.template import CallBuilder, ChatTemplate, load_template
from bough.config.groups import SamplingConfig
from bough.engines.base import ContextFullError, Generated
from bough.engines.openai import OpenAIEngine
from bough.engines.vllm import VLLMServerEngine
from bough.models.resolve import resolve
from bough.policy.policy import Policy
from bough.types import Call, Message, Turn
from tests.engines.vllm_environment.adapters import make_adapter
from tests.engines.vllm_environment.serving import vllm_server

pytestmark = [
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed here; make test-vllm installs it"),
    pytest.mark.timeout(900),
]
CONTEXT = 256
TOLERANCE = 5e-4  # as in test_real_vllm.py
START = [Message(role="user", content="What is the capital of France?")]
TOOL = {"type": "function", "function": {"name": "look_around", "description": "", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("vllm") / "log"
    options = ["--served-model-name", "smollm2", "--max-model-len", str(CONTEXT), "--max-num-seqs", "8"]
    with vllm_server(resolve("smollm2"), log, *options, "--max-lora-rank", "8") as url:
        yield url


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return load_template("smollm2")


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy.load("smollm2")


@pytest.fixture(scope="module")
def prompt(template: ChatTemplate) -> list[int]:
    return template.encode_prompt(template.prompt(START, []))


def difference(policy: Policy, call: Any) -> float:
    with torch.no_grad():
        (logprobs,) = policy.logprobs([call])
    return float((logprobs - torch.tensor(call.logprobs)).abs().max())


async def draw(engine: VLLMServerEngine, prompt: list[int], **how: Any) -> Call:
    sampling = SamplingConfig(**{"max_new_tokens": 10} | how)
    drawn: Generated = await engine.generate("e", prompt, sampling=sampling, seed=5, stop_ids=[2])
    return Call(prompt_ids=prompt, completion_ids=drawn.completion_ids, logprobs=drawn.logprobs, finish=drawn.finish)


def test_tokens_in_and_tokens_out_with_the_models_own_log_probabilities(url, policy, prompt):
    async def run() -> list[Call]:
        engine = await VLLMServerEngine.load(url)
        assert engine.policy == "smollm2"
        calls = [
            await draw(engine, prompt, **how) for how in ({}, {"temperature": 0.5, "top_k": 4}, {"temperature": 0})
        ]
        with pytest.raises(ContextFullError):
            await draw(engine, [5] * CONTEXT)
        await engine.close()
        return calls

    calls = asyncio.run(run())
    assert calls[2].finish == "stop" and calls[2].completion_ids[-1] == 2
    for call in calls:
        assert difference(policy, call) < TOLERANCE


def test_adapters_are_swapped_while_the_server_runs(url, policy, prompt, tmp_path):
    policies = [make_adapter(tmp_path / str(seed), seed=seed, rank=8) for seed in (1, 2, 3)]

    async def run() -> list[Call]:
        engine = await VLLMServerEngine.load(url, "smollm2")
        calls = [await draw(engine, prompt, temperature=0)]
        for seed in (1, 2, 3):
            await engine.load_adapter(tmp_path / str(seed), "actor")
            calls.append(await draw(engine, prompt, temperature=0))
        await engine.close()
        return calls

    base, *adapted = asyncio.run(run())
    for i, call in enumerate([base, *adapted]):
        differences = [difference(each, call) for each in (policy, *policies)]
        assert differences.pop(i) < TOLERANCE
        assert min(differences) > 20 * TOLERANCE  # none of the others said it


def chat(url: str, *conversations: list[Message], template: Any = None, tools: Any = (), **sampling: Any) -> list[Any]:
    async def run() -> list[Any]:
        engine = OpenAIEngine(url, "smollm2", SamplingConfig(**{"max_new_tokens": 20} | sampling), template=template)
        await engine.check()
        chat = engine.open("e", seed=1)
        answers = [await chat.answer(messages, list(tools)) for messages in conversations or (START,)]
        await engine.close()
        return answers

    return asyncio.run(run())


@pytest.mark.parametrize("at_hand", [True, False])
@pytest.mark.parametrize("how", [{}, {"temperature": 0}, {"temperature": 0, "stop": ["France"]}])
def test_chat_completions_are_exact_calls(url, policy, prompt, template, at_hand, how):
    (answer,) = chat(url, template=template if at_hand else None, **how)
    call = answer.call
    assert call.prompt_ids == prompt
    assert call.policy == "smollm2" and call.finish == answer.finish
    assert difference(policy, call) < TOLERANCE
    (built,) = CallBuilder(template).build(START, [Turn(reply=answer.message, call=call)], [])
    assert built.call == call
    if how == {"temperature": 0}:
        assert answer.message.content == call.text == "The capital of France is Paris."
    if "stop" in how:
        assert answer.message.content == call.text == "The capital of France"


def test_a_conversation_that_is_too_long_is_a_full_context(url):
    with pytest.raises(ContextFullError, match="maximum context length"):
        chat(url, [Message(role="user", content="lamp " * CONTEXT)])


def test_tools_are_taken_by_a_server_without_a_tool_parser(url, template):
    (plain,) = chat(url, tools=[TOOL])
    assert plain.call is not None
    # SmolLM2's template has no place for tools: only with it at hand does the model see them.
    assert "look_around" not in template.tokenizer.decode(plain.call.prompt_ids)
    (told,) = chat(url, tools=[TOOL], template=template)
    assert "look_around" in template.tokenizer.decode(told.call.prompt_ids)
    assert told.call.prompt_ids == template.encode_prompt(template.prompt(START, [TOOL]))
