"""`bough play`: a person at the terminal, or actions from a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from bough.api.play import play_configured, print_observation
from bough.config.play import PlayConfig
from bough.environments.base import Observation
from bough.errors import InputError


def play(config: PlayConfig) -> int:
    actions = list(_read_actions(config.actions)) if config.actions is not None else None

    def tell(step: int, observation: Observation) -> None:
        if not config.json_lines:
            print_observation(observation)
            return
        sys.stdout.write(to_json(_row(step, observation), inf_nan_mode="null").decode() + "\n")
        sys.stdout.flush()

    play_configured(config, actions, tell)
    return 0


def _row(step: int, observation: Observation) -> dict[str, Any]:
    known = {
        "step": step,
        "action": observation.action,
        "observation": observation.text,
        "reward": observation.reward,
        "progress": observation.progress,
        "terminated": observation.terminated,
        "truncated": observation.truncated,
        "success": observation.success,
        "error": observation.error,
        "stop": observation.stop,
    }
    return {**observation.info, **known}


def _read_actions(path: Path) -> Iterator[str]:
    """One action per line: plain text, a JSON string, or an object with "action" or "command"."""
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--actions {path}: cannot be read: {error}") from None
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield _action(line, f"{path}:{number}")


def _action(line: str, place: str) -> str:
    if line[0] not in '{"':
        return line.strip()
    try:
        value = json.loads(line)
    except ValueError:
        return line.strip()
    if isinstance(value, dict):
        value = value.get("action", value.get("command"))
    if not isinstance(value, str):
        raise InputError(f'{place}: an action is text, or an object with "action" as text')
    return value
