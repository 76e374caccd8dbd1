"""The parts of a `Config`, and its settings one by one.

A part is a field whose type is a `Config` of its own: `lora: LoraConfig`. Its settings are
read as `config.lora.r`. They can be written nested, `lora: {r: 8}`, or under the flat name
that their flag has, `lora_r: 8`: the field's own name, or the `flag` in its `json_schema_extra`.
A flat name may be that of the part itself: `environment: web` is `environment: {name: web}`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo


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
