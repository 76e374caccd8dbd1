from types import MappingProxyType
from typing import Any

import pytest

from bough.environments.base import (
    MAX_TEXT,
    Environment,
    EnvironmentFailedError,
    NoTasksError,
    Observation,
    check_observation,
)
from bough.types import Task
from tests.environments.worlds import Counting, NotAnEnvironment

WORLD = Counting(Task(id="a", data={"goal": 2}))


def test_what_is_said_goes_on_and_what_ends_is_over():
    going = Observation.say("Higher.", error="malformed")
    assert [message.content for message in going.messages] == ["Higher."] and not going.done
    over = Observation.end("Correct.", success=True, reward=1.0)
    assert over.done and over.terminated and not over.truncated and over.success and over.reward == 1.0
    assert Observation(truncated=True).done
    assert Observation.end(success=False).messages == ()
    start = Observation.begin("Count.", "To 3.", hint=" Begin.")
    assert [(message.role, message.content) for message in start.messages] == [("system", "Count."), ("user", "To 3.")]
    assert start.text == "Count.\n\nTo 3. Begin."


def test_an_environment_without_tasks_says_how_they_are_given():
    class Silent(Environment):
        start = NotAnEnvironment.start
        step = NotAnEnvironment.step

    with pytest.raises(NoTasksError, match="Silent makes no tasks of its own; give them with --task-file"):
        Silent.tasks(Silent.Options())
    assert Silent(Task(id="a")).say("go") == "go"


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
    with pytest.raises(EnvironmentFailedError, match=f"^start .*{why}"):
        check_observation("start", Observation.say("Begin.", tools=(tool,)), WORLD)


def test_tools_may_be_any_mapping_of_json_values():
    given = Observation.say("Begin.", tools=(MappingProxyType({"name": "look"}), nested(150)))
    assert check_observation("start", given, WORLD) is given
