import asyncio
from pathlib import Path
from typing import Any

import pytest

from bough.config.groups import LimitsConfig
from bough.curation.pairs import PairWork
from bough.curation.rounds import PairsConfig
from bough.curation.source import SourcedTrajectory
from bough.environments.base import MistakeRules
from bough.errors import InputError
from bough.rollouts.episode import play
from bough.types import Task
from bough.worlds.household.environment import Household
from bough.worlds.household.mistakes import HouseholdRules
from tests.curation.records import episode, turn
from tests.environments.worlds import Counting
from tests.rollouts.players import Script

COUNTING = "tests.environments.worlds:Counting"


def counted(name: str, *replies: str, environment: str | None = None, goal: int = 3) -> SourcedTrajectory:
    task = Task(id=f"to {goal}", environment=environment, data={"goal": goal})
    limits = LimitsConfig(max_turns=4, max_errors=0, max_repeats=0)
    return SourcedTrajectory(
        asyncio.run(play(Counting, task, Script(list(replies)), id=name, seed=0, limits=limits))[0], name, 1
    )


def work(*filed: SourcedTrajectory, **settings: Any) -> PairWork:
    return PairWork(PairsConfig(file=Path("in.jsonl"), output=Path("out.jsonl"), **settings), filed)


def test_each_kind_has_its_ledger_and_the_whole_comes_last():
    mining = work(
        counted("good", "1", "2", "3"), counted("bad", "1", "9"), kinds=["episode", "parting", "failure_mode"]
    )
    pairs = asyncio.run(mining.mine())
    assert [pair.reason for pair in pairs] == ["success_over_failure", "parting", "invalid_action", "loop", "loop"]
    assert [ledger.item for ledger in mining.ledgers] == [
        "episodes", "candidates for episode pairs", "failures, compared with successes", "mistakes", "pairs",
    ]  # fmt: skip
    assert mining.ledgers[-1].kept == 5


def test_the_setting_names_the_world_else_the_task_does():
    named, bare = counted("a", "9", environment="household"), counted("b", "9")
    assert work(named).lookup.environment_of(named) is Household and work(bare).lookup.environment_of(bare) is None
    assert work(bare, environment=COUNTING).lookup.environment_of(bare) is Counting


def test_what_successes_did_is_found_without_the_world():
    filed = [
        counted(name, *replies, environment="no.such:World")
        for name, *replies in (("a", "1", "2", "3"), ("b", "1", "9"))
    ]
    mining = work(*filed, kinds=["failure_mode"], better=["success"])
    assert [pair.reason for pair in asyncio.run(mining.mine())] == ["invalid_action", "loop", "loop"]


def test_episodes_are_judged_by_the_rules_of_their_own_environment():
    named, bare = counted("a", "9", environment="household"), counted("b", "9")
    other = counted("c", "9", environment="gone")
    lookup = work(named, bare, other).lookup
    assert isinstance(lookup.rules_of(named), HouseholdRules)
    assert type(lookup.rules_of(bare)) is type(lookup.rules_of(other)) is MistakeRules
    assert isinstance(work(bare, rules="household").lookup.rules_of(bare), HouseholdRules)
    assert type(work(named, environment=COUNTING).lookup.rules_of(named)) is MistakeRules


def test_code_that_a_record_names_is_not_run_for_its_rules(tmp_path: Path):
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    record = counted("a", "9", environment=f"{evil}:X")
    assert type(work(record).lookup.rules_of(record)) is MistakeRules and not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"reasons": ["lop"]}, "no rule for these episodes gives the reason 'lop'; did you mean loop?"),
        ({"reasons": ["wasted_step"]}, "no rule .* 'wasted_step'; .*; --rules NAME applies"),
        ({"reasons": ["parting"]}, "no rule .* 'parting'"),
        ({"caps": {"partings": 3}}, "'partings'; did you mean parting?"),
        ({"shares": {"implausible_location": 0.5}}, "'implausible_location'"),
        ({"rule_options": {"rare": 0.1}}, "--rule-options rare is not an option of these episodes' rules"),
    ],
)
def test_a_reason_that_no_rule_gives_is_refused_before_any_work(settings: dict[str, Any], said: str):
    with pytest.raises(InputError, match=said):
        asyncio.run(work(counted("b", "9"), kinds=["failure_mode"], **settings).mine())


def test_rules_can_be_given_to_episodes_that_name_no_environment():
    seen = [("open fridge 1", "It is open."), ("close fridge 1", "It is closed.")]
    closes = episode("bad", *(turn(*one) for one in seen), success=False)
    takes = episode("good", turn(*seen[0]), turn("take egg 1 from fridge 1"))
    filed, settings = [closes, takes], {"kinds": ["failure_mode"], "better": ["success"]}
    assert asyncio.run(work(*filed, **settings).mine()) == []
    [pair] = asyncio.run(work(*filed, rules="household", rule_options={"rare": 0.1}, **settings).mine())
    assert (pair.reason, pair.chosen[0].action) == ("wasted_step", "take egg 1 from fridge 1")
