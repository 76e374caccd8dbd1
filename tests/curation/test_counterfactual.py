"""The miner on worlds whose truth is known."""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from bough.config.groups import LimitsConfig
from bough.curation.counterfactual import Miner
from bough.curation.rounds import CounterfactualConfig, Round
from bough.curation.source import SourcedTrajectory
from bough.engines.base import Answer, Chat, EngineError
from bough.environments.base import Environment, Observation
from bough.ledger import Ledger
from bough.rollouts.agents import ExpertAgent
from bough.types import Call, Message, Pair, Task, Trajectory, Turn


class Doors(Environment):
    """Two rounds: choose a door, then throw a number. Door d is good for throws below its chance."""

    name = "doors"
    max_turns = 2
    shares_loop = True

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.chances: dict[str, float] = dict(task.data)  # type: ignore[arg-type]
        self.door = ""

    async def start(self) -> Observation:
        return Observation.say("Choose a door.")

    async def step(self, reply: str) -> Observation:
        if self.door:
            return Observation.end("So it is.", success=float(reply) < self.chances[self.door], action="throw")
        if reply not in self.chances:
            return Observation.say("There is no such door.", error="invalid_action")
        self.door = reply
        return Observation.say("Throw.", action=reply)


@dataclass
class Gambler:
    """Takes any door, then throws: what comes of a door is its chance, by the seed of the episode."""

    name: str = "gambler"
    doors: str = "abc"
    broken: bool = False
    answers: int = 0
    entered: list[str] = field(default_factory=list)

    def enter(self, environment: Environment, *, episode: str, seed: int) -> Chat:
        self.entered.append(episode)
        return GamblerChat(self, random.Random(f"{seed} {episode}"))

    async def close(self) -> None:
        return


@dataclass
class GamblerChat:
    gambler: Gambler
    rng: random.Random

    async def answer(self, messages: list[Message], tools: list[dict[str, Any]]) -> Answer:
        self.gambler.answers += 1
        if self.gambler.broken:
            raise EngineError("gone")
        first = messages[-1].content == "Choose a door."
        reply = self.rng.choice(self.gambler.doors) if first else str(self.rng.random())
        call = Call(prompt_ids=[1], completion_ids=[2, 3], logprobs=[-1.0, -1.0], text=reply)
        return Answer(Message(role="assistant", content=reply), call, "stop", 1, 2)

    def close(self) -> None:
        return


def thrown(number: str) -> Turn:
    seen = [Message(role="user", content="So it is.")]
    return Turn(reply=Message(role="assistant", content=number), action="throw", observation=seen)


def attempt(name: str, door: str = "a", **chances: float) -> SourcedTrajectory:
    """A recorded failure through `door`."""
    reply = Message(role="assistant", content=door)
    call = Call(prompt_ids=[9], completion_ids=[8], logprobs=[-1.0], text=door)
    seen = [Message(role="user", content="Throw.")]
    start = [Message(role="user", content="Choose a door.")]
    turns = [Turn(reply=reply, call=call, action=door, observation=seen), thrown("1.0")]
    task = Task(id=name, data=dict(chances))
    return SourcedTrajectory(Trajectory(id=name, task=task, start=start, turns=turns, success=False), "file.jsonl", 1)


def mined(
    *filed: SourcedTrajectory,
    agent: Gambler | None = None,
    environment_class: type[Environment] = Doors,
    at: int = 0,
    **settings: Any,
) -> tuple[list[Pair], Ledger, Miner]:
    config = CounterfactualConfig(**{"max_episodes": 10**9, "retries": 0} | settings)
    miner, ledger = Miner(environment_class, agent or Gambler(), config, LimitsConfig()), Ledger("rounds")
    found = asyncio.run(miner.pairs([Round(item, at) for item in filed], ledger))
    assert ledger.came_in == len(filed) and ledger.kept == len(found)
    return found, ledger, miner


