"""Copies of records for an author's function: whatever it changes in them, the records stay as they were."""

from __future__ import annotations

from typing import Any

from bough.types import Call, Record, Trajectory


def own_copy(trajectory: Trajectory) -> Trajectory:
    """The trajectory with lists and dictionaries of its own."""
    copy: Trajectory = _copied(trajectory)
    return copy


def _copied(value: Any) -> Any:
    if isinstance(value, Call):
        # Nearly all of a record are token ids: plain numbers, copied as a whole.
        lists = {"prompt_ids": list(value.prompt_ids), "completion_ids": list(value.completion_ids)}
        logprobs = None if value.logprobs is None else list(value.logprobs)
        return value.model_copy(update={**lists, "logprobs": logprobs})
    if isinstance(value, Record):
        changeable = {name: _copied(one) for name, one in value if isinstance(one, Record | list | dict)}
        return value.model_copy(update=changeable)
    if isinstance(value, list):
        return [_copied(one) for one in value]
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    return value
