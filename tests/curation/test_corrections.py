"""Corrections: labels by an expert or a model on the agent's own path."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from bough.chat.tool_calls import Reply
from bough.config.groups import LimitsConfig
from bough.curation.corrections import ACCEPTED, DIFFERENT, SAME, CorrectionsConfig, CorrectionWork
from bough.curation.curate import Curated, curate_corrections
from bough.curation.source import SourcedTrajectory
from bough.engines.base import Answer, ContextFullError
from bough.errors import InputError
from bough.ledger import Ledger
from bough.rollouts.episode import ModelAgent, play
from bough.types import Call, Message, Task, Trajectory
from bough.worlds.household.environment import Household
from tests.curation.records import episode
from tests.environments.worlds import Counting
from tests.rollouts.players import Script
from tests.worlds.household.flat import flat

COUNTING = "tests.environments.worlds:Counting"
LIMITS = LimitsConfig(max_turns=4, max_errors=0, max_repeats=0)


class Lenient(Counting):
    """Does not mind a 7."""

    def accepts(self, reply: Reply) -> bool:
        return reply == "7"


class LenientLater(Counting):
    """The same, as `async def`."""

    async def accepts(self, reply: Reply) -> bool:  # type: ignore[override]  # a coroutine is awaitable
        return reply == "7"


class Unreadable(Counting):
    """Cannot read the reply 5."""

    def action_in(self, reply: Reply) -> str | None:
        if reply == "5":
            raise KeyError(reply)
        return super().action_in(reply)


class Silent(Counting):
    """Its expert has nothing to say about the second turn."""

    async def expert(self) -> str | None:
        advice = await super().expert()
        return " \n" if advice == "2" else advice


class Ashamed(Counting):
    """Its expert fails at the second turn."""

    async def expert(self) -> str | None:
        advice = await super().expert()
        if advice == "2":
            raise KeyError("two")
        return advice


def counted(*replies: str, goal: int = 3, name: str = "one") -> SourcedTrajectory:
    task = Task(id=f"to {goal}", data={"goal": goal})
    limits = LIMITS.model_copy(update={"max_turns": max(4, len(replies))})
    return SourcedTrajectory(
        asyncio.run(play(Counting, task, Script(list(replies)), id=name, seed=0, limits=limits))[0], "f", 1
    )


def corrected(
    *items: SourcedTrajectory,
    mixed: list[SourcedTrajectory] | None = None,
    agent: ModelAgent | None = None,
    **settings: Any,
) -> Curated[Trajectory]:
    given = {"environment": COUNTING} | settings
    config = CorrectionsConfig(file="f", output="o.jsonl", **given)
    read_mixed = None if mixed is None else lambda _: mixed
    return curate_corrections(config, lambda _: list(items), read_mixed, agent=agent)


def shown(record: Trajectory) -> list[tuple[str, str | None, bool]]:
    return [
        (turn.reply.content, turn.correction.content if turn.correction else None, turn.trained)
        for turn in record.turns
    ]


class Engine:
    """Says what a function makes of the number of the answer."""

    name = "teacher"

    def __init__(self, answer: Callable[[int], tuple[str, Any]]) -> None:
        self.answer_to, self.seen = answer, list[list[Message]]()

    def open(self, episode: str, *, seed: int) -> "Chat":
        return Chat(self)

    async def close(self) -> None:
        return


@dataclass
class Chat:
    engine: Engine

    async def answer(self, messages: list[Message], tools: list[dict[str, Any]]) -> Answer:
        self.engine.seen.append(messages)
        text, finish = self.engine.answer_to(len(self.engine.seen))
        return Answer(Message(role="assistant", content=text), None, finish)

    def close(self) -> None:
        return


def test_the_expert_labels_the_states_the_agent_got_into():
    found = corrected(counted("1", "5", "x", "2"))
    [record] = found.records
    assert shown(record) == [("1", None, False), ("5", "2", True), ("x", "2", True), ("2", None, False)]
    assert record.turns[1].observation[0].content == "No.", "the agent's own path stays as it was"
    assert found.report["labels"] == {SAME: 2, DIFFERENT: 2, ACCEPTED: 0}
    assert found.ledgers[1].kept == 2 and found.ledgers[1].dropped == {"same_action": 2}
    assert record.info["rule"] == "correction" and record.info["by"] == "expert"


@pytest.mark.parametrize(
    ("environment", "replies", "dropped"),
    [
        ("tests.environments.worlds:Unsure", "5127", {"same_action": 2, "no_expert": 1}),
        (f"{__name__}:Silent", "5178", {"same_action": 1, "label_empty": 2}),
    ],
)
def test_a_turn_without_advice_has_no_label_and_is_counted(environment: str, replies: str, dropped: dict[str, int]):
    found = corrected(counted(*replies), environment=environment)
    assert shown(found.records[0]) == [("5", "1", True), *((reply, None, False) for reply in replies[1:])]
    assert found.ledgers[1].kept == 1 and found.ledgers[1].dropped == dropped


def test_what_an_expert_failed_with_is_told_once(caplog: pytest.LogCaptureFixture):
    items = counted("5", "1", "7", "8"), counted("5", "1", "8", "7", name="two")
    found = corrected(*items, environment="tests.curation.test_corrections:Ashamed")
    assert [shown(record)[0] for record in found.records] == [("5", "1", True)] * 2
    assert found.ledgers[1].dropped == {"same_action": 2, "environment_failed": 4}
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("f:1: its environment failed") and "KeyError: 'two'" in line


def test_everywhere_trains_agreement_too_with_the_tokens_on_record():
    item = counted("1", "5", "2", "4")
    [record] = corrected(item, where="everywhere").records
    assert [trained for _, _, trained in shown(record)] == [True] * len(item.trajectory.turns)
    assert record.turns[0].correction is None and record.turns[0].call == item.trajectory.turns[0].call


def test_a_reply_that_was_cut_off_is_corrected_even_if_its_text_is_right():
    item = counted("1", "5")
    call = Call(prompt_ids=[1], completion_ids=[2], text="1", finish="length")
    turns = [item.trajectory.turns[0].model_copy(update={"call": call}), *item.trajectory.turns[1:]]
    cut = SourcedTrajectory(item.trajectory.model_copy(update={"turns": turns}), "f", 1)
    [record] = corrected(cut, where="everywhere").records
    assert record.turns[0].correction is not None


def test_the_same_action_for_another_reason_is_not_a_difference():
    task = Task(id="a", data={"game": flat().to_data()})
    script = Script(["THOUGHT: Why not.\nACTION: go to countertop 1", "ACTION: go to fridge 1"])
    played = asyncio.run(play(Household, task, script, id="one", seed=0, limits=LimitsConfig(max_turns=2)))[0]
    found = corrected(SourcedTrajectory(played, "f", 1), environment="household")
    assert found.report["labels"] == {SAME: 1, DIFFERENT: 1, ACCEPTED: 0}
    [record] = found.records
    assert record.turns[0].correction is None and record.turns[1].correction is not None


def test_an_agent_that_is_always_right_or_accepted_has_nothing_to_correct():
    found = corrected(counted("1", "2", "3"), counted("2", name="two"))
    assert [record.id for record in found.records] == ["two"]
    assert found.ledgers[0].dropped == {"nothing_to_correct": 1}
    found = corrected(counted("1", "7", "2", "3"), environment=f"{__name__}:Lenient")
    assert found.records == [] and found.ledgers[0].dropped == {"nothing_to_correct": 1}


@pytest.mark.parametrize("environment", ["Lenient", "LenientLater"])
@pytest.mark.parametrize("where", ["differ", "everywhere"])
def test_a_reply_that_is_as_good_as_the_experts_is_left_alone(where: str, environment: str):
    found = corrected(counted("7", "5"), environment=f"{__name__}:{environment}", where=where)
    assert shown(found.records[0])[:2] == [("7", None, False), ("5", "1", True)]
    assert found.report["labels"][ACCEPTED] == 1 == found.ledgers[1].dropped["accepted"]


def test_a_reply_that_the_environment_cannot_read_ends_the_models_labels_of_one_episode():
    teacher = ModelAgent(Engine(lambda turn: ("2552"[turn - 1], "stop")))
    items = counted("1", "5", "2", "3"), counted("1", "2", goal=2, name="two")
    found = corrected(*items, environment=f"{__name__}:Unreadable", by="teacher", agent=teacher, concurrency=1)
    assert [shown(record)[:2] for record in found.records] == [[("1", "2", True), ("5", None, False)]]
    assert found.ledgers[1].dropped == {"environment_failed": 5}


@pytest.mark.parametrize(("times", "trained"), [(None, 2), (1, 1), (3, 3), (9, 4)])
def test_a_label_that_the_agent_ignores_is_trained_a_few_times_in_a_row(times: int | None, trained: int):
    """The label is 1 four times, then 2."""
    settings = {} if times is None else {"max_same_labels": times}
    found = corrected(counted("4", "5", "6", "4", "1", "9"), where="everywhere", **settings)
    labels = [None if turn.correction is None else turn.correction.content for turn in found.records[0].turns]
    assert labels == ["1"] * trained + [None] * (5 - trained) + ["2"]
    assert found.records[0].turns[4].trained, "where the agent does follow at last, it is trained"
    assert found.ledgers[1].dropped == ({"repeated_label": 4 - trained} if trained < 4 else {})


def test_what_does_not_replay_is_labelled_up_to_there():
    item = counted("1", "5", "2", "9")
    turns = list(item.trajectory.turns)
    turns[1] = turns[1].model_copy(update={"observation": [Message(role="user", content="Perhaps.")]})
    found = corrected(SourcedTrajectory(item.trajectory.model_copy(update={"turns": turns}), "f", 1))
    assert shown(found.records[0]) == [("1", None, False), ("5", "2", True), ("2", None, False), ("9", None, False)]
    assert found.ledgers[1].dropped == {"same_action": 1, "cannot_replay": 2}


def test_a_model_labels_the_recorded_conversation_without_an_environment():
    engine = Engine(lambda turn: [("look", "stop"), ("<think>Hm.</think>go", "stop")][turn - 1])
    found = corrected(episode("a", "go", "go"), environment=None, by="teacher", agent=ModelAgent(engine))
    assert shown(found.records[0]) == [("go", "look", True), ("go", None, False)], "reasoning is no difference"
    assert [message.content for message in engine.seen[1]] == ["Rules.", "Go.", "go", "ok"], "the agent's own reply"
    found = corrected(episode("a", "go"), environment=None)
    assert found.records == [] and found.ledgers[1].dropped == {"environment_unknown": 1}


def test_labels_that_cannot_be_trained_are_counted():
    def answer(turn: int) -> tuple[str, str]:
        if turn == 3:
            raise ContextFullError("full")
        return [("go on and", "length"), (" ", "stop")][turn - 1]

    found = corrected(episode("a", *["x"] * 4), environment=None, by="teacher", agent=ModelAgent(Engine(answer)))
    assert found.ledgers[1].dropped == {"label_cut_off": 1, "label_empty": 1, "context_full": 2}
    assert found.ledgers[0].dropped == {"no_correction": 1}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"by": "random"}, "--by random: it cannot label"),
        ({"mix_share": 0.5}, "--mix-share has nothing to limit: give the files to add with --mix"),
    ],
)
def test_who_cannot_label_and_a_share_of_nothing_are_refused(settings: dict[str, Any], said: str):
    with pytest.raises(InputError, match=said):
        corrected(counted("2"), **settings)


@pytest.mark.parametrize(("share", "count"), [(None, 9), (0.5, 2), (0.8, 8), (0.99, 9)])
def test_demonstrations_are_mixed_in_up_to_their_share(share: float | None, count: int):
    expert = [counted("1", "2", "3", name=f"expert {number}") for number in range(9)]
    found = corrected(counted("2"), counted("3", name="two"), mixed=expert, mix_share=share)
    assert len(found.records) == 2 + count and found.ledgers[2].kept == count
    assert all(turn.trained for record in found.records[2:] for turn in record.turns)
    again = corrected(counted("2"), counted("3", name="two"), mixed=expert, mix_share=share)
    assert found.records == again.records, "the sample depends on the seed alone"


def test_an_episode_that_two_files_contain_is_mixed_in_once():
    expert = [counted("1", "2", "3", name=f"expert {number}") for number in range(3)]
    found = corrected(counted("2"), mixed=[*expert, *expert[:2]])
    assert [record.id for record in found.records[1:]] == [item.trajectory.id for item in expert]
    assert found.ledgers[2].kept == 3 and found.ledgers[2].dropped == {"duplicate": 2}


def test_the_number_of_labelled_episodes_is_told():
    told: list[tuple[int, int]] = []
    config = CorrectionsConfig(file="f", output="o.jsonl", environment=COUNTING)
    work = CorrectionWork(config, [counted("2"), counted("3", name="two")], Ledger("x"), lambda *at: told.append(at))
    asyncio.run(work.correct())
    assert told == [(1, 2), (2, 2)]


def test_a_turn_with_a_prompt_of_its_own_is_labelled_by_a_model_only():
    item = counted("1", "5", "2")
    aside = item.trajectory.turns[0].model_copy(
        update={"prompt": [Message(role="user", content="Aside?")], "reply": Message(role="assistant", content="Hm.")}
    )
    turns = [item.trajectory.turns[0], aside, *item.trajectory.turns[1:]]
    mixed = SourcedTrajectory(item.trajectory.model_copy(update={"turns": turns}), "f", 1)
    found = corrected(mixed)
    assert shown(found.records[0])[:3] == [("1", None, False), ("Hm.", None, False), ("5", "2", True)]
    assert found.ledgers[1].dropped["own_prompt"] == 1
    engine = Engine(lambda turn: (f"answer {turn}", "stop"))
    corrected(mixed, environment=None, by="teacher", agent=ModelAgent(engine))
    assert [message.content for message in engine.seen[1]] == ["Aside?"]
    assert [message.content for message in engine.seen[2]][2:] == ["1", "Yes."], "it is no part of the conversation"
