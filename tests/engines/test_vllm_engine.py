"""In which order vLLM's engine is told to stop, take new weights and continue. vLLM itself is a stand-in that notes
what it is told; `vllm_environment` has the real one."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from bough.config.groups import SamplingConfig
from bough.engines.base import EngineError, Generated
from bough.engines.vllm import OPTIONS, VLLMEngine, adapter_rank, engine_arguments
from bough.engines.vllm_worker import WeightsFromFolder
from bough.errors import InputError


class StandIn:
    """Notes every order. An answer whose prompt is [9] waits until it is released."""

    model_config = SimpleNamespace(max_model_len=64)

    def __init__(self, broken: str = "") -> None:
        self.orders: list[str] = []
        self.sampled_with: list[str | None] = []
        self.broken, self.released = broken, asyncio.Event()

    def note(self, order: str) -> None:
        self.orders.append(order)
        if self.broken and order.startswith(self.broken):
            raise RuntimeError(f"first line\n{order} is broken")

    async def generate(self, prompt: Any, params: Any, request: str, lora_request: Any) -> AsyncIterator[Any]:
        self.sampled_with.append(lora_request and lora_request.path)
        if prompt.prompt_token_ids == [9]:
            await self.released.wait()
        logprobs = [{5: SimpleNamespace(logprob=-0.5)}]
        drawn = SimpleNamespace(token_ids=[5], logprobs=logprobs, finish_reason="length")
        yield SimpleNamespace(num_cached_tokens=0, outputs=[drawn])

    async def add_lora(self, request: Any) -> bool:
        self.note(f"add {request.number}")
        return True

    async def remove_lora(self, number: int) -> None:
        self.note(f"remove {number}")

    async def sleep(self, level: int, mode: str) -> None:
        self.note(f"sleep {level} {mode}")

    async def wake_up(self, tags: list[str] | None = None) -> None:
        self.note(f"wake {tags or 'all'}")

    async def pause_generation(self, mode: str, clear_cache: bool) -> None:
        self.note(f"pause {mode} {clear_cache}")

    async def resume_generation(self) -> None:
        self.note("resume")

    async def collective_rpc(self, method: str, args: tuple[str]) -> None:
        assert Path(args[0]).is_dir() and hasattr(WeightsFromFolder, method)
        self.note("load")

    def shutdown(self) -> None:
        self.note("shutdown")


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The few names that requests are made of."""
    names: dict[str, dict[str, Any]] = {
        "vllm": {"SamplingParams": SimpleNamespace, "TokensPrompt": SimpleNamespace},
        "vllm.lora": {},
        "vllm.lora.request": {
            "LoRARequest": lambda name, number, path: SimpleNamespace(name=name, number=number, path=path)
        },
        "vllm.sampling_params": {"RequestOutputKind": SimpleNamespace(FINAL_ONLY=2)},
    }
    for name, members in names.items():
        module = ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)


def adapter(folder: Path, rank: int = 4) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank}))
    return folder


async def draw(engine: VLLMEngine, prompt: tuple[int, ...] = (7,), **sampling: Any) -> Generated:
    return await engine.generate("e", list(prompt), sampling=SamplingConfig(**sampling), seed=1, stop_ids=[])


