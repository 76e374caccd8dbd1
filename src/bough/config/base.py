"""One definition per command: a `Config` class defines the YAML keys, the flags and the Python arguments.

    SFTConfig(train_file="a.jsonl")                           # Python
    SFTConfig.load("run.yaml", {"learning_rate": "1e-5"})     # a file, then what flags override

Settings that belong together are a part, a small Config of its own (`parts`).

Unknown keys, wrong values and missing ones are reported together, each with its
place, what is wrong and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo

from bough.config.yaml_file import YamlFile
from bough.errors import InputError, did_you_mean
from bough.ledger import plural


@dataclass(frozen=True)
class Leaf:
    """One setting: its flat name, the names that lead to it, how it is declared and its default.

    `part` is the class of the part that it belongs to, None for a field of the command itself.
    """

    flat: str
    path: tuple[str, ...]
    info: FieldInfo
    default: Any = None
    part: type[BaseModel] | None = None

    @property
    def nested(self) -> str:
        """Its name with that of its part: `lora.r`."""
        return ".".join(self.path)

    def of(self, config: BaseModel) -> Any:
        """Its value in `config`."""
        value: Any = config
        for name in self.path:
            value = getattr(value, name)
        return value


@cache
def parts(config: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """The classes of the parts by the names of their fields."""
    annotations = {name: info.annotation for name, info in config.model_fields.items()}
    return {name: kind for name, kind in annotations.items() if isinstance(kind, type) and issubclass(kind, BaseModel)}


@cache
def leaves(config: type[BaseModel]) -> dict[str, Leaf]:
    """Every setting by its flat name, in the order of declaration."""
    found: dict[str, Leaf] = {}
    for name, info in config.model_fields.items():
        if (part := parts(config).get(name)) is None:
            own = [Leaf(_flat(name, info), (name,), info, _default(info))]
        else:
            changed = _inside(_default(info)) or {}
            own = [
                Leaf(_flat(key, of), (name, key), of, changed[key] if key in changed else _default(of), part)
                for key, of in part.model_fields.items()
            ]
            assert not parts(part), f"{part.__name__} is a part and cannot have parts"
        for leaf in own:
            if leaf.flat in found:
                raise TypeError(f"{config.__name__}: {leaf.nested} and {found[leaf.flat].nested} have one flat name")
            found[leaf.flat] = leaf
    return found


def other_names(info: FieldInfo) -> list[str]:
    """Aliases of a field: its names in other tools."""
    choices = getattr(info.validation_alias, "choices", [])
    return [str(choice) for choice in choices]


@cache
def by_name(config: type[BaseModel]) -> dict[str, Leaf]:
    """Every setting by its flat name and by its aliases."""
    aliases = {other: leaf for leaf in leaves(config).values() for other in other_names(leaf.info)}
    return aliases | leaves(config)


def lifted(config: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with every flat name moved into its part, where it joins the part's own defaults.

    A setting that is given both ways keeps its flat name here, which the Config then refuses.
    """
    nested = {name: dict(inside) for name in parts(config) if (inside := _inside(values.get(name))) is not None}
    flat = {key: value for key, value in values.items() if key not in nested}
    rest = {}
    for key, value in flat.items():
        leaf = by_name(config).get(key)
        if leaf is None or leaf.part is None or leaf.path[1] in nested.get(leaf.path[0], {}):
            rest[key] = value
        else:
            nested.setdefault(leaf.path[0], {})[leaf.path[1]] = value
    for name in parts(config):
        info = config.model_fields[name]
        if info.is_required():  # so that what is missing is named, not its part
            nested.setdefault(name, {})
        elif name in nested:
            nested[name] = {**(_inside(_default(info)) or {}), **nested[name]}
    return {**nested, **rest}


