"""Reading rows on a GPU as CUDA graphs: forward and backward are recorded once for each length.

A small model's layer is a hundred kernels of a few microseconds each, and Python needs longer to start
them than the GPU to run them. Played back, a row is two launches. Rows are padded so that few lengths
occur; a length is recorded when it comes up for the second time, if the GPU has the memory for it: a
recording's activations lie beside those of rows that are not recorded. Passes without gradient, of the
policy or of its reference, are recorded too. A row that cannot be recorded is read as it is: the same
kernels with the same padding, only slower.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bough.errors import BoughError, first_line
from bough.policy.processes import unused_bytes
from bough.trees.attend import BLOCK

log = logging.getLogger(__name__)

WARM_UP = 2  # kernels choose their ways, and libraries take their memory, before anything is recorded
PER_DOUBLING = 16  # lengths between one power of two and the next: at most a sixteenth of a long row is padding
ROOM = 1.25  # memory of a recording, in what its forward pass keeps: backward passes need some of their own

# Reads nodes (token, position, end), all [L], and returns their hidden states [L, D].
Read = Callable[[Tensor, Tensor, Tensor], Tensor]


def padded(length: int, *, few: bool) -> int:
    """The length that a row is filled up to: whole blocks, and one of `few` lengths where they are recorded.

    One block alone would be compiled for by itself, as any size of one is.
    """
    step = (1 << (length - 1).bit_length()) // 2 // PER_DOUBLING if few else BLOCK
    step = max(BLOCK, step)
    return max(2 * BLOCK, -(-length // step) * step)


def uses_dropout(model: nn.Module) -> bool:
    """Whether training draws random numbers: a graph would play the same ones back."""
    kept = (getattr(module, "p", 0.0) for module in model.modules() if isinstance(module, nn.Dropout))
    own = (getattr(module, "attention_dropout", None) or 0.0 for module in model.modules())
    return any(share > 0 for share in kept) or any(isinstance(share, float) and share > 0 for share in own)


@dataclass
class Recording:
    """The graphs of a length, and the tensors that they read and write; `backward` only of passes with gradient."""

    inputs: tuple[Tensor, Tensor, Tensor]
    forward: torch.cuda.CUDAGraph
    hidden_LD: Tensor
    backward: torch.cuda.CUDAGraph | None = None
    grad_LD: Tensor | None = None


class RecordedReads:
    """Plays `read` back, and adds its gradient to that of `weights`.

    The graphs share their memory, so a row's backward pass must come before the next row is read.
    """

    def __init__(self, read: Read, weights: Iterable[nn.Parameter]) -> None:
        self.read, self.limit = read, sys.maxsize
        self.weights = [weight for weight in weights if weight.requires_grad]
        self.num_read = 0
        self.recordings: dict[tuple[Any, ...], Recording] = {}
        self._seen: Counter[tuple[Any, ...]] = Counter()
        self._pool: Any = None
        self._pool_bytes = 0
        self._stream: torch.cuda.Stream | None = None
        # One gradient of all weights, which every backward graph overwrites.
        self._slopes: list[Tensor] = []
        self._used: list[nn.Parameter] = []
        self._warned = False
        self._anchor = torch.zeros((), requires_grad=True)

    def __call__(self, token_L: Tensor, position_L: Tensor, end_L: Tensor, who: str) -> Tensor:
        """Hidden states [L, D], to be used before the next row is read. L is one of the lengths of `padded`.

        `who` reads, the policy or its reference: each has recordings of its own.
        """
        inputs, key = (token_L, position_L, end_L), (len(token_L), who, torch.is_grad_enabled())
        self.num_read += 1
        self._seen[key] += 1
        if key not in self.recordings and self._seen[key] > 1 and len(token_L) <= self.limit:
            self._record(key, inputs)
        recording = self.recordings.get(key)
        if recording is None:
            return self.read(*inputs)
        torch._foreach_copy_(recording.inputs, inputs)
        hidden_LD: Tensor = _Replay.apply(self._anchor, self, recording)  # type: ignore[no-untyped-call]
        return hidden_LD

    def drop(self) -> None:
        """Frees the memory of all recordings; lengths that come up again are recorded again."""
        self.recordings.clear()
        self._slopes, self._used, self._pool, self._pool_bytes = [], [], None, 0

    def _record(self, key: tuple[Any, ...], inputs: tuple[Tensor, Tensor, Tensor]) -> None:
        """Records a length. Where there is no memory, it and longer ones are read without a recording from now on.

        After any other failure nothing is recorded any more.
        """
        length, ran_out, failure = key[0], False, ""
        stream = torch.cuda.current_stream() if inputs[0].is_cuda else None
        generator = torch.cuda.default_generators[stream.device_index] if stream else None
        randomness = generator.clone_state() if generator else None
        try:
            static = (inputs[0].clone(), inputs[1].clone(), inputs[2].clone())
            if self._fits(static):
                self.recordings[key] = self._recorded(static)
        except torch.cuda.OutOfMemoryError:
            ran_out = True  # the recording was ended in order, or another error would have come out of that
        except RuntimeError as error:
            failure = first_line(error)
        if key in self.recordings:
            return
        # Outside the handler: its exception keeps the tensors of the failed recording in memory.
        if failure:
            if stream and generator and randomness and self._pool:  # what a capture that fails leaves behind
                torch.cuda.set_stream(stream)
                generator.graphsafe_set_state(randomness)
                with suppress(RuntimeError):  # where the failure was outside of a capture
                    torch._C._cuda_endAllocateToPool(stream.device_index, self._pool)
                    torch._C._cuda_releasePool(stream.device_index, self._pool)
            log.warning("A row cannot be recorded as a CUDA graph (%s): continuing without CUDA graphs.", failure)
            self.limit = 0
        if ran_out or failure:
            self.drop()
            torch.cuda.empty_cache()
        if not failure:
            self._record_less(length - 1)

    def give_way(self) -> bool:
        """Frees all recordings, and from now on records rows up to half the longest; False if there were none."""
        if not self.recordings:
            return False
        limit = max(key[0] for key in self.recordings) // 2
        self.drop()
        self._record_less(limit)
        return True

    def _record_less(self, limit: int) -> None:
        self.limit = limit
        if not self._warned:
            log.warning("Out of GPU memory: rows of more than %d tokens run without CUDA graphs from now on.", limit)
        self._warned = True

    def _fits(self, static: tuple[Tensor, Tensor, Tensor]) -> bool:
        """Computes a row as it will be recorded; whether there is memory for the recording."""
        self._stream = stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            needed = max(self._warm_up(static) for _ in range(WARM_UP))
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.empty_cache()
        # The graphs' memory is theirs for good, and each of them uses all of it.
        if needed > self._pool_bytes + unused_bytes(static[0].device):
            return False
        self._pool_bytes = max(self._pool_bytes, needed)
        return True

    def _recorded(self, static: tuple[Tensor, Tensor, Tensor]) -> Recording:
        # Others may use the GPU meanwhile, from other threads.
        how: dict[str, Any] = {"stream": self._stream, "capture_error_mode": "thread_local"}
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        with torch.cuda.graph(forward, pool=self._pool, **how):
            hidden_LD = self.read(*static)
        if not torch.is_grad_enabled():
            return Recording(static, forward, hidden_LD)
        grad_LD = torch.zeros_like(hidden_LD)
        with torch.cuda.graph(backward, pool=self._pool, **how):
            torch._foreach_copy_(self._slopes, list(torch.autograd.grad(hidden_LD, self._used, grad_LD)))
        return Recording(static, forward, hidden_LD.detach(), backward, grad_LD)

    def _warm_up(self, inputs: tuple[Tensor, Tensor, Tensor]) -> int:
        """Computes the row as it will be recorded; about how many bytes that takes."""
        before = torch.cuda.memory_allocated()
        hidden_LD = self.read(*inputs)
        needed = int(ROOM * (torch.cuda.memory_allocated() - before))
        if not torch.is_grad_enabled():
            return needed
        grads = torch.autograd.grad(hidden_LD, self.weights, torch.zeros_like(hidden_LD), allow_unused=True)
        if not self._slopes:
            self._used = [weight for weight, grad in zip(self.weights, grads, strict=True) if grad is not None]
            self._slopes = [torch.zeros_like(weight) for weight in self._used]
        return needed

    def add_gradients(self) -> None:
        """Adds what the last backward graph found to the weights' gradients."""
        found = list(zip(self._used, self._slopes, strict=True))
        begun = [(weight.grad, slope) for weight, slope in found if weight.grad is not None]
        fresh = [(weight, slope) for weight, slope in found if weight.grad is None]
        if begun:
            torch._foreach_add_([grad for grad, _ in begun], [slope for _, slope in begun])
        if fresh:
            copies = torch._foreach_mul([slope for _, slope in fresh], 1.0)
            for (weight, _), copy in zip(fresh, copies, strict=True):
                weight.grad = copy


class _Replay(torch.autograd.Function):
    """The graphs of one length as a function of autograd; the weights' gradients are added by its backward pass."""

    @staticmethod
    def forward(ctx: Any, _anchor: Tensor, reads: RecordedReads, recording: Recording) -> Tensor:
        recording.forward.replay()
        ctx.reads, ctx.recording, ctx.number = reads, recording, reads.num_read
        return recording.hidden_LD.detach()

    @staticmethod
    def backward(ctx: Any, grad_LD: Tensor) -> tuple[None, None, None]:
        if ctx.number != ctx.reads.num_read:
            raise BoughError("a row was read before the backward pass of the row before: its memory is overwritten")
        ctx.recording.grad_LD.copy_(grad_LD)
        ctx.recording.backward.replay()
        ctx.reads.add_gradients()
        return None, None, None
