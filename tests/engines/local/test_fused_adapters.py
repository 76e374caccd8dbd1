"""Adapters by name in the decoder of few kernels; without a GPU its kernels are those of `plain_kernels.py`."""

import asyncio
from functools import partial

import pytest
import torch

from bough.config.groups import SamplingConfig
from bough.engines.base import EngineError
from bough.engines.local.engine import LocalEngine
from bough.policy.adapters import AdapterWeights, Lora
from bough.policy.policy import Policy
from tests.engines.local.members import LORAS, members, play_as, set_all, with_actor, with_diverged_actor
from tests.engines.local.playing import prompt, run
from tests.engines.local.test_engine import scored
from tests.engines.local.test_fused import DEVICE, _kernels_of_this_machine, on_cuda  # noqa: F401  used by pytest
from tests.policy.families import make

SAMPLING = SamplingConfig(max_new_tokens=5)
START = prompt("system", 34)
START_LONG = prompt("system", 300)


def build(dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    return make("qwen3", max_position_embeddings=512).to(DEVICE, dtype)


@pytest.fixture(scope="module")
def policies() -> dict[str, Policy]:
    return members(build)


def engine_of(policy: Policy, **options) -> LocalEngine:
    options = {"layout": "pages", "max_tokens": 20_000, "max_running": 24, "graphs": DEVICE == "cuda"} | options
    return LocalEngine.of(policy, **options)


def test_adapters_come_go_and_change_while_others_are_played(policies):
    """With recorded graphs, on CUDA: some changes fit them, others need new ones. The policy's own may change too.

    It is in the weights while it is the only one.
    """
    own = with_actor(build(), Lora(r=2), 9)
    engine = engine_of(own)

    async def one(name, episode):
        return await play_as(engine, name, episode, 1, SAMPLING, START)

    async def all_of_it():
        await one("", "e")
        engine.set_adapter("a", AdapterWeights.of(policies["grey"].model))
        calls = [(policies["grey"], await one("a", "e"))]
        engine.rest()
        change(own)
        engine.renew("new")
        engine.set_adapter("b", AdapterWeights.of(policies["red"].model))
        for name in ("blue", "green"):
            engine.set_adapter("a", AdapterWeights.of(policies[name].model))
            a, b, none = await asyncio.gather(one("a", "f"), one("b", "f"), one("", "f"))
            calls += [(policies[name], a), (policies["red"], b), (own, none)]
        engine.remove_adapter("a")
        calls += [(own, await one("", "h")), (policies["red"], await one("b", "h"))]
        engine.remove_adapter("b")
        calls.append((own, await one("", "i")))
        return calls

    for policy, calls in run(engine, all_of_it())[0]:
        assert scored(policy, calls) < 1e-4


@pytest.mark.parametrize("step", ["put", "keep_apart"])
def test_nothing_is_sampled_with_half_of_an_adapter_until_the_weights_are_renewed(step, policies, monkeypatch):
    own = with_actor(build(), Lora(r=2), 9)
    engine = engine_of(own)
    half = list(engine.path.decoder.joined())[3]
    with monkeypatch.context() as patched:
        patched.setattr(half, step, lambda *_: 1 / 0)
        engine.set_adapter("a", AdapterWeights.of(policies["red"].model))
        with pytest.raises(ZeroDivisionError):
            engine._obey()
    with pytest.raises(EngineError, match="'a' could not be set: ZeroDivisionError"):
        asyncio.run(play_as(engine, "", "e", 1, SAMPLING, START))
    engine.renew("new")
    played = run(engine, play_as(engine, "", "e", 1, SAMPLING, START))
    assert scored(own, played[0]) < 1e-4


def change(policy: Policy) -> None:
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                weight.mul_(-3)


@on_cuda
@pytest.mark.parametrize("layout", ["pages", "general"])
def test_in_16_bits_with_graphs_it_is_as_close_as_rounding_allows(layout):
    loras = {f"{name}{i}": lora for i in range(2) for name, lora in LORAS.items()}
    policies = members(partial(build, torch.bfloat16), loras)
    engine = engine_of(policies[""], layout=layout, max_length=500)
    set_all(engine, policies)
    names = [name for name in policies for _ in range(3)]
    played = run(engine, *(play_as(engine, name, f"{i}", 3, SAMPLING, START_LONG) for i, name in enumerate(names)))
    for name, calls in zip(names, played, strict=True):
        assert scored(policies[name], calls) < 0.3


def test_an_adapter_that_has_diverged_fails_alone(policies):
    """Beside it, and in the pages that were its own."""
    diverged = with_diverged_actor(build(), LORAS["red"])
    engine = engine_of(policies[""], max_tokens=64 * 12)
    set_all(engine, {"red": diverged, "blue": policies["blue"]})

    async def all_of_it():
        names = ["red", "blue", "red", ""]
        plays = (play_as(engine, name, f"{i}", 2, SAMPLING, START) for i, name in enumerate(names))
        first = await asyncio.gather(*plays, return_exceptions=True)
        return first, [await play_as(engine, "blue", f"{i}", 1, SAMPLING, START_LONG) for i in range(4, 7)]

    ((mine, blue, again, base), later) = run(engine, all_of_it())[0]
    assert all(isinstance(one, EngineError) and "diverged" in str(one) for one in (mine, again))
    assert scored(policies[""], base) < 1e-4
    assert all(scored(policies["blue"], calls) < 1e-4 for calls in (blue, *later))
