"""Plain values as JSON, exchanged between a program and its tests, which never share a process.

A message is `{"value": …, "heap": […]}`. None, booleans, small numbers and texts are
written directly; any other value is `[n]`, a reference to entry n of the heap, which is a
tag with its data. So a message is flat, however deeply the value is nested, and a list may
contain itself.

Other values are sent in two cases only: objects of a class that the task itself defines, as
their attributes, and objects that the caller's `special` recognises, as a tag and a number
("iterator", whose items can be requested, or "object").

The source of this file runs in the program's and the tests' process, never in the host's.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import re
from collections import Counter, OrderedDict, deque, namedtuple
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any

LARGEST = 1 << 53
# Created empty and filled later, because they may contain themselves.
SHELLS: dict[str, type[Any]] = {
    "list": list, "set": set, "deque": deque, "dict": dict, "Counter": Counter, "OrderedDict": OrderedDict,
}  # fmt: skip
CHANGEABLE = {*SHELLS, "class"}
PAIRS = {"dict", "Counter", "OrderedDict"}
MADE: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "frozenset": frozenset,
    "range": lambda parts: range(*parts),
    "dict_keys": lambda parts: dict.fromkeys(parts).keys(),
    "dict_values": lambda parts: dict(enumerate(parts)).values(),
    "dict_items": lambda parts: dict(parts).items(),
}
# Written as text: the type, how it is written, and how it is read. A subclass counts as the first type that fits.
TEXTS: dict[str, tuple[type[Any], Callable[[Any], str], Callable[[str], Any]]] = {
    "int": (int, hex, lambda text: int(text, 16)),
    "float": (float, float.__str__, float),
    "complex": (complex, complex.__str__, complex),
    "bytes": (bytes, bytes.hex, bytes.fromhex),
    "bytearray": (bytearray, bytearray.hex, bytearray.fromhex),
    "Decimal": (Decimal, Decimal.__str__, Decimal),
    "Fraction": (Fraction, Fraction.__str__, Fraction),
    "datetime": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "time": (datetime.time, datetime.time.isoformat, datetime.time.fromisoformat),
    "timedelta": (
        datetime.timedelta,
        lambda value: str(value // datetime.timedelta(microseconds=1)),
        lambda text: datetime.timedelta(microseconds=int(text)),
    ),
}
ABSENT = object()
DTYPE = re.compile(r"[<>|=][biufcU]\d{1,4}")

Special = Callable[[Any], tuple[str, Any] | None]


class ValueRefusedError(Exception):
    """A value that cannot be sent."""


class Raw:
    """A part of an entry that is not an encoded value: a name, a number, a shape."""

    def __init__(self, value: Any) -> None:
        self.value = value


def encoded(
    value: object, classes: Mapping[str, Any], special: Special | None = None
) -> tuple[dict[str, Any], list[Any]]:
    """`value` as a message, and the objects of its heap.

    In the heap children come before their parents, except where a cycle leads back to a shell or an object.
    """
    value = _normal(value)
    heap: list[Any] = []
    objects: list[Any] = []
    places: dict[int, int] = {}

    def placed(item: object) -> int:
        places[id(item)] = len(heap)
        heap.append(None)
        objects.append(item)  # kept alive, so that its id is not reused
        return len(heap) - 1

    waiting: list[tuple[Any, tuple[str, list[Any]] | None]] = [(value, None)]
    while waiting:
        item, entry = waiting.pop()
        if _inline(item) or (entry is None and id(item) in places):
            continue
        if entry is None:
            tag, parts = _entry(item, classes, special)
            if tag in CHANGEABLE:
                placed(item)
            parts = [part if isinstance(part, Raw) else _normal(part) for part in parts]
            waiting.append((item, (tag, parts)))
            waiting += [(part, None) for part in parts if not isinstance(part, Raw)]
            continue
        tag, parts = entry
        place = places[id(item)] if id(item) in places else placed(item)
        heap[place] = [
            tag, *[part.value if isinstance(part, Raw) else _place(part, places) for part in parts]
        ]  # fmt: skip
    return {"value": _place(value, places), "heap": heap}, objects


def decoded(
    message: Mapping[str, Any],
    classes: Mapping[str, Any],
    special: Callable[[str, Any], Any] | None = None,
    settable: Collection[str] = (),
) -> tuple[Any, list[Any]]:
    """The value of a message, and the objects of its heap; raises whatever a wrong message leads to.

    An object has no attribute in place of a method or a constant of its class. Where a class
    has a value of the same name, `settable` says whether it is a default that objects replace.
    """
    heap = message["heap"]
    # Shells and objects can be referred to before their content is known, anything else cannot.
    made: list[Any] = []
    for tag, *parts in heap:
        kind = classes.get(parts[0]) if tag == "class" else None
        if tag == "class" and not isinstance(kind, type):
            raise ValueRefusedError(f"{parts[0]:.80} is not a class of the task's")
        made.append(object.__new__(kind) if kind is not None else SHELLS.get(tag, lambda: ABSENT)())

    def at(place: Any) -> Any:
        if not isinstance(place, list | dict):
            return place
        [number] = place
        if type(number) is not int or number < 0 or made[number] is ABSENT:
            raise ValueRefusedError("a wrong place")
        return made[number]

    for place, (tag, *parts) in enumerate(heap):
        if made[place] is not ABSENT:
            continue
        if tag in TEXTS:
            made[place] = TEXTS[tag][2](parts[0])
        elif tag == "array":
            import numpy

            if not DTYPE.fullmatch(parts[0]):
                raise ValueRefusedError("an array of something else")
            made[place] = numpy.array(list(map(at, parts[2:])), dtype=parts[0]).reshape(parts[1])
        elif tag == "named":
            made[place] = namedtuple(parts[0], parts[1])(*map(at, parts[2:]))
        elif tag in MADE:
            made[place] = MADE[tag](list(map(at, parts)))
        elif special is not None:
            made[place] = special(tag, parts[0])
        else:
            raise ValueRefusedError(f"an {tag:.20} cannot be sent here")
    for place, (tag, *parts) in enumerate(heap):
        if tag == "class":
            kind, content = type(made[place]), dict(zip(parts[1], map(at, parts[2:]), strict=True))
            fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
            free = {*settable, *(field.name for field in fields)}
            for name in parts[1]:
                found = getattr(kind, name, None)  # None in a class is a place for a value
                if isinstance(found, cached_property):
                    del content[name]  # the class computes it here too
                elif callable(found) or (found is not None and name not in free):
                    raise ValueRefusedError(f"{parts[0]} whose {name:.80} is replaced")
            vars(made[place]).update(content)
        elif tag in SHELLS:
            refill(made[place], tag, list(map(at, parts)))
    return at(message["value"]), made


def refill(shell: Any, tag: str, parts: list[Any]) -> None:
    """Replaces the content of a shell."""
    shell.clear()
    if tag in PAIRS:
        for key, value in zip(parts[::2], parts[1::2], strict=True):
            shell[key] = value
    elif tag == "set":
        shell.update(parts)
    else:
        shell.extend(parts)


def _inline(value: Any) -> bool:
    kind = type(value)
    if kind is int:
        return bool(-LARGEST <= value <= LARGEST)
    return value is None or kind is bool or kind is str or (kind is float and math.isfinite(value))


def _place(value: Any, places: Mapping[int, int]) -> Any:
    return value if _inline(value) else [places[id(value)]]


def _normal(value: Any) -> Any:
    """Numbers and texts of numpy or of subclasses, as Python's own types."""
    kind = type(value)
    if kind in (int, bool, float, str):
        return value
    if kind.__module__ == "numpy" and kind.__name__ != "ndarray" and hasattr(value, "item"):
        return value.item()
    if isinstance(value, int):
        return int.__pos__(value)
    if isinstance(value, float):
        return float.__pos__(value)
    return str.__str__(value) if isinstance(value, str) else value


