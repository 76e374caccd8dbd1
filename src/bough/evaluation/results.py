"""The file of an evaluation: who played what under which settings, and every episode's outcome.

    {"bough": "evaluation/1", "environment": …, "seed": …, "models": [{"name": …, "outcomes": […]}], …}

`reports` and `comparisons` are there for readers; whoever computes starts from the outcomes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, JsonValue, ValidationError, field_validator

from bough.disk import read_json, write_json
from bough.errors import InputError
from bough.evaluation.outcomes import Lost, Outcome
from bough.types import Record

SCHEMA = "evaluation/1"
FILE_NAME = "results.json"


class ModelResult(Record):
    """One model's episodes, in the order of the tasks. `lost` ones never ended: environment or engine failed."""

    name: str
    settings: dict[str, JsonValue] = Field({})
    outcomes: list[Outcome]
    lost: list[Lost] = Field([])

    @field_validator("lost", mode="before")
    @classmethod
    def _from_names(cls, value: Any) -> Any:
        """Earlier files name lost episodes TASK#ATTEMPT, each with why."""
        if not isinstance(value, dict):
            return value
        parts = [(*name.rpartition("#"), why) for name, why in value.items()]
        return [{"task": task, "attempt": attempt, "why": why} for task, _, attempt, why in parts]

    def assuming(self, lost_succeed: bool) -> ModelResult:
        """The same with every lost episode taken for a success, or for a failure."""
        rows = [*self.outcomes, *(one.outcome(lost_succeed) for one in self.lost)]
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
        schema = content.get("bough") if isinstance(content, dict) else None
        if schema != SCHEMA:
            found = f"it says {schema!r}" if isinstance(schema, str) else 'it has no "bough" key'
            raise InputError(f'{file}: results of `bough eval --environment` say "bough": "{SCHEMA}"; {found}')
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            problems = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_url=False)]
            raise InputError(f"{file} is not a whole result file:", problems[:10]) from None
