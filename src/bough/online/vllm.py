"""vLLM as the sampler of online training: every version of the weights is handed to it.

In this process, weights go through a folder in memory (`/dev/shm`), not through a disk: the adapter
by vLLM's `add_lora`, all weights by its `reload_weights`. While the policy trains, vLLM is paused;
on a GPU it sleeps then and its memory is free. A server keeps sampling, and gets each adapter
through the run folder, which it must see too.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from bough.chat.template import ChatTemplate
from bough.config.groups import SamplingConfig
from bough.config.run_folder import RunDir
from bough.config.training import OnlineConfig
from bough.engines.base import EngineError
from bough.engines.vllm import LogprobsMode, VLLMEngine, VLLMServerEngine
from bough.errors import InputError
from bough.event_loop import BackgroundLoop
from bough.files import locked, remove
from bough.policy.adapters import ACTOR
from bough.policy.load import base_and_adapter, save_weights
from bough.policy.policy import Policy
from bough.policy.processes import unused_fraction
from bough.training.run import precision
from bough.types import Call, Message

log = logging.getLogger(__name__)

MEMORY = Path("/dev/shm")  # noqa: S108  a folder of our own is made in it
# Of the GPU memory that is free once the policy is loaded; the rest is for kernels and fragmentation.
GPU_SHARE = 0.9
# Bytes that each trained weight takes from the first step on: its gradient and two moments.
TRAINED_BYTES = 12
# Mean difference in nats per token. Rounding gives hundredths, another model gives several.
LARGEST_GAP = 0.5


class VLLMSampler:
    """Hands the policy's weights to an engine that has a copy of its own. `folder` is where they are written."""

    worker_losses = 0

    def __init__(
        self, engine: VLLMEngine | VLLMServerEngine, policy: Policy, loop: BackgroundLoop, folder: HandoverFolder
    ) -> None:
        self.tokens, self.policy = engine, policy
        self.overlaps = isinstance(engine, VLLMServerEngine)
        self._loop, self._folder = loop, folder

    def renew(self, name: str) -> None:
        if self.policy.device.type == "cuda":
            torch.cuda.empty_cache()  # what training has cached is the sampler's now
        weights = self.policy.weights()
        if not self.policy.has_adapter and self.policy.autocast:
            weights = {key: value.to(self.policy.autocast) for key, value in weights.items()}
        folder = self._folder.new(name)
        try:
            save_weights(self.policy, folder, weights)
        except Exception as error:  # a full disk; safetensors has errors of its own
            if folder.exists():
                remove(folder)
            raise EngineError(f"the new weights cannot be written to {folder.parent}: {error}") from error
        self._loop.run(self.tokens.renew(folder, name))

    def pause(self) -> None:
        self._loop.run(self.tokens.pause())

    async def close(self) -> None:
        await self.tokens.close()
        self._folder.close()

    def check(self, prompt_ids: list[int], temperature: float) -> None:
        """InputError unless the engine samples from the model in training, adapters aside."""
        sampling = SamplingConfig(temperature=temperature, max_new_tokens=8)
        drawn = self._loop.run(self.tokens.generate("check", prompt_ids, sampling=sampling, seed=0, stop_ids=[]))
        with torch.no_grad():
            call = Call(prompt_ids=prompt_ids, completion_ids=drawn.completion_ids, temperature=temperature)
            (ours,) = self.policy.logprobs([call])
        gap = float((ours.cpu() - torch.tensor(drawn.logprobs)).abs().mean())
        if not gap <= LARGEST_GAP:
            raise InputError(
                f"vLLM samples from another model than the one in training: its log-probabilities differ by {gap:.2g} "
                "nats per token on average"
            )