def test_the_door_that_leads_to_success_is_preferred_to_the_one_that_does_not():
    [pair], _, miner = mined(attempt("t", a=0.0, b=1.0), agent=Gambler(doors="b"))
    assert [t.action for t in pair.chosen] == ["b"] and [t.action for t in pair.rejected] == ["a"]
    assert [message.content for message in pair.start] == ["Choose a door."]
    assert pair.reason == "counterfactual" and pair.task.id == "t"
    # 12 of 12 against 0 of 12: (13 − 1) / 14.
    assert pair.margin == pytest.approx(12 / 14)
    assert pair.info == {
        "rule": "counterfactual", "turn": 0, "by": "gambler", "certainty": 1.0, "rejected_was_recorded": True,
        "history": {"file": "file.jsonl", "line": 1, "trajectory": "t"},
        "plays": {"chosen": [12, 12], "rejected": [0, 12]}, "scouts": {"chosen": [4, 4], "rejected": [0, 4]},
    }  # fmt: skip
    # Four doors drawn; two replies scouted 4 times each, then played 12 times each, one throw every time.
    assert miner.cost.to_json() == {"rounds": 1, "episodes": 32, "sampled_turns": 4 + 32, "lost_episodes": 0}


def test_both_sides_keep_the_exact_tokens_they_were_sampled_with():
    [pair], _, _ = mined(attempt("t", a=0.0, b=1.0), agent=Gambler(doors="b"))
    assert pair.rejected[0].call is not None and pair.rejected[0].call.completion_ids == [8], "as it was recorded"
    assert pair.chosen[0].call is not None and pair.chosen[0].call.completion_ids == [2, 3], "as it was drawn"


class Corridor(Doors):
    """A step to take before the doors."""

    max_turns = 3
    walked = False

    async def start(self) -> Observation:
        return Observation.say("Walk.")

    async def step(self, reply: str) -> Observation:
        if self.walked:
            return await super().step(reply)
        self.walked = True
        return await super().start()


def test_a_later_round_is_reached_by_replay():
    item = attempt("t", a=0.0, b=1.0)
    walk = Turn(reply=Message(role="assistant", content="walk"), observation=item.trajectory.start)
    start = [Message(role="user", content="Walk.")]
    longer = item.trajectory.model_copy(update={"start": start, "turns": [walk, *item.trajectory.turns]})
    [pair], _, miner = mined(
        SourcedTrajectory(longer, "f", 1), environment_class=Corridor, agent=Gambler(doors="b"), at=1
    )
    assert [message.content for message in pair.start] == ["Walk.", "walk", "Choose a door."]
    assert (pair.chosen[0].action, pair.rejected[0].action, pair.info["turn"]) == ("b", "a", 1)
    assert miner.cost.sampled_turns == 4 + 32, "what is replayed is not drawn again"


def test_replies_that_do_the_same_are_no_alternative():
    item = attempt("t", door="b", a=0.0, b=0.5)
    _, ledger, miner = mined(item, at=1, samples=2, scouts=2, plays=2)
    # Whatever is thrown, the world calls it a throw.
    assert ledger.dropped == {"no_alternative": 1} and miner.cost.sampled_turns == 2


def test_a_round_without_difference_costs_no_more_than_the_scouts():
    _, ledger, miner = mined(attempt("t", a=1.0, b=1.0), agent=Gambler(doors="b"))
    assert ledger.dropped == {"no_difference": 1} and miner.cost.episodes == 8


def test_replies_the_world_cannot_act_on_are_one_option():
    [pair], _, miner = mined(attempt("t", a=1.0), agent=Gambler(doors="xyz"))
    assert pair.chosen[0].action == "a" and pair.rejected[0].error == "invalid_action"
    assert miner.cost.episodes == 2 * 4 + 2 * 12


def test_a_round_that_nobody_would_reach_costs_nothing():
    item = attempt("t", a=0.0, b=1.0)
    third = item.trajectory.model_copy(update={"turns": [*item.trajectory.turns, thrown("0.5")]})
    _, ledger, miner = mined(SourcedTrajectory(third, "f", 1), at=2)
    assert ledger.dropped == {"past_max_turns": 1} and miner.cost.to_json() == dict.fromkeys(miner.cost.to_json(), 0)


def test_against_the_recorded_reply_only_it_is_rejected():
    chances = {"a": 0.5, "b": 0.0, "c": 1.0}
    worst = mined(attempt("t", **chances), samples=12, scouts=8)[0][0]
    recorded = mined(attempt("t", **chances), samples=12, scouts=8, against="recorded", certainty=0.8)[0][0]
    assert worst.rejected[0].action == "b" and recorded.rejected[0].action == "a"
    assert worst.chosen[0].action == recorded.chosen[0].action == "c"
    assert (worst.info["rejected_was_recorded"], recorded.info["rejected_was_recorded"]) == (False, True)


