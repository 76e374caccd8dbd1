"""Every method by its settings: on data or, for GRPO and distillation, in an environment."""

from __future__ import annotations

from bough.methods.base import Data
from bough.methods.distill import DistillConfig
from bough.methods.dpo import DPO, DPOConfig
from bough.methods.grpo import GRPO, GRPOConfig
from bough.methods.kto import KTO
from bough.methods.sft import SFT, SFTConfig
from bough.training.run import Trained, train


def sft(config: SFTConfig, data: Data | None = None, held_out: Data | None = None) -> Trained:
    """Supervised fine-tuning on trajectories: those of the settings' files, or the data given here."""
    return train(config, SFT(config), data, held_out)


def dpo(config: DPOConfig, data: Data | None = None, held_out: Data | None = None) -> Trained:
    """Preference optimisation on pairs, or with KTO on single trajectories: of the settings' files, or given here."""
    return train(config, KTO(config) if config.loss_type == "kto" else DPO(config), data, held_out)


def grpo(config: GRPOConfig, data: Data | None = None, held_out: Data | None = None) -> Trained:
    """Group-relative policy optimisation on groups: given here, on file, or played in the settings' environment."""
    if config.environment.name is not None:
        from bough.online.grpo import train_online

        return train_online(config)
    return train(config, GRPO(config), data, held_out)


def distill(config: DistillConfig, data: Data | None = None, held_out: Data | None = None) -> Trained:
    """Distillation from a teacher on episodes: given here, on file, or played in the settings' environment."""
    from bough.online.distill import distill as train_student

    return train_student(config, data, held_out)
