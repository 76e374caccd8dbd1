"""The reference's log-probabilities: computed beside the policy's, or once and kept on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bough.training.policy import Policy
from bough.training.processes import Processes
from bough.trees.pack import PlainRow, TreeRow
from bough.types import Call


class Reference:
    """Gives the reference's log-probabilities of the calls in rows.

    Where they were computed beforehand they are looked up by the call object itself;
    elsewhere the rows go once more through the model with the reference in place of the policy.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._known: dict[int, Tensor] = {}

    def of(self, rows: Sequence[TreeRow | PlainRow], calls: Sequence[Call]) -> list[list[Tensor]]:
        """For each row one tensor for each of its calls, in the row's order, without gradient."""
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

        The file's name is a digest of `name` (which model, which adapter) and of all tokens.
        Each process computes its share. `start` loads the policy as the run began, for where
        the one here has been trained and holds nothing that has not.
        """
        processes = Processes()
        path = cache / f"reference-{_digest(calls, f'{name}|{self.policy.temperature}')}.safetensors"
        if processes.sum(path.exists()) == processes.count:
            values = load_file(path)["logprobs"]
        else:
            policy = start() if start else self.policy
            found = _logprobs(policy, processes.share(calls), budget)
            values = torch.cat([torch.empty(0), *processes.gather(found)])
            if processes.first:
                cache.mkdir(parents=True, exist_ok=True)
                draft = path.with_suffix(".draft")
                save_file({"logprobs": values}, draft)
                draft.rename(path)
            processes.wait()
        pieces = torch.split(values.to(self.policy.device), [len(call.completion_ids) for call in calls])
        self._known = {id(call): piece for call, piece in zip(calls, pieces, strict=True)}


def _logprobs(policy: Policy, calls: Sequence[Call], budget: int) -> list[Tensor]:
    # Where all weights are trained, the policy is its own reference as long as it has not been.
    as_reference = policy.reference() if hasattr(policy.model, "peft_config") else nullcontext()
    with torch.no_grad(), _evaluating(policy), as_reference:
        return [logprobs.cpu() for logprobs in policy.logprobs(calls, budget=budget)]


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