async def test_an_adapter_is_added_after_waking_and_before_new_requests(tmp_path):
    stand_in = StandIn()
    engine = VLLMEngine(stand_in, "tiny", 8, sleeps=True)
    await engine.pause()
    waiting = asyncio.create_task(draw(engine))
    await asyncio.sleep(0)
    assert stand_in.sampled_with == [], "while the engine is paused, requests wait for the next weights"
    await engine.renew(adapter(tmp_path / "one"), "step-0")
    first = await waiting
    in_flight = asyncio.create_task(draw(engine, (9,)))
    await asyncio.sleep(0)
    await engine.pause()
    await engine.renew(adapter(tmp_path / "two"), "step-1")
    assert (tmp_path / "one").exists(), "vLLM may have to load it again for the answer in flight"
    stand_in.released.set()
    second, third = await in_flight, await draw(engine)
    await engine.pause()
    await engine.renew(adapter(tmp_path / "three"), "step-2")
    assert [folder.name for folder in tmp_path.iterdir()] == ["three"]
    await engine.close()
    assert [first.policy, second.policy, third.policy] == ["step-0", "step-0", "step-1"]
    assert stand_in.sampled_with == [str(tmp_path / name) for name in ("one", "one", "two")]
    asleep = "sleep 1 keep"
    assert stand_in.orders == [
        *(asleep, "wake all", "add 1"),
        *(asleep, "wake all", "add 2"),
        *(asleep, "wake all", "add 3", "remove 1", "remove 2"),
        "shutdown",
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("sleeps", "orders"),
    [
        (True, ["sleep 2 keep", "wake ['weights']", "load", "wake all"]),
        (False, ["pause keep True", "load", "resume"]),
    ],
)
async def test_all_weights_are_replaced_while_nothing_is_sampled(tmp_path, sleeps, orders):
    stand_in = StandIn()
    engine = VLLMEngine(stand_in, "step-0", sleeps=sleeps)
    in_flight = asyncio.create_task(draw(engine, (9,)))
    await asyncio.sleep(0)
    await engine.pause()
    (tmp_path / "weights").mkdir()
    await engine.renew(tmp_path / "weights", "step-1")
    stand_in.released.set()
    mixed, new = await in_flight, await draw(engine)
    assert stand_in.orders == orders
    assert (mixed.policy, new.policy) == ("step-0..step-1", "step-1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("rank", "broken"), [(8, "add"), (8, "resume"), (0, "load"), (0, "resume")])
async def test_after_a_swap_that_fails_nothing_is_sampled(tmp_path, rank, broken):
    stand_in = StandIn(broken)
    engine = VLLMEngine(stand_in, "tiny", rank)
    await engine.pause()
    with pytest.raises(EngineError, match=rf": {broken}.* is broken$"):
        await engine.renew(adapter(tmp_path / "new"), "step-1")
    request = asyncio.create_task(draw(engine))
    await asyncio.sleep(0)
    assert stand_in.sampled_with == []
    await engine.close()
    with pytest.raises(EngineError, match="vLLM was closed"):
        await request
    assert stand_in.orders[-1] == "shutdown"


@pytest.mark.parametrize(
    ("mode", "sampling", "temperature"),
    [
        ("raw_logprobs", {"temperature": 0.5, "top_k": 3}, 1.0),
        ("processed_logprobs", {"temperature": 0.5}, 0.5),
        ("processed_logprobs", {"temperature": 0}, 1.0),  # vLLM does not divide by it
        ("processed_logprobs", {"temperature": 0.5, "min_p": 0.1}, None),
    ],
)
async def test_the_temperature_of_the_log_probabilities_is_recorded(mode, sampling, temperature):
    engine = VLLMEngine(StandIn(), "tiny", logprobs_mode=mode)
    if temperature is None:
        with pytest.raises(InputError, match="min_p"):
            await draw(engine, **sampling)
    else:
        assert (await draw(engine, **sampling)).logprobs_temperature == temperature


def configured(folder: Path, settings: object) -> Path:
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def test_the_rank_of_an_adapter_is_its_largest(tmp_path):
    assert adapter_rank(configured(tmp_path, {"r": 8})) == 8
    assert adapter_rank(configured(tmp_path, {"r": 8, "rank_pattern": {"q_proj": 24}})) == 24
    for settings in ({}, {"r": None}, [], {"r": "x"}):
        with pytest.raises(InputError, match="contains no LoRA adapter"):
            adapter_rank(configured(tmp_path, settings))
    with pytest.raises(InputError, match="contains no LoRA adapter"):
        adapter_rank(tmp_path / "none")


def test_log_probabilities_and_sampling_are_the_models_own_whatever_the_options():
    arguments = engine_arguments(
        "tiny", 16, "raw_logprobs", {"max_model_len": 99, "enable_prefix_caching": False, "max_loras": 5}
    )
    assert arguments["logprobs_mode"] == "raw_logprobs"
    assert arguments["generation_config"] == "vllm"
    assert arguments["trust_remote_code"] is False
    assert (arguments["enable_lora"], arguments["max_lora_rank"], arguments["max_loras"]) == (True, 16, 5)
    assert (arguments["max_model_len"], arguments["enable_prefix_caching"]) == (99, False)
    assert "enable_lora" not in engine_arguments("tiny", 0, "raw_logprobs", {})
    for ours in ("model", "logprobs_mode", "trust_remote_code", "worker_cls", "reasoning_parser_plugin"):
        with pytest.raises(InputError, match=f"vLLM's {ours} is (set by Bough itself|not .*: block_size, cpu_off)"):
            engine_arguments("tiny", 0, "raw_logprobs", {ours: True})
    guide = (Path(__file__).parents[2] / "docs/guides/online.md").read_text(encoding="utf-8")
    assert [name for name in OPTIONS if f"`{name}`" not in guide] == []
