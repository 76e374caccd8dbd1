import asyncio
from typing import Any

from bough.config.groups import LimitsConfig
from bough.curation.pairs import right_steps
from bough.curation.rounds import FailureModesConfig
from bough.curation.source import SourcedTrajectory
from bough.environments.base import Environment, MistakeRules, Observation
from bough.ledger import Ledger
from bough.rollouts.episode import ExpertAgent, play
from bough.types import Pair, Task
from bough.worlds.household.environment import Household
from tests.environments.worlds import Counting
from tests.rollouts.players import Script
from tests.worlds.household.flat import flat

LIMITS = LimitsConfig(max_turns=20, max_errors=0, max_repeats=0)


class Lenient(Counting):
    """Whatever comes second wins."""

    async def step(self, reply: str) -> Observation:
        self.said += 1
        return (
            Observation.end(success=True, action=reply) if self.said == 2 else Observation.say("Go on.", action=reply)
        )


def counted(environment_class: type[Environment], *replies: str) -> SourcedTrajectory:
    task = Task(id="to 4", data={"goal": 4})
    return SourcedTrajectory(
        asyncio.run(play(environment_class, task, Script(list(replies)), id="one", seed=0, limits=LIMITS))[0], "f", 1
    )


def found(
    item: SourcedTrajectory, environment_class: type[Environment] | None, **settings: Any
) -> tuple[list[Pair], Ledger]:
    ledger = Ledger("mistakes")
    config = FailureModesConfig(**settings)
    rules = environment_class.mistake_rules() if environment_class is not None else MistakeRules()
    steps = right_steps(
        [item], config, ledger, environment_of=lambda _: environment_class, rules_of=lambda _: rules, seed=0
    )
    return asyncio.run(steps), ledger


def said(pair: Pair) -> tuple[str, str]:
    return pair.chosen[0].reply.content, pair.rejected[0].reply.content


def test_a_step_of_a_success_stands_against_the_one_before_done_again():
    item = counted(Counting, "1", "2", "3", "4")
    pairs, ledger = found(item, Counting, per_trajectory=9)
    assert [said(pair) for pair in pairs] == [("2", "1"), ("3", "2"), ("4", "3")]
    assert {pair.reason for pair in pairs} == {"right_step"} and pairs[0].info["mistake"] == "loop"
    assert [message.content for message in pairs[2].start[-2:]] == ["3", "Yes."], "the history is the success's own"
    assert ledger.kept == 3


def test_the_last_step_comes_first_when_there_are_to_be_few():
    for start in ("1", "9"):  # a reply that could not be acted on is no right step
        item = counted(Counting, start, *"1234") if start == "9" else counted(Counting, *"1234")
        assert [said(pair) for pair in found(item, Counting, per_trajectory=1)[0]] == [("4", "3")]
    steps = {said(pair)[0] for pair in found(counted(Counting, "9", *"1234"), Counting, per_trajectory=9)[0]}
    assert steps == {"1", "2", "3", "4"}


def test_failures_have_no_right_steps():
    assert found(counted(Counting, "1", "2"), Counting) == ([], Ledger("mistakes"))


def test_what_gets_further_is_no_mistake_and_what_cannot_be_asked_is_left_out():
    pairs, ledger = found(counted(Lenient, "a", "b"), Lenient)
    assert pairs == [] and ledger.dropped == {"gets_further": 1}
    assert found(counted(Counting, *"1234"), None)[1].dropped == {"environment_unknown": 2}
    assert found(counted(Counting, *"1234"), Lenient)[1].dropped == {"cannot_replay": 2}


def test_a_true_claim_is_held_and_an_early_one_is_not():
    task = Task(id="flat", data={"game": flat().to_data(), "claim": True})
    episode, _ = asyncio.run(play(Household, task, ExpertAgent(), id="e", seed=0, limits=LIMITS))
    assert episode.success
    pairs, ledger = found(SourcedTrajectory(episode, "f", 1), Household, per_trajectory=2)
    by_mistake = [(pair.info["mistake"], *said(pair)) for pair in pairs]
    claims = [chosen for mistake, chosen, _ in by_mistake if chosen.endswith("ACTION: task succeeded")]
    early = [(chosen, rejected) for mistake, chosen, rejected in by_mistake if mistake == "premature_success"]
    assert len(claims) == 1 and len(pairs) == 3 and ledger.dropped == {}
    [(chosen, rejected)] = early
    assert rejected.endswith("ACTION: task succeeded") and not chosen.endswith("task succeeded")