def _entry(value: Any, classes: Mapping[str, Any], special: Special | None) -> tuple[str, list[Any]]:
    """The tag of a value and its parts. An instance of a subclass of a plain type counts as that type."""
    kind, name = type(value), type(value).__name__
    if name in classes and hasattr(value, "__dict__"):
        return "class", [Raw(name), Raw([str(key) for key in vars(value)]), *vars(value).values()]
    if kind.__module__ == "numpy" and name == "ndarray" and DTYPE.fullmatch(value.dtype.str):
        return "array", [Raw(value.dtype.str), Raw(list(value.shape)), *value.ravel().tolist()]
    for tag, (base, shown, _) in TEXTS.items():
        if isinstance(value, base):
            return tag, [Raw(str(shown(value)))]
    if kind is range:
        return "range", [value.start, value.stop, value.step]
    if name in MADE and name.startswith("dict_"):
        return name, list(value)
    if isinstance(value, dict):
        tag = next(tag for tag in ("Counter", "OrderedDict", "dict") if isinstance(value, SHELLS[tag]))
        return tag, [part for pair in dict.items(value) for part in pair]
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return "named", [Raw(name), Raw([str(field) for field in kind._fields]), *tuple.__iter__(value)]
    sequences: tuple[type[Any], ...] = (list, tuple, set, frozenset, deque)
    for sequence in sequences:
        if isinstance(value, sequence):
            return sequence.__name__, list(sequence.__iter__(value))
    found = special(value) if special is not None else None
    if found is None:
        raise ValueRefusedError(f"{kind.__qualname__} is not a plain value")
    return found[0], [Raw(found[1])]
