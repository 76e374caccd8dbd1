from bough.report.viewer.records import Branch, branches
from bough.types import Message, Task, Trajectory, Turn


def said(role: str, content: str) -> Message:
    return Message(role=role, content=content)  # type: ignore[arg-type]


SYSTEM, ONE, TWO = said("system", "Be brief."), said("user", "one"), said("user", "two")
A, B, C = (said("assistant", name) for name in "abc")


def found(*turns: Turn) -> list[Branch | None]:
    return branches(Trajectory(id="t", task=Task(id="t"), start=[SYSTEM, ONE], turns=list(turns)))


def test_a_conversation_has_no_branches():
    assert found(Turn(reply=A, observation=[TWO]), Turn(reply=B)) == [None, None]


def test_a_second_reply_to_a_prompt_and_a_second_way_on_name_their_turn():
    turns = [
        Turn(reply=A, observation=[TWO]),
        Turn(reply=B, prompt=[SYSTEM, ONE]),
        Turn(reply=C),
        Turn(reply=B, prompt=[SYSTEM, ONE, A, said("user", "three")]),
        Turn(reply=C, prompt=[SYSTEM, ONE, B, TWO]),
        Turn(reply=A, prompt=[SYSTEM, ONE, B, TWO]),
    ]
    assert found(*turns) == [
        None,
        Branch("same_prompt", 0, 2),
        None,
        Branch("branch", 0, 3),
        Branch("branch", 1, 3),
        Branch("same_prompt", 4, 4),
    ]


def test_a_history_that_was_rewritten_still_begins_with_the_task():
    summary = [SYSTEM, ONE, said("assistant", "a summary"), TWO]
    shorter = [said("system", "Other."), ONE, said("assistant", "a summary"), TWO]
    turns = [Turn(reply=A, observation=[TWO]), Turn(reply=B, prompt=summary), Turn(reply=C, prompt=shorter)]
    assert found(*turns)[1:] == [Branch("rewritten_history", num_shared=2), Branch("rewritten_history")]


def test_a_sub_agent_shares_nothing_but_perhaps_the_system_message():
    turns = [Turn(reply=A), Turn(reply=B, prompt=[SYSTEM, TWO]), Turn(reply=C, prompt=[TWO])]
    assert found(*turns)[1:] == [Branch("sub_agent"), Branch("sub_agent")]
