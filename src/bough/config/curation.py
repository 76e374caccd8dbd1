"""Settings of `bough demos`, `bough pairs` and `bough groups`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from bough.config.base import Config
from bough.config.environment import OptionValues
from bough.config.rewards import RewardsConfig
from bough.config.rollouts import AgentConfig, LimitsConfig
from bough.config.sampling import SamplingConfig

Better = Literal["success", "expert", "sample"]
Kind = Literal["episode", "parting", "failure_mode", "right_step", "counterfactual"]


def _counts(value: Any) -> Any:
    """`reason=number` words from the command line, as a mapping."""
    if not isinstance(value, list):
        return value
    if missing := [word for word in value if "=" not in str(word)]:
        raise ValueError(f"{missing[0]!r} must be written as reason=number")
    return dict(str(word).split("=", 1) for word in value)


class CurationConfig(Config):
    """What is read and where the result goes."""

    file: Path = Field(
        description="a folder of `bough collect`, or any file or folder of trajectories",
        json_schema_extra={"positional": True},
    )
    also: list[Path] = Field([], description="more of them, such as an expert's episodes of the same tasks")
    format: str = Field("auto", description="the files' format; `bough data formats` lists them")
    output: Path = Field(description="the file to write: .jsonl or .jsonl.zst", json_schema_extra={"short": "-o"})
    overwrite: bool = Field(False, description="replace the output file if it exists")
    reward: str | None = Field(
        None, description="the reward to compare by (default: the total, the only one there is, or the outcome)"
    )


class DemosConfig(CurationConfig, RewardsConfig):
    """Keeps the episodes worth imitating."""

    min_reward: float | None = Field(None, description="keep episodes of at least this reward")
    longest: int | None = Field(None, ge=1, description="keep episodes of at most so many turns")
    failures: bool = Field(False, description="keep failures and unknown outcomes too; give --min-reward then")
    errors: Literal["keep", "context", "drop"] = Field(
        "context",
        description="replies the world could not act on: train on them, keep them as context only, or drop the episode",
    )
    dedupe: Literal["task", "actions", "none"] = Field(
        "task",
        description="one of each: the same actions on the same task, the same actions on any task, or keep them all",
    )
    per_task: int | None = Field(None, ge=1, description="keep so many of the shortest episodes of a task")


class EpisodePairsConfig(Config):
    """Pairs of whole episodes."""

    match: Literal["shortest_success", "nearest_failure", "all"] = Field(
        "nearest_failure",
        description="shortest_success: each failure against the shortest success; nearest_failure: each success "
        "against the failure that went along with it longest; all: each against each",
    )
    per_task: int = Field(4, ge=1, description="episode pairs of one task at most")
    progress_margin: float | None = Field(
        None, gt=0, le=1, description="a failure that got further by this much beats another (default: it does not)"
    )


class FailureModesConfig(Config):
    """Pairs from mistakes that a rule can see."""

    reasons: list[str] = Field([], description="which mistakes to look for (default: all that the rules find)")
    rules: str | None = Field(
        None,
        description="the environment whose mistake rules to apply (default: the environment that each task names; "
        "generic rules where it names none)",
    )
    rule_options: OptionValues = Field({}, description="settings of the environment's mistake rules as key=value")
    better: list[Better] = Field(
        ["success", "expert"],
        description="who says what should have been done, in this order: a success in the same state, the world's "
        "expert, a sample of the model that was played on and did better",
    )
    per_trajectory: int = Field(2, ge=1, description="pairs of one reason from one trajectory at most")
    caps: Annotated[dict[str, Annotated[int, Field(ge=0)]], BeforeValidator(_counts)] = Field(
        {}, description="pairs of a reason at most, such as loop=200 parting=500"
    )
    shares: Annotated[dict[str, Annotated[float, Field(gt=0, le=1)]], BeforeValidator(_counts)] = Field(
        {}, description="the largest share of all pairs that a reason may have, such as loop=0.3"
    )


class CounterfactualConfig(Config):
    """Pairs from what would have happened."""

    samples: int = Field(4, ge=1, description="other replies drawn at a round")
    scouts: int = Field(4, ge=1, description="how often each reply is played on, to find the best and the worst")
    plays: int = Field(12, ge=1, description="how often these two are then played on; only this counts as evidence")
    rounds: int = Field(1, ge=1, description="rounds of a trajectory that are looked into")
    certainty: float = Field(0.9, gt=0.5, lt=1, description="how sure it must be that the better reply is better")
    against: Literal["worst", "recorded"] = Field(
        "worst", description="what the best reply is compared with: the worst, or the one that was recorded"
    )
    max_episodes: int = Field(1000, ge=1, description="episodes played at most")
    max_sampled_turns: int | None = Field(None, ge=1, description="replies drawn at most (default: no limit)")
    concurrency: int = Field(16, ge=1, description="episodes at a time")
    retries: int = Field(3, ge=0, description="how often an episode is played again when the world or engine broke")


class PairsConfig(
    CurationConfig,
    EpisodePairsConfig,
    FailureModesConfig,
    CounterfactualConfig,
    AgentConfig,
    SamplingConfig,
    LimitsConfig,
):
    """Finds preferences in episodes: what was better than what, from the same state."""

    kinds: list[Kind] = Field(
        ["episode"],
        description="episode: success against failure; parting: the round where a failure left the way to success; "
        "failure_mode: mistakes that rules find; right_step: steps of a success against mistakes it did not make; "
        "counterfactual: replies that were tried out",
    )
    seed: int = Field(0, ge=0, description="fixes every choice that is left to chance")
    environment: str | None = Field(
        None, description="the world to replay in for expert, sample and counterfactual (default: the tasks' own)"
    )


class GroupsConfig(CurationConfig, RewardsConfig):
    """Puts the attempts at each task together, to be compared with each other."""

    size: int | None = Field(None, ge=2, description="attempts in a group; the rest makes another group, or is dropped")
    min_size: int = Field(2, ge=1, description="drop groups with fewer scored attempts")
    flat: bool = Field(False, description="keep groups whose attempts all have the same reward: they teach nothing")
