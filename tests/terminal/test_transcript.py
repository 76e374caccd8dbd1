import io

from rich.console import Console

from bough.data.base import Sample
from bough.data.transcript import coloured, show
from bough.models.resolve import load_tokenizer
from bough.types import Call, Group, Message, Pair, Task, ToolCall, Trajectory, Turn

HI = [Message(role="system", content="Be brief."), Message(role="user", content="Hi")]


def shown(sample: Sample) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    show(console, sample, "a title")
    return console.export_text()


def test_a_trajectory_shows_who_said_what_and_how_it_ended():
    reply = Message(
        role="assistant", content="look", reasoning="Where?", tool_calls=[ToolCall(name="f", arguments={"x": 1})]
    )
    call = Call(prompt_ids=[1, 2], completion_ids=[3])
    turn = Turn(
        reply=reply,
        call=call,
        observation=[Message(role="tool", content="a lamp")],
        reward=0.5,
        error="slow",
        trained=False,
    )
    text = shown(
        Trajectory(
            id="a",
            task=Task(id="t", environment="household", seed=7),
            start=HI,
            turns=[turn],
            rewards={"outcome": 1.0, "format": None},
            success=True,
            stop="done",
        )
    )
    for piece in (
        "a title", "task t · household · seed 7", "system: Be brief.", "user: Hi",
        "assistant 1 (not trained, reward 0.5, 2 + 1 tokens): (Where?) look", "→ f(x=1)", "error: slow", "tool: a lamp",
        "success · stopped: done · outcome 1 · format not scored",
    ):  # fmt: skip
        assert piece in text


def test_a_pair_and_a_group_show_their_sides():
    def turn(text: str) -> Turn:
        return Turn(reply=Message(role="assistant", content=text))

    pair = Pair(task=Task(id="t"), start=HI, chosen=[turn("a")], rejected=[turn("b")], reason="loop", margin=0.25)
    text = shown(pair)
    assert (
        text.index("✓ chosen") < text.index("assistant 1: a") < text.index("✗ rejected") < text.index("assistant 1: b")
    )
    assert "reason loop, margin 0.25" in text
    attempt = Trajectory(id="a", task=Task(id="t"), start=HI, turns=[turn("a")], success=False)
    assert "attempt 2 of 2" in shown(Group(task=Task(id="t"), attempts=[attempt, attempt]))


def test_a_branch_shows_what_it_answers():
    aside = Turn(
        reply=Message(role="assistant", content="A lamp."), prompt=[*HI, Message(role="user", content="Summarise.")]
    )
    text = shown(Trajectory(id="a", task=Task(id="t"), start=HI, turns=[aside]))
    assert "user: Summarise.\nassistant 1 (a branch): A lamp." in text


def test_trained_tokens_stand_between_brackets_and_shared_ones_once():
    tokenizer = load_tokenizer("tiny")
    prompt = tokenizer("go to shelf", add_special_tokens=False)["input_ids"]
    answer = tokenizer(" look", add_special_tokens=False)["input_ids"]
    more = tokenizer(" open", add_special_tokens=False)["input_ids"]
    first = Call(prompt_ids=prompt, completion_ids=answer)
    second = Call(prompt_ids=prompt + answer + more, completion_ids=answer)
    texts = [text.plain for text in coloured([first, second], tokenizer)]
    assert texts[0] == "call 1: go to shelf⟦ look⟧"
    assert texts[1] == f"call 2: … {len(prompt + answer)} shared tokens …  open⟦ look⟧"
