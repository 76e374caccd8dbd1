"""A flag that other commands have is answered with those commands and with what to do instead."""

import pytest

from bough.commands import table
from bough.commands.inputs import INSTEAD, MAX_NAMED, explained
from bough.config.parts import leaves
from bough.config.problems import on_command_line

NEAREST = "--x is not a setting; the nearest are --y, --z"


def test_other_commands_with_the_flag_are_named():
    assert explained("sft", "jobs", NEAREST) == "--jobs is a flag of bough sweep, not of bough sft"


@pytest.mark.parametrize(
    ("command", "name", "said"),
    [
        (
            "sft",
            "cluster",
            "not of bough sft; several processes train with accelerate launch --num_processes 2 -m bough",
        ),
        (
            "dpo",
            "workers",
            "not of bough dpo; several processes train with accelerate launch --num_processes 2 -m bough",
        ),
        ("dpo", "environment", "with bough collect, then make the file with bough pairs"),
        ("eval", "resume", "--resume is a flag of bough sft, dpo, grpo, distill, evolve, not of bough eval; the same"),
    ],
)
def test_what_to_do_instead_is_said(command: str, name: str, said: str):
    assert said in explained(command, name, NEAREST)


def test_a_flag_of_many_commands_is_not_followed_by_all_of_them():
    said = explained("data stats", "seed", NEAREST)
    assert said.count(", ") == MAX_NAMED + 1 and said.endswith(", …, not of bough data stats")


def test_a_misspelt_flag_of_the_command_itself_stays_what_it_is():
    close = "--output is not a setting; did you mean --output-dir?"
    assert explained("sft", "output", close) == close
    assert explained("sft", "nonsense", NEAREST) == NEAREST
    # …, unless it is known that the near one is not what was meant.
    assert "resumes by itself" in explained("collect", "resume", "--resume is …; did you mean --rescore?")


def test_what_to_do_instead_is_about_commands_without_the_flag():
    flags = {name: set(map(on_command_line, leaves(table.command(name).config).values())) for name in table.TABLE}
    assert not any(flags[command] & set(instead) for command, instead in INSTEAD.items())
    assert all(any(name in known for known in flags.values()) for of in INSTEAD.values() for name in of)
