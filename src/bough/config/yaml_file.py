"""A YAML mapping with the line of each key, so that an error can say where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bough.errors import InputError


@dataclass(frozen=True)
class YamlFile:
    """`values` by key, the `lines` the keys stand on, and `problems` YAML itself would let pass."""

    name: str
    values: dict[str, Any]
    lines: dict[str, int]
    problems: list[str]

    @classmethod
    def read(cls, path: str | Path) -> YamlFile:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise InputError(f"{path}: there is no such file") from None
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: cannot be read: {error}") from None
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
            values = yaml.safe_load(text)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise InputError(f"{path}:{line}: not YAML: {error.problem}") from None
        except (yaml.YAMLError, ValueError) as error:
            raise InputError(f"{path}: not YAML: {error}") from None
        if node is None:
            return cls(str(path), {}, {}, [])
        if not isinstance(node, yaml.MappingNode):
            raise InputError(f"{path}: the file must be a mapping of settings (key: value lines)")
        return cls._with_lines(str(path), values, node)

    @classmethod
    def _with_lines(cls, name: str, values: dict[Any, Any], node: yaml.MappingNode) -> YamlFile:
        lines: dict[str, int] = {}
        problems = []
        for key_node, _ in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in lines:
                problems.append(f"{name}:{line}: {key} is set twice; the first is on line {lines[key]}")
            lines.setdefault(key, line)
        return cls(name, {str(key): value for key, value in values.items()}, lines, problems)
