from bough.curation.states import first_difference, shared_actions, task_key
from bough.curation.states import states as states_of
from bough.environments.base import MistakeRules, action_of
from bough.types import Message, Task, Trajectory, Turn
from tests.curation.records import episode, turn


class SoldOut(MistakeRules):
    def without_effect(self, turn: Turn) -> bool:
        return super().without_effect(turn) or turn.observation[0].content == "Sold out."


def states(trajectory: Trajectory) -> list[str]:
    return states_of(trajectory, SoldOut())


def test_what_was_done_is_the_action_else_the_whole_reply():
    assert action_of(turn("go", thought="Well. ")) == "go"
    assert action_of(Turn(reply=Message(role="assistant", content="hm"))) == "hm"


def test_the_same_actions_lead_to_the_same_states_however_they_are_argued_for():
    left = states(episode("a", turn("x", thought="Why not. "), "y").trajectory)
    right = states(episode("b", "x", "z").trajectory)
    assert left[:2] == right[:2] and left[2] != right[2] and len(left) == 3
    red, blue = (states(episode("a", turn("x", seen)).trajectory)[1] for seen in ("red", "blue"))
    assert red != blue, "what was seen makes a state"


def test_a_reply_without_effect_leaves_the_state_as_it_was():
    stuck = states(episode("a", "x", turn("?", error="malformed"), turn("fly", "Sold out."), "y").trajectory)
    plain = states(episode("b", "x", "y").trajectory)
    assert stuck[1] == stuck[2] == stuck[3] and [stuck[0], stuck[1], stuck[4]] == plain
    other = states_of(episode("a", "x", turn("fly", "Sold out.")).trajectory, MistakeRules())
    assert other[1] != other[2], "the text tells only its own environment"


def test_attempts_can_be_compared_if_task_start_and_tools_are_the_same():
    one = episode("a", "x").trajectory
    assert task_key(one) == task_key(episode("b", "y", success=False).trajectory)
    other_start = [Message(role="user", content="Come.")]
    for changed in ({"task": Task(id="u")}, {"start": other_start}, {"tools": [{"name": "f"}]}):
        assert task_key(one) != task_key(one.model_copy(update=changed))


def test_ids_of_tool_calls_are_no_part_of_the_state():
    def seen(id: str) -> Turn:
        message = Message(role="tool", content="4", tool_call_id=id)
        return turn("add").model_copy(update={"observation": [message]})

    assert states(episode("a", seen("1")).trajectory) == states(episode("b", seen("2")).trajectory)


def test_turns_are_alike_message_for_message_actions_only_in_what_was_done():
    left = [turn("x"), turn("y", thought="A. "), turn("z")]
    right = [turn("x"), turn("y", thought="B. "), turn("w")]
    assert first_difference(left, right) == 1 and shared_actions(left, right) == 2
    assert first_difference(left, left) == 3 and first_difference(left, left[:1]) == 1
    assert first_difference([turn("x", "a")], [turn("x", "b")]) == 0
