"""A member of a population as its folder describes it: where it comes from, its settings, how far it is trained.

NAME/member.json                 this description, and the optimizer's numbers
NAME/adapter_model.safetensors   the adapter, with adapter_config.json: loadable by anyone
NAME/optimizer.safetensors       the optimizer's moments
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from bough.disk import read_json, write_json
from bough.errors import InputError

DESCRIPTION, OPTIMIZER = "member.json", "optimizer.safetensors"


@dataclass(frozen=True)
class Individual:
    """One member. `step` counts its updates, those of its ancestors included; `settings` are what mutations change.

    `mutation` says how it differs from its parent; members of the first generation have no parent.
    """

    name: str
    born: int = 0
    parent: str | None = None
    mutation: dict[str, Any] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    rank: int = 0
    step: int = 0
    optimizer: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        write_json(folder / DESCRIPTION, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Self:
        try:
            return cls(**read_json(folder / DESCRIPTION))
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{folder / DESCRIPTION} is missing or damaged: {error}") from None

    def described(self) -> dict[str, Any]:
        """What a lineage says of the member."""
        values = asdict(self)
        return {key: values[key] for key in ("name", "born", "parent", "mutation", "settings", "rank", "step")}
