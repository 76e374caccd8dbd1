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
    # Too little memory for more than three at once: caches are dropped and computed anew.
    assert all_of(names[::3], max_tokens=2400) == {name: together[name] for name in names[::3]}


def test_another_seed_gives_another_answer(policy):
    engine = small_engine(policy)
    asked = [engine.generate(f"{s}", SYSTEM, sampling=SAMPLING, seed=s, stop_ids=[]) for s in range(4)]
    drawn = run(engine, *asked)
    assert len({tuple(each.completion_ids) for each in drawn}) == 4


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
def test_a_rewritten_history_is_cut_back_to_what_it_shares(policy):
    engine = small_engine(policy)
    first, second = prompt("a", 50), prompt("a", 50)[:30] + prompt("b", 10)

    async def both():
        await engine.generate("e", first, sampling=SAMPLING, seed=1, stop_ids=[])
        return await engine.generate("e", second, sampling=SAMPLING, seed=2, stop_ids=[])

    (drawn,) = run(engine, both())
    assert engine.scheduler.num_kept == 30
    fresh = small_engine(policy)
    (again,) = run(fresh, fresh.generate("e", second, sampling=SAMPLING, seed=2, stop_ids=[]))
    assert drawn == again


def test_an_answer_ends_at_a_stop_token_which_it_keeps(policy):
    engine = small_engine(policy)
    (free,) = run(engine, engine.generate("e", SYSTEM, sampling=SAMPLING, seed=3, stop_ids=[]))
    assert (len(free.completion_ids), free.finish) == (16, "length")
    stop = free.completion_ids[4]
    place = free.completion_ids.index(stop)
    engine = small_engine(policy)
    (ended,) = run(engine, engine.generate("e", SYSTEM, sampling=SAMPLING, seed=3, stop_ids=[stop]))
    assert ended.finish == "stop"
    assert ended.completion_ids == free.completion_ids[: place + 1]
    assert ended.logprobs == free.logprobs[: place + 1]


def test_an_answer_ends_behind_a_stop_text(policy):
    tokenizer = load_tokenizer("tiny")
    engine = small_engine(policy, tokenizer=tokenizer)
    (free,) = run(engine, engine.generate("e", SYSTEM, sampling=SAMPLING, seed=3, stop_ids=[]))
    text = tokenizer.decode(free.completion_ids[:6])[-3:]
    engine = small_engine(policy, tokenizer=tokenizer)
    stopping = SamplingConfig(max_new_tokens=16, stop=[text])
    (ended,) = run(engine, engine.generate("e", SYSTEM, sampling=stopping, seed=3, stop_ids=[]))
    assert ended.finish == "stop"
    assert ended.completion_ids == free.completion_ids[: len(ended.completion_ids)]
    assert text in tokenizer.decode(ended.completion_ids)
    assert text not in tokenizer.decode(ended.completion_ids[:-1])


def test_an_answer_ends_where_the_context_does(policy):
    engine = small_engine(policy, max_length=60)
    (drawn,) = run(engine, engine.generate("e", SYSTEM[:55], sampling=SAMPLING, seed=1, stop_ids=[]))
    assert (len(drawn.completion_ids), drawn.finish) == (5, "length")


@pytest.mark.parametrize(
    ("options", "reason"), [({"max_length": 60}, "60 tokens"), ({"max_tokens": 600}, "512 tokens")]
)
def test_a_prompt_that_leaves_no_room_is_refused(policy, options, reason):
    engine = small_engine(policy, **options)
    with pytest.raises(ContextFullError, match=reason):
        run(engine, engine.generate("e", prompt("long", 512), sampling=SAMPLING, seed=1, stop_ids=[]))


def test_the_models_context_is_the_limit():
    engine = small_engine(Policy(make("llama")).eval())
    with pytest.raises(ContextFullError, match="the model's context is 256 tokens"):
        run(engine, engine.generate("e", prompt("long", 256), sampling=SAMPLING, seed=1, stop_ids=[]))


