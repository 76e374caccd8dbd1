"""The general path: any decoder that transformers can generate with, sampled by its own code and cache."""

import asyncio
import random

import pytest
import torch

from bough.config.groups import SamplingConfig
from bough.engines.local.general import SNAPSHOTS, GeneralReader, GeneralStore, Ways
from bough.engines.local.schedule import SamplingParams, cuts, draw, uniform
from bough.policy.adapters import ACTOR, Lora, add_actor
from bough.policy.policy import Policy
from bough.types import Call
from tests.engines.local.decoders import decoder
from tests.engines.local.playing import play, prompt, run, small_engine

SAMPLING = SamplingConfig(max_new_tokens=4)
CUT = SamplingConfig(max_new_tokens=6, temperature=0.8, top_p=0.9)
# Attention with sinks, a gated delta net, convolutions, Mamba-2, compressed keys.
KINDS = ["gpt_oss", "qwen3_5", "lfm2", "granitemoehybrid", "deepseek_v3"]


@pytest.fixture(scope="module", params=KINDS)
def policy(request):
    torch.set_num_threads(1)
    return Policy(decoder(request.param)).eval()


@pytest.fixture(scope="module")
def hybrid():
    torch.set_num_threads(1)
    return Policy(decoder("qwen3_5")).eval()


def assert_plain(policy, calls):
    """Every token is the one that plain sampling draws after those before it, computed without a cache."""
    policy.row_reader.attend_with(policy.row_reader.plain_attention)
    for ids, seed, sampling, drawn in calls:
        answer = drawn.completion_ids
        with torch.inference_mode():
            hidden = policy.decoder(input_ids=torch.tensor([ids + answer]), use_cache=False).last_hidden_state[0]
            logits = policy.base.get_output_embeddings()(hidden[len(ids) - 1 : -1])
        logits = logits / (getattr(policy.decoder.config, "logits_scaling", None) or 1.0)
        places = [(sampling, uniform(seed, place)) for place in range(len(answer))]
        tokens, logprobs = draw(logits, SamplingParams.of(places), cut=cuts(sampling))
        assert tokens.tolist() == answer
        torch.testing.assert_close(torch.tensor(drawn.logprobs), logprobs, atol=1e-4, rtol=0)


class Player:
    """Plays made-up episodes in a made-up order, and keeps the calls that were answered."""

    def __init__(self, engine, seed):
        self.engine, self.random, self.calls = engine, random.Random(seed), []
        self.cancelled = 0

    async def call(self, episode, ids, *, gives_up=False):
        sampling = self.random.choice([SAMPLING, CUT])
        seed = self.random.getrandbits(30)
        asked = asyncio.ensure_future(
            self.engine.generate(episode, ids, sampling=sampling, seed=seed, stop_ids=[self.random.randrange(200)])
        )
        if gives_up:
            for _ in range(self.random.randrange(4)):
                await asyncio.sleep(0)
            asked.cancel()
        try:
            drawn = await asked
        except asyncio.CancelledError:
            self.cancelled += 1
            return []
        self.calls.append((list(ids), seed, sampling, drawn))
        return drawn.completion_ids

    async def episode(self, name, start):
        """Turns that go on, rewrite what was said before, repeat a prompt or are given up."""
        ids = [*start, *prompt(name, self.random.randrange(1, 9))]
        for turn in range(3):
            for _ in range(self.random.randrange(5)):
                await asyncio.sleep(0)
            answer = await self.call(name, ids, gives_up=self.random.random() < 0.2)
            way = self.random.random()
            if way < 0.3:
                ids = ids[: self.random.randrange(1, len(ids) + 1)]
            elif way < 0.4:
                self.engine.release(name)
            elif way < 0.9:
                ids = ids + answer
            ids = ids + prompt(f"{name}/{turn}", self.random.randrange(1, 7))


def test_any_course_of_episodes_draws_what_plain_sampling_draws(policy, monkeypatch):
    monkeypatch.setattr("bough.engines.local.general.SHORT", 31)  # longer ones are stepped in groups of their own
    engine = small_engine(policy, layout="general", max_length=160, max_running=4)
    player = Player(engine, policy.decoder.config.model_type)
    system = prompt("system", 45)
    starts = [system, system, [*system, *prompt("task", 40)], [*system, *prompt("task", 40)], prompt("other", 3), [5]]
    run(engine, *(player.episode(f"{number}", start) for number, start in enumerate(starts)))
    assert len(player.calls) > 8
    assert_plain(policy, player.calls)


def scored(policy, calls):
    """How far the answers' log-probabilities are from those that training computes."""
    records = [Call(prompt_ids=ids, completion_ids=drawn.completion_ids) for ids, drawn in calls]
    with torch.no_grad():
        pairs = zip(calls, policy.logprobs(records), strict=True)
        return max(float((torch.tensor(drawn.logprobs) - again).abs().max()) for (_, drawn), again in pairs)


async def test_attempts_at_one_task_read_its_prompt_once(policy):
    engine = small_engine(policy, layout="general")
    start = prompt("task", 60)
    first = asyncio.ensure_future(engine.generate("0", start, sampling=SAMPLING, seed=0, stop_ids=[]))
    await first  # what an idle episode has is shared too
    rest = [engine.generate(f"{i}", start, sampling=SAMPLING, seed=i, stop_ids=[]) for i in range(1, 4)]
    drawn = [await first, *await asyncio.gather(*rest)]
    await engine.close()
    assert engine.scheduler.num_shared >= 59 and engine.scheduler.num_prefilled <= 60 + 3
    assert_plain(policy, [(start, i, SAMPLING, one) for i, one in enumerate(drawn)])


