"""Online GRPO with `--engine vllm`, where vLLM is a stand-in: it reads the folders that vLLM would read, and samples
from what is in them with the local engine. `tests/engines/vllm_environment` has the real one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bough.config.run_folder import RunDir
from bough.engines.base import EngineError, Generated
from bough.engines.local.engine import LocalEngine
from bough.engines.vllm import VLLMEngine, VLLMServerEngine
from bough.errors import InputError
from bough.methods.grpo import GRPOConfig, train_grpo
from bough.online import vllm
from bough.online.vllm import PREFIX, HandoverFolder
from bough.policy.policy import Policy
from bough.training.plan import PausedError
from tests.online.test_online import batch, metrics, settings
from tests.policy.gpu import pretend


class StandIn:
    """A vLLM with weights of its own; paused, it lets new requests wait. It fails at renewal number `broken`."""

    broken: int | None = None
    scale = 1.0  # of the output layer
    dtype: torch.dtype | None = None  # default: float32 on a CPU, bfloat16 on a GPU

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        self.model, self.options, self.events = model, options, list[str]()
        self.policy = model
        self._engines: list[LocalEngine] = []
        self._ready = asyncio.Event()

    async def generate(self, *arguments: Any, **more: Any) -> Generated:
        await self._ready.wait()
        return await self._engines[-1].generate(*arguments, **more)

    async def pause(self) -> None:
        self.events.append("pause")
        self._ready.clear()

    async def renew(self, folder: Path, policy: str) -> None:
        if len(self._engines) == self.broken:
            raise EngineError("vLLM cannot load the new weights: no room")
        lora = bool(self.options["lora_rank"])
        weights = Policy.load("tiny" if lora else str(folder), adapter=folder if lora else None, dtype=self.dtype)
        weights.base.get_output_embeddings().weight.data *= self.scale
        self._engines.append(LocalEngine.of(weights.eval(), name=policy))
        self.policy = policy
        self.events.append("renew")
        self._ready.set()

    def release(self, episode: str) -> None:
        for engine in self._engines:
            engine.release(episode)

    async def close(self) -> None:
        self.events.append("close")
        for engine in self._engines:
            await engine.close()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[StandIn]:
    found: list[StandIn] = []

    async def load(model: str, **options: Any) -> StandIn:
        found.append(StandIn(model, options))
        return found[-1]

    (tmp_path / "memory").mkdir()
    monkeypatch.setattr(VLLMEngine, "load", load)
    monkeypatch.setattr(vllm, "MEMORY", tmp_path / "memory")
    return found


def small(folder: Path, **more: Any) -> GRPOConfig:
    few = {"engine": "vllm", "max_steps": 2, "group_size": 3, "max_new_tokens": 5, "learning_rate": 5e-3}
    return settings(folder, **few | more)


def calls(folder: Path, number: int) -> list[Any]:
    return [turn.call for group in batch(folder, number) for attempt in group.attempts for turn in attempt.turns]


@pytest.mark.parametrize("lora", [True, False])
def test_every_batch_is_sampled_from_the_newest_weights(
    started: list[StandIn], tmp_path: Path, lora: bool, monkeypatch: pytest.MonkeyPatch
):
    """In float32 on a GPU too: bfloat16 differs by more than an update does."""
    monkeypatch.setattr(StandIn, "dtype", torch.float32)
    folder = tmp_path / "run"
    options = {"enforce_eager": True}
    more = {"use_lora": lora, "bf16": False, "engine_options": options}
    train_grpo(small(folder, temperature=0.8, save_steps=1, **more))
    (engine,) = started
    assert engine.model == "tiny" and engine.options["lora_rank"] == (16 if lora else 0)
    assert engine.options["logprobs_mode"] == "processed_logprobs" and engine.options["enforce_eager"] is True
    assert (engine.options["dtype"], engine.options["max_num_seqs"]) == (
        "bfloat16" if torch.cuda.is_available() and lora else "float32",  # vLLM's kernels for adapters need it
        32,
    )
    assert engine.events == ["pause", *("renew", "pause") * 3, "close"], "paused at the start and in every update"
    assert list((tmp_path / "memory").iterdir()) == []
    for step in range(2):
        assert {call.policy for call in calls(folder, step)} == {f"step-{step}"}
    assert all(line["logprob_gap_max"] < 1e-4 for line in metrics(folder)), "the sampler has the trainer's weights"
    saved = RunDir(folder).checkpoints / "step-00000001" / "weights"
    policy = Policy.load("tiny" if lora else str(saved), adapter=saved if lora else None, dtype=torch.float32).eval()
    policy.temperature = 0.8
    sampled = calls(folder, 1)
    with torch.no_grad():
        found = policy.logprobs(sampled)
        before = Policy.load("tiny", dtype=torch.float32).eval()
        before.temperature = 0.8
        old = before.logprobs(sampled)
    recorded = torch.cat([torch.tensor(call.logprobs) for call in sampled])
    assert torch.allclose(torch.cat(found).cpu(), recorded, atol=1e-4)
    assert not torch.allclose(torch.cat(old).cpu(), recorded, atol=1e-3), "the update changes what is sampled"


def test_batches_ahead_name_the_weights_that_sampled_them(started: list[StandIn], tmp_path: Path):
    train_grpo(small(tmp_path / "run", max_steps=3, max_staleness=1, concurrency=6))
    for number in range(3):
        ages = {number - int(call.policy.removeprefix("step-")) for call in calls(tmp_path / "run", number)}
        assert ages <= {0, 1}
    assert [line["staleness_max"] <= 1 for line in metrics(tmp_path / "run")] == [True] * 3
    assert started[0].events == ["pause", *("renew", "pause") * 4, "close"]


def test_a_swap_that_fails_ends_the_run_with_its_weights_saved(
    started: list[StandIn], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(StandIn, "broken", 2)  # after the check and the first batch
    with pytest.raises(PausedError, match=r"batch 1 cannot be played: .* no room; the weights of step 1 are saved"):
        train_grpo(small(tmp_path / "run"))
    assert not (tmp_path / "run/rollouts/00001.jsonl").exists()
    assert started[0].events[-1] == "close"
    monkeypatch.setattr(StandIn, "broken", None)
    train_grpo(small(tmp_path / "run", resume=True))
    assert {call.policy for call in calls(tmp_path / "run", 1)} == {"step-1"}


def test_weights_that_cannot_be_written_end_the_run_with_its_weights_saved(
    started: list[StandIn], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write, written = vllm.save_weights, list[Path]()

    def full(policy: Policy, folder: Path, weights: dict[str, torch.Tensor]) -> None:
        write(policy, folder, weights)
        written.append(folder)
        if len(written) == 3:  # after the check and the first batch
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(vllm, "save_weights", full)
    with pytest.raises(PausedError, match=r"cannot be written to .* No space left .* the weights of step 1 are saved"):
        train_grpo(small(tmp_path / "run"))
    assert not written[-1].exists()


def test_an_engine_with_another_model_is_refused(
    started: list[StandIn], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(StandIn, "scale", 50.0)
    with pytest.raises(InputError, match="samples from another model than the one in training"):
        train_grpo(small(tmp_path / "run"))
    assert started[0].events[-1] == "close"


def test_without_room_in_memory_weights_go_through_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog):
    policy = Policy.load("tiny")
    monkeypatch.setattr(vllm, "MEMORY", tmp_path / "none")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(vllm.tempfile, "tempdir", None)
    assert vllm._memory(policy) == tmp_path
    assert "/dev/shm has no room" in caplog.text


def test_a_server_gets_its_adapters_through_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folders: list[Path] = []

    class Server(StandIn):
        async def renew(self, folder: Path, policy: str) -> None:
            folders.append(folder)
            await super().renew(folder, policy)

    async def load(url: str, **options: Any) -> Server:
        assert (url, options["key_variable"], options["logprobs_mode"]) == ("http://s/v1", "KEY", "raw_logprobs")
        return Server("tiny", {"lora_rank": 16})

    monkeypatch.setattr(VLLMServerEngine, "load", load)
    run = tmp_path / "run"
    train_grpo(small(run, base_url="http://s/v1", key_variable="KEY", max_steps=1))
    assert [folder.parent.parent for folder in folders] == [run / "cache"] * 2
    assert list((run / "cache").glob("bough*")) == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_a_gpu_vllm_sleeps_and_leaves_room_for_the_optimizer(tmp_path: Path):
    policy = Policy.load("tiny")
    options = vllm.vllm_options(small(tmp_path, max_length=64), policy)
    assert options["enable_sleep_mode"] is True and 0.05 <= options["gpu_memory_utilization"] <= 0.9
    assert options["dtype"] == "bfloat16" and options["max_model_len"] == 64


@pytest.mark.parametrize(("part", "expected"), [(1.0, 0.630), (0.25, 0.180), (0.05, 0.05)])
def test_vllm_takes_no_more_than_this_process_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: float, expected: float
):
    """0.9 of 60 GiB, or of its part, of 80, less 12 bytes for each of 2**30 / 3 trained weights: 4 GiB."""
    pretend(monkeypatch, free=60, part=part)
    trained = SimpleNamespace(numel=lambda: 2**30 // 3, requires_grad=True)
    policy = SimpleNamespace(device=torch.device("cuda"), has_adapter=True, parameters=lambda: [trained])
    options = vllm.vllm_options(small(tmp_path), policy)  # type: ignore[arg-type]
    assert options["gpu_memory_utilization"] == expected


def test_a_longer_call_than_the_models_context_is_not_asked_for(tmp_path: Path):
    policy = Policy.load("tiny")
    context = policy.base.config.max_position_embeddings
    options = vllm.vllm_options(small(tmp_path, max_length=10 * context), policy)
    assert options["max_model_len"] == context
    assert "max_model_len" not in vllm.vllm_options(small(tmp_path), policy)


def test_what_a_killed_process_has_left_is_removed_and_what_is_in_use_stays(tmp_path: Path):
    in_use = HandoverFolder(tmp_path, private=True)
    left = tmp_path / f"{PREFIX}left"
    left.mkdir()
    (left / ".lock").touch()
    (tmp_path / "other").mkdir()
    target = tmp_path / "target"
    target.mkdir()
    (target / ".lock").touch()
    (tmp_path / f"{PREFIX}link").symlink_to(target)
    another = HandoverFolder(tmp_path, private=False)
    assert in_use.path.exists() and another.path.exists() and not left.exists()
    assert (tmp_path / "other").exists() and (target / ".lock").exists(), "a link is not followed"
    assert in_use.path != another.path
