from bough.rewards.format import format
from tests.rewards.records import trajectory, turn


def test_the_share_of_replies_in_the_agreed_form():
    turns = [turn(), turn(error="malformed"), turn(error="tool_misuse"), turn(error="invalid_action"), turn()]
    assert format(trajectory(*turns)) == 0.6


def test_without_replies_there_is_nothing_to_judge():
    assert format(trajectory()) is None
