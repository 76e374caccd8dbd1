"""What to do where GPU memory runs out: in which order a step is computed again in less of it."""

from __future__ import annotations

from typing import Literal

from bough.policy.policy import Policy

# Give up recordings, halve the token budget, or compute activations again instead of keeping them.
Remedy = Literal["recordings", "half the budget", "recomputing"]


def next_remedy(policy: Policy, budget: int, longest_call: int, *, halved: bool, backward: bool) -> Remedy | None:
    """The next way to take less memory; None if there is none left.

    The step has rows of at most `budget` tokens and a call of `longest_call`. `halved`: for this step the budget
    has been halved already. `backward`: its activations are kept.
    """
    # The other processes wait in the middle of the step, and cannot be joined there.
    if policy.sharded:
        return None
    if policy.row_reader.has_recordings:  # their memory may be enough
        return "recordings"
    # A call is never cut: a row of one call is as long with half the budget.
    several = longest_call < budget
    if several and not halved:
        return "half the budget"
    if backward and policy.layers.can_recompute:
        return "recomputing"
    return "half the budget" if several else None