def flattened(config: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values by their flat names. A part that cannot be read, or sets what is also set flat, stays nested."""
    flat = {
        leaf.flat if (leaf := by_name(config).get(key)) else key: value
        for key, value in values.items()
        if key not in parts(config) or _inside(value) is None
    }
    for name, part in parts(config).items():
        inside = _inside(values.get(name))
        if inside is None:
            continue
        names = {key: _flat(key, part.model_fields[key]) for key in inside if key in part.model_fields}
        if len(names) < len(inside) or flat.keys() & names.values():
            flat[name] = values[name]
        else:
            flat |= {names[key]: value for key, value in inside.items()}
    return {name: flat[name] for name in leaves(config) if name in flat} | flat


def without(config: type[BaseModel], values: Mapping[str, Any], flat_names: Collection[str]) -> dict[str, Any]:
    """The values without these settings, nested or flat."""
    kept: dict[str, Any] = {}
    for key, value in values.items():
        leaf = by_name(config).get(key)
        if key in parts(config) and (inside := _inside(value)) is not None:
            fields = parts(config)[key].model_fields
            kept[key] = {n: v for n, v in inside.items() if n not in fields or _flat(n, fields[n]) not in flat_names}
        elif (leaf.flat if leaf else key) not in flat_names:
            kept[key] = value
    return kept


def overlaid(config: type[BaseModel], values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """The values with other ones, by their flat names, in their places."""
    whole = without(config, values, over)
    for flat, value in over.items():
        leaf = leaves(config).get(flat)
        inside = _inside(whole.get(leaf.path[0])) if leaf and leaf.part else None
        if leaf is not None and inside is not None:
            whole[leaf.path[0]] = {**inside, leaf.path[1]: value}
        else:
            whole[flat] = value
    return whole


def spelling(config: type[BaseModel], values: Mapping[str, Any], leaf: Leaf) -> str:
    """The name under which `values` has a setting: flat, an alias, or nested; flat if it is not there."""
    inside = _inside(values.get(leaf.path[0])) if leaf.part else None
    if inside is not None and leaf.path[1] in inside:
        return leaf.nested
    names = (key for key in values if inside is None or key != leaf.path[0])
    return next((key for key in names if by_name(config).get(key) is leaf), leaf.flat)


def place_of(config: type[BaseModel], values: Mapping[str, Any], key: str) -> str:
    """Where in `values` the setting `key`, a flat or a nested name, is to be set, so that it is not there twice.

    What follows in `key` is a place inside the setting: `options.pages`.
    """
    words = key.split(".")
    nested = {leaf.path: leaf for leaf in leaves(config).values()}
    leaf, used = nested.get(tuple(words[:2])), 2
    if leaf is None:
        leaf, used = by_name(config).get(words[0]), 1
    if leaf is None or leaf.part is None:
        return key
    found = spelling(config, values, leaf)
    if found == leaf.flat and _inside(values.get(leaf.path[0])) is not None:
        found = leaf.nested
    elif found == leaf.flat and found not in values:
        return key
    return ".".join([found, *words[used:]])


def _inside(value: Any) -> Mapping[str, Any] | None:
    """What is given for a part in its nested form: a mapping, or a part with its unset settings left out."""
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in type(value).model_fields if name in value.model_fields_set}
    return value if isinstance(value, Mapping) else None


def extra(info: FieldInfo) -> dict[str, Any]:
    """What a field says about its place on the command line."""
    return info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}


def _flat(name: str, info: FieldInfo) -> str:
    return str(extra(info).get("flag", name))


def _default(info: FieldInfo) -> Any:
    return None if info.is_required() else info.get_default(call_default_factory=True)


# Names that become part of a path. They come from files, so they must not lead out of the folder.

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
RULE = "a name consists of at most 100 letters, digits, dashes, underscores and dots, and no dot first"


def is_name(text: str) -> bool:
    """Whether `text` can be the name of a file or folder inside another."""
    return NAME.fullmatch(text) is not None


NAMED = re.compile(r"`(\w+)`")
# Settings of earlier versions, and why they went.
_WATCH = ("watch_drop", "watch_growth", "watch_entropy", "watch_kl")
_UNUSED = ("entropy_coef", "entropy_floor", "task_pool", "reset_file", "reset_share", "passes", "state_weight")
REMOVED = {
    **dict.fromkeys(_WATCH, "the watch has fixed limits; --no-watch turns it off"),
    **dict.fromkeys(_UNUSED, "leave it out"),
    "gradient_accumulation_steps": "--batch-size is the number of records per step",
    "fp16": "a GPU computes in bfloat16 or, with --no-bf16, in float32",
    "temperatures": "all attempts have one --temperature",
    "curriculum_success": "a curriculum grows with the epochs",
    "precompute_reference": "only a run of all weights computes its reference first",
    "importance_cap": "the cap of importance weights is 2",
}
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
    if known is None and (why := REMOVED.get("_".join(map(str, where)), REMOVED.get(str(where[-1])))):
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


# The largest seed, size or count that the libraries accept.
LARGEST = 2**63 - 1
# As a path, s3://bucket/run would be a folder of this machine with the name `s3:`. Data is also read from hf://.
ADDRESS = re.compile(r"(?!hf:)[a-z][a-z0-9+.-]+:/", re.IGNORECASE)


class Config(BaseModel):
    """Settings of one command, or a part of them. Subclasses declare fields, each with a description.

    `command` is the command whose settings these are; the settings file of a run names it.
    """

    command: ClassVar[str] = ""
    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, populate_by_name=True, allow_inf_nan=False
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise listed(type(self).__name__, problems_of(type(self), error, values)) from error

    # Without this mark pydantic would make a part by calling the method above, and the first
    # part with a problem would hide all other problems.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @model_validator(mode="before")
    @classmethod
    def _lift(cls, values: Any) -> Any:
        return lifted(cls, values) if isinstance(values, Mapping) else values

    @field_validator("*", mode="after")
    @classmethod
    def _fits(cls, value: Any) -> Any:
        if isinstance(value, int) and abs(value) > LARGEST:
            raise ValueError(f"it must be at most {LARGEST}")
        if isinstance(value, Path) and ADDRESS.match(str(value)):
            raise ValueError("it must be on a disk of this machine, not an address; an object store can be mounted")
        return value

    @classmethod
    def load(cls, file: str | Path | None = None, overrides: Mapping[str, Any] | None = None) -> Self:
        """The settings of a YAML file with `overrides` (from flags) on top."""
        document = YamlFile.read(file) if file is not None else YamlFile("", {}, {}, [])
        overrides = {cls.field_name(key): value for key, value in (overrides or {}).items()}
        command = document.values.pop("command", cls.command)
        own_names, foreign = translate(document.values, leaves(cls))
        from_file = without(cls, own_names, overrides)
        values = overlaid(cls, from_file, overrides)
        places = {RENAMED.get(key, key): f"{document.name}:{line}: " for key, line in document.lines.items()}
        other = f"{document.name} has the settings of bough {command}, not of this command"
        problems = [
            *document.problems,
            *([] if command == cls.command else [other]),
            *(f"{places.get(RENAMED.get(key, key), '')}{said}" for key, said in foreign.items()),
        ]

        def names_code(key: str, setting: str, name: str) -> str:
            named = f"{key} names code ({name!r}), which a file may not do"
            return f"{places.get(key, '')}{named}; give it as a flag, {flag(setting)}"

        problems += [names_code(*found) for found in code_in(from_file)]
        source = document.name or "the command line"
        if document.name and overrides:
            source = f"{document.name} with the flags"
        try:
            settings = cls(**values)
        except InputError as error:
            assert isinstance(error.__cause__, ValidationError)
            problems += problems_of(cls, error.__cause__, values, places, set(overrides))
            raise listed(source, problems) from None
        problems += [
            names_code(setting, setting, name)
            for setting in CHANGES
            if setting in from_file
            for key, value in getattr(settings, setting).items()
            for one in (value if isinstance(value, list) else [value])
            for name in dict.fromkeys(code_in_change(key, one))
        ]
        if problems:
            raise listed(source, problems)
        return settings

    @classmethod
    def field_name(cls, key: str) -> str:
        """The flat name of the setting that a key stands for: itself, or the setting it is an alias of."""
        leaf = by_name(cls).get(key)
        return leaf.flat if leaf else key

    def flat_dump(self, **how: Any) -> dict[str, Any]:
        """The settings by their flat names, as JSON values; `how` is as in pydantic's `model_dump`."""
        return flattened(type(self), self.model_dump(mode="json", **how))

    def recorded(self) -> dict[str, Any]:
        """The settings as JSON values, after the command that they are of."""
        return {"command": self.command} | self.model_dump(mode="json")

    def to_yaml(self) -> str:
        """The resolved settings, as a file that `load` reads."""
        return yaml.safe_dump(self.recorded(), sort_keys=False, allow_unicode=True)


def setting(
    default: Any = ..., *, flag: str | None = None, short: str | None = None, positional: bool | None = None, **of: Any
) -> Any:
    """A field with its place on the command line: the flag that it has (also its flat name), a short one, or neither.

    `of` is as in pydantic's `Field`.
    """
    extra = {"flag": flag, "short": short, "positional": positional}
    return Field(default, json_schema_extra={key: value for key, value in extra.items() if value is not None}, **of)


# Settings that can name code: an environment, a reward or an agent as `module:name` or `path/to/file.py:name`.
# The address of a cluster is one of them: Ray unpickles what the other machines send, so they can run code here. Code
# may be named on the command line and in Python. A file (a recipe, a `--config` file, a record) may come from anyone,
# so reading it must never run code.

SETTINGS = ("environment", "rewards", "rules", "agent", "own_agent", "cluster")
# Parts that are written as a mapping, in which this setting names the code, or as the name alone; and one that has
# a setting's name.
NAMED_BY_PART = {"environment": "name", "cluster": "address"}
PARTS = (*NAMED_BY_PART, "agent")
# Settings of a command that change settings of a recipe.
CHANGES = ("set", "vary")
# Settings that are mappings with any keys, and how the name of an option begins that lets code do more than it may.
OPEN = ("options", "rule_options")
UNSAFE = "unsafe_"
# Environments of installed packages, by the names those packages gave them. With a second colon
# gymnasium imports a module, and the other adapters run commands or contact servers.
OF_A_PACKAGE = re.compile(r"(?:gymnasium|textarena):[^:]+")


def is_code(name: str) -> bool:
    """Whether a setting is code to load, a command to run or a server to contact."""
    return ":" in name and OF_A_PACKAGE.fullmatch(name) is None


def code_in(settings: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Every setting that names code: its name as it is written, its flat name, and the name of the code."""
    for key, given in settings.items():
        if key in SETTINGS and not (key in PARTS and isinstance(given, Mapping)):
            yield from ((key, key, name) for name in _code(given))
        elif key in OPEN:
            yield from ((f"{key}.{name}", key, name) for name in _unsafe(given))
        elif isinstance(given, Mapping):
            for inside, value in given.items():
                setting = key if NAMED_BY_PART.get(key) == inside else str(inside)
                if setting in OPEN:
                    yield from ((f"{key}.{inside}.{name}", setting, name) for name in _unsafe(value))
                elif setting in SETTINGS:
                    yield from ((f"{key}.{inside}", setting, name) for name in _code(value))


def code_in_change(key: str, value: Any) -> Iterator[str]:
    """Names of code in a change of a recipe, such as `grpo.environment` or `defaults`, to `value`."""
    *_, part, last = ["", *key.split(".")]
    # The key may end in a setting or in one inside a part, or the value may give several settings.
    meant = [{last: value}, {part: {last: value}}, *([value] if isinstance(value, Mapping) else [])]
    yield from (name for one in meant for _, _, name in code_in(one))


def _names(given: Any) -> list[Any]:
    # Several are a mapping by name, or a list of NAME=VALUE as on the command line.
    return [str(one).partition("=")[0] for one in given] if isinstance(given, Mapping | list) else [given]


def _unsafe(options: Any) -> list[str]:
    return [name for name in _names(options) if isinstance(name, str) and name.startswith(UNSAFE)]


def _code(given: Any) -> list[str]:
    return [name for name in _names(given) if isinstance(name, str) and is_code(name)]


# Keys of other tools' configuration files: knowlyr-trainer's and AgileRL's YAML is read as it is written.
# Only files are translated.

RENAMED = {"model_name_or_path": "model", "lr": "learning_rate"}
# Settings of knowlyr-trainer that cannot be turned off in Bough, and why.
ALWAYS_ON = {
    "agent_format": "replies are always separate turns",
    "mask_observations": "only replies are trained",
    "chunk_long_trajectories": "a long prompt always drops its oldest steps",
}
STEP_LEVEL = "step_level_advantage"


def translate(values: Mapping[str, Any], fields: Collection[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of a file by their names in Bough, for a command with these `fields`, and the problems by key."""
    translated: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for key, value in values.items():
        if key in ALWAYS_ON and "train_file" in fields:
            if value is not True:
                problems[key] = f"{key} is {value!r}; choose one of True: {ALWAYS_ON[key]}"
        elif key == STEP_LEVEL and "advantage" in fields:
            if value is True:
                translated["advantage"] = "step"
        elif key in RENAMED and RENAMED[key] in fields:
            translated[RENAMED[key]] = value
            if RENAMED[key] in values:
                problems[key] = f"{key} means {RENAMED[key]}, which is given too; remove one of them"
        else:
            translated[key] = value
    return translated, problems
