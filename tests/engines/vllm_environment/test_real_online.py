"""Online GRPO that samples with vLLM: in this process and on a server. `make test-vllm` runs it on a CPU.

Where vLLM is installed for a GPU, the same tests cover its sleep mode.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from bough.config.groups import SamplingConfig
from bough.config.run_folder import RunDir
from bough.engines.vllm import VLLMEngine
from bough.methods.grpo import GRPOConfig, train_grpo
from bough.online.vllm import MEMORY
from bough.policy.adapters import Lora
from bough.policy.load import save_weights
from bough.policy.policy import Policy
from bough.types import Call
from tests.engines.vllm_environment.models import make_small
from tests.engines.vllm_environment.serving import vllm_server
from tests.online.test_online import batch, metrics, settings

pytestmark = [
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed here; make test-vllm installs it"),
    pytest.mark.timeout(900),
]
CUDA = torch.cuda.is_available()
TOLERANCE = 0.25 if CUDA else 1e-3  # bfloat16 there, float32 here
CONTEXT = 256


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_small(tmp_path_factory.mktemp("models") / "small")


def run_settings(folder: Path, model: Path, **more: Any) -> GRPOConfig:
    """Updates that change what is sampled far more than rounding does; every version's weights stay on disk."""
    values = {"model": str(model), "engine": "vllm", "learning_rate": 2e-2, "save_steps": 1, "save_total_limit": 9}
    return settings(folder, **values | more)


IN_PROCESS = {"engine_options": {"max_model_len": CONTEXT, "enforce_eager": True}}


def calls_of(folder: Path, number: int) -> list[Call]:
    turns = [turn for group in batch(folder, number) for attempt in group.attempts for turn in attempt.turns]
    return [turn.call for turn in turns if turn.call]


def version(config: GRPOConfig, step: int) -> Policy:
    """The policy after `step` updates."""
    saved = RunDir(config.output_dir).checkpoints / f"step-{step:08}" / "weights"
    if step == 0:
        policy = Policy.load(config.model)
    else:
        policy = Policy.load(config.model, adapter=saved) if config.lora.enabled else Policy.load(str(saved))
    policy.temperature = config.sampling.temperature
    return policy.eval()


def gaps(policy: Policy, calls: list[Call]) -> list[torch.Tensor]:
    """For each call, how far the recorded log-probabilities are from the policy's."""
    with torch.no_grad():
        found = policy.logprobs(calls)
    return [(values.cpu() - torch.tensor(call.logprobs)).abs() for values, call in zip(found, calls, strict=True)]


def check_versions(config: GRPOConfig, num_batches: int) -> set[str]:
    """Each call has the log-probabilities of the weights it names, and of no others. Returns the names.

    Where the weights changed in the middle of a call, its first tokens have those of the old weights and the rest
    those of the new ones: nothing that was computed with the old weights is used after the change.
    """
    by_name: dict[str, list[Call]] = {}
    for number in range(num_batches):
        for call in calls_of(config.output_dir, number):
            assert call.logprobs_temperature == call.temperature == config.sampling.temperature
            by_name.setdefault(call.policy or "", []).append(call)
    for name, calls in by_name.items():
        steps = [int(step.removeprefix("step-")) for step in name.split("..")]
        first, last = (gaps(version(config, step), calls) for step in (steps[0], steps[-1]))
        for old, new in zip(first, last, strict=True):
            switch = next((i for i, value in enumerate(old) if value > TOLERANCE), len(old))
            assert len(steps) == 2 or switch == len(old), name
            assert (new[switch:] < TOLERANCE).all(), name
        if len(steps) == 1 and steps[0] > 0:
            before, now = (torch.cat(gaps(version(config, step), calls)).mean() for step in (steps[0] - 1, steps[0]))
            assert before > (2 if CUDA else 20) * now, "the update has changed what is sampled"
    return set(by_name)


def test_an_adapter_is_handed_over_after_every_update(small: Path, tmp_path: Path):
    config = run_settings(tmp_path, small, max_steps=3, temperature=0.7, eval_every=1, eval_tasks=2, **IN_PROCESS)
    train_grpo(config)
    assert check_versions(config, 3) == {"step-0", "step-1", "step-2"}
    assert all(line["logprob_gap_max"] < TOLERANCE for line in metrics(tmp_path))
    assert all("eval_success" in line for line in metrics(tmp_path))
    assert list(MEMORY.glob("bough-weights-*")) == []


