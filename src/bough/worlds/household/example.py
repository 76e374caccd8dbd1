"""A solved game to show an agent that has seen none: written by hand, its task one of the training split's."""

from __future__ import annotations

from bough.speech import lines
from bough.worlds.household.game import Wording

START = """\
You are in the middle of a room. Looking quickly around you, you see a cabinet 1, a cart 1, and a garbagecan 1.

Your task is to: put some soapbottle in garbagecan."""
# Thought, command, what is seen then.
MOVES = (
    (
        "A soapbottle may be in the cabinet.",
        "go to cabinet 1",
        "You arrive at cabinet 1. The cabinet 1 is closed.",
    ),
    (
        "I cannot see into it yet.",
        "open cabinet 1",
        "You open the cabinet 1. The cabinet 1 is open. In it, you see a cloth 1, and a soapbottle 2.",
    ),
    (
        "There is a soapbottle.",
        "take soapbottle 2 from cabinet 1",
        "You pick up the soapbottle 2 from the cabinet 1.",
    ),
    (
        "Now I bring it to the garbagecan.",
        "go to garbagecan 1",
        "You arrive at garbagecan 1. On the garbagecan 1, you see nothing.",
    ),
)


def solved_game(wording: Wording, *, thoughts: bool) -> str:
    """The whole game as a conversation, in the words of an edition."""
    thing, target = "soapbottle 2", "garbagecan 1"
    end = (
        "I put it in.",
        wording.put_command.format(o=thing, r=target),
        wording.put_feedback.format(o=thing, r=target),
    )
    shown = [f"An example of a whole game:\n{START}"]
    for thought, command, seen in (*MOVES, end):
        shown += [lines.write(command, thought if thoughts else ""), seen]
    return "\n".join(shown)
