"""Settings of commands that can use several machines."""

from __future__ import annotations

import re
from typing import Self

from pydantic import Field, field_validator, model_validator

from bough.config.base import Config
from bough.config.problems import named

# The cluster that this machine belongs to, or else one of this machine alone.
AUTO = "auto"
ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5}")


class ClusterConfig(Config):
    """Several machines, through Ray."""

    address: str | None = Field(
        None,
        description="use a Ray cluster: auto (the one that this machine belongs to, or else this machine alone) "
        "or HOST:PORT of its head node; needs pip install 'bough[ray]' (default: this machine, without Ray)",
        json_schema_extra={"flag": "cluster"},
    )
    workers: int | None = Field(
        None,
        ge=1,
        description="with --cluster: number of worker processes, which play episodes, train the members of a "
        "population or do the runs of a sweep (default: as many as the cluster has room for)",
    )
    gpus_per_worker: float | None = Field(
        None,
        ge=0,
        description="with --cluster: GPUs of each worker, such as 1, 0.25 or 0 "
        "(default: 1 where a model plays and the cluster has GPUs)",
    )
    timeout_s: float = Field(
        600,
        gt=0,
        description="with --cluster: give up after this many seconds without a single worker",
        json_schema_extra={"flag": "cluster_timeout"},
    )

    @field_validator("address")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        if value is not None and value != AUTO and ADDRESS.fullmatch(value) is None:
            raise ValueError("it must be auto or the HOST:PORT of the cluster's head node, such as 10.0.0.1:6379")
        return value

    @field_validator("gpus_per_worker")
    @classmethod
    def _can_be_shared(cls, value: float | None) -> float | None:
        if value is not None and value > 1 and value != int(value):
            raise ValueError(
                "it must be a whole number, or at most 1: a worker cannot have one GPU and a part of another"
            )
        return value

    @model_validator(mode="after")
    def _needs_a_cluster(self) -> Self:
        given = [
            name for name in self._only_with_a_cluster() if getattr(self, name) != type(self).model_fields[name].default
        ]
        if self.address is None and given:
            needs = "needs" if len(given) == 1 else "need"
            raise ValueError(f"{named(given, ' and ')} {needs} `cluster`: auto or HOST:PORT")
        return self

    def _only_with_a_cluster(self) -> list[str]:
        return [name for name in type(self).model_fields if name not in ("address", "timeout_s")]


class OnlineClusterConfig(ClusterConfig):
    """Several machines, through Ray."""

    learners: int = Field(1, ge=1, description="with --cluster: processes that train, which share each batch")
    swap_mid_episode: bool = Field(
        False,
        description="with --cluster: workers take new weights between two turns instead of between two episodes",
    )

    @property
    def problem_with_files(self) -> str | None:
        """Why a run on data from files cannot have these settings; None if it can."""
        if self.learners == 1:
            return None
        return "`learners` needs `environment`; on data from files, accelerate launch starts several processes"
