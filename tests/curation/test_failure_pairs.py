"""Who knows better: on a world that counts, and on a household."""

import asyncio
from itertools import islice
from typing import Any

from bough.config.groups import LimitsConfig
from bough.curation.pairs import failure_pairs
from bough.curation.rounds import FailureModesConfig
from bough.curation.source import SourcedTrajectory
from bough.environments.base import Environment, MistakeRules
from bough.environments.mistakes import PLAIN
from bough.ledger import Ledger
from bough.rollouts.collect import LocalRunner, attempts, collect
from bough.rollouts.episode import play
from bough.types import Message, Pair, Task, Trajectory
from bough.worlds.household.environment import Household
from bough.worlds.household.mistakes import HouseholdRules
from tests.curation.players import NoisyExpert
from tests.curation.records import episode, turn
from tests.environments.worlds import Counting
from tests.rollouts.players import Script

TASK = Task(id="t", data={"goal": 3})


def counted(name: str, *replies: str) -> SourcedTrajectory:
    """What came of these replies in the counting world; the last one is said to the end."""
    limits = LimitsConfig(max_turns=5, max_errors=0, max_repeats=0)
    return SourcedTrajectory(
        asyncio.run(play(Counting, TASK, Script(list(replies)), id=name, seed=0, limits=limits))[0], name, 1
    )


def mined(
    *filed: SourcedTrajectory,
    environment_class: type[Environment] | None = Counting,
    rules: MistakeRules = PLAIN,
    **settings: Any,
) -> tuple[list[Pair], Ledger]:
    ledger = Ledger("mistakes")
    config = FailureModesConfig(**settings)
    mining = failure_pairs(filed, config, ledger, environment_of=lambda _: environment_class, rules_of=lambda _: rules)
    found = asyncio.run(mining)
    assert ledger.kept == len(found)
    return found, ledger


def test_the_expert_is_asked_in_the_replayed_world():
    bad = counted("bad", "1", "x", "2")
    [pair], _ = mined(bad, better=["expert"], reasons=["invalid_action"], per_trajectory=1)
    assert pair.reason == "invalid_action" and pair.info == {
        "rule": "invalid_action", "turn": 1, "by": "expert",
        "history": {"file": "bad", "line": 1, "trajectory": "bad"},
    }  # fmt: skip
    assert [message.content for message in pair.start] == ["Count.", "To 3.", "1", "Yes."]
    assert pair.rejected == [bad.trajectory.turns[1]] and pair.rejected[0].call is not None
    [chosen] = pair.chosen
    assert chosen.reply.content == "2" and chosen.call is None and chosen.action == "2"
    assert [message.content for message in chosen.observation] == ["Yes."] and chosen.progress == 2 / 3


def test_a_success_in_the_same_state_is_asked_first_and_keeps_its_tokens():
    good, bad = counted("good", "1", "2", "3"), counted("bad", "1", "x")
    pairs, _ = mined(good, bad, reasons=["invalid_action"], per_trajectory=1)
    assert [pair.info["by"] for pair in pairs] == ["success"]
    assert pairs[0].chosen == [good.trajectory.turns[1]] and pairs[0].chosen[0].call is not None
    assert pairs[0].info["chosen"] == {"file": "good", "line": 1, "trajectory": "good", "turn": 1}


def test_after_another_history_in_the_same_state_its_tokens_are_left_behind():
    good, bad = counted("good", "1", "2", "3"), counted("bad", "x", "1", "x")
    pairs, _ = mined(good, bad, reasons=["invalid_action"], per_trajectory=2, better=["success"])
    assert [pair.info["turn"] for pair in pairs] == [0, 2]
    assert pairs[0].chosen[0].call is not None
    assert pairs[1].chosen[0].reply.content == "2" and pairs[1].chosen[0].call is None


def test_an_episode_that_recovers_shows_itself_the_way():
    recovered = counted("a", "1", "x", "2", "3")
    [pair], _ = mined(recovered, environment_class=None)
    assert pair.rejected[0].reply.content == "x" and pair.chosen[0].reply.content == "2"
    assert pair.chosen[0].call is None, "it was said after the mistake, and stands here in its place"


