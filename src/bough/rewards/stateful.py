"""A reward that is made once, with its settings, and called for each trajectory or group: a judge with its connection.

Its settings are the keyword-only arguments of its constructor. The constructor raises InputError for settings that
cannot work, before anything is scored.
"""

from __future__ import annotations

from typing import Any


class StatefulReward:
    """Called as a reward function is. `timeout_s` bounds one call by itself; a longer one is a value that is absent."""

    timeout_s: float

    def costs(self) -> dict[str, int]:
        """What the values so far have cost, by name, for reports."""
        return {}

    def __call__(self, scored: Any) -> Any:
        raise NotImplementedError
