import pytest

from bough.environments.base import Environment, NoTasksError, Observation
from bough.types import Task
from tests.environments.worlds import NotAnEnvironment


def test_what_is_said_goes_on_and_what_ends_is_over():
    going = Observation.say("Higher.", error="malformed")
    assert [message.content for message in going.messages] == ["Higher."] and not going.done
    over = Observation.end("Correct.", success=True, reward=1.0)
    assert over.done and over.terminated and not over.truncated and over.success and over.reward == 1.0
    assert Observation(truncated=True).done


def test_an_end_may_be_silent():
    assert Observation.end(success=False).messages == ()


def test_the_start_has_rules_and_what_is_seen_first():
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
