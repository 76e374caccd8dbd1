"""Advice of the methods' own commands in the flags of `bough evolve`: `--on-error skip` is `--set on_error=skip`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from bough.config.flags import plain_type
from bough.config.parts import leaves
from bough.errors import InputError
from bough.evolution.member_settings import CONFIGS

if TYPE_CHECKING:
    from bough.evolution.settings import EvolveConfig

# A flag, with the word after it if there is one; those of a command that is named stay as they are.
FLAG = re.compile(r"bough [\w ]+ --[a-z-]+|--(?P<name>[a-z][a-z-]*)(?: (?P<value>[\w.]+))?")


@contextmanager
def in_own_words(config: EvolveConfig) -> Iterator[None]:
    """Within it, an InputError names flags that `bough evolve` has."""
    try:
        yield
    except InputError as error:
        error.message, error.problems = own_words(config, error.message), [own_words(config, p) for p in error.problems]
        error.args = (own_words(config, str(error)), *error.args[1:])
        raise


def own_words(config: EvolveConfig, text: str) -> str:
    """`text` with the flags of the method's command as settings of `--set`."""
    method, own = leaves(CONFIGS[config.method]), leaves(type(config))

    def translated(found: re.Match[str]) -> str:
        name, value = (found["name"] or "").replace("-", "_"), found["value"]
        if name not in method or name in own:
            return found[0]
        if value and _is_value(method[name].info.annotation, value):
            return f"--set {name}={value}"
        return f"--set {name}=…{f' {value}' if value else ''}"

    return FLAG.sub(translated, text)


def _is_value(annotation: Any, word: str) -> bool:
    """Whether the word after a flag is its value, and not the next word of the sentence."""
    kind = plain_type(annotation)
    if get_origin(kind) is Literal:
        return word in map(str, get_args(kind))
    return kind in (int, float) and word[0].isdigit()