def test_what_a_success_did_there_is_not_shown_if_it_would_be_a_mistake_here_too():
    loops = episode("bad", "a", "b", "a", "b", success=False)
    good = episode("good", "a", "b", "a", "c")
    # In the state after a, b, a the success did c; a rule that saw c as a mistake would leave nobody to ask.
    pairs, _ = mined(good, loops, environment_class=None, reasons=["loop"])
    assert [(pair.rejected[0].action, pair.chosen[0].action) for pair in pairs] == [("b", "c")]
    worse = episode("good", "a", "b", "a", "task succeeded", "d")
    assert (
        mined(worse, loops, environment_class=None, rules=HouseholdRules(), reasons=["loop", "premature_success"])[0]
        == []
    )


def test_an_expert_who_does_the_same_makes_no_pair():
    odd = turn("1", "No.", error="invalid_action")
    item = episode("a", odd, success=False, task="t")
    start = asyncio.run(Counting(TASK).start()).messages
    trajectory = item.trajectory.model_copy(update={"task": TASK, "start": list(start)})
    pairs, ledger = mined(SourcedTrajectory(trajectory, "f", 1), better=["expert"])
    assert pairs == [] and ledger.dropped == {"expert_does_the_same": 1}


def test_a_mistake_without_a_known_better_reply_is_counted():
    bad = counted("bad", "1", "x", "2", "2")
    assert mined(bad, environment_class=None)[1].dropped == {"no_better_reply_known": 3}

    class Dumb(Counting):
        async def expert(self) -> None:
            return None

    assert mined(bad, environment_class=Dumb)[1].dropped == {"no_better_reply_known": 3}


def test_a_world_that_has_changed_or_breaks_is_counted():
    bad = counted("bad", "x", "1", "2", "1", "2")
    other = bad.trajectory.model_copy(update={"start": [Message(role="user", content="Sing.")]})
    assert mined(SourcedTrajectory(other, "f", 1))[1].dropped == {"cannot_replay": 3}

    class Broken(Counting):
        async def expert(self) -> str:
            raise ZeroDivisionError

    assert mined(bad, environment_class=Broken)[1].dropped == {"environment_failed": 3}


def test_only_so_many_of_a_reason_from_one_trajectory_and_only_those_that_made_a_pair_count():
    bad = counted("bad", "x", "y", "z", "1", "w")
    pairs, ledger = mined(bad, better=["expert"], reasons=["invalid_action"], per_trajectory=2)
    assert [pair.info["turn"] for pair in pairs] == [0, 1] and ledger.dropped == {"more_than_per_trajectory": 2}


def household(tasks: int) -> list[SourcedTrajectory]:
    """Real episodes of a household: an expert who does something at random every other time."""
    found: list[Trajectory] = []
    wanted = list(attempts(islice(Household.tasks(Household.Options()), tasks), 3, 0))
    limits = LimitsConfig(max_turns=20)
    asyncio.run(
        collect(LocalRunner.of(Household, NoisyExpert(0.6), limits), wanted, lambda played, _: found.append(played))
    )
    return [SourcedTrajectory(trajectory, "household.jsonl", line) for line, trajectory in enumerate(found, 1)]


def test_mistakes_in_a_household_become_pairs_that_hold_when_they_are_played():
    filed = household(12)
    household_rules = Household.mistake_rules()
    rules = household_rules.learn([item.trajectory for item in filed], household_rules.Options(rare=0.08))
    pairs, ledger = mined(*filed, environment_class=Household, rules=rules, per_trajectory=3)
    reasons = {pair.reason for pair in pairs}
    assert {"loop", "implausible_location", "wasted_step"} <= reasons and len(pairs) > 30
    assert ledger.came_in == ledger.kept + ledger.dropped.total()
    for pair in pairs:
        assert pair.chosen[0].action != pair.rejected[0].action
        assert pair.chosen[0].error is None and pair.start[-1].role == "user"

    async def answered(pair: Pair) -> list[str]:
        environment = Household(pair.task)
        await environment.start()
        for message in pair.start:
            if message.role == "assistant":
                await environment.step(message.content)
        return [message.content for message in (await environment.step(pair.chosen[0].reply.content)).messages]

    for pair in pairs[::5]:
        assert asyncio.run(answered(pair)) == [message.content for message in pair.chosen[0].observation]
