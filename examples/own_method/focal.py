"""Focal fine-tuning: a training method in a package of its own. `pip install ./own_method` adds `bough focal`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from bough.methods.base import training_command
from bough.methods.sft import SFT, SFTConfig, sft_loss


class FocalConfig(SFTConfig):
    """Focal fine-tuning: as SFT, but the more certain the model is of a token, the less the token counts."""

    command = "focal"

    focus: float = Field(2.0, ge=0, description="how fast a token's weight falls with its probability; 0: as in SFT")


class Focal(SFT):
    """The negative log-likelihood, weighted by (1 - p) to the power of `focus`."""

    config: FocalConfig

    def loss(self, parts: Sequence[Any], logprobs: Sequence[Sequence[Any]], reference: Any, denominator: float) -> Any:
        import torch

        logprobs_N = torch.cat([of_part[0] for of_part in logprobs])
        weights_N = (1 - logprobs_N.detach().exp()) ** self.config.focus
        return sft_loss(logprobs_N, weights_N, denominator=denominator)


COMMANDS = {
    "focal": training_command(
        FocalConfig,
        Focal,
        reads="demonstrations",
        examples="  bough focal --train-file sft.jsonl --model smollm2 --focus 1",
        essential=("focus",),
    )
}