def test_all_weights_are_handed_over_with_batches_ahead(small: Path, tmp_path: Path):
    # Two batches fit in flight, so the second is being sampled when the first is trained on.
    ahead = {"max_steps": 4, "max_staleness": 1, "concurrency": 16, "max_new_tokens": 24}
    config = run_settings(tmp_path, small, use_lora=False, learning_rate=5e-3, **ahead, **IN_PROCESS)
    train_grpo(config)
    assert len(check_versions(config, 4)) >= 2
    lines = metrics(tmp_path)
    assert max(line["staleness_max"] for line in lines) == 1, "later batches were begun before the update"
    assert list(MEMORY.glob("bough-weights-*")) == []


def test_a_server_gets_each_adapter_under_a_new_name(small: Path, tmp_path: Path):
    run, options = tmp_path / "run", ["--max-model-len", str(CONTEXT), "--max-num-seqs", "8", "--max-lora-rank", "16"]
    with vllm_server(small, tmp_path / "log", *options) as url:
        config = run_settings(run, small, base_url=url, max_steps=3, max_staleness=1, concurrency=16)
        train_grpo(config)
        with urllib.request.urlopen(f"{url}/models", timeout=30) as answer:
            served = [model["id"] for model in json.load(answer)["data"]]
    names = check_versions(config, 3)
    assert len(names) >= 2 and not any(".." in name for name in names), "an answer keeps its adapter"
    assert metrics(run)[1]["staleness_max"] == 1
    assert served == [str(small)], "the adapters are unloaded at the end"
    said = (tmp_path / "log").read_text()
    assert said.count("Loaded new LoRA adapter") == 4


@pytest.mark.skipif(not CUDA, reason="needs CUDA: vLLM sleeps on a GPU only")
@pytest.mark.parametrize("lora", [True, False])
def test_a_sleeping_engine_frees_its_memory_and_wakes_with_new_weights(small: Path, tmp_path: Path, lora: bool):
    """Answers that were in flight are finished after the pause: with their adapter, or with the new weights."""
    policies = [_moved(small, seed, lora=lora) for seed in (1, 2)]
    for policy, name in zip(policies, "ab", strict=True):
        save_weights(policy, tmp_path / name, policy.weights())
    prompt, free = list(range(5, 40)), list[int]()

    async def draw(engine: VLLMEngine, tokens: int) -> Call:
        sampling = SamplingConfig(max_new_tokens=tokens)
        drawn = await engine.generate("e", prompt, sampling=sampling, seed=3, stop_ids=[])
        ids, logprobs = drawn.completion_ids, drawn.logprobs
        return Call(prompt_ids=prompt, completion_ids=ids, logprobs=logprobs, policy=drawn.policy)

    async def run() -> tuple[Call, Call, Call]:
        options = {"max_model_len": 1024, "enable_sleep_mode": True, "gpu_memory_utilization": 0.3, "dtype": "bfloat16"}
        engine = await VLLMEngine.load(str(small), lora_rank=16 if lora else 0, enforce_eager=True, **options)
        try:
            await engine.pause()
            await engine.renew(tmp_path / "a", "a")
            first = await draw(engine, 16)
            in_flight = asyncio.create_task(draw(engine, 900))
            await asyncio.sleep(0.3)
            free.append(torch.cuda.mem_get_info()[0])
            await engine.pause()
            free.append(torch.cuda.mem_get_info()[0])
            await engine.renew(tmp_path / "b", "b")
            return first, await in_flight, await draw(engine, 16)
        finally:
            await engine.close()

    first, mixed, last = asyncio.run(run())
    assert free[1] - free[0] > 0.2 * torch.cuda.get_device_properties(0).total_memory
    assert [first.policy, mixed.policy, last.policy] == ["a", "a" if lora else "a..b", "b"]
    for call, index in ((first, 0), (last, 1)):
        own, other = (torch.cat(gaps(policies[i], [call])).mean() for i in (index, 1 - index))
        assert own < 0.1 and other > 3 * own
    if lora:
        assert torch.cat(gaps(policies[0], [mixed])).mean() < 0.1, "an answer keeps its adapter over a sleep"


def _moved(model: Path, seed: int, *, lora: bool) -> Policy:
    """The model with other weights, or with an adapter that changes it as much."""
    policy = Policy.load(str(model), lora=Lora(r=16, alpha=32) if lora else None).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, weight in policy.named_parameters():
        if not lora or "lora_" in name:
            noise = torch.randn(weight.shape, generator=generator).to(weight.device)
            weight.data += noise * (0.1 if lora else 0.03)
    return policy
