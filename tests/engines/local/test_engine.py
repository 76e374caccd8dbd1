import asyncio

import pytest
import torch

from bough.config.groups import SamplingConfig
from bough.engines.base import ContextFullError, EngineError
from bough.engines.local.engine import LocalEngine
from bough.errors import InputError
from bough.models.resolve import load_tokenizer
from bough.policy.adapters import Lora
from bough.policy.policy import Policy
from bough.types import Call
from tests.engines.local.playing import play, prompt, run, small_engine
from tests.policy.families import make

SAMPLING = SamplingConfig(max_new_tokens=16)
SYSTEM = prompt("system", 140)
BRIEF = SamplingConfig(max_new_tokens=6)
LONG = prompt("long system", 560)  # five blocks of keys: sums over fewer keep their order by themselves


@pytest.fixture(scope="module")
def policy():
    torch.set_num_threads(1)
    return Policy.load("tiny", device="cpu").eval()


def answers(calls):
    return [(drawn.completion_ids, drawn.logprobs, drawn.finish) for _, drawn in calls]


def scored(policy, calls):
    """How far the answers' log-probabilities are from those that training computes."""
    with torch.no_grad():
        records = [Call(prompt_ids=ids, completion_ids=drawn.completion_ids) for ids, drawn in calls]
        pairs = zip(calls, policy.logprobs(records), strict=True)
        return max(float((torch.tensor(drawn.logprobs) - again.cpu()).abs().max()) for (_, drawn), again in pairs)


@pytest.mark.parametrize(("temperature", "expected"), [(0.7, 0.7), (1.6, 1.6), (0.0, 1.0)])
def test_sampled_log_probabilities_are_the_policys_at_the_sampling_temperature(
    policy, temperature, expected, monkeypatch
):
    engine = small_engine(policy)
    sampling = SamplingConfig(max_new_tokens=16, temperature=temperature)
    [calls] = run(engine, play(engine, "episode", 2, sampling, SYSTEM))
    assert {drawn.logprobs_temperature for _, drawn in calls} == {expected}
    monkeypatch.setattr(policy, "temperature", expected)
    assert scored(policy, calls) < 1e-4
    monkeypatch.setattr(policy, "temperature", expected + 0.5)
    assert scored(policy, calls) > 0.1


@pytest.mark.bit_exact
def test_an_answer_is_the_same_to_the_last_bit_in_any_company(policy):
    """12 episodes of 2 turns, together and a few at a time, in another order, with and without shared prefixes."""
    names = [f"episode-{i}" for i in range(12)]
    ways = [SAMPLING, SamplingConfig(max_new_tokens=16, temperature=0.7, top_p=0.9), SamplingConfig(max_new_tokens=9)]

    def all_of(order, **options):
        engine = small_engine(policy, **options)
        calls = run(engine, *(play(engine, n, 2, ways[names.index(n) % 3], LONG) for n in order))
        return {name: answers(each) for name, each in zip(order, calls, strict=True)}

    together = all_of(names)
    assert sum(len(ids) for each in together.values() for ids, _, _ in each) > 300
    assert all_of(names[::-1], max_running=5) == together
    assert all_of(names[:1]) == {names[0]: together[names[0]]}
    # Too little memory for more than three at once: caches are dropped and computed anew.
    assert all_of(names[::3], max_tokens=2400) == {name: together[name] for name in names[::3]}


def drawn_by(policy, ids, *, seed=1, stop_ids=(), stop=(), **options):
    """An answer of an engine of its own."""
    engine = small_engine(policy, **options)
    sampling = SamplingConfig(max_new_tokens=16, stop=list(stop))
    (drawn,) = run(engine, engine.generate("e", ids, sampling=sampling, seed=seed, stop_ids=list(stop_ids)))
    return drawn


def test_another_seed_gives_another_answer(policy):
    assert len({tuple(drawn_by(policy, SYSTEM, seed=seed).completion_ids) for seed in range(4)}) == 4


@pytest.mark.parametrize(
    "family",
    ["llama", "qwen3", "gemma2", "gemma3", "gpt2", "mistral", "granite", "gpt_oss", "granite_swa", "granitemoe_swa"],
)
def test_log_probabilities_are_those_that_training_computes(family):
    policy = Policy(make(family)).eval()
    engine = small_engine(policy, max_length=250)
    played = run(engine, *(play(engine, f"{i}", 2, BRIEF, prompt("system", 60)) for i in range(3)))
    assert scored(policy, [call for calls in played for call in calls]) < 1e-4


def test_only_new_tokens_are_read_and_a_common_start_is_read_once(policy):
    engine = small_engine(policy, max_length=500)
    played = run(engine, *(play(engine, f"{i}", 3, SAMPLING, SYSTEM) for i in range(4)))
    scheduler = engine.scheduler
    # Once the start; then of each first prompt 7 tokens; then what was observed (5, 6), and the answer's last token.
    assert scheduler.num_shared == 3 * 140
    assert scheduler.num_prefilled == 140 + 4 * 7 + 4 * (5 + 1 + 6 + 1)
    assert scheduler.num_kept == sum(len(ids) for calls in played for ids, _ in calls[1:]) - 4 * (5 + 1 + 6 + 1)


