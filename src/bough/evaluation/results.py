"""The file of an evaluation: who played what under which settings, and every episode's outcome.

    {"bough": "evaluation/1", "environment": …, "seed": …, "models": [{"name": …, "outcomes": […]}], …}

`reports` and `comparisons` are there for readers; whoever computes starts from the outcomes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, FiniteFloat, JsonValue, ValidationError

from bough.environments.base import MistakeRules, digest, task_family
from bough.environments.mistakes import PLAIN, all_rules, mistakes
from bough.errors import InputError
from bough.files import json_digest, read_json, write_json
from bough.types import Record, Task, Trajectory

# What one episode came to, without its story: the row that every number of a report is made of.

# Where environments name the type of a task.
TYPE_KEYS = ("type", "task_type", "page", "kind")
# Counted as an error of the reply already.
NOT_COUNTED = "invalid_action"

Count = Annotated[int, Field(ge=0, lt=1 << 53)]


class Outcome(Record):
    """One episode. A `success` of None is unknown: left out of every rate, and counted.

    `digest` is the task's whole content: two tasks of one name need not be one task.
    Tasks of one `family` vary one scenario and count as one task. `start` is a digest
    of what the agent saw first; None in result files from before there was one.
    `errors` counts replies that the environment could not act on, by kind. `mistakes`
    counts valid ones that a rule finds fault with, by reason, with a 0 for every rule
    that found none; None in result files from before there were rules.
    """

    task: str
    digest: str
    type: str | None = None
    family: str | None = None
    attempt: int = 0
    success: bool | None
    reward: Annotated[FiniteFloat, Field(ge=-1e150, le=1e150)] | None = None  # sums of squares are finite
    turns: Count = 0
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    stop: str | None = None
    errors: dict[str, int] = Field({})
    mistakes: dict[str, int] | None = None
    start: str | None = None

    @property
    def unit(self) -> str:
        """What is independent of other units: the task, or its family."""
        return self.task if self.family is None else f"family {self.family}"

    @classmethod
    def of(cls, trajectory: Trajectory, rules: MistakeRules = PLAIN) -> Outcome:
        """The outcome of a collected episode, whose id is TASK#ATTEMPT."""
        attempt = trajectory.id.rpartition("#")[2]
        counted = {reason: rule for reason, rule in all_rules(rules).items() if reason != NOT_COUNTED}
        found = Counter(dict.fromkeys(counted, 0))
        found.update(mistake.reason for mistake in mistakes(trajectory, counted))
        return cls(
            task=trajectory.task.id,
            digest=digest(trajectory.task),
            type=task_type(trajectory.task),
            family=task_family(trajectory.task),
            attempt=int(attempt) if attempt.isdecimal() else 0,
            success=trajectory.success,
            reward=trajectory.rewards.get("outcome"),
            turns=len(trajectory.turns),
            prompt_tokens=int(str(trajectory.info.get("prompt_tokens", 0))),
            completion_tokens=int(str(trajectory.info.get("completion_tokens", 0))),
            stop=trajectory.stop,
            errors=dict(sorted(Counter(turn.error for turn in trajectory.turns if turn.error).items())),
            mistakes=dict(sorted(found.items())),
            start=json_digest(trajectory.start, size=8),
        )


class Lost(Record):
    """An episode that did not end because the environment or the engine failed, and why.

    Its outcome could have been any. Results on file from before lost episodes were
    counted have no `digest`.
    """

    task: str
    digest: str | None = None
    type: str | None = None
    family: str | None = None
    attempt: int = 0
    why: str

    def outcome(self, success: bool) -> Outcome:
        """The outcome it would have had, were it a success or a failure."""
        return Outcome(
            task=self.task, digest=self.digest or "", type=self.type, family=self.family, attempt=self.attempt,
            success=success,
        )  # fmt: skip


def task_type(task: Task) -> str | None:
    """The type of the task, where its environment names it."""
    return next((str(task.data[key]) for key in TYPE_KEYS if key in task.data), None)


def by_task(
    outcomes: Iterable[Outcome], value: Callable[[Outcome], float | bool | None], *, families: bool = True
) -> dict[str, list[float]]:
    """The known values of each task or family, in order of appearance; one without any is left out."""
    found: dict[str, list[float]] = {}
    for outcome in outcomes:
        known = value(outcome)
        if known is not None:
            found.setdefault(outcome.unit if families else outcome.task, []).append(float(known))
    return found


def means(values: dict[str, list[float]]) -> list[float]:
    """One mean a task: attempts at one task are not independent of each other, tasks are."""
    return list(map(mean, values.values()))


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


SCHEMA = "evaluation/1"
FILE_NAME = "results.json"


class ModelResult(Record):
    """One model's episodes, in the order of the tasks. `lost` ones never ended: environment or engine failed."""

    name: str
    settings: dict[str, JsonValue] = Field({})
    outcomes: list[Outcome]
    lost: list[Lost] = Field([])

    def assuming(self, success: bool, *, unknown: bool = False) -> ModelResult:
        """The same with every lost episode taken for a success or a failure, with `unknown` also those not known."""
        known = {"success": success}
        rows = [one.model_copy(update=known) if unknown and one.success is None else one for one in self.outcomes]
        rows += [one.outcome(success) for one in self.lost]
        return self.model_copy(update={"outcomes": rows, "lost": []})


class Results(Record):
    """What an evaluation found. `stop_width` is set where it was stopped by looking at its results."""

    bough: str = SCHEMA
    environment: str
    options: dict[str, JsonValue] = Field({})
    split: str | None = None
    seed: int
    attempts: int = 1
    level: float = Field(0.95, gt=0, lt=1)
    stop_width: float | None = None
    models: list[ModelResult] = Field(min_length=1)
    reports: dict[str, JsonValue] = Field({})
    comparisons: list[JsonValue] = Field([])

    def write(self, path: Path) -> None:
        write_json(path, self.model_dump(mode="json"))

    @classmethod
    def read(cls, path: Path) -> Results:
        """The results in a file, or in an evaluation's folder."""
        file = path / FILE_NAME if path.is_dir() else path
        try:
            content: Any = read_json(file)
        except FileNotFoundError:
            raise InputError(f"{file}: there is no such file") from None
        except (OSError, ValueError) as error:
            raise InputError(f"{file}: cannot be read as JSON: {error}") from None
        if not isinstance(content, dict) or content.get("bough") != SCHEMA:
            raise InputError(f'{file}: results of `bough eval --environment` say "bough": "{SCHEMA}"; these do not')
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            problems = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_url=False)]
            raise InputError(f"{file} is not a whole result file:", problems[:10]) from None
