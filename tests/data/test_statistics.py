from bough.data.reader import Statistics
from bough.types import Call, Group, Message, Pair, Task, ToolCall, Trajectory, Turn

HI = [Message(role="user", content="Hi")]


def turn(text: str, **more: object) -> Turn:
    return Turn(reply=Message(role="assistant", content=text), **more)  # type: ignore[arg-type]


def test_numbers_are_those_of_the_records():
    statistics = Statistics()
    call = Call(prompt_ids=[1, 2, 3], completion_ids=[4, 5])
    won = Trajectory(
        id="a",
        task=Task(id="t"),
        start=HI,
        turns=[turn("ab", reward=1.0, call=call)],
        rewards={"r": 1.0, "x": None},
        success=True,
    )
    lost = Trajectory(id="b", task=Task(id="t"), start=HI, turns=[turn("abcd")] * 3, rewards={"r": 0.0}, success=False)
    statistics.add(won.model_copy(update={"task": Task(id="u")}))
    statistics.add(Group(task=Task(id="t"), attempts=[won, lost]))
    rows = dict(statistics.rows())
    assert rows["tasks"] == "2"
    assert rows["records"] == "1 trajectory, 1 group"
    assert rows["outcomes"] == "2 success, 1 failure"
    assert rows["turns"] == "5 trained, 2 with exact tokens"
    assert rows["tokens"] == "6 shown, 4 answered"
    assert rows["not scored"] == "2 x"
    assert rows["reward: r"] == "min 0, median 1, mean 0.6667, max 1"
    assert rows["turns per trajectory"] == "min 1, median 1, mean 1.667, max 3"
    assert rows["attempts per group"] == "min 2, median 2, mean 2, max 2"


def test_pairs_are_counted_by_reason():
    statistics = Statistics()
    reply = Message(role="assistant", tool_calls=[ToolCall(name="search")])
    for reason in ("loop", "loop", None):
        chosen = [Turn(reply=reply)]
        statistics.add(
            Pair(task=Task(id="t"), start=HI, chosen=chosen, rejected=[turn("b")], reason=reason, margin=0.5)
        )
    rows = dict(statistics.rows())
    assert rows["reasons"] == "2 loop, 1 no reason given"
    assert rows["turns"] == "6 trained, 3 with tool calls"
    assert rows["margin"] == "min 0.5, median 0.5, mean 0.5, max 0.5"
