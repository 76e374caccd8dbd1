"""TRL as a contender: its own trainers, watched from a callback.

The trainers get token ids in the columns they make themselves when they tokenise, so both
sides train on the same ids; their collators, padding, packing, losses and loops are theirs.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from typing import Any

import torch
from measure import Gauge, now
from ours import LEARNING_RATE, MAX_GRADIENT_NORM

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def settings(batch: int, accumulation: int, steps: int, *, checkpointing: bool) -> dict[str, Any]:
    """What TRL's configs are told: the same precision, optimizer and clipping as ours; data in the order given."""
    cuda = torch.cuda.is_available()
    return {
        "output_dir": tempfile.mkdtemp(),
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": accumulation,
        "max_steps": steps,
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_grad_norm": MAX_GRADIENT_NORM,
        "bf16": cuda,
        "use_cpu": not cuda,
        "gradient_checkpointing": checkpointing,
        "train_sampling_strategy": "sequential",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def lora_config(rank: int, alpha: int) -> Any:
    from peft import LoraConfig

    return LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")


def tokenizer() -> Any:
    """The trainers ask for one; of ours they need only the padding."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


@dataclass
class Watch:
    """When each micro-batch ended, and what was logged after each optimizer step."""

    ends: list[float] = field(default_factory=list)
    gauges: list[Gauge] = field(default_factory=list)

    def seconds(self, skip: int) -> float:
        """How long the micro-batches after the first `skip` took."""
        return self.ends[-1] - self.ends[skip - 1]


def run(trainer: Any) -> Watch:
    """Train, and see how long it takes."""
    from transformers import PrinterCallback, TrainerCallback

    watch = Watch()

    class Callback(TrainerCallback):
        def on_substep_end(self, *_: Any, **__: Any) -> None:
            watch.ends.append(now())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            watch.ends.append(now())

        def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
            if "grad_norm" in logs:
                watch.gauges.append(Gauge(logs["loss"], logs["grad_norm"]))

    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Callback())
    trainer.train()
    return watch
