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

from bough.training.policy import Answers, Policy
from bough.trees.pack import PlainRow, TreeRow
from bough.types import Call


class Reference:
    """Gives the reference's log-probabilities of a row's calls.

    Where they were computed beforehand they are looked up by the call object itself;
    elsewhere the row goes once more through the model with the reference in place of the policy.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._known: dict[int, Tensor] = {}

    def of(self, row: TreeRow | PlainRow, calls: Sequence[Call]) -> list[Tensor]:
        """One tensor for each call of the row, in the row's order, without gradient."""
        if self._known:
            return [self._known[id(calls[c])] for c in row.calls]
        with torch.no_grad(), _evaluating(self.policy), self.policy.reference():
            answers: Answers = self.policy(row)
            return answers.logprobs

    def compute(
        self, calls: Sequence[Call], budget: int, cache: Path, name: str, tell: Callable[[int], None] = lambda _: None
    ) -> None:
        """Computes them for all calls now, or reads them from `cache` if they are there.

        The file's name is a digest of `name` (which model, which adapter) and of all tokens.
        """
        path = cache / f"reference-{_digest(calls, name)}.safetensors"
        if path.exists():
            values = load_file(path)["logprobs"].to(self.policy.device)
        else:
            values = torch.cat(self._compute(calls, budget, tell)) if calls else torch.empty(0)
            cache.mkdir(parents=True, exist_ok=True)
            draft = path.with_suffix(".draft")
            save_file({"logprobs": values.cpu()}, draft)
            draft.rename(path)
        pieces = torch.split(values, [len(call.completion_ids) for call in calls])
        self._known = {id(call): piece for call, piece in zip(calls, pieces, strict=True)}

    def _compute(self, calls: Sequence[Call], budget: int, tell: Callable[[int], None]) -> list[Tensor]:
        found: list[Tensor] = [torch.empty(0, device=self.policy.device)] * len(calls)
        # Where all weights are trained, the policy is its own reference as long as it has not been.
        as_reference = self.policy.reference() if hasattr(self.policy.model, "peft_config") else nullcontext()
        with torch.no_grad(), _evaluating(self.policy), as_reference:
            for row in self.policy.rows(calls, budget=budget):
                for c, logprobs in zip(row.calls, self.policy(row).logprobs, strict=True):
                    found[c] = logprobs
                tell(len(row.calls))
        return found


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
