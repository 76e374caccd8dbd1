"""Settings that all training methods share.

Names are those of other tools where they mean the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationInfo, ValidatorFunctionWrapHandler, field_validator, model_validator

from bough.config.base import Config, extra, leaves, named, setting
from bough.config.groups import (
    KEY_VARIABLE,
    MODEL,
    REWARD_TIMEOUT,
    REWARDS,
    CallsConfig,
    LimitsConfig,
    OnlineClusterConfig,
    OptionValues,
    PlayedTasksConfig,
    ReportConfig,
    RewardWeights,
    SamplingConfig,
)

# Settings that need eval_file, and those that have no effect with an environment.
OF_HELD_OUT = ("eval_steps", "early_stopping_patience", "save_best_model")
OF_FILES = ("eval_file", *OF_HELD_OUT, "curriculum")
# Tokens per forward pass where no GPU's memory decides.
BUDGET_ON_CPU = 8192


def learning_rate_field(lora: float, full: float) -> Any:
    """The learning rate of a method, with defaults for an adapter and for all weights."""
    shown_lora, shown_full = (f"{rate:.0e}".replace("e-0", "e-") for rate in (lora, full))
    return Field(
        None,
        gt=0,
        description=f"peak learning rate (default: {shown_lora} with LoRA, {shown_full} for all weights)",
        json_schema_extra={"lora": lora, "full": full},
    )


class TrainingDataConfig(Config):
    """Training data."""

    train_file: Path = Field(description="the data: any format that `bough data formats` lists, or a folder of shards")
    eval_file: Path | None = Field(None, description="held-out data; its loss is measured during training")
    format: str = Field("auto", description="the files' format")
    on_error: Literal["stop", "skip"] = Field(
        "stop", description="bad rows: stop lists them all before training, skip drops them"
    )


class LoraConfig(Config):
    """LoRA adapter."""

    enabled: bool = setting(True, flag="use_lora", description="train a LoRA adapter; without it, all weights")
    r: int = setting(16, flag="lora_r", ge=1, description="rank of the adapter")
    alpha: int = setting(32, flag="lora_alpha", ge=1, description="scale of the adapter: alpha / r")
    dropout: float = setting(0.0, flag="lora_dropout", ge=0, lt=1, description="dropout on the input of the adapter")
    target_modules: list[str] = setting(
        ["all-linear"],
        flag="lora_target_modules",
        description="names of the layers that get an adapter; all-linear: every linear layer but the head "
        "(of a vision-language model, those of its language model)",
    )
    experts: bool = setting(
        False, flag="lora_experts", description="give the experts of a mixture-of-experts model an adapter too"
    )
    adapter: Path | None = Field(
        None, description="an adapter to start from, such as the previous stage's; it is also the reference"
    )
    merge: bool = setting(
        False,
        flag="merge_lora",
        description="if the start adapter has another rank or other layers: grow it to fit without changing its output",
    )
    qlora: bool = Field(False, description="keep the base model in 4 bits (needs CUDA and bough[qlora])")


class OptimizerConfig(Config):
    """Optimizer and number of steps."""

    learning_rate: float = learning_rate_field(lora=2e-4, full=2e-5)
    lr_scheduler: Literal["cosine", "linear", "constant"] = Field(
        "cosine", description="decay of the learning rate after warm-up"
    )
    warmup_ratio: float = Field(0.1, ge=0, le=1, description="share of all steps in which the learning rate rises")
    name: Literal["adamw", "adamw_8bit", "paged_adamw_8bit"] = setting(
        "adamw", flag="optimizer", description="optimizer; the 8-bit ones need CUDA and bough[qlora]"
    )
    weight_decay: float = Field(0.01, ge=0, description="weight decay, except for norms and biases")
    max_grad_norm: float = Field(1.0, gt=0, description="clip the gradient norm to this value")
    router_aux_loss_coef: float | None = Field(
        None,
        ge=0,
        description="weight of the load-balancing loss of a mixture-of-experts model; 0 turns it off "
        "(default: what the model's config asks for)",
    )
    num_epochs: float = Field(3, gt=0, description="number of passes over the data")
    max_steps: int | None = Field(None, ge=1, description="stop after this many steps, whatever num_epochs says")
    batch_size: int = Field(4, ge=1, description="records per step; memory use depends on token_budget alone")

    @field_validator("learning_rate", mode="wrap")
    @classmethod
    def _left_open(cls, value: Any, check: ValidatorFunctionWrapHandler) -> Any:
        """None until the command knows what is trained."""
        return None if value is None else check(value)


class MachineConfig(Config):
    """Precision, memory and speed."""

    token_budget: int | None = Field(
        None,
        ge=128,
        description="tokens per forward pass, shared tokens counted once "
        f"(default: from the model and the free GPU memory; {BUDGET_ON_CPU} on a CPU)",
    )
    bf16: bool | None = Field(None, description="compute in bfloat16 (default: yes on a GPU, no on a CPU)")
    shard: bool = Field(False, description="shard the weights over the processes of accelerate launch (FSDP2)")
    gradient_checkpointing: bool = Field(False, description="recompute activations instead of keeping them")
    attention: Literal["auto", "flex", "sdpa"] = Field("auto", description="attention kernel for token trees")
    compile: bool | None = Field(
        None,
        description="compile the layers: takes a minute or two at the start, then a third faster "
        "(default: on a GPU, if the run is long enough to gain from it)",
    )
    cuda_graphs: bool | None = Field(
        None,
        description="record forward and backward passes as CUDA graphs: a step of a small model is several times "
        "faster (default: on a GPU, for models of up to 2B parameters that learn from files)",
    )
    share: bool = Field(True, description="compute shared tokens once; turn off only to measure the gain")

    @property
    def tokens_per_pass(self) -> int:
        """The token budget. A run chooses one before it begins if none is set (`training/plan.py`)."""
        return self.token_budget or BUDGET_ON_CPU


class CheckpointsConfig(Config):
    """Checkpoints and evaluation during training."""

    save_steps: int = Field(100, ge=1, description="steps between checkpoints")
    save_total_limit: int = Field(2, ge=1, description="number of checkpoints to keep")
    eval_steps: int | None = Field(
        None, ge=1, description="steps between evaluations on eval_file (default: one epoch)"
    )
    early_stopping_patience: int | None = Field(
        None, ge=1, description="stop when eval loss has not fallen this many times in a row"
    )
    save_best_model: bool = Field(False, description="keep the weights with the lowest eval loss in best/")


class TrackingConfig(Config):
    """Metrics and trackers."""

    logging_steps: int = Field(1, ge=1, description="steps between lines of metrics")
    report_to: list[Literal["mlflow", "wandb", "tensorboard"]] = Field(
        [], description="trackers to use in addition to metrics.jsonl"
    )
    wandb_project: str | None = Field(None, description="W&B project and MLflow experiment")


class CurriculumConfig(Config):
    """Curriculum."""

    enabled: bool = setting(False, flag="curriculum", description="start with easy records: short and highly rewarded")
    start_ratio: float = setting(
        0.3,
        flag="curriculum_start_ratio",
        gt=0,
        le=1,
        description="share of the data, easiest first, used in the first epoch",
    )
    warmup_epochs: int = setting(
        1, flag="curriculum_warmup_epochs", ge=1, description="epochs until all of the data is used"
    )


class TrainingConfig(ReportConfig):
    """The training run.

    These are the settings of every method; each adds its own.
    """

    model: str = Field("smollm2", description=MODEL)
    output_dir: Path = Field(Path("runs/latest"), description="the run folder")
    resume: bool = Field(False, description="resume from the newest checkpoint in the run folder")
    overwrite: bool = Field(False, description="delete the run that is in the run folder")
    seed: int = Field(42, ge=0, description="random seed of the data's order and of dropout")
    data: TrainingDataConfig
    calls: CallsConfig = CallsConfig()
    lora: LoraConfig = LoraConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    machine: MachineConfig = MachineConfig()
    checkpoints: CheckpointsConfig = CheckpointsConfig()
    tracking: TrackingConfig = TrackingConfig()
    curriculum: CurriculumConfig = CurriculumConfig()

    @field_validator("optimizer", mode="after")
    @classmethod
    def _rate_suits_what_is_trained(cls, optimizer: OptimizerConfig, info: ValidationInfo) -> OptimizerConfig:
        if optimizer.learning_rate is not None:
            return optimizer
        rates = extra(type(optimizer).model_fields["learning_rate"])
        lora = info.data.get("lora")
        rate = rates["lora" if lora is None or lora.enabled else "full"]
        # As a default: it does not count as given.
        return optimizer.model_construct(optimizer.model_fields_set, **{**dict(optimizer), "learning_rate": rate})

    @model_validator(mode="after")
    def _nothing_in_vain(self) -> Self:
        if problem := self._in_vain():
            raise ValueError(problem)
        return self

    def _in_vain(self) -> str | None:
        """Which settings would have no effect together with the others, and why."""
        if (given := self._given(OF_HELD_OUT)) and not self.data.eval_file:
            return f"{named(given)} needs `eval_file`, the data to measure on"
        return None

    def _given(self, names: Iterable[str]) -> list[str]:
        """Those of the settings that are on."""
        return [name for name in names if leaves(type(self))[name].of(self)]


# The settings of training in an environment instead of on a file.


class OnlineEnvironmentConfig(PlayedTasksConfig):
    """An environment to play in instead of a file."""

    name: str | None = setting(  # type: ignore[assignment]  # all others must have one
        None,
        flag="environment",
        description="play in this environment: sample groups, train on them, sample again (instead of --train-file)",
    )
    options: OptionValues = Field({}, description="the environment's own settings as key=value")
    split: str = Field("train", description="which tasks to train on")
    task_file: Path | None = Field(None, description="tasks from a JSON Lines file instead of the environment's own")


class OnlineSamplingConfig(SamplingConfig):
    """Sampling parameters."""

    temperature: float = Field(
        1.0, gt=0, description="sampling temperature; the loss uses log-probabilities at this temperature too"
    )


class SamplerConfig(Config):
    """The engine that samples while the policy trains."""

    engine: Literal["local", "vllm"] = Field(
        "local",
        description="local: samples from the weights in training; "
        "vllm: vLLM, in this process or on the server at --base-url, with new weights for every batch",
    )
    base_url: str | None = Field(
        None, description="address of a vLLM server that takes adapters, such as http://127.0.0.1:8000/v1"
    )
    key_variable: str = Field("OPENAI_API_KEY", description=KEY_VARIABLE)
    options: OptionValues = setting(
        {},
        flag="engine_options",
        description="engine arguments of vLLM in this process as key=value, such as gpu_memory_utilization=0.5",
    )

    @model_validator(mode="after")
    def _of_vllm(self) -> Self:
        if self.engine != "vllm" and (self.base_url is not None or self.options):
            given = "base_url" if self.base_url is not None else "engine_options"
            raise ValueError(f"`{given}` needs `engine` vllm")
        if self.base_url is not None and self.options:
            raise ValueError("`engine_options` are for vLLM in this process; a server has its own: leave one out")
        return self

    def problem(self, sampling: OnlineSamplingConfig, *, lora: bool, qlora: bool) -> str | None:
        """Why the engine cannot sample for this training."""
        if self.engine != "vllm":
            return None
        if self.base_url is not None and not lora:
            return "`engine` vllm with `base_url` needs `use_lora`: a server takes new adapters, but no other weights"
        if qlora:
            return "`engine` vllm does not go with `qlora`: it would sample from weights that are not quantised"
        if sampling.temperature != 1 and (sampling.top_p < 1 or sampling.top_k or sampling.min_p):
            return (
                f"`temperature` is {sampling.temperature:g}: with `top_p`, `top_k` or `min_p`, vLLM gives "
                "log-probabilities only at temperature 1; use one or the other, or `engine` local"
            )
        return None


class RolloutsConfig(Config):
    """Groups of attempts, and how often each is trained on."""

    group_size: int = Field(8, ge=2, description="attempts at each task; batch_size is the number of tasks per batch")
    updates: int = Field(1, ge=1, description="optimizer steps per batch of groups: mini-batches")
    resample: float = Field(
        2.0,
        ge=1,
        description="limit on the tasks tried to fill a batch with groups whose rewards differ, in batch sizes",
    )
    concurrency: int = Field(32, ge=1, description="episodes in flight")
    max_staleness: int = Field(
        0,
        ge=0,
        description="sample this many batches ahead while the policy trains; calls of older weights are dropped",
    )
    retries: int = Field(3, ge=0, description="retries of an episode after the environment or the engine failed")


class HeldOutTasksConfig(Config):
    """Evaluation on held-out tasks, and when to pause."""

    every: int = setting(
        0, flag="eval_every", ge=0, description="batches between evaluations on held-out tasks; 0: never"
    )
    tasks: int = setting(32, flag="eval_tasks", ge=1, description="number of held-out tasks")
    split: str = setting("unseen", flag="eval_split", description="where held-out tasks come from")
    task_file: Path | None = setting(
        None, flag="eval_task_file", description="held-out tasks from a JSON Lines file instead"
    )
    temperature: float = setting(
        0.0, flag="eval_temperature", ge=0, description="sampling temperature for held-out tasks; 0: greedy"
    )
    watch: bool = Field(
        True,
        description="pause when reward rises while held-out success falls, lengths run away, entropy collapses or an "
        "adapter takes the policy more than 1 nat per token away from its start",
    )


class OnlineConfig(TrainingConfig):
    """Rewards of the episodes that are played.

    These are the settings of every method that samples while it trains; each adds its own.
    """

    environment: OnlineEnvironmentConfig = OnlineEnvironmentConfig()
    rollouts: RolloutsConfig = RolloutsConfig()
    held_out: HeldOutTasksConfig = HeldOutTasksConfig()
    sampling: OnlineSamplingConfig = OnlineSamplingConfig()
    limits: LimitsConfig = LimitsConfig()
    cluster: OnlineClusterConfig = OnlineClusterConfig()
    rewards: RewardWeights = Field({}, description=REWARDS)
    reward_timeout_s: float = Field(60, gt=0, description=REWARD_TIMEOUT)

    @property
    def sampled_by(self) -> SamplerConfig:
        """The local engine, unless a method has settings for another."""
        return SamplerConfig()

    @property
    def learnt_reward(self) -> str | None:
        """The reward that is trained on; None for the outcome."""
        return "total" if self.rewards else None

    @model_validator(mode="after")
    def _a_file_or_an_environment(self) -> Self:
        train_file, environment, held_out = self.data.train_file, self.environment, self.held_out
        if (train_file is None) == (environment.name is None):
            raise ValueError("the data come from `train_file`, `environment` or `agent`: give one of them")
        if environment.name is not None and self.optimizer.max_steps is None:
            raise ValueError("`max_steps` is required with `environment`: there is always another batch to play")
        if held_out.every and environment.task_file is not None and held_out.task_file is None:
            raise ValueError(
                "`eval_every` with `task_file` needs `eval_task_file`: held-out tasks must not be trained on"
            )
        if held_out.task_file is not None and held_out.task_file == environment.task_file:
            raise ValueError("`eval_task_file` is `task_file`: held-out tasks must not be trained on")
        return self
