"""Settings of `bough demos`, `bough pairs` and `bough groups`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from bough.config.base import Config
from bough.config.groups import (
    REWARD_TIMEOUT,
    REWARDS,
    AgentConfig,
    LimitsConfig,
    OptionValues,
    ReportConfig,
    RewardWeights,
    SamplingConfig,
)

Better = Literal["success", "expert", "sample"]
REWARD = "the reward to compare by (default: total, else the only reward, else the outcome)"
Kind = Literal["episode", "parting", "failure_mode", "right_step", "counterfactual"]


def _counts(value: Any) -> Any:
    """`reason=number` arguments of the command line, as a mapping."""
    if not isinstance(value, list):
        return value
    if missing := [word for word in value if "=" not in str(word)]:
        raise ValueError(f"{missing[0]!r} must be written as reason=number")
    return dict(str(word).split("=", 1) for word in value)


class CurationConfig(ReportConfig):
    """Input and output."""

    file: Path = Field(
        description="a folder of `bough collect`, or any file or folder of trajectories",
        json_schema_extra={"positional": True},
    )
    also: list[Path] = Field([], description="more files or folders, such as an expert's episodes of the same tasks")
    format: str = Field("auto", description="format of the files; `bough data formats` lists them")
    output: Path = Field(description="the file to write: .jsonl or .jsonl.zst", json_schema_extra={"short": "-o"})
    overwrite: bool = Field(False, description="replace the output file if it exists")


class DemosConfig(CurationConfig):
    """Selects the episodes worth imitating."""

    reward: str | None = Field(None, description=REWARD)
    rewards: RewardWeights = Field({}, description=REWARDS)
    reward_timeout_s: float = Field(60, gt=0, description=REWARD_TIMEOUT)
    min_reward: float | None = Field(None, description="keep episodes with at least this reward")
    longest: int | None = Field(None, ge=1, description="keep episodes with at most this many turns")
    failures: bool = Field(False, description="also keep failures and unknown outcomes; use with --min-reward")
    min_progress: float | None = Field(
        None,
        gt=0,
        le=1,
        description="also keep failures that got at least this far, each up to the turn of its highest progress",
    )
    errors: Literal["keep", "context", "drop"] = Field(
        "context",
        description="invalid actions: train on them (keep), use them as context only, or drop the episode",
    )
    dedupe: Literal["task", "actions", "none"] = Field(
        "task",
        description="duplicates to drop: the same actions on the same task, the same actions on any task, or none",
    )
    per_task: int | None = Field(
        None,
        ge=1,
        description="keep this many episodes per task: successes, then what got furthest, and of equals the shortest",
    )

    @model_validator(mode="after")
    def _some_failures_or_all(self) -> Self:
        if self.failures and self.min_progress is not None:
            raise ValueError("`failures` does not go with `min_progress`: it keeps all of them, whole")
        return self


class EpisodePairsConfig(Config):
    """Pairs of whole episodes."""

    match: Literal["shortest_success", "nearest_failure", "all"] = Field(
        "nearest_failure",
        description="shortest_success: pair each failure with the shortest success; nearest_failure: pair each success "
        "with the failure that shares the longest prefix; all: every success with every failure",
    )
    per_task: int = Field(4, ge=1, description="maximum number of episode pairs per task")
    progress_margin: float | None = Field(
        None,
        gt=0,
        le=1,
        description="also pair two failures whose progress differs by at least this much (default: no such pairs)",
    )


class FailureModesConfig(Config):
    """Pairs from mistakes found by rules."""

    reasons: list[str] = Field([], description="which mistakes to look for (default: all that the rules find)")
    rules: str | None = Field(
        None,
        description="the environment whose mistake rules to apply (default: the environment that each task names; "
        "generic rules where it names none)",
    )
    rule_options: OptionValues = Field({}, description="settings of the environment's mistake rules as key=value")
    better: list[Better] = Field(
        ["success", "expert"],
        description="where the better action comes from, in this order: a success in the same state, the environment's "
        "expert, a sample of the model that led to a better result",
    )
    per_trajectory: int = Field(2, ge=1, description="maximum number of pairs per reason and trajectory")
    caps: Annotated[dict[str, Annotated[int, Field(ge=0)]], BeforeValidator(_counts)] = Field(
        {}, description="maximum number of pairs per reason, such as loop=200 parting=500"
    )
    shares: Annotated[dict[str, Annotated[float, Field(gt=0, le=1)]], BeforeValidator(_counts)] = Field(
        {}, description="maximum fraction of all pairs per reason, such as loop=0.3"
    )


class CounterfactualConfig(Config):
    """Pairs from replies that were tried out."""

    samples: int = Field(4, ge=1, description="number of alternative replies to sample in a round")
    scouts: int = Field(4, ge=1, description="rollouts per reply to find the best and the worst")
    plays: int = Field(12, ge=1, description="further rollouts of these two; only these count as evidence")
    rounds: int = Field(1, ge=1, description="number of rounds to examine per trajectory")
    certainty: float = Field(0.9, gt=0.5, lt=1, description="required probability that the better reply is better")
    against: Literal["worst", "recorded"] = Field(
        "worst", description="compare the best reply with the worst one or with the recorded one"
    )
    max_episodes: int = Field(1000, ge=1, description="maximum number of episodes to play")
    max_sampled_turns: int | None = Field(
        None, ge=1, description="maximum number of replies to sample (default: no limit)"
    )
    concurrency: int = Field(16, ge=1, description="episodes played at the same time")
    retries: int = Field(3, ge=0, description="retries of an episode after the environment or the engine failed")


class PairsConfig(CurationConfig):
    """Finds preference pairs in episodes: a better and a worse continuation from the same state."""

    reward: str | None = Field(None, description=REWARD)
    kinds: list[Kind] = Field(
        ["episode"],
        description="episode: a success against a failure; parting: the round where a failure diverged from a success; "
        "failure_mode: mistakes found by rules; right_step: steps of a success against mistakes it did not make; "
        "counterfactual: replies that were tried out",
    )
    episodes: EpisodePairsConfig = EpisodePairsConfig()
    failure_modes: FailureModesConfig = FailureModesConfig()
    counterfactual: CounterfactualConfig = CounterfactualConfig()
    agent: AgentConfig = AgentConfig()
    sampling: SamplingConfig = SamplingConfig()
    limits: LimitsConfig = LimitsConfig()
    seed: int = Field(0, ge=0, description="random seed")
    environment: str | None = Field(
        None,
        description="the environment to replay in, for expert, sample and counterfactual (default: that of the tasks)",
    )


class GroupsConfig(CurationConfig):
    """Groups the attempts at each task, for GRPO."""

    reward: str | None = Field(None, description=REWARD)
    rewards: RewardWeights = Field({}, description=REWARDS)
    reward_timeout_s: float = Field(60, gt=0, description=REWARD_TIMEOUT)
    size: int | None = Field(None, ge=2, description="attempts per group; the rest forms another group or is dropped")
    min_size: int = Field(2, ge=1, description="drop groups with fewer scored attempts than this")
    flat: bool = Field(
        False,
        description="also keep groups whose attempts all have the same reward (for advantage state or graph)",
    )


# Settings of `bough corrections`.

EXPERT = "expert"


def is_server(name: str) -> bool:
    """Whether a labeller is named by the address of a server."""
    return name.startswith(("http://", "https://"))


class LabelSamplingConfig(SamplingConfig):
    """Sampling parameters of a model that labels."""

    temperature: float = Field(0.0, ge=0, description="sampling temperature; 0: greedy")


class LabellerConfig(Config):
    """The model or server that labels."""

    engine: Literal["local", "vllm"] = Field("local", description="where a model runs: in this process, or in vLLM")
    server_model: str = Field("", description="name of the model on the server (default: the only one it has)")
    key_variable: str = Field(
        "OPENAI_API_KEY", description="the environment variable that contains the API key; the key is never stored"
    )
    chat_template: Path | None = Field(None, description="a Jinja file to use instead of the model's own chat template")
    bf16: bool | None = Field(None, description="compute in bfloat16 (default: yes on a GPU, no on a CPU)")

    def agent(self, by: str) -> AgentConfig:
        """The agent that `by` names."""
        common = {"key_variable": self.key_variable, "chat_template": self.chat_template, "bf16": self.bf16}
        if is_server(by):
            model = {"model": self.server_model} if self.server_model else {}
            return AgentConfig(engine="openai", base_url=by, **model, **common)
        return AgentConfig(engine=self.engine, model=by, **common)


class CorrectionsConfig(CurationConfig):
    """Labels every turn of the agent's own episodes with what an expert or a stronger model would have replied."""

    by: str = Field(
        EXPERT,
        description="who labels: expert (the environment's own), a model, or the address of an OpenAI-like server",
    )
    where: Literal["differ", "everywhere"] = Field(
        "differ",
        description="train on the labels where they take another action than the agent did, or everywhere",
    )
    max_same_labels: int = Field(
        2,
        ge=1,
        description="train on the same label at most this many times in a row: an agent that repeats its mistake "
        "would otherwise count it at every turn",
    )
    mix: list[Path] = Field(
        [],
        description="files to add to the output unchanged: demonstrations, or the corrections of earlier rounds",
    )
    mix_share: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="sample from --mix so that it makes up at most this fraction of the episodes (default: all of it)",
    )
    labeller: LabellerConfig = LabellerConfig()
    sampling: LabelSamplingConfig = LabelSamplingConfig()
    environment: str | None = Field(
        None, description="the environment to replay the episodes in (default: the one that each task names)"
    )
    concurrency: int = Field(8, ge=1, description="episodes labelled at the same time")
    seed: int = Field(0, ge=0, description="random seed of sampling and of --mix-share")
