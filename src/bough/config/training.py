"""Settings that all training stages have in common.

Names follow those of the tools our users come from where they mean the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import AliasChoices, Field, model_validator

from bough.config.base import Config
from bough.config.calls import CallsConfig
from bough.config.online import OnlineConfig

# Settings that need eval_file, and those that have no effect with an environment.
OF_HELD_OUT = ("eval_steps", "early_stopping_patience", "save_best_model")
OF_FILES = ("eval_file", *OF_HELD_OUT, "curriculum", "precompute_reference")


class TrainingDataConfig(Config):
    """What is trained on."""

    train_file: Path = Field(description="the data: any format that `bough data formats` lists, or a folder of shards")
    eval_file: Path | None = Field(None, description="held-out data; its loss is measured during training")
    format: str = Field("auto", description="the files' format")
    on_error: Literal["stop", "skip"] = Field(
        "stop", description="bad rows: stop lists them all before training, skip drops them"
    )


class AdapterConfig(Config):
    """Which weights are trained."""

    use_lora: bool = Field(True, description="train a LoRA adapter; without it, all weights")
    lora_r: int = Field(16, ge=1, description="rank of the adapter")
    lora_alpha: int = Field(32, ge=1, description="scale of the adapter: alpha / r")
    lora_dropout: float = Field(0.0, ge=0, lt=1, description="dropout on the input of the adapter")
    lora_target_modules: list[str] = Field(
        ["all-linear"],
        description="names of the layers that get an adapter; all-linear: every linear layer but the head",
    )
    adapter: Path | None = Field(
        None, description="an adapter to start from, such as the previous stage's; it is also the reference"
    )
    merge_lora: bool = Field(
        False,
        description="if the start adapter has another rank or other layers: grow it to fit without changing its output",
    )
    qlora: bool = Field(False, description="keep the base model in 4 bits (needs CUDA and bough[qlora])")


class OptimizerConfig(Config):
    """How the weights are changed."""

    learning_rate: float = Field(
        2e-5, gt=0, description="peak learning rate", validation_alias=AliasChoices("learning_rate", "lr")
    )
    lr_scheduler: Literal["cosine", "linear", "constant"] = Field(
        "cosine", description="decay of the learning rate after warm-up"
    )
    warmup_ratio: float = Field(0.1, ge=0, le=1, description="share of all steps in which the learning rate rises")
    optimizer: Literal["adamw", "adamw_8bit", "paged_adamw_8bit"] = Field(
        "adamw", description="optimizer; the 8-bit ones need CUDA and bough[qlora]"
    )
    weight_decay: float = Field(0.01, ge=0, description="weight decay, except for norms and biases")
    max_grad_norm: float = Field(1.0, gt=0, description="clip the gradient norm to this value")
    num_epochs: float = Field(3, gt=0, description="number of passes over the data")
    max_steps: int | None = Field(None, ge=1, description="stop after this many steps, whatever num_epochs says")
    batch_size: int = Field(4, ge=1, description="records per step (times gradient_accumulation_steps)")
    gradient_accumulation_steps: int = Field(
        1, ge=1, description="multiplies batch_size; memory use depends on token_budget alone"
    )
    seed: int = Field(42, ge=0, description="random seed of the data's order and of dropout")


class MachineConfig(Config):
    """How the computation fits the machine."""

    token_budget: int = Field(8192, ge=128, description="tokens per forward pass, shared tokens counted once")
    bf16: bool | None = Field(None, description="compute in bfloat16 (default: yes on a GPU, no on a CPU)")
    fp16: bool = Field(
        False, description="compute in float16, for GPUs without bfloat16; steps that overflow are skipped"
    )
    shard: bool = Field(False, description="shard the weights over the processes of accelerate launch (FSDP2)")
    gradient_checkpointing: bool = Field(False, description="recompute activations instead of keeping them")
    attention: Literal["auto", "flex", "sdpa"] = Field("auto", description="attention kernel for token trees")
    compile: bool = Field(
        False, description="compile the layers (CUDA): takes a minute or two at the start, then a third faster"
    )
    share: bool = Field(True, description="compute shared tokens once; turn off only to measure the gain")


class KeepingConfig(Config):
    """What is kept, and when."""

    output_dir: Path = Field(Path("runs/latest"), description="the run folder")
    resume: bool = Field(False, description="resume from the newest checkpoint in the run folder")
    overwrite: bool = Field(False, description="delete the run that is in the run folder")
    logging_steps: int = Field(1, ge=1, description="steps between lines of metrics")
    save_steps: int = Field(100, ge=1, description="steps between checkpoints")
    save_total_limit: int = Field(2, ge=1, description="number of checkpoints to keep")
    eval_steps: int | None = Field(
        None, ge=1, description="steps between evaluations on eval_file (default: one epoch)"
    )
    early_stopping_patience: int | None = Field(
        None, ge=1, description="stop when eval loss has not fallen this many times in a row"
    )
    save_best_model: bool = Field(False, description="keep the weights with the lowest eval loss in best/")
    report_to: list[Literal["mlflow", "wandb", "tensorboard"]] = Field(
        [], description="trackers to use in addition to metrics.jsonl"
    )
    wandb_project: str | None = Field(None, description="W&B project and MLflow experiment")


class CurriculumConfig(Config):
    """In which order."""

    curriculum: bool = Field(False, description="start with easy records: short and highly rewarded")
    curriculum_start_ratio: float = Field(
        0.3, gt=0, le=1, description="share of the data, easiest first, used in the first epoch"
    )
    curriculum_success: float | None = Field(
        None,
        ge=0,
        le=1,
        description="adaptive: add data only after an epoch with at least this success (accuracy on pairs; "
        "otherwise the share of tokens that are the model's own first choice)",
    )
    curriculum_warmup_epochs: int = Field(1, ge=1, description="epochs until all of the data is used")


class KnowlyrConfig(Config):
    """Settings of knowlyr-trainer that are always on in Bough."""

    agent_format: Literal[True] = Field(
        True, description="replies are always separate turns", json_schema_extra={"hidden": True}
    )
    mask_observations: Literal[True] = Field(
        True, description="only replies are ever trained", json_schema_extra={"hidden": True}
    )
    chunk_long_trajectories: Literal[True] = Field(
        True, description="long prompts always lose their oldest steps", json_schema_extra={"hidden": True}
    )


class TrainingConfig(
    KnowlyrConfig,
    CurriculumConfig,
    KeepingConfig,
    MachineConfig,
    OptimizerConfig,
    AdapterConfig,
    CallsConfig,
    TrainingDataConfig,
):
    """Settings of every training stage."""

    @model_validator(mode="after")
    def _nothing_in_vain(self) -> Self:
        if problem := self._in_vain():
            raise ValueError(problem)
        return self

    def _in_vain(self) -> str | None:
        """Which settings would have no effect beside the others, and why."""
        given = [name for name in OF_HELD_OUT if getattr(self, name)]
        return f"{', '.join(given)} needs eval_file, the data to measure on" if given and not self.eval_file else None


class SFTConfig(TrainingConfig):
    """Supervised fine-tuning: the model learns to answer as the trajectories did."""

    step_weighted_loss: bool = Field(
        False,
        description="weight each reply by its step reward divided by the trajectory's mean (negative counts as 0)",
    )


class DPOConfig(TrainingConfig):
    """Direct preference optimisation: chosen becomes likelier than rejected, measured against a reference."""

    learning_rate: float = Field(
        5e-6, gt=0, description="peak learning rate", validation_alias=AliasChoices("learning_rate", "lr")
    )
    num_epochs: float = Field(1, gt=0, description="number of passes over the data")
    loss_type: Literal["sigmoid", "cdpo", "hinge", "ipo", "length_normalised", "simpo"] = Field(
        "sigmoid", description="the preference loss; simpo needs no reference"
    )
    beta: float = Field(0.1, gt=0, description="strength of the pull towards the reference")
    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="assumed share of pairs that are the wrong way round")
    nll_alpha: float = Field(0.0, ge=0, description="weight of the chosen side's negative log-likelihood")
    gamma: float = Field(0.0, ge=0, description="SimPO's target margin")
    precompute_reference: bool = Field(
        False, description="compute the reference's log-probabilities once before training and keep them on disk"
    )

    @model_validator(mode="after")
    def _settings_of_the_loss(self) -> Self:
        if self.label_smoothing and self.loss_type in ("hinge", "ipo"):
            raise ValueError(f"label_smoothing is not defined for the {self.loss_type} loss; leave it out")
        if self.loss_type == "cdpo" and not self.label_smoothing:
            raise ValueError("cdpo is DPO with label smoothing: give label_smoothing above 0, or loss_type sigmoid")
        if self.gamma and self.loss_type != "simpo":
            raise ValueError(f"gamma is SimPO's margin; the {self.loss_type} loss has none")
        return self


class GRPOConfig(TrainingConfig, OnlineConfig):  # type: ignore[misc]  # pydantic's plugin and two bases
    """Group-relative policy optimisation: on groups of attempts on file, or in a world that is played in meanwhile."""

    train_file: Path | None = Field(  # type: ignore[assignment]  # the others must have one
        None, description="groups on file; or give --environment to play for them"
    )

    learning_rate: float = Field(
        1e-6, gt=0, description="peak learning rate", validation_alias=AliasChoices("learning_rate", "lr")
    )
    num_epochs: float = Field(1, gt=0, description="number of passes over the data")
    reward: str | None = Field(
        None,
        description="the reward to compare by (default: the total, the only one there is, or the outcome)",
    )
    normalise: bool = Field(True, description="divide advantages by the group's standard deviation (off: Dr. GRPO)")
    advantage: Literal["attempt", "step", "turn"] = Field(
        "attempt", description="one advantage an attempt, spread over its steps by their rewards, or one a turn"
    )
    step_formula: Literal["bounded", "seed"] = Field(
        "bounded",
        description="how steps share: bounded never punishes a better step more; seed is A · r / mean(r) to the letter",
    )
    step_level_advantage: bool = Field(
        False, description="the same as --advantage step", json_schema_extra={"hidden": True}
    )
    averaging: Literal["token_mean", "sequence_mean", "constant_length"] = Field(
        "token_mean", description="how tokens average"
    )
    constant_length: int | None = Field(None, ge=1, description="the length that constant_length divides by")
    clip_low: float = Field(0.2, ge=0, le=1, description="how far a ratio may fall below 1")
    clip_high: float = Field(0.28, ge=0, description="how far a ratio may rise above 1")
    dual_clip: float | None = Field(
        None, gt=1, description="bound of ratios where the advantage is negative (DAPO: 10)"
    )
    kl_coef: float = Field(0.0, ge=0, description="weight of the KL divergence from the reference")
    importance_cap: float = Field(2.0, gt=0, description="bound of the correction between sampler and trainer")
    precompute_reference: bool = Field(
        False,
        description="compute the log-probabilities before the update once, before training, and keep them on disk",
    )

    def _in_vain(self) -> str | None:
        if self.environment is None:
            return super()._in_vain()
        given = [name for name in OF_FILES if getattr(self, name)]
        if given:
            return f"{', '.join(given)} does not go with environment: that is for data on file"
        default = type(self).model_fields["watch_kl"].default
        if not self.use_lora and self.watch_kl != default:
            return "watch_kl needs use_lora: of all weights no start policy is kept to measure a divergence from"
        return None

    @model_validator(mode="after")
    def _a_file_or_a_world(self) -> Self:
        if (self.train_file is None) == (self.environment is None):
            raise ValueError("groups come from train_file or from an environment: give one of them")
        if self.environment is not None and self.max_steps is None:
            raise ValueError("max_steps is required with environment: a world has no end of its own")
        if self.eval_every and self.task_file is not None and self.eval_task_file is None:
            raise ValueError("eval_every with task_file needs eval_task_file: held-out tasks are not learnt from")
        if self.eval_task_file is not None and self.eval_task_file == self.task_file:
            raise ValueError("eval_task_file is task_file: held-out tasks are not learnt from")
        return self

    @model_validator(mode="after")
    def _settings_of_the_loss(self) -> Self:
        if self.averaging == "constant_length" and self.constant_length is None:
            raise ValueError("averaging constant_length needs constant_length, the length to divide by")
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise ValueError(f"dual_clip bounds ratios beyond the clip range, so above {1 + self.clip_high:g}")
        return self