def in_turn(engine, *asked):
    """Calls one after the other; what each drew."""

    async def one_by_one():
        return [
            (ids, seed, SAMPLING, await engine.generate(episode, ids, sampling=SAMPLING, seed=seed, stop_ids=[]))
            for seed, (episode, ids) in enumerate(asked)
        ]

    (calls,) = run(engine, one_by_one())
    return calls


def test_an_episode_that_continues_anothers_leaves_it_as_it_was(hybrid):
    engine = small_engine(hybrid, layout="general")
    start = prompt("task", 50)
    [(*_, drawn)] = in_turn(small_engine(hybrid, layout="general"), ("a", start))
    history = [*start, *drawn.completion_ids]
    calls = in_turn(engine, ("a", start), ("b", [*history, 5, 6, 7]), ("a", [*history, 9]))
    # Everything but the answer's last token, which was not read before.
    assert engine.scheduler.num_shared == len(history) - 1
    assert_plain(hybrid, calls)


async def test_an_episode_keeps_few_snapshots_and_always_the_earliest(hybrid):
    engine = small_engine(hybrid, layout="general")
    ids = prompt("task", 40)
    for number in range(6):
        drawn = await engine.generate("e", ids, sampling=SAMPLING, seed=number, stop_ids=[])
        ids = [*ids, *drawn.completion_ids, *prompt(f"{number}", 5)]
    lengths = [one.length for one in engine.scheduler.residents["e"].place.snapshots]
    await engine.close()
    assert len(lengths) == SNAPSHOTS
    # Turns have 4 tokens of answer and 5 of observation; the last prompt's end but one is the newest snapshot.
    assert (lengths[0], lengths[-1]) == (39, 39 + 5 * 9)


def test_an_adapter_is_sampled_with_and_without_folding():
    model = add_actor(decoder("lfm2"), Lora(r=4))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name and ACTOR in name:
                weight.normal_(generator=torch.Generator().manual_seed(1), std=0.1)
    policy = Policy(model).eval()
    for fold in (False, True):
        engine = small_engine(policy, layout="general", fold=fold)
        (calls,) = run(engine, play(engine, "e", 2, SAMPLING, prompt("system", 20)))
        assert scored(policy, calls) < 1e-4
        with policy.reference():
            assert scored(policy, calls) > 1e-2


@pytest.mark.parametrize("continues", [True, False])
def test_a_prompt_that_is_read_in_chunks_or_token_by_token_leaves_the_same_snapshots(hybrid, continues):
    engine = small_engine(hybrid, layout="general")
    engine.reader.ways = Ways(True, continues, True)
    engine.path.runner.chunk = 30 if continues else 1 << 40
    start = prompt("task", 84)
    longer = [*start, *prompt("more", 40)]
    third = [*longer[:114], *prompt("other", 20)]
    calls = in_turn(engine, ("e", start), ("e", longer), ("e", third), ("e", [*third, 7, 8]))
    # The end of the first prompt twice, then that of the third.
    assert engine.scheduler.num_kept == 83 + 83 + 133
    assert_plain(hybrid, calls)


@pytest.mark.parametrize(
    ("family", "ways"),
    [
        ("minimax", Ways(together=True)),
        ("dynamic", Ways()),
        ("rwkv", Ways(together=True)),
        ("jamba", Ways(cached=True, together=True)),
        ("llama4_tuned", Ways(cached=True, continues=True)),
        ("qwen3_5", Ways(True, True, True)),
    ],
)
def test_what_a_model_cannot_do_with_its_cache_is_found_by_trying(family, ways):
    policy = Policy(decoder(family)).eval()
    engine = small_engine(policy)
    assert engine.reader.ways == ways
    played = run(engine, *(play(engine, f"{i}", 2, SAMPLING, prompt("system", 34)) for i in range(3)))
    assert (engine.scheduler.num_kept > 0) == ways.cached
    assert scored(policy, [call for calls in played for call in calls]) < 1e-4


def test_an_episode_ends_where_the_rotary_frequencies_change():
    """What was cached before could not be used after it."""
    engine = small_engine(Policy(decoder("phi3_turning")).eval())
    assert engine.max_length == 60
    (drawn,) = run(
        engine, engine.generate("e", prompt("e", 54), sampling=SamplingConfig(max_new_tokens=12), seed=0, stop_ids=[])
    )
    assert (len(drawn.completion_ids), drawn.finish) == (6, "length")


def test_an_idle_episode_does_not_hold_on_to_those_it_was_stepped_with(hybrid):
    engine = small_engine(hybrid, layout="general")

    async def shorter_and_longer():
        ask = engine.generate
        short = [ask(f"{i}", prompt(f"{i}", 9), sampling=SAMPLING, seed=i, stop_ids=[]) for i in range(3)]
        longer = SamplingConfig(max_new_tokens=12)
        await asyncio.gather(*short, ask("long", prompt("long", 9), sampling=longer, seed=9, stop_ids=[]))
        return [len(engine.scheduler.residents[f"{i}"].place.batch.lengths) for i in range(3)]

    assert run(engine, shorter_and_longer()) == [[1, 1, 1]]


def test_states_count_as_memory(hybrid):
    store = GeneralStore(GeneralReader(hybrid))
    # One attention layer: keys and values of 2 heads of 16 numbers.
    assert store.bytes_per_token == 2 * 2 * 16 * 4
    assert store.cost(10) == 10 * store.bytes_per_token + (1 + SNAPSHOTS) * store.bytes_of_states
    assert store.bytes_of_states >= 2 * 8 * 8 * 4  # one delta net: 2 heads of 8 x 8
