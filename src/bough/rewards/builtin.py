"""The built-in rewards: functions of one trajectory. None means that the value is not known."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from bough.errors import InputError, did_you_mean
from bough.rewards.bounds import bounded
from bough.types import Trajectory

if TYPE_CHECKING:
    from bough.environments.rules import Rule

# A well-formed reply that asks for the impossible ("invalid_action") is not an error of form.
FORM_ERRORS = ("malformed", "tool_misuse")


def outcome(trajectory: Trajectory, *, failure: float | None = None) -> float | None:
    """The recorded outcome, else success as 1 or 0; None where neither is known.

    `failure` replaces the value of a failure whose outcome is not above 0. With −1, as in
    GRPO-TCR, a wrong answer is as far below 0 as a right one is above.
    """
    score = trajectory.rewards.get("outcome")
    if score is None:
        if trajectory.success is None:
            return None
        score = float(trajectory.success)
    return failure if failure is not None and trajectory.success is False and score <= 0 else score


@bounded(0.0, 1.0)
def progress(trajectory: Trajectory) -> float | None:
    """The last progress that the environment reported, 0 to 1; a success is 1. None where it reports none.

    The last, not the highest: what was undone again does not count.
    """
    if trajectory.success:
        return 1.0
    return next((turn.progress for turn in reversed(trajectory.turns) if turn.progress is not None), None)


@bounded(0.0, 1.0)
def steps(trajectory: Trajectory, *, max_turns: int = 50) -> float | None:
    """1 for a success in one turn, less by 1/`max_turns` for each further turn, at least 0.

    A failure has 0, however short, so that giving up early does not pay. None where success
    is not known.
    """
    if trajectory.success is None:
        return None
    return max(0.0, 1 - (len(trajectory.turns) - 1) / max_turns) if trajectory.success else 0.0


@bounded(0.0, 1.0)
def format(trajectory: Trajectory) -> float | None:
    """The share of replies in the agreed form; None where there is no reply."""
    if not trajectory.turns:
        return None
    return sum(turn.error not in FORM_ERRORS for turn in trajectory.turns) / len(trajectory.turns)


@bounded(-1.0, 0.0)
def mistakes(trajectory: Trajectory, *, each: float = 0.25, reasons: Sequence[str] = ()) -> float:
    """−`each` for every turn that a rule finds fault with, at least −1.

    `reasons` are those that count (default: all): loop, premature_success, invalid_action and
    those of the environment, if that is built in or installed.
    """
    from bough.environments.mistakes import chosen  # methods load rewards, but nothing that plays
    from bough.environments.mistakes import mistakes as found_in

    rules = _rules_of(trajectory.task.environment)
    if unknown := [reason for reason in reasons if reason not in rules]:
        where = trajectory.task.environment or "these episodes"
        raise InputError(
            f"reward mistakes: no rule for {where} gives the reason {unknown[0]!r}{did_you_mean(unknown[0], rules)} "
            f"(there are {', '.join(rules)})"
        )
    return max(-1.0, -each * sum(1 for _ in found_in(trajectory, chosen(rules, reasons))))


@lru_cache(8)
def _rules_of(environment: str | None) -> dict[str, Rule]:
    """Code that an episode names is never run: only what is installed has rules of its own."""
    from bough.environments.mistakes import PLAIN, all_rules
    from bough.environments.registry import find_listed

    try:
        return all_rules(PLAIN if environment is None else find_listed(environment).mistake_rules())
    except InputError:
        return all_rules(PLAIN)


def tool_call(
    trajectory: Trajectory, *, per_call: float = 0.1, ceiling: float = -0.6, failure: float | None = None
) -> float | None:
    """GRPO-TCR's tool-call reward, added to an outcome below 0: a wrong answer is less wrong if tools were used.

    `per_call` for each turn with a successful tool call, until the sum with the outcome
    reaches `ceiling`: with an outcome of −1 it is −1.0 without a call, −0.9, −0.8, −0.7, and
    −0.6 from four calls on. `failure` as in `outcome`. None where the outcome is not known.
    """
    score = outcome(trajectory, failure=failure)
    if score is None:
        return None
    # An outcome above the ceiling must not be reduced to it.
    return max(0.0, min(ceiling - score, per_call * num_successful_calls(trajectory))) if score < 0 else 0.0


def num_successful_calls(trajectory: Trajectory) -> int:
    """How many turns used a tool that answered without an error."""
    return sum(
        turn.error is None and any(message.role == "tool" for message in turn.observation) for turn in trajectory.turns
    )


def overlong(
    trajectory: Trajectory, *, max_length: int = 10480, buffer: int = 3000, factor: float = 1.0
) -> float | None:
    """DAPO's soft penalty on long answers (arXiv 2503.14476, equation 13).

    0 up to `max_length − buffer` written tokens, then falling linearly to −`factor` at
    `max_length`. None where the number of tokens is not known.
    """
    length = num_written_tokens(trajectory)
    if length is None:
        return None
    return -factor * min(1.0, max(0.0, (length - (max_length - buffer)) / buffer))


def num_written_tokens(trajectory: Trajectory) -> int | None:
    """The tokens that the agent wrote: counted in its calls, else as recorded with the episode."""
    calls = [turn.call for turn in trajectory.turns]
    if calls and all(calls):
        return sum(len(call.completion_ids) for call in calls if call is not None)
    counted = trajectory.info.get("completion_tokens")
    # An expert's episode is recorded with 0 tokens although it wrote something.
    return counted if isinstance(counted, int) and not isinstance(counted, bool) and counted > 0 else None