def test_the_budget_is_never_passed_and_what_did_not_fit_is_counted():
    filed = [attempt(str(number), a=0.0, b=1.0) for number in range(10)]
    # A round costs at most 5 × 4 + 2 × 12 = 44 episodes, and each episode one further reply, and 4 draws.
    for settings, rounds in (({"max_episodes": 43}, 0), ({"max_episodes": 44}, 1), ({"max_sampled_turns": 47}, 0)):
        found, ledger, miner = mined(*filed, agent=Gambler(doors="b"), **settings)
        assert miner.cost.rounds == rounds == len(found) and ledger.dropped["budget"] == 10 - rounds
    _, ledger, miner = mined(*filed, agent=Gambler(doors="b"), max_sampled_turns=200)
    assert miner.cost.sampled_turns <= 200 and miner.cost.rounds == 5 and ledger.dropped == {"budget": 5}


def test_what_is_found_does_not_depend_on_how_many_run_at_once():
    filed = [attempt(str(number), a=0.3, b=0.7, c=0.5) for number in range(3)]
    one, many = (mined(*filed, concurrency=concurrency)[0] for concurrency in (1, 500))
    assert one == many and one != []


def test_a_world_that_answers_differently_or_an_engine_that_breaks_costs_the_round():
    item = attempt("t", a=0.0, b=1.0)
    changed = [Message(role="user", content="Choose a window.")]
    moved = SourcedTrajectory(item.trajectory.model_copy(update={"start": changed}), "f", 1)
    assert mined(moved)[1].dropped == {"cannot_replay": 1}
    assert mined(item, agent=Gambler(broken=True))[1].dropped == {"environment_or_engine_failed": 1}


class Hesitant(Doors):
    """Its expert knows the throws behind `knows` only; it takes door b."""

    knows = ""

    async def expert(self) -> str | None:
        if not self.door:
            return "b" if "b" in self.knows else None
        return "0.5" if self.door in self.knows else None


@pytest.mark.parametrize(("known", "dropped"), [("", "no_expert"), ("b", "not_played_to_an_end"), ("ab", None)])
def test_where_the_expert_has_no_advice_there_is_no_evidence(known: str, dropped: str | None, monkeypatch: Any):
    monkeypatch.setattr(Hesitant, "knows", known)
    found, ledger, _ = mined(attempt("t", a=0.0, b=1.0), agent=ExpertAgent(), environment_class=Hesitant)
    assert ledger.dropped == ({dropped: 1} if dropped else {}) and len(found) == (dropped is None)


def truths(count: int, draw: Any) -> list[SourcedTrajectory]:
    return [attempt(str(n), **dict(zip("abc", draw(random.Random(n)), strict=True))) for n in range(count)]


def right(pair: Pair) -> bool:
    chances: dict[str, Any] = dict(pair.task.data)
    return bool(chances[str(pair.chosen[0].action)] > chances[str(pair.rejected[0].action)])


def test_the_certainty_is_how_often_it_is_right():
    """Chances drawn evenly from 0 to 1: of the pairs made with certainty c, the share c is right."""
    filed = truths(60, lambda rng: [rng.random() for _ in range(3)])
    pairs, _, _ = mined(*filed, certainty=0.51, scouts=2, plays=4, samples=3, concurrency=400)
    assert len(pairs) > 24
    stated = [float(str(pair.info["certainty"])) for pair in pairs]
    for low, high in ((0.5, 0.8), (0.8, 0.95), (0.95, 1.0)):
        inside = [(pair, c) for pair, c in zip(pairs, stated, strict=True) if low <= c < high or c == high == 1.0]
        share, mean = sum(right(pair) for pair, _ in inside) / len(inside), sum(c for _, c in inside) / len(inside)
        # Scouting found the candidates, so what is stated from the plays alone is on the careful side.
        error = 2.6 * (mean * (1 - mean) / len(inside)) ** 0.5
        assert share > mean - error, (low, share, mean)


def test_where_all_doors_are_alike_hardly_a_pair_is_made():
    """With nine tenths asked for, one in ten at most; the luckiest of three against the unluckiest are far more."""
    count = 20
    filed = truths(count, lambda rng: [0.5] * 3)
    pairs, _, _ = mined(*filed, certainty=0.9, samples=5, scouts=8, plays=5, concurrency=400)
    assert len(pairs) / count < 0.1 + 2.6 * (0.09 / count) ** 0.5
