"""Groups that teach members nothing, with advice in the flags of `bough evolve`.

There `--temperature` is that of the measurement; what members sample their groups with is in `--set`.
"""

from __future__ import annotations

from collections.abc import Iterator

from bough.methods.grpo import GRPOConfig
from bough.online.flat_groups import FlatGroups, Kind


class MemberFlatGroups(FlatGroups):
    """Counts the groups of all members. `config` has the settings of `--set`."""

    config: GRPOConfig

    def ways(self, kind: Kind) -> Iterator[str]:
        config = self.config
        if kind == "same":
            yield f"--set temperature={1.5 * config.sampling.temperature:g}"
            if not config.entropy_coef:
                yield "--set entropy_coef=0.001"
            return
        if kind == "succeeded":
            yield "harder tasks"
            if config.advantage not in ("state", "graph"):
                yield "--set advantage=state, which also compares the steps of attempts that all succeed"
            if not config.rewards:
                yield "--rewards with a part for shorter episodes, such as steps=0.5"
            return
        yield "easier tasks"
        if not config.rewards:
            yield "--rewards with a part for progress, such as progress=0.5"
        yield f"--set group_size={2 * config.rollouts.group_size}"
