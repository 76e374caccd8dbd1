"""Flags of other commands: what to say where a command is given one that it does not have."""

from __future__ import annotations

from bough.config.parts import leaves
from bough.config.problems import flag, is_positional, on_command_line
from bough.verbs import RESUMED, VERBS, Verb, resolve

MAX_NAMED = 8  # commands that a sentence lists
SEVERAL = "several processes train with accelerate launch --num_processes 2 -m bough {} …"
PLAY = "it trains on files: record episodes with bough collect, then make the file with bough {}"
# What to do instead, by command and flag.
INSTEAD = {name: {"resume": "the same command resumes by itself"} for name in RESUMED}
for _name, _select in (("sft", "demos"), ("dpo", "pairs")):
    INSTEAD[_name] = dict.fromkeys(("cluster", "workers", "gpus_per_worker", "learners"), SEVERAL.format(_name))
    INSTEAD[_name] |= dict.fromkeys(("environment", "agent"), PLAY.format(_select))


def explained(command: str, name: str, problem: str) -> str:
    """A better sentence than `problem` for the unknown flag of the setting `name`, if other commands have the flag."""
    instead = INSTEAD.get(command, {}).get(name)
    owners = [other for other, verb in VERBS.items() if name in _flags(verb)]
    if not owners or ("did you mean" in problem and not instead):
        return problem
    more = ", …" if len(owners) > MAX_NAMED else ""
    sentence = f"{flag(name)} is a flag of bough {', '.join(owners[:MAX_NAMED])}{more}, not of bough {command}"
    return f"{sentence}; {instead}" if instead else sentence


def _flags(verb: Verb) -> set[str]:
    settings = leaves(resolve(verb.config)).values()
    return {on_command_line(leaf) for leaf in settings if not is_positional(leaf.info)}
