"""The reference's log-probabilities: computed in each step, or once and kept on disk."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bough.errors import BoughError
from bough.files import replacing
from bough.policy.policy import Attention, Policy
from bough.policy.processes import Processes
from bough.trees.build import PlainRow, TreeRow
from bough.types import Call

log = logging.getLogger(__name__)


class ReferenceLogprobs(Protocol):
    """Gives log-probabilities that the policy's are compared with."""

    def of(self, rows: Sequence[TreeRow | PlainRow], calls: Sequence[Call]) -> list[list[Tensor]]:
        """For each row one tensor for each of its calls, in the row's order, without gradient."""


class Reference:
    """Gives the reference's log-probabilities of the calls in rows.

    Where they were computed in advance they are looked up by the call object itself;
    elsewhere the rows go through the model again with the reference in place of the policy.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._known: dict[int, Tensor] = {}

    def of(self, rows: Sequence[TreeRow | PlainRow], calls: Sequence[Call]) -> list[list[Tensor]]:
        if self._known:
            return [[self._known[id(calls[c])] for c in row.calls] for row in rows]
        with torch.no_grad(), _evaluating(self.policy), self.policy.reference():
            return [answers.logprobs for answers in self.policy.answers(rows)]

    def compute(
        self,
        calls: Sequence[Call],
        budget: int,
        cache: Path,
        name: str,
        *,
        start: Callable[[], Policy] | None = None,
    ) -> None:
        """Computes them for all calls now, or reads them from `cache` if they are there.

        The file's name is a digest of `name` and of all tokens; `name` says which weights they
        are of and what else they depend on. A file that is damaged is written again. Each
        process computes its share. `start` loads the policy as the run began, for where the
        one here has been trained and contains nothing that has not.
        """
        processes = Processes()
        path = cache / f"reference-{_digest(calls, f'{name}|{self.policy.temperature}')}.safetensors"
        values = _read(path, sum(len(call.completion_ids) for call in calls))
        if processes.sum(values is not None) < processes.count:
            policy = start() if start else self.policy
            found = _logprobs(policy, processes.share(calls), budget)
            values = torch.cat([torch.empty(0), *processes.gather(found)])
            if processes.first:
                with replacing(path) as draft:
                    save_file({"logprobs": values}, draft)
            processes.wait()
        assert values is not None
        pieces = torch.split(values.to(self.policy.device), [len(call.completion_ids) for call in calls])
        self._known = {id(call): piece for call, piece in zip(calls, pieces, strict=True)}


def _read(path: Path, count: int) -> Tensor | None:
    """The `count` log-probabilities on file; None where there is no such file or it is damaged."""
    if not path.is_file():
        return None
    try:
        values = load_file(path)["logprobs"]
    except (OSError, ValueError, KeyError, SafetensorError):
        values = torch.empty(0)
    if values.shape == (count,) and values.dtype == torch.float32 and values.isfinite().all():
        return values
    log.warning("%s is damaged; its log-probabilities are computed again.", path)
    return None


def _logprobs(policy: Policy, calls: Sequence[Call], budget: int) -> list[Tensor]:
    """Those of all calls; where memory runs out, all are computed again with half the token budget."""
    longest = max((len(call.prompt_ids) + len(call.completion_ids) for call in calls), default=0)
    # Where all weights are trained, the policy is its own reference until the first step.
    as_reference = policy.reference if policy.has_adapter else nullcontext
    while True:
        try:
            with torch.no_grad(), _evaluating(policy), as_reference():
                return [logprobs.cpu() for logprobs in policy.logprobs(calls, budget=budget)]
        except torch.cuda.OutOfMemoryError as error:
            # Sharded, the other processes wait in the middle of a pass. A call is never cut, whatever the budget.
            if policy.sharded or budget <= longest:
                raise BoughError(
                    f"out of GPU memory while the reference's log-probabilities are computed, with token_budget "
                    f"{budget} and calls of up to {longest:,} tokens; try a smaller --max-length or --qlora"
                ) from error
        # Outside the handler: its exception keeps the tensors of the failed pass in memory.
        budget //= 2
        log.warning("Out of GPU memory: computing the reference again with token_budget %d.", budget)
        policy.row_reader.free_memory()


@contextmanager
def _evaluating(policy: Policy) -> Iterator[None]:
    """A reference has no dropout."""
    training = policy.training
    policy.eval()
    try:
        yield
    finally:
        policy.train(training)


def _digest(calls: Sequence[Call], name: str) -> str:
    hasher = hashlib.sha256(name.encode())
    for call in calls:
        hasher.update(np.array([len(call.prompt_ids), len(call.completion_ids)]).tobytes())
        hasher.update(np.array(call.prompt_ids + call.completion_ids).tobytes())
    return hasher.hexdigest()[:24]


# A second policy with weights of its own, to sample with while the first one trains.
# Weights that are not trained are in memory once: of an adapter's policy the twin copies the adapter only, of a
# policy that trains all its weights everything. The twin's weights change only in `renew`, so its log-probabilities
# are those of one version of the policy.


class Twin:
    """`policy` computes what `source` did at the last `renew`."""

    def __init__(self, source: Policy) -> None:
        frozen = [weight for weight in source.model.parameters() if not weight.requires_grad]
        # Parameters of their own in the same memory, so that `weight.data = …` on either leaves the other as it is.
        # Quantized weights are of a class of their own; these are never replaced.
        shared = {
            id(one): nn.Parameter(one.data, requires_grad=False) if type(one) is nn.Parameter else one for one in frozen
        }
        self._source = [weight for weight in source.model.parameters() if weight.requires_grad]
        attention: Attention = "flex" if source.row_reader.flex else "sdpa"
        # What is in `shared` is used as it is; all other weights are copied.
        self.policy = Policy(
            deepcopy(source.model, shared), attention=attention, autocast=source.autocast, probe=False
        ).eval()
        self.policy.row_reader.obstacle = source.obstacle
        self.policy.together, self.policy.temperature = source.together, source.temperature
        self._own = [weight for weight in self.policy.model.parameters() if weight.requires_grad]
        self.policy.requires_grad_(False)

    @property
    def num_bytes(self) -> int:
        """The memory of the copied weights."""
        return sum(weight.numel() * weight.element_size() for weight in self._own)

    @torch.no_grad()
    def renew(self) -> None:
        """Copies the newest weights, in place. The twin must not be computing, nor the source be in an update."""
        torch._foreach_copy_(self._own, self._source)
