"""Calls that have said the same so far are one row; each gets what it would get alone."""

import asyncio
import random
import sys
from contextlib import aclosing

import pytest
import torch

from bough.config.groups import SamplingConfig
from bough.engines.base import EngineError
from bough.engines.local import paths
from bough.engines.local.engine import LocalEngine
from bough.policy.policy import Policy
from tests.engines.local import plain_kernels
from tests.engines.local.playing import hash_of, prompt, run, small_engine
from tests.policy.families import make

LAYOUTS = ["ragged", "general", "pages"]


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy(make("llama", max_position_embeddings=512)).eval()


def engine_of(policy: Policy, layout: str, monkeypatch: pytest.MonkeyPatch, **options: object) -> LocalEngine:
    if layout == "pages":
        monkeypatch.setitem(sys.modules, "bough.engines.local.kernels", plain_kernels)
        monkeypatch.delitem(sys.modules, "bough.engines.local.fused", raising=False)
        monkeypatch.setattr(paths, "_fits_fused", lambda _: True)
        options |= {"graphs": False}
    engine = small_engine(policy, **options | ({"layout": layout} if layout != "ragged" else {}))
    assert engine.path.name == layout
    engine.scheduler.merges = True
    return engine


async def attempts(engine: LocalEngine, task: str, number: int, sampling: SamplingConfig, turns: int = 3) -> dict:
    """The calls of each attempt at a task. Attempts that said the same go on together."""
    calls: dict[int, list] = {one: [] for one in range(number)}

    async def go_on(members: list[int], ids: list[int], turn: int) -> None:
        names, seeds = [f"{task}#{one}" for one in members], [hash_of(f"{task}#{one}/{turn}") for one in members]
        later = []
        each = engine.generate_each(names, ids, sampling=sampling, seeds=seeds, stop_ids=[2, 7])
        async with aclosing(each):
            async for places, drawn in each:
                same = [members[place] for place in places]
                for one in same:
                    calls[one].append((drawn.completion_ids, drawn.logprobs, drawn.finish))
                if turn + 1 < turns:
                    heard = prompt(f"{task}/{len(drawn.completion_ids)}", 3 + turn)
                    later.append(asyncio.create_task(go_on(same, ids + drawn.completion_ids + heard, turn + 1)))
        await asyncio.gather(*later)

    await go_on(list(range(number)), prompt(task, 40), 0)
    return calls


async def alone(engine: LocalEngine, task: str, one: int, sampling: SamplingConfig, turns: int = 3) -> list:
    ids, calls = prompt(task, 40), []
    for turn in range(turns):
        seed = hash_of(f"{task}#{one}/{turn}")
        drawn = await engine.generate(f"{task}#{one}", ids, sampling=sampling, seed=seed, stop_ids=[2, 7])
        calls.append((drawn.completion_ids, drawn.logprobs, drawn.finish))
        ids = ids + drawn.completion_ids + prompt(f"{task}/{len(drawn.completion_ids)}", 3 + turn)
    return calls


@pytest.mark.bit_exact
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("temperature", "more"), [(0.0, {}), (0.1, {}), (0.3, {"top_p": 0.9}), (1.0, {"top_k": 4}), (1.0, {})]
)
def test_each_attempt_draws_what_it_draws_alone(policy, layout, temperature, more, monkeypatch):
    sampling = SamplingConfig(max_new_tokens=9, temperature=temperature, **more)
    engine = engine_of(policy, layout, monkeypatch)
    one, other = run(engine, attempts(engine, "one", 6, sampling), attempts(engine, "other", 3, sampling))
    for task, calls in (("one", one), ("other", other)):
        for number, found in calls.items():
            single = engine_of(policy, layout, monkeypatch)
            (expected,) = run(single, alone(single, task, number, sampling))
            assert [(ids, finish) for ids, _, finish in found] == [(ids, finish) for ids, _, finish in expected]
            if layout == "ragged":
                assert found == expected
            for (_, ours, _), (_, own, _) in zip(found, expected, strict=True):
                assert ours == pytest.approx(own, abs=1e-4)
    drawn = sum(len(ids) for calls in (one, other) for found in calls.values() for ids, _, _ in found)
    assert engine.scheduler.num_drawn == drawn
    assert engine.scheduler.num_states < drawn


def test_attempts_that_never_part_cost_one(policy, monkeypatch):
    sampling = SamplingConfig(max_new_tokens=9, temperature=0.0)
    engine = engine_of(policy, "ragged", monkeypatch)
    (calls,) = run(engine, attempts(engine, "one", 8, sampling))
    assert len({str(found) for found in calls.values()}) == 1
    assert engine.scheduler.num_drawn == 8 * engine.scheduler.num_states


@pytest.mark.parametrize("layout", LAYOUTS)
def test_there_is_less_room_than_attempts_need(policy, layout, monkeypatch):
    """Calls that part wait for room, and continue where they parted."""
    sampling = SamplingConfig(max_new_tokens=9, temperature=1.0)
    engine = engine_of(policy, layout, monkeypatch, max_tokens=600 if layout == "ragged" else 200, max_running=3)
    (calls,) = run(engine, attempts(engine, "one", 6, sampling))
    single = engine_of(policy, layout, monkeypatch)
    for number, found in calls.items():
        single = engine_of(policy, layout, monkeypatch)
        (expected,) = run(single, alone(single, "one", number, sampling))
        assert [ids for ids, _, _ in found] == [ids for ids, _, _ in expected]


