"""A YAML mapping with the line of each key, so that errors can name it.

A small YAML text can expand to a huge value (aliases of aliases) or a deeply nested one,
and a file may come from anyone: files much larger than any settings are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bough.errors import InputError
from bough.files import read_small

# The longest shipped recipe has 2 kB, 150 values and 6 levels.
MAX_BYTES = 256 << 10
MAX_VALUES = 20_000
MAX_DEPTH = 50
# A longer word is read as text: parsing a number of a thousand digits only costs time.
MAX_NUMBER = 100


@dataclass(frozen=True)
class YamlFile:
    """`values` by key, and `problems` that YAML itself accepts, such as duplicate keys.

    `lines` are those of the keys, and of the keys inside them as `lora.r`.
    """

    name: str
    values: dict[str, Any]
    lines: dict[str, int]
    problems: list[str]

    @classmethod
    def read(cls, path: str | Path) -> YamlFile:
        try:
            text = read_small(Path(path), MAX_BYTES)
        except FileNotFoundError:
            raise InputError(f"{path}: there is no such file") from None
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
        lines: dict[str, int] = {}
        problems = []
        try:
            loader = _Loader(text)
            node = loader.get_single_node()
            for key, line in _keys(node):
                if key in lines:
                    problems.append(f"{path}:{line}: {key} is set twice; the first is on line {lines[key]}")
                lines.setdefault(key, line)
            values = loader.construct(node)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise InputError(f"{path}:{line}: not YAML: {error.problem}") from None
        except yaml.YAMLError as error:
            raise InputError(f"{path}: not YAML: {error}") from None
        if node is None:
            return cls(str(path), {}, {}, [])
        if not isinstance(values, dict):
            raise InputError(f"{path}: the file must be a mapping of settings (key: value lines)")
        return cls(str(path), {str(key): value for key, value in values.items()}, lines, problems)


def _keys(node: yaml.Node | None, before: str = "") -> Iterator[tuple[str, int]]:
    """The keys of a mapping and of the mappings inside it, with their lines."""
    for key_node, value in node.value if isinstance(node, yaml.MappingNode) else ():
        key = f"{before}{key_node.value}"
        yield key, key_node.start_mark.line + 1
        if not before:
            yield from _keys(value, f"{key}.")


def read_value(text: str) -> Any:
    """The value of a command-line argument written as in YAML. Raises yaml.YAMLError."""
    loader = _Loader(text)
    return loader.construct(loader.get_single_node())


def write_value(value: Any) -> str:
    """A value on one line, as `read_value` reads it. Paths and other objects are written as text."""
    written = yaml.safe_dump(
        _plain(value), default_flow_style=True, allow_unicode=True, width=math.inf, sort_keys=False
    )
    return written.removesuffix("\n").removesuffix("\n...")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, bool | int | float) else str(value)


class _Loader(yaml.SafeLoader):
    """A safe loader that limits the size and depth of the values."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._open = [0]  # number of values so far in each open collection, innermost last
        self._sizes: dict[yaml.Node, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        alias = self.check_event(yaml.AliasEvent)
        if not alias:
            self._open.append(1)
            if len(self._open) > MAX_DEPTH:
                raise yaml.MarkedYAMLError(problem=f"more than {MAX_DEPTH} levels", problem_mark=mark)
        node = super().compose_node(parent, index)
        assert node is not None
        if alias and node not in self._sizes:
            raise yaml.MarkedYAMLError(problem="an alias inside the value it stands for", problem_mark=mark)
        if not alias:
            self._sizes[node] = self._open.pop()
        self._open[-1] += self._sizes[node]
        if self._open[-1] > MAX_VALUES:
            raise yaml.MarkedYAMLError(problem=f"more than {MAX_VALUES} values", problem_mark=mark)
        return node

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        if kind is yaml.ScalarNode and implicit[0] and len(value) > MAX_NUMBER:
            return self.DEFAULT_SCALAR_TAG
        return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]

    def construct(self, node: yaml.Node | None) -> Any:
        """The value of a document."""
        try:
            return None if node is None else self.construct_document(node)
        except (ValueError, KeyError, AttributeError, TypeError, OverflowError, RecursionError) as error:
            # A tag that does not fit its value, such as !!bool maybe or !!timestamp now.
            raise yaml.YAMLError(f"a value cannot be read: {type(error).__name__}: {error}") from None


# Bytes pass every check for text and then become text: a name of code would go through.
_Loader.add_constructor("tag:yaml.org,2002:binary", yaml.SafeLoader.construct_undefined)  # type: ignore[type-var]
