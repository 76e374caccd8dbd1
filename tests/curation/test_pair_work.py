import asyncio
from pathlib import Path
from typing import Any

import pytest

from bough.config.groups import LimitsConfig
from bough.curation.counterfactual import Cost, Miner
from bough.curation.pairs import PairWork
from bough.curation.rounds import Journal, PairsConfig, Round
from bough.curation.source import SourcedTrajectory
from bough.environments.base import MistakeRules
from bough.errors import InputError
from bough.rollouts.episode import play
from bough.types import Pair, Task
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


def work(*filed: SourcedTrajectory, tell: Any = None, folder: Path = Path(), **settings: Any) -> PairWork:
    return PairWork(PairsConfig(file=Path("in.jsonl"), output=folder / "out.jsonl", **settings), filed, tell)


def test_each_kind_has_its_ledger_and_the_whole_comes_last():
    mining = work(
        counted("good", "1", "2", "3"), counted("bad", "1", "9"), kinds=["episode", "parting", "failure_mode"]
    )
    pairs = asyncio.run(mining.mine())
    assert [pair.reason for pair in pairs] == ["success_over_failure", "parting", "invalid_action", "loop", "loop"]
    assert [ledger.item for ledger in mining.ledgers] == [
        "episodes", "candidates for episode pairs", "failures, compared with successes", "mistakes", "pairs",
    ]  # fmt: skip
    assert mining.ledgers[-1].kept == 5 and mining.cost.rounds == 0


def test_caps_are_kept():
    mining = work(
        counted("good", "1", "2", "3"), counted("bad", "1", "9"), kinds=["episode", "parting"], caps={"parting": 0}
    )
    assert [pair.reason for pair in asyncio.run(mining.mine())] == ["success_over_failure"]
    assert mining.ledgers[-1].dropped == {"parting_over_its_cap": 1}


def test_samples_and_counterfactuals_share_one_budget(tmp_path: Path):
    told: list[Cost] = []
    bad = [counted("a", "9"), counted("b", "8", goal=4)]
    settings: dict[str, Any] = {
        "environment": COUNTING,
        "model": "expert", "max_turns": 3, "samples": 1, "scouts": 1, "plays": 3, "max_episodes": 16,
        "better": ["sample"], "reasons": ["invalid_action"], "per_trajectory": 1,
    }  # fmt: skip
    mining = work(*bad, tell=told.append, folder=tmp_path, kinds=["failure_mode", "counterfactual"], **settings)
    pairs = asyncio.run(mining.mine())
    # A round costs 2 × 1 + 2 × 3 = 8 episodes: the first mistake is played out; "to 4" cannot be reached in three
    # turns, which two scouts show. Then 16 − 10 are left, too few for a round.
    assert [(pair.reason, pair.task.id) for pair in pairs] == [("invalid_action", "to 3")]
    assert mining.cost.to_json() | {"sampled_turns": 0} == {
        "rounds": 2, "episodes": 10, "sampled_turns": 0, "lost_episodes": 0,
    }  # fmt: skip
    assert mining.ledgers[1].dropped == {"budget": 2} and told[-1] is mining.cost


def test_mining_that_was_killed_goes_on_and_ends_in_the_same_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    bad = [counted(name, "9") for name in "abcd"]
    settings: dict[str, Any] = {
        "environment": COUNTING,
        "model": "expert",
        "max_turns": 3,
        "samples": 1,
        "scouts": 1,
        "plays": 3,
    }
    settings |= {"kinds": ["counterfactual"], "concurrency": 8, "rounds": 4}  # a round a wave

    def mined(folder: Path, stop_after: int = 99, **more: Any) -> tuple[PairWork, list[Pair], int]:
        played, looked = [], Miner._look_into

        async def look_into(self: Miner, one: Round, against: str) -> Pair | str:
            if len(played) == stop_after:
                raise KeyboardInterrupt
            played.append(one)
            return await looked(self, one, against)

        with monkeypatch.context() as patch:
            patch.setattr(Miner, "_look_into", look_into)
            mining = work(*bad, folder=folder, **(settings | more))
            try:
                return mining, asyncio.run(mining.mine()), len(played)
            except KeyboardInterrupt:
                return mining, [], len(played)

    (tmp_path / "whole").mkdir()
    whole, pairs, _ = mined(tmp_path / "whole")
    assert len(pairs) == 4
    mined(tmp_path, stop_after=6)
    with (tmp_path / ".out.jsonl.looked-into").open("a") as file:
        file.write('{"rounds": [["c", 0]], "resu')  # killed while it was written
    again, found, played = mined(tmp_path)
    assert (found, played) == (pairs, 10) and again.cost == whole.cost
    assert [ledger.to_json() for ledger in again.ledgers] == [ledger.to_json() for ledger in whole.ledgers]
    assert mined(tmp_path)[2] == 0, "now all of it is known"
    assert mined(tmp_path, seed=1)[2] == 16, "other settings are other work"
    monkeypatch.setattr("bough.curation.rounds.stamp", lambda *_: [["model.safetensors", 1, 1]])
    assert mined(tmp_path, seed=1)[2] == 16, "so are other weights"
    (tmp_path / ".out.jsonl.looked-into").write_text("{\n")
    assert mined(tmp_path, seed=1)[2] == 16, "a file that cannot be read is begun anew"
    last, _, _ = mined(tmp_path)
    last.forget()
    assert not (tmp_path / ".out.jsonl.looked-into").exists()


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


def test_rounds_of_tasks_without_a_world_are_counted():
    mining = work(counted("b", "9"), kinds=["counterfactual"])
    assert asyncio.run(mining.mine()) == [] and mining.ledgers[0].dropped == {"environment_unknown": 1}


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


def test_a_linked_journal_is_refused(tmp_path: Path):
    mine = tmp_path / "mine"
    mine.write_text("precious")
    (tmp_path / ".out.jsonl.looked-into").symlink_to(mine)
    journal = Journal(PairsConfig(file=tmp_path / "a.jsonl", output=tmp_path / "out.jsonl"), [])
    assert journal.recall([]) is None
    assert not journal.path.is_symlink(), "a journal of another run is removed, and so is a link"
    journal.path.symlink_to(mine)
    with pytest.raises(OSError, match="symbolic link"):
        journal.add([], [], {})
    assert mine.read_text() == "precious"