@pytest.mark.parametrize("first", [True, False])
def test_a_caller_who_leaves_takes_nobody_along(policy, first, monkeypatch):
    sampling = SamplingConfig(max_new_tokens=40, temperature=0.0)
    engine = engine_of(policy, "ragged", monkeypatch)
    ids = prompt("one", 40)

    async def play() -> list:
        calls = [
            asyncio.create_task(engine.generate(f"e{n}", ids, sampling=sampling, seed=n, stop_ids=[])) for n in range(3)
        ]
        while engine.scheduler.num_drawn < 20:
            await asyncio.sleep(0.001)
        calls[0 if first else 1].cancel()
        ended = await asyncio.gather(*calls, return_exceptions=True)
        return [one.completion_ids for one in ended if not isinstance(one, BaseException)]

    (left,) = run(engine, play())
    assert len(left) == 2 and left[0] == left[1] and len(left[0]) == 40
    assert not [one for one in engine.scheduler.residents.values() if one.request]


def test_a_released_episode_loses_its_answer_and_the_others_keep_theirs(policy, monkeypatch):
    sampling = SamplingConfig(max_new_tokens=40, temperature=0.0)
    engine = engine_of(policy, "ragged", monkeypatch)

    async def play() -> list:
        ids = prompt("one", 40)
        calls = [
            asyncio.create_task(engine.generate(f"e{n}", ids, sampling=sampling, seed=n, stop_ids=[])) for n in range(3)
        ]
        while engine.scheduler.num_drawn < 20:
            await asyncio.sleep(0.001)
        engine.release("e0")
        return await asyncio.gather(*calls, return_exceptions=True)

    (found,) = run(engine, play())
    assert isinstance(found[0], EngineError)
    assert len(found[1].completion_ids) == 40 and found[1].completion_ids == found[2].completion_ids


@pytest.mark.bit_exact
def test_random_groups_with_random_limits_and_departures(policy, monkeypatch):
    """Whatever is computed beside them, and whoever leaves, attempts get what they get alone."""
    rng = random.Random(0)
    engine = engine_of(policy, "ragged", monkeypatch, max_running=9)
    samplings = {
        f"task{n}": SamplingConfig(max_new_tokens=rng.randrange(1, 12), temperature=rng.choice([0.0, 0.2, 0.5, 1.0]))
        for n in range(6)
    }
    numbers = {task: rng.randrange(1, 6) for task in samplings}

    async def leaves(task: str) -> None:
        playing = asyncio.create_task(attempts(engine, f"{task}-left", 4, samplings[task]))
        await asyncio.sleep(rng.random() / 50)
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)

    found = run(engine, *(attempts(engine, t, numbers[t], s) for t, s in samplings.items()), *map(leaves, samplings))
    for (task, sampling), calls in zip(samplings.items(), found, strict=False):
        for number, own in calls.items():
            single = engine_of(policy, "ragged", monkeypatch)
            assert run(single, alone(single, task, number, sampling)) == [own]


@pytest.mark.bit_exact
def test_a_call_after_a_change_of_weights_joins_no_row_that_was_read_before(policy, monkeypatch):
    policy = Policy(make("llama", max_position_embeddings=2048)).eval()
    sampling, ids = SamplingConfig(max_new_tokens=4), prompt("long", 1800)
    engine = engine_of(policy, "ragged", monkeypatch, name="old")

    async def play() -> list:
        first = asyncio.create_task(engine.generate("a", ids, sampling=sampling, seed=1, stop_ids=[]))
        while engine.num_steps < 2:
            await asyncio.sleep(0.001)
        engine.pause()
        assert engine.scheduler.num_drawn == 0
        with torch.no_grad():
            for weight in policy.model.parameters():
                weight.mul_(1.05)
        engine.renew("new", keep=True)
        second = asyncio.create_task(engine.generate("b", ids, sampling=sampling, seed=2, stop_ids=[]))
        await asyncio.sleep(0.01)
        engine.resume()
        return [await first, await second]

    ((first, second),) = run(engine, play())
    single = engine_of(policy, "ragged", monkeypatch, name="new")
    (own,) = run(single, single.generate("b", ids, sampling=sampling, seed=2, stop_ids=[]))
    assert first.policy == "old..new" and second == own


def test_a_step_that_fails_while_calls_part_is_told_to_all_of_them(policy, monkeypatch):
    class Tokenizer:
        def decode(self, ids: list[int]) -> str:
            raise IndexError("no such piece")

    engine = engine_of(policy, "ragged", monkeypatch, tokenizer=Tokenizer())
    sampling = SamplingConfig(max_new_tokens=9, stop=["never"])

    async def play() -> list:
        calls = (engine.generate(f"e{n}", prompt("p", 40), sampling=sampling, seed=n, stop_ids=[]) for n in range(4))
        return await asyncio.gather(*calls, return_exceptions=True)

    (ended,) = run(engine, play())
    assert ["no such piece" in str(one) for one in ended] == [True] * 4
