from pathlib import Path
from typing import get_args

from bough.curation.rounds import Kind
from bough.environments.mistakes import all_rules
from bough.environments.rubric import REWARDS
from bough.worlds.household.mistakes import HouseholdRules

PAGE = (Path(__file__).parents[2] / "docs/guides/curation.md").read_text()


def test_every_kind_reason_and_reward_is_explained():
    for name in (*get_args(Kind), *all_rules(HouseholdRules()), *REWARDS):
        assert f"`{name}`" in PAGE, name
