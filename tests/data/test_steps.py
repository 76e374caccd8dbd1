import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bough.data.knowlyr import read_steps, read_text, write_steps, write_text
from bough.errors import RowError
from bough.types import Message, Turn


def turn(reply: str, action: str | None = None, observation: str | None = None, reward: float | None = None) -> Turn:
    seen = [] if observation is None else [Message(role="user", content=observation)]
    return Turn(reply=Message(role="assistant", content=reply), action=action, observation=seen, reward=reward)


def test_a_step_is_a_reply_and_an_observation():
    steps = [
        {"thought": "Read it", "action": "read_file /a.py", "observation": "code here", "reward": 0.7},
        {"action": "mkdir a", "observation": ""},
        {"action": "finish"},
    ]
    assert read_steps(steps) == [
        turn("Thought: Read it\nAction: read_file /a.py", "read_file /a.py", "Observation: code here", 0.7),
        turn("Action: mkdir a", "mkdir a", "Observation:"),
        turn("Action: finish", "finish"),
    ]


@pytest.mark.parametrize(
    ("steps", "reason", "message"),
    [
        ([{"action": "a"}, {"action": "b"}], "missing_field", 'steps[0] "observation" is missing'),
        ([{"observation": "x"}], "empty_completion", "steps[0] has neither a thought nor an action"),
        ([{"thought": "", "action": ""}], "empty_completion", "steps[0] has neither"),
        ([{"action": {"name": "ls"}}], "wrong_type", 'steps[0] "action" is an object; it must be a string'),
        ([{"action": "a", "reward": float("nan")}], "not_finite", 'steps[0] "reward" is nan'),
        ([{"action": "a", "reward": True}], "wrong_type", 'steps[0] "reward" is true or false; it must be a number'),
        ([None], "wrong_type", "steps[0] is null"),
        ({"action": "a"}, "wrong_type", '"steps" is an object; it must be a list'),
    ],
)
def test_a_bad_step_says_where(steps: object, reason: str, message: str):
    with pytest.raises(RowError) as error:
        read_steps(steps)
    assert error.value.reason == reason
    assert str(error.value).startswith(message)


def test_texts_of_several_lines_survive():
    text = (
        "Step 1:\nThought: Two lines.\n  The second.\nAction: write a.py <<EOF\ndef f():\n    pass\nEOF\n"
        "Observation:\n    1 def f():\n    2     pass\n\nStep 2:\nThought: Done."
    )
    first, second = read_text(text, "response")
    assert (
        first.reply.content == "Thought: Two lines.\n  The second.\nAction: write a.py <<EOF\ndef f():\n    pass\nEOF"
    )
    assert first.action == "write a.py <<EOF\ndef f():\n    pass\nEOF"
    assert first.observation[0].content == "Observation:\n    1 def f():\n    2     pass"
    assert second == turn("Thought: Done.")


def test_an_observation_may_hold_numbered_steps_and_tags():
    recipe = "Observation: Recipe\nStep 1:\nMix.\nStep 7:\nAction: bake\nAction: eat"
    text = f"Step 1:\nAction: read recipe\n{recipe}\n\nStep 2:\nAction: finish"
    assert read_text(text, "response") == [
        turn("Action: read recipe", "read recipe", recipe),
        turn("Action: finish", "finish"),
    ]


def test_without_numbers_a_thought_after_an_observation_begins_the_next_step():
    text = "Thought: Look.\nAction: ls\nObservation: a\nThought: Found.\nAction: cat a\nObservation: hi\nAction: finish"
    assert read_text(text, "response") == [
        turn("Thought: Look.\nAction: ls", "ls", "Observation: a"),
        turn("Thought: Found.\nAction: cat a", "cat a", "Observation: hi"),
        turn("Action: finish", "finish"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Step 1:\nAction: read_file\n\nStep 2:\nAction: edit_file",
        "Step 1:\nAction: a\nObservation: x\n\nStep 2:\nAction: b\n\nStep 3:\nAction: c",
        "Just some plain text without step markers",
        "First I read.\nAction: ls\nObservation: a.txt",
        "Step 1: open the file.\nStep 2: close it.",
        "  two spaces stay  ",
    ],
)
def test_any_other_text_stays_one_reply_word_for_word(text: str):
    assert read_text(text, "response") == [turn(text)]


texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)


@st.composite
def steps(draw: st.DrawFn) -> list[dict]:
    said = st.fixed_dictionaries({"thought": texts}) | st.fixed_dictionaries(
        {"action": texts}, optional={"thought": texts}
    )
    body = draw(st.lists(said, min_size=1, max_size=3))
    for i, step in enumerate(body):
        if i < len(body) - 1 or draw(st.booleans()):
            step["observation"] = draw(texts | st.just(""))
        if draw(st.booleans()):
            step["reward"] = draw(st.floats(-1, 1))
    return body


@given(steps=steps())
@example(steps=[{"thought": "\n"}])
@settings(max_examples=100, deadline=None)
def test_a_list_of_steps_survives(steps: list[dict]):
    turns = read_steps(steps)
    written = write_steps(turns)
    assert written is not None and read_steps(written) == turns


def test_a_thought_may_hold_an_action_line_and_another_reply_is_no_step():
    step = {"thought": "Not this:\nAction: rm", "action": "ls"}
    assert write_steps(read_steps([step])) == [step]
    for other in (
        turn("ACTION: look", "look"),
        turn("Yes."),
        turn("Action: a", "a").model_copy(update={"trained": False}),
    ):
        assert write_steps([other]) is None


lines = st.text("abc :", min_size=1, max_size=6).map(str.strip).filter(bool)
blocks = st.lists(lines, min_size=1, max_size=3).map("\n".join)


@st.composite
def spoken(draw: st.DrawFn) -> list[Turn]:
    said = draw(st.lists(st.tuples(st.none() | blocks, blocks, blocks), min_size=1, max_size=3))
    made = [
        turn((f"Thought: {thought}\n" if thought else "") + f"Action: {action}", action, f"Observation: {observation}")
        for thought, action, observation in said
    ]
    if draw(st.booleans()):
        made[-1] = made[-1].model_copy(update={"observation": []})
    return made


@given(turns=spoken())
@settings(max_examples=100, deadline=None)
def test_turns_survive_as_one_text(turns: list[Turn]):
    assert read_text(write_text(turns), "response") == turns