@pytest.mark.parametrize(("ids", "reason"), [([], "empty"), ([5, 10**6], "vocabulary"), ([-1], "vocabulary")])
def test_prompts_that_are_none_are_refused(policy, ids, reason):
    engine = small_engine(policy)
    with pytest.raises(InputError, match=reason):
        run(engine, engine.generate("e", ids, sampling=SAMPLING, seed=1, stop_ids=[]))


def test_stop_texts_without_a_tokenizer_are_refused(policy):
    engine = small_engine(policy)
    with pytest.raises(InputError, match="tokenizer"):
        run(engine, engine.generate("e", [5], sampling=SamplingConfig(stop=["x"]), seed=1, stop_ids=[]))


def test_a_caller_who_no_longer_waits_leaves_the_batch(policy):
    engine = small_engine(policy)
    endless = SamplingConfig(max_new_tokens=1500)

    async def impatient():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.generate("e", SYSTEM, sampling=endless, seed=1, stop_ids=[]), 0.3)
        drawn = await engine.generate("f", SYSTEM, sampling=SAMPLING, seed=1, stop_ids=[])
        return drawn, [resident.request for resident in engine.scheduler.residents.values()]

    ((drawn, requests),) = run(engine, impatient())
    assert len(drawn.completion_ids) == 16
    assert requests == [None, None]


def test_closing_gives_up_what_is_under_way_and_refuses_what_comes_later(policy):
    engine = small_engine(policy)
    endless = SamplingConfig(max_new_tokens=1500)

    async def closed():
        drawing = asyncio.ensure_future(engine.generate("e", SYSTEM, sampling=endless, seed=1, stop_ids=[]))
        await asyncio.sleep(0.2)
        await engine.close()
        with pytest.raises(EngineError, match="closed"):
            await drawing
        with pytest.raises(EngineError, match="closed"):
            await engine.generate("e", SYSTEM, sampling=SAMPLING, seed=1, stop_ids=[])

    run(engine, closed())


def test_a_released_episode_is_forgotten_and_its_answer_given_up(policy):
    engine = small_engine(policy)
    endless = SamplingConfig(max_new_tokens=1500)

    async def released():
        drawing = asyncio.ensure_future(engine.generate("e", SYSTEM, sampling=endless, seed=1, stop_ids=[]))
        await asyncio.sleep(0.2)
        engine.release("e")
        with pytest.raises(EngineError, match="released"):
            await drawing
        assert engine.scheduler.residents == {} and engine.scheduler.spent == 0

    run(engine, released())


def test_a_step_that_breaks_is_told_and_the_engine_goes_on(policy, monkeypatch):
    engine = small_engine(policy)
    whole, broken = engine.worker.runner.run, []

    def breaks_once(spans):
        if not broken:
            broken.append(True)
            raise RuntimeError("out of memory")
        return whole(spans)

    monkeypatch.setattr(engine.worker.runner, "run", breaks_once)

    async def twice():
        with pytest.raises(EngineError, match="RuntimeError: out of memory"):
            await engine.generate("e", SYSTEM, sampling=SAMPLING, seed=1, stop_ids=[])
        return await engine.generate("e", SYSTEM, sampling=SAMPLING, seed=1, stop_ids=[])

    (drawn,) = run(engine, twice())
    assert len(drawn.completion_ids) == 16


@pytest.mark.parametrize("fold", [False, True])
def test_an_engine_over_a_policy_uses_its_newest_weights_and_leaves_it_as_it_was(fold):
    policy = Policy.load("tiny", device="cpu", lora=Lora(r=4)).train()
    engine = small_engine(policy, name="before", fold=fold)

    async def around_an_update():
        first = await engine.generate("e", SYSTEM, sampling=SAMPLING, seed=1, stop_ids=[])
        with torch.no_grad():
            for name, weight in policy.named_parameters():
                if "lora_B" in name:
                    weight.normal_(std=0.5, generator=torch.Generator().manual_seed(0))
        engine.renew("after")
        return first, await engine.generate("e", SYSTEM, sampling=SAMPLING, seed=1, stop_ids=[])

    ((first, second),) = run(engine, around_an_update())
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
