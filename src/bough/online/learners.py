"""Where an online run trains: in the processes that exist already, or in learners that a cluster starts."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from bough.errors import InputError
from bough.methods.distill import DistillConfig
from bough.methods.grpo import GRPOConfig
from bough.training.run import Trained

C = TypeVar("C", GRPOConfig, DistillConfig)


def with_learners(config: C, train: Callable[[C], Trained]) -> Trained:
    """`train(config)` here, or in each of several learners on the cluster of the settings."""
    if config.cluster.learners == 1:
        return train(config)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError("--learners starts the processes that train; leave out accelerate launch or torchrun")
    from bough.cluster.learners import train_with_learners

    return train_with_learners(config, config.cluster, train)