def open_vllm(config: OnlineConfig, policy: Policy, template: ChatTemplate, loop: BackgroundLoop) -> VLLMSampler:
    """Starts vLLM, or finds the server, and checks that it samples from the policy's model."""
    mode: LogprobsMode = "raw_logprobs" if config.sampling.temperature == 1 else "processed_logprobs"
    engine: VLLMEngine | VLLMServerEngine
    if config.sampled_by.base_url is not None:
        key = config.sampled_by.key_variable
        engine = loop.run(VLLMServerEngine.load(config.sampled_by.base_url, key_variable=key, logprobs_mode=mode))
        folder = HandoverFolder(RunDir(config.output_dir).cache, private=False)
    else:
        log.warning("Starting vLLM; this takes a minute or two.")
        name, rank = base_and_adapter(config.model)[0], _rank(policy)
        engine = loop.run(VLLMEngine.load(name, lora_rank=rank, logprobs_mode=mode, **vllm_options(config, policy)))
        folder = HandoverFolder(_memory(policy), private=True)
    sampler = VLLMSampler(engine, policy, loop, folder)
    try:
        loop.run(engine.pause())
        training = policy.training
        policy.eval()
        sampler.renew("start")
        prompt = template.encode_prompt(template.prompt([Message(role="user", content="Hello!")], []))
        sampler.check(prompt, config.sampling.temperature)
        sampler.pause()  # a run that resumes may train first
        policy.train(training)
    except BaseException:
        loop.run(sampler.close())
        raise
    return sampler


def vllm_options(config: OnlineConfig, policy: Policy) -> dict[str, Any]:
    """Engine arguments for vLLM beside a policy in training; the user's own come last."""
    dtype = precision(config, policy.device) or torch.float32
    if policy.device.type == "cuda" and policy.has_adapter and dtype == torch.float32:
        log.warning("vLLM samples in bfloat16: it has no adapters in float32 on a GPU.")
        dtype = torch.bfloat16
    options: dict[str, Any] = {
        "max_num_seqs": config.rollouts.concurrency,
        "dtype": str(dtype).removeprefix("torch."),
    }
    if config.calls.max_length:
        context = getattr(policy.base.config.get_text_config(), "max_position_embeddings", config.calls.max_length)
        options["max_model_len"] = min(config.calls.max_length, context)
    if policy.device.type == "cuda":
        torch.cuda.empty_cache()
        trained = sum(weight.numel() for weight in policy.parameters() if weight.requires_grad)
        share = GPU_SHARE * unused_fraction(policy.device, keep=trained * TRAINED_BYTES)
        options |= {"enable_sleep_mode": True, "gpu_memory_utilization": round(max(0.05, share), 3)}
    return options | config.sampled_by.options


def _rank(policy: Policy) -> int:
    if not policy.has_adapter:
        return 0
    adapter = policy.model.peft_config[ACTOR]
    return max(int(rank) for rank in (adapter.r, *adapter.rank_pattern.values()))


def _memory(policy: Policy) -> Path:
    """A folder in memory with room for two versions of the weights; else one on disk."""
    needed = 2 * sum(weight.numel() * weight.element_size() for weight in policy.weights().values())
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > needed:
        return MEMORY
    folder = Path(tempfile.gettempdir())
    log.warning("New weights go to vLLM through %s: /dev/shm has no room for %.1f GB.", folder, needed / 1e9)
    return folder


# A folder for weights on their way to a sampler.
# While its process lives it is locked, so the next process can tell what a killed one has left: in memory, a model
# that is never deleted would cost its size until the machine restarts.

PREFIX = "bough-weights-"
LOCK = ".lock"


class HandoverFolder:
    """A new folder in `parent`, deleted by `close`. With `private`, other users cannot read it."""

    def __init__(self, parent: Path, *, private: bool) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        remove_left(parent)
        name = f"{PREFIX}{uuid.uuid4().hex}"
        # Under a name that no other process looks for until it is locked.
        draft, self.path = parent / f".{name}", parent / name
        draft.mkdir(mode=0o700 if private else 0o777)
        self._held = ExitStack()
        self._held.enter_context(locked(draft / LOCK, wait=False))
        draft.rename(self.path)

    def new(self, name: str) -> Path:
        """A folder inside that does not exist yet."""
        return self.path / f"{name}-{uuid.uuid4().hex[:8]}"

    def close(self) -> None:
        if self.path.exists():
            remove(self.path)
        self._held.close()


def remove_left(parent: Path) -> None:
    """Removes the folders of processes that were killed."""
    for folder in parent.glob(f"{PREFIX}*"):
        try:
            if folder.is_symlink() or not (folder / LOCK).is_file():
                continue
            with locked(folder / LOCK, wait=False):
                remove(folder)
        except OSError:  # in use, or another user's
            continue
