from pathlib import Path
from typing import get_args

from bough.curation.rounds import PairsConfig
from bough.environments.mistakes import all_rules
from bough.environments.rubric import REWARDS
from bough.worlds.household.mistakes import HouseholdRules

PAGE = (Path(__file__).parents[2] / "docs/guides/curation.md").read_text()


def test_every_kind_reason_and_reward_is_explained():
    kinds = get_args(get_args(PairsConfig.model_fields["kinds"].annotation)[0])
    for name in (*kinds, *all_rules(HouseholdRules()), *REWARDS):
        assert f"`{name}`" in PAGE, name
