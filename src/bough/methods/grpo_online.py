"""Online GRPO: sample groups with the newest weights, learn from them, sample again."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from bough.errors import InputError
from bough.methods.grpo import GRPO, GRPOConfig
from bough.online.method import FlatKind, GroupExample
from bough.online.source import SharedSource, with_learners
from bough.training.run import Trained, opened

log = logging.getLogger(__name__)


class OnlineGRPO(GRPO):
    """GRPO on groups that the policy in training has just sampled; a reference is only needed for a divergence."""

    def __init__(self, config: GRPOConfig) -> None:
        super().__init__(config.model_copy(update={"reward": config.learnt_reward}))
        self.needs_reference = config.kl_coef > 0

    def see(self, values: dict[str, Any]) -> dict[str, float]:
        """Decides by a batch's numbers whether it gets the entropy bonus; returns the weight as a metric."""
        floor, coef = self.config.entropy_floor, self.config.entropy_coef
        if floor is None:
            return {}
        self.entropy_coef = coef if values.get("entropy", 0.0) < floor else 0.0
        return {"entropy_coef": self.entropy_coef}

    def old_logprobs(
        self,
        parts: Sequence[GroupExample],
        found: Sequence[Tensor],
        start: Tensor | None,  # noqa: ARG002  the reference did not sample these groups
    ) -> Tensor:
        """The policy's as it is now; where a batch has several updates, those computed before the first."""
        return torch.cat(
            [
                part.old_logprobs[0].to(now.device) if part.old_logprobs else now.detach()
                for part, now in zip(parts, found, strict=True)
            ]
        )

    def against_flat(self, kind: FlatKind) -> Iterator[str]:
        config, rollouts = self.config, self.config.rollouts
        temperatures, highest = config.sampling.temperatures, max(config.sampling.all_temperatures)
        if kind == "same":
            yield f"{'--temperatures' if temperatures else 'a --temperature'} above {highest:g}"
            if not temperatures:
                yield f"--temperatures {highest:g} {highest * 1.5:g}"
            if not config.entropy_coef:
                yield "--entropy-coef 0.001 from the start of training"
            return
        if kind == "succeeded":
            yield "harder tasks"
            if config.advantage not in ("state", "graph"):
                yield "--advantage state, which also compares the steps of attempts that all succeed"
            if not config.rewards:
                yield "--rewards with a part for shorter episodes, such as steps=0.5"
        else:
            yield "easier tasks"
            if rollouts.reset_file is None:
                yield "--reset-file with successful episodes, to start near the goal"
            if not config.rewards:
                yield "--rewards with a part for progress, such as progress=0.5"
            yield f"--group-size above {rollouts.group_size}"
        if rollouts.task_pool is None:
            yield "--task-pool, which draws tasks with mixed results more often"


def train_online(config: GRPOConfig) -> Trained:
    """Trains a policy in an environment, on batches of groups that it plays itself; with learners, in each of them."""
    return with_learners(config, learn_online)


def learn_online(config: GRPOConfig) -> Trained:
    """The same in this process, one of several or the only one."""
    with opened(config) as run:
        _check(run.config)
        run.begin()
        config = run.config
        # The start policy is kept in any case, to measure how far the policy has moved.
        method = OnlineGRPO(config)
        policy = run.load_policy(reference=True, temperature=method.temperature)
        with (
            SharedSource(run, method, policy, see=method.see) as source,
            run.trainer(policy, method, source) as trainer,
        ):
            counters = trainer.train(run.resumed)
            ledgers = source.ledgers(counters.step)
        return run.finish(counters, ledgers)


def _check(config: GRPOConfig) -> None:
    if config.kl_coef and not config.lora.enabled:
        raise InputError("--kl-coef with --environment needs an adapter: without --use-lora no start policy is kept")
    if config.watch and not config.lora.enabled:
        log.warning("--watch-kl is off: without --use-lora no start policy is kept to measure a divergence from.")
