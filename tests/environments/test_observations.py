from types import MappingProxyType
from typing import Any

import pytest

from bough.environments.base import MAX_TEXT, EnvironmentFailedError, Observation, check_observation


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"properties": value}
    return value


@pytest.mark.parametrize(
    ("tool", "why"),
    [
        ({"description": "\ud800"}, "that cannot be kept as JSON: "),
        ({"default": float("nan")}, "that cannot be kept as JSON: "),
        ({"default": object()}, "that cannot be kept as JSON: "),
        (nested(400), "that cannot be kept as JSON: "),
        ({"description": "x" * MAX_TEXT}, f"at most {MAX_TEXT:,} are allowed"),
    ],
    ids=["half a surrogate pair", "NaN", "an object", "deep", "huge"],
)
def test_tools_that_no_prompt_or_record_can_hold_are_the_environments_failure(tool: dict[str, Any], why: str):
    with pytest.raises(EnvironmentFailedError, match=f"^start gave tools .*{why}"):
        check_observation("start", Observation.say("Begin.", tools=(tool,)))


def test_tools_may_be_any_mapping_of_json_values():
    given = Observation.say("Begin.", tools=(MappingProxyType({"name": "look"}), nested(150)))
    assert check_observation("start", given) is given
