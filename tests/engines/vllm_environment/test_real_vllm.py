"""vLLM itself, on this CPU: `make test-vllm`. Elsewhere these tests are skipped."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from bough.chat.template import ChatTemplate, load_template
from bough.config.groups import SamplingConfig
from bough.engines.base import Generated
from bough.engines.chat import TemplateEngine
from bough.engines.vllm import VLLMEngine
from bough.errors import InputError
from bough.policy.policy import Policy
from bough.types import Call, Message
from tests.engines.vllm_environment.adapters import make_adapter

pytestmark = [
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed here; make test-vllm installs it"),
    pytest.mark.timeout(900),
]
CONTEXT, BLOCK, RANK = 512, 32, 8
# float32 on both sides, summed in another order; 6e-5 was the largest difference seen.
TOLERANCE = 5e-4
FRANCE = "What is the capital of France?"  # eight tokens, greedily: The capital of France is Paris.<|im_end|>


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def engine(loop: asyncio.Runner) -> Iterator[VLLMEngine]:
    options = {"max_model_len": CONTEXT, "max_num_seqs": 8, "block_size": BLOCK, "enforce_eager": True}
    engine = loop.run(VLLMEngine.load("smollm2", lora_rank=RANK, **options))
    yield engine
    loop.run(engine.close())


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return load_template("smollm2")


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy.load("smollm2")


@pytest.fixture(scope="module")
def prompt(template: ChatTemplate) -> list[int]:
    return template.encode_prompt(template.prompt([Message(role="user", content="Name three colours.")], []))


async def draw(engine: VLLMEngine, prompt: list[int], *, seed: int = 1, stop_ids: Any = (2,), **how: Any) -> Generated:
    sampling = SamplingConfig(**{"max_new_tokens": 12} | how)
    return await engine.generate("episode", prompt, sampling=sampling, seed=seed, stop_ids=list(stop_ids))


def forget_adapters(engine: VLLMEngine) -> None:
    engine._adapters.clear()
    engine.policy = "smollm2"


def difference(policy: Policy, prompt: list[int], drawn: Generated) -> float:
    with torch.no_grad():
        (logprobs,) = policy.logprobs([Call(prompt_ids=prompt, completion_ids=drawn.completion_ids)])
    return float((logprobs - torch.tensor(drawn.logprobs)).abs().max())


@pytest.mark.parametrize(
    "how", [{}, {"temperature": 0.5, "top_k": 5}, {"top_p": 0.5, "min_p": 0.1}, {"temperature": 0}]
)
def test_log_probabilities_are_the_models_own_whatever_the_sampling(how, loop, engine, policy, prompt):
    drawn = loop.run(draw(engine, prompt, **how))
    assert len(drawn.completion_ids) == len(drawn.logprobs) <= 12
    assert difference(policy, prompt, drawn) < TOLERANCE


def test_a_seed_fixes_the_answer_in_any_company(loop, engine, prompt):
    async def together() -> list[Generated]:
        return await asyncio.gather(*(draw(engine, prompt, seed=seed) for seed in (7, 8, 9)))

    alone = loop.run(draw(engine, prompt, seed=7))
    first, second, third = loop.run(together())
    assert alone.completion_ids == first.completion_ids
    assert len({tuple(drawn.completion_ids) for drawn in (first, second, third)}) == 3


def test_an_answer_ends_with_its_stop_token_and_with_no_other(loop, engine, prompt):
    greedy = loop.run(draw(engine, prompt, temperature=0, max_new_tokens=6)).completion_ids
    stopped = loop.run(draw(engine, prompt, temperature=0, stop_ids=[greedy[3]]))
    assert (stopped.completion_ids, stopped.finish) == (greedy[: greedy.index(greedy[3]) + 1], "stop")
    cut = loop.run(draw(engine, prompt, temperature=0, max_new_tokens=3))
    assert (cut.completion_ids, cut.finish) == (greedy[:3], "length")


def test_an_answer_goes_on_behind_the_models_own_end_unless_that_is_a_stop_token(loop, engine, template):
    question = template.encode_prompt(template.prompt([Message(role="user", content=FRANCE)], []))
    ended = loop.run(draw(engine, question, temperature=0))
    assert ended.finish == "stop" and ended.completion_ids[-1] == template.end_of_turn_id
    endless = loop.run(draw(engine, question, temperature=0, stop_ids=[]))
    assert endless.finish == "length" and len(endless.completion_ids) == 12
    assert endless.completion_ids[: len(ended.completion_ids)] == ended.completion_ids


def test_a_stop_text_ends_the_answer_and_stays_in_it(loop, engine, template, prompt):
    whole = template.tokenizer.decode(loop.run(draw(engine, prompt, temperature=0)).completion_ids)
    word = whole.split()[2]
    stopped = loop.run(draw(engine, prompt, temperature=0, stop=[word]))
    text = template.tokenizer.decode(stopped.completion_ids)
    assert stopped.finish == "stop" and word in text and len(text) < len(whole)


def test_what_turns_share_is_computed_once(loop, engine, template):
    chat = TemplateEngine(engine, template, SamplingConfig(max_new_tokens=40, temperature=0.8)).open("long", seed=5)
    messages = [Message(role="user", content="Tell me about the trees of the north. " * 12)]
    before = engine.num_cached_tokens
    first = loop.run(chat.answer(messages, []))
    middle = engine.num_cached_tokens
    turn = [first.message, Message(role="user", content="And those of the south?")]
    second = loop.run(chat.answer(messages + turn, []))
    assert first.call and second.call
    known = first.call.prompt_ids + first.call.completion_ids
    assert second.call.prompt_ids[: len(known)] == known
    # The last token was drawn, never read; of the rest, whole blocks are kept.
    assert middle == before
    assert engine.num_cached_tokens - middle == (len(known) - 1) // BLOCK * BLOCK


def test_a_new_adapter_speaks_from_the_next_answer_on(loop, engine, prompt, tmp_path):
    one, two = make_adapter(tmp_path / "one", seed=1, rank=4), make_adapter(tmp_path / "two", seed=2, rank=RANK)
    base = loop.run(draw(engine, prompt, temperature=0))
    try:
        loop.run(engine.load_adapter(tmp_path / "one", "actor"))
        first = loop.run(draw(engine, prompt, temperature=0))
        assert engine.policy == "actor"
        # The same name and other weights: nothing of the first may come back from a cache.
        loop.run(engine.load_adapter(tmp_path / "two", "actor"))
        second = loop.run(draw(engine, prompt, temperature=0))
    finally:
        forget_adapters(engine)
    assert difference(one, prompt, first) < TOLERANCE
    assert difference(two, prompt, second) < TOLERANCE
    assert len({tuple(drawn.completion_ids) for drawn in (base, first, second)}) == 3
    assert loop.run(draw(engine, prompt, temperature=0)).completion_ids == base.completion_ids


def test_an_answer_under_way_ends_with_the_adapter_it_began_with(loop, engine, prompt, tmp_path):
    one, two = make_adapter(tmp_path / "one", seed=3, rank=4), make_adapter(tmp_path / "two", seed=4, rank=4)

    async def swap() -> tuple[Generated, Generated]:
        await engine.load_adapter(tmp_path / "one")
        under_way = asyncio.create_task(draw(engine, prompt, max_new_tokens=30, stop_ids=[]))
        await asyncio.sleep(0)
        await engine.load_adapter(tmp_path / "two")
        return await under_way, await draw(engine, prompt)

    try:
        old, new = loop.run(swap())
    finally:
        forget_adapters(engine)
    assert difference(one, prompt, old) < TOLERANCE
    assert difference(two, prompt, new) < TOLERANCE


def test_an_unknown_option_is_refused_before_anything_starts(loop):
    with pytest.raises(InputError, match="vLLM's max_model_length is not an option here"):
        loop.run(VLLMEngine.load("smollm2", max_model_length=5))
    with pytest.raises(InputError, match="generation_config is set by Bough"):
        loop.run(VLLMEngine.load("smollm2", generation_config="auto"))
