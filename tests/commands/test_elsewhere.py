"""A flag that other commands have is answered with those commands."""

from bough.commands.inputs import MAX_NAMED, explained

NEAREST = "--x is not a setting; the nearest are --y, --z"


def test_other_commands_with_the_flag_are_named_but_not_very_many():
    assert explained("sft", "jobs", NEAREST) == "--jobs is a flag of bough sweep, not of bough sft"
    said = explained("data stats", "seed", NEAREST)
    assert said.count(", ") == MAX_NAMED + 1 and said.endswith(", …, not of bough data stats")


def test_a_misspelt_flag_of_the_command_itself_stays_what_it_is():
    close = "--output is not a setting; did you mean --output-dir?"
    assert explained("sft", "output", close) == close
    assert explained("sft", "nonsense", NEAREST) == NEAREST
