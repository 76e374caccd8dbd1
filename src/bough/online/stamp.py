"""What a batch of rollouts depends on: the settings it was played with and the weights that sampled it.

A run that resumes learns from a batch on file only if both are still the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from torch import nn

from bough.config.cluster import ClusterConfig
from bough.config.online import WatchConfig
from bough.config.parts import leaves
from bough.config.training import CheckpointsConfig, MachineConfig, OptimizerConfig, TrackingConfig
from bough.digest import text_digest
from bough.methods.distill import OnlineConfig
from bough.policy.weights_digest import weights_digest

# Settings that decide how a batch is trained on, but not what is in it.
FREE = {
    *("output_dir", "resume", "overwrite", *leaves(CheckpointsConfig), *leaves(TrackingConfig)),
    *leaves(OptimizerConfig).keys() - {"batch_size", "gradient_accumulation_steps"},
    *leaves(MachineConfig).keys() - {"bf16", "fp16"},
    *leaves(WatchConfig),
    *("adapter", "merge_lora", "lora_dropout"),  # the weights are compared themselves
    *("updates", "passes", "concurrency", "retries", *leaves(ClusterConfig), "learners"),
    *("clip_low", "clip_high", "dual_clip", "kl_coef", "importance_cap", "averaging", "constant_length"),
    *("entropy_coef", "entropy_floor"),
    *("teacher", "server_model", "key_variable", "beta", "base_url", "engine_options"),
}


class Stamp(NamedTuple):
    """Digests of settings and weights."""

    settings: str
    weights: str

    @property
    def number(self) -> int:
        """Both as one number, for a checkpoint to keep."""
        return int(_hash("/".join(self).encode())[:12], 16)


class Stamper:
    """Stamps for the batches of one run. Weights that are not trained are read once."""

    def __init__(self, config: OnlineConfig, model: nn.Module) -> None:
        self._model = model
        self.settings = settings_digest(config)
        self._frozen = weights_digest((n, w) for n, w in model.named_parameters() if not w.requires_grad)

    def stamp(self) -> Stamp:
        """The stamp of a batch that is sampled now."""
        trained = weights_digest((n, w) for n, w in self._model.named_parameters() if w.requires_grad)
        return Stamp(self.settings, _hash((self._frozen + trained).encode()))


def settings_digest(config: OnlineConfig) -> str:
    """A digest of the settings that matter for a batch; of a file that they name, what is in it."""
    values = {name: value for name, value in config.flat_dump().items() if name not in FREE}
    settings = leaves(type(config))
    files = {name: path for name in values if isinstance(path := settings[name].of(config), Path) and path.is_file()}
    values |= {name: _hash(path.read_bytes()) for name, path in files.items()}
    return _hash(json.dumps(values, sort_keys=True).encode())


def _hash(content: bytes) -> str:
    return text_digest(content, size=16)
