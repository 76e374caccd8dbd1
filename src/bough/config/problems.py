"""What is wrong with given settings, in a sentence each: where, what, and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from bough.config.parts import Leaf, extra, flattened, leaves, other_names, parts, spelling
from bough.errors import InputError, did_you_mean
from bough.ledger import plural

NAMED = re.compile(r"`(\w+)`")
# Settings of earlier versions, and why they went.
REMOVED = dict.fromkeys(
    ("watch_drop", "watch_growth", "watch_entropy", "watch_kl"), "the watch has fixed limits; --no-watch turns it off"
)
RULES = {
    "int": "it must be a whole number",
    "float": "it must be a number",
    "bool": "it must be true or false",
    "string": "it must be text",
    "list": "it must be a list",
    "dict": "it must be a mapping",
    "model": "it must be a mapping",
}


def flag(name: str) -> str:
    """A setting's flat name as it is written on the command line."""
    return "--" + name.replace("_", "-")


def named(settings: Iterable[str], separator: str = ", ") -> str:
    """Settings in a validator's message, which the error shows as flags or as keys, whichever the user wrote."""
    return separator.join(f"`{name}`" for name in settings)


def is_positional(info: FieldInfo) -> bool:
    """Whether the field is a positional argument of the command line."""
    return bool(extra(info).get("positional"))


def other_than(info: FieldInfo, before: str, after: str = "", spell: Callable[[str], str] = flag) -> str:
    """The setting that may be given instead of this required one, with the text around it; "" if there is none."""
    other = extra(info).get("or")
    return f"{before}{spell(str(other))}{after}" if other else ""


def listed(source: str, problems: list[str]) -> InputError:
    """An error that lists the problems of `source`."""
    count = plural(len(problems), "problem")
    return InputError(f"{source} has {count}:", problems)


def problems_of(
    config: type[BaseModel],
    error: ValidationError,
    values: Mapping[str, Any],
    places: Mapping[str, str] | None = None,
    from_flags: Collection[str] | None = None,
) -> list[str]:
    """A sentence for each finding on the given `values`.

    `places` are the lines of a file by the settings' names as they are written in it,
    `from_flags` the settings that the command line gave, None where there is none.
    """
    found, given = [], set(flattened(config, values))
    for finding in error.errors(include_url=False):
        # The setting, its name as given, and the place inside its value.
        where = finding["loc"]
        words = [str(word) for word in where]
        leaf = next((one for one in leaves(config).values() if list(one.path) == words[: len(one.path)]), None)
        used = len(leaf.path) if leaf else 2 if words and words[0] in parts(config) else 1
        key = spelling(config, values, leaf) if leaf else ".".join(words[:used])
        inside = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where[used:])
        flat = leaf.flat if leaf else key
        is_flag = flat in (from_flags or ()) or (finding["type"] == "missing" and from_flags is not None)
        spell = flag if is_flag else str
        # Settings that a validator's message names (see `named`) are flags, unless a file gives one of them.
        names = set(NAMED.findall(finding["msg"]))
        plain = from_flags is None or names & (given - set(from_flags))
        for name in names:
            finding["msg"] = finding["msg"].replace(f"`{name}`", name if plain else flag(name))
        sentence = _sentence(config, leaf, spell(flat if is_flag else key) + inside, finding, spell)
        found.append(f"{(places or {}).get(key, '')}{sentence}")
    return found


def _sentence(config: type[BaseModel], leaf: Leaf | None, key: str, finding: Any, spell: Callable[[str], str]) -> str:
    kind, context, given = finding["type"], finding.get("ctx", {}), finding.get("input")
    if kind == "extra_forbidden":
        return _unknown(config, finding["loc"], key, spell)
    if kind == "missing":
        if leaf and is_positional(leaf.info):
            return f"{leaf.flat.upper()} is required"
        return f"{key}{other_than(leaf.info, ' or ', spell=spell) if leaf else ''} is required"
    if kind == "literal_error":
        return f"{key} is {given!r}; choose one of {context['expected'].replace(' or ', ', ')}"
    if kind in ("value_error", "assertion_error"):
        message = str(finding["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, "))
        # What is said of a command or a part as a whole names its settings itself.
        of_part = leaf is None and finding["loc"] and finding["loc"][0] in parts(config)
        return message if of_part or not key else f"{key} is {given!r}; {message}"
    rule = RULES.get(kind.removesuffix("_parsing").removesuffix("_type").removesuffix("_from_float"))
    if rule is None:
        message = finding["msg"].removeprefix("Input should ")
        rule = f"it should {message}" if message != finding["msg"] else message
    return f"{key} is {given!r}; {rule}"


def _unknown(config: type[BaseModel], where: tuple[int | str, ...], key: str, spell: Callable[[str], str]) -> str:
    known = leaves(config).get(str(where[-1]))
    if known is None and (why := REMOVED.get("_".join(map(str, where)))):
        return f"{key} was removed: {why}"
    if len(where) > 1:
        if known is not None and known.part is not None:
            return f"{key} is not a setting; did you mean {known.nested}?"
        inside = parts(config)[str(where[0])].model_fields
        return f"{key} is not a setting{did_you_mean(str(where[-1]), inside)}"
    if known is not None and known.part is not None:  # see `lifted`
        return f"{key} and {known.nested} are the same setting; remove one of them"
    if known is not None:  # a part alone has no flat names
        return f"{key} is not a setting; did you mean {known.nested}?"
    names = [*leaves(config), *parts(config)]
    if spell is not str:  # the flag of a renamed setting has the last of its names
        every = leaves(config).values()
        names = [other_names(leaf.info)[-1] if extra(leaf.info).get("renamed") else leaf.flat for leaf in every]
    return f"{key} is not a setting{did_you_mean(key, dict.fromkeys(map(spell, names)))}"
