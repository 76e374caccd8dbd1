"""`bough merge`: an adapter into its base model."""

from __future__ import annotations

from bough.config.merge import MergeConfig
from bough.policy.merge import merge_adapter
from bough.terminal import console


def merge(config: MergeConfig) -> int:
    base = merge_adapter(config)
    if config.as_json:
        console.print_json({"adapter": str(config.adapter), "base": base, "output": str(config.output)})
        return 0
    console.out().print(f"{config.adapter} merged into {base}, written to {config.output}", markup=False)
    return 0
