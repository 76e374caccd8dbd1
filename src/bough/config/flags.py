"""The flags of a command, made from its `Config`: names, help and defaults are defined in one place.

Flags are parsed as text. The Config converts them together with the YAML file, so that
the problems of both are reported together.
"""

from __future__ import annotations

import argparse
import inspect
import types
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin

from bough.config.base import Config, Leaf, extra, flag, is_positional, leaves, other_names, other_than
from bough.errors import InputError

# What a flag's value is called in help.
METAVARS = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH"}


class Parser(argparse.ArgumentParser):
    """argparse that raises instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{self.prog}: {message}; see {self.prog} --help")


def build(config: type[Config], prog: str, examples: str = "", shown: Collection[str] = ()) -> Parser:
    """A parser whose flags are the settings of `config`, grouped by the part or the class that declares them.

    Its help explains those in `shown`, and says how many more there are; all of them if `shown` is empty.
    """
    settings = leaves(config)
    hidden = {name for name in settings if shown and name not in shown}
    # The usage is short: all flags are explained below it.
    words = [name.upper() for name, leaf in settings.items() if is_positional(leaf.info)]
    for name, leaf in settings.items():
        if leaf.info.is_required() and not is_positional(leaf.info):
            words.append(f"{flag(name)} …{other_than(leaf.info, ' | ', ' …')}")
    more = f"{len(hidden)} more settings: {prog} --help-all" if hidden else ""
    parser = Parser(
        prog=prog,
        usage=" ".join([prog, *words, "[flags]"]),
        description=inspect.getdoc(config),
        epilog="\n\n".join(filter(None, [more, examples and f"examples:\n{examples}"])),
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    groups = {}
    for name, leaf in settings.items():
        if is_positional(leaf.info):
            several = get_origin(plain_type(leaf.info.annotation)) is list
            parser.add_argument(name, nargs="*" if several else "?", metavar=name.upper(), help=_help(leaf))
            continue
        owner = leaf.part or next(cls for cls in reversed(config.__mro__) if name in inspect.get_annotations(cls))
        if owner not in groups:
            title = (inspect.getdoc(owner) or "").split("\n")[0].rstrip(".") if owner is not config else "settings"
            groups[owner] = parser.add_argument_group(title)
        _add_flag(groups[owner], leaf, argparse.SUPPRESS if name in hidden else _help(leaf))
    common = parser.add_argument_group("all commands")
    if any(not is_positional(leaf.info) for leaf in settings.values()):
        common.add_argument("--config", metavar="FILE", help="a YAML file with these settings; flags override it")
    common.add_argument("--debug", action="store_true", help="show the traceback of an error; also before the command")
    common.add_argument("--follow-links", action="store_true", help="write through links inside an output folder")
    return parser


def parse(config: type[Config], parser: Parser, arguments: Sequence[str]) -> Config:
    """The settings that `arguments` give. --debug and --follow-links take effect in `bough.cli`, not here."""
    # Underscores in the name of a flag stand for dashes.
    split = [(word.startswith("--"), *word.partition("=")) for word in arguments]
    words = [(name.replace("_", "-") if is_flag else name) + rest + value for is_flag, name, rest, value in split]
    known, unknown = parser.parse_known_args(words)
    given = vars(known)
    for name in ("debug", "follow_links"):
        given.pop(name, None)
    strangers = _unknown(unknown)
    try:
        return config.load(given.pop("config", None), given | strangers)
    except InputError as error:
        if not strangers:
            raise
        raise InputError(error.message, error.problems, hint=f"{parser.prog} --help lists the flags") from None


def _add_flag(group: Any, leaf: Leaf, help: str) -> None:
    name, info = leaf.flat, leaf.info
    others = [flag(other) for other in other_names(info) if other != name]
    # A field cannot be called `json`, which pydantic has taken, but a flag can.
    names = others if extra(info).get("renamed") else [flag(name), *others]
    if short := extra(info).get("short"):
        names.insert(0, str(short))
    options: dict[str, Any] = {"dest": name, "help": help}
    kind = plain_type(info.annotation)
    if kind is bool:
        group.add_argument(*names, action=argparse.BooleanOptionalAction, **options)
    elif get_origin(kind) is dict:
        group.add_argument(*names, nargs="+", action="extend", metavar="KEY=VALUE", **options)
    elif get_origin(kind) is list:
        group.add_argument(*names, nargs="+", action="extend", metavar=_metavar(get_args(kind)[0]), **options)
    else:
        group.add_argument(*names, metavar=_metavar(kind), **options)


def plain_type(annotation: Any) -> Any:
    """The type without its None and its validators."""
    if get_origin(annotation) is Annotated:
        return plain_type(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        inner = [argument for argument in get_args(annotation) if argument is not type(None)]
        return plain_type(inner[0]) if len(inner) == 1 else str
    return annotation


def _metavar(annotation: Any) -> str:
    """What stands for a value in help: the choices, or the kind of value."""
    kind = plain_type(annotation)
    if get_origin(kind) is Literal:
        return "{" + ",".join(map(str, get_args(kind))) + "}"
    return METAVARS[kind]


def _help(leaf: Leaf) -> str:
    if extra(leaf.info).get("hidden"):
        return argparse.SUPPRESS
    text, default = (leaf.info.description or "").replace("%", "%%"), leaf.default
    if leaf.info.is_required():
        return f"{text} (required{other_than(leaf.info, ', or ')})"
    shown = " ".join(map(str, default)) if isinstance(default, list) else str(default).replace("%", "%%")
    return text if default in (None, "", [], {}) else f"{text} (default: {shown})"


def _unknown(words: list[str]) -> dict[str, Any]:
    """Flags that argparse does not know, as settings, so that the Config can suggest the right name."""
    flags = [word.partition("=")[0].removeprefix("--") for word in words if word.startswith("--")]
    unknown = {name.replace("-", "_"): "" for name in flags}
    strays = [word for word in words if not word.startswith("-")]
    if not unknown and words:
        raise InputError(f"unexpected argument {' '.join(strays or words)!r}; see --help")
    return unknown