@pytest.mark.bit_exact
async def test_a_rewritten_history_is_cut_back_to_what_it_shares(policy):
    engine, fresh = small_engine(policy), small_engine(policy)
    first, second = prompt("a", 50), prompt("a", 50)[:30] + prompt("b", 10)
    await engine.generate("e", first, sampling=SAMPLING, seed=1, stop_ids=[])
    drawn = await engine.generate("e", second, sampling=SAMPLING, seed=2, stop_ids=[])
    assert engine.scheduler.num_kept == 30
    assert drawn == await fresh.generate("e", second, sampling=SAMPLING, seed=2, stop_ids=[])
    await asyncio.gather(engine.close(), fresh.close())


def test_an_answer_ends_with_a_stop_token_or_text_which_it_keeps(policy):
    tokenizer = load_tokenizer("tiny")
    free = drawn_by(policy, SYSTEM)
    assert (len(free.completion_ids), free.finish) == (16, "length")
    text = tokenizer.decode(free.completion_ids[:6])[-3:]
    for ways in ({"stop_ids": free.completion_ids[4:5]}, {"stop": [text], "tokenizer": tokenizer}):
        ended = drawn_by(policy, SYSTEM, **ways)
        length = len(ended.completion_ids)
        assert ended.finish == "stop" and ended.logprobs == free.logprobs[:length]
        assert ended.completion_ids == free.completion_ids[:length]
        if "stop_ids" in ways:
            assert length == 1 + free.completion_ids.index(free.completion_ids[4])
        else:
            assert text in tokenizer.decode(ended.completion_ids)
            assert text not in tokenizer.decode(ended.completion_ids[:-1])


def test_an_answer_ends_where_the_context_does(policy):
    drawn = drawn_by(policy, SYSTEM[:55], max_length=60)
    assert (len(drawn.completion_ids), drawn.finish) == (5, "length")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_length": 60}, "what the engine can keep is 60 tokens"),
        ({"max_tokens": 600}, "512 tokens"),
        ({}, "the model's context is 256"),
    ],
)
def test_a_prompt_that_leaves_no_room_is_refused(policy, options, reason):
    with pytest.raises(ContextFullError, match=reason):
        drawn_by(policy if options else Policy(make("llama")).eval(), prompt("long", 512), **options)


@pytest.mark.parametrize(
    ("ids", "stop", "reason"),
    [([], [], "empty"), ([5, 10**6], [], "vocabulary"), ([-1], [], "vocabulary"), ([5], ["x"], "tokenizer")],
)
def test_what_cannot_be_sampled_is_refused(policy, ids, stop, reason):
    with pytest.raises(InputError, match=reason):
        drawn_by(policy, ids, stop=stop)


async def test_a_caller_who_no_longer_waits_leaves_the_batch(policy):
    engine = small_engine(policy)
    endless = SamplingConfig(max_new_tokens=1500)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(engine.generate("e", SYSTEM, sampling=endless, seed=1, stop_ids=[]), 0.3)
    drawn = await engine.generate("f", SYSTEM, sampling=SAMPLING, seed=1, stop_ids=[])
    assert [resident.request for resident in engine.scheduler.residents.values()] == [None, None]
    await engine.close()
    assert len(drawn.completion_ids) == 16


async def test_closing_gives_up_what_is_under_way_and_refuses_what_comes_later(policy):
    engine = small_engine(policy)
    endless = SamplingConfig(max_new_tokens=1500)
    drawing = asyncio.ensure_future(engine.generate("e", SYSTEM, sampling=endless, seed=1, stop_ids=[]))
    await asyncio.sleep(0.2)
    await engine.close()
    with pytest.raises(EngineError, match="closed"):
        await drawing
    with pytest.raises(EngineError, match="closed"):
        await engine.generate("e", SYSTEM, sampling=SAMPLING, seed=1, stop_ids=[])
    await engine.close()


async def test_a_released_episode_is_forgotten_and_its_answer_given_up(policy):
    engine = small_engine(policy)
    endless = SamplingConfig(max_new_tokens=1500)
    drawing = asyncio.ensure_future(engine.generate("e", SYSTEM, sampling=endless, seed=1, stop_ids=[]))
    await asyncio.sleep(0.2)
    engine.release("e")
    with pytest.raises(EngineError, match="released"):
        await drawing
    assert engine.scheduler.residents == {} and engine.scheduler.spent == 0
    await engine.close()


@pytest.mark.parametrize("fold", [False, True])
async def test_an_engine_over_a_policy_uses_its_newest_weights_and_leaves_it_as_it_was(fold):
    policy = Policy.load("tiny", device="cpu", lora=Lora(r=4)).train()
    engine = small_engine(policy, name="before", fold=fold)
    first = await engine.generate("e", SYSTEM, sampling=SAMPLING, seed=1, stop_ids=[])
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.5, generator=torch.Generator().manual_seed(0))
    engine.renew("after")
    second = await engine.generate("e", SYSTEM, sampling=SAMPLING, seed=1, stop_ids=[])
    await engine.close()
    assert engine.policy == "after"
    assert first.logprobs != second.logprobs
    assert policy.training
    assert scored(policy.eval(), [(SYSTEM, second)]) < 1e-4
    assert engine.scheduler.num_kept == 0


def test_loaded_by_name_an_engine_knows_its_policy_and_its_tokenizer():
    engine = LocalEngine.load("tiny", device="cpu", threads=1, max_tokens=5000)
    sampling = SamplingConfig(max_new_tokens=4, stop=["never to be seen"])
    (drawn,) = run(engine, engine.generate("e", SYSTEM, sampling=sampling, seed=1, stop_ids=[]))
    assert engine.policy == "tiny"
    assert len(drawn.logprobs) == 4
