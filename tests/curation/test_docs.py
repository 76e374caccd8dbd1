from pathlib import Path
from typing import get_args

from bough.config.curation import Kind, Reason
from bough.rewards.registry import REWARDS

PAGE = (Path(__file__).parents[2] / "docs" / "curation.md").read_text()


def test_every_kind_reason_and_reward_is_explained():
    for name in (*get_args(Kind), *get_args(Reason), *REWARDS):
        assert f"`{name}`" in PAGE, name
