"""The values that a mutation may give to a setting: a range of numbers, or a list of choices."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bough.config.yaml_file import read_value

DOTS = ".."


@dataclass(frozen=True)
class Span:
    """Numbers from `low` to `high`, `whole` ones or all. A span of positive numbers is drawn on a logarithmic scale."""

    low: float
    high: float
    whole: bool = False

    def draw(self, rng: random.Random, present: Any = None) -> Any:  # noqa: ARG002  any value may come again
        """A value of the whole span."""
        if self.low > 0:
            value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        else:
            value = rng.uniform(self.low, self.high)
        return self._inside(value)

    def perturb(self, present: Any, rng: random.Random, *, shrink: float, grow: float) -> Any:
        """The present value times `shrink` or `grow`, with equal probability, kept inside the span.

        A whole number moves by at least 1. From 0 no factor leads anywhere: a value is drawn instead.
        """
        if present == 0:
            return self.draw(rng)
        factor = rng.choice([shrink, grow])
        value = self._inside(present * factor)
        if self.whole and value == present:
            value = self._inside(present + (1 if factor > 1 else -1))
        return value

    def contains(self, value: Any) -> bool:
        return _is_number(value) and self.low <= value <= self.high

    def nearest(self, value: Any) -> Any:
        """The value of the span that is nearest to a default; the lowest for a setting that is off."""
        return self._inside(value) if _is_number(value) else self._inside(self.low)

    def __str__(self) -> str:
        return f"in {self.low:g}{DOTS}{self.high:g}"

    def _inside(self, value: float) -> Any:
        value = min(max(value, self.low), self.high)
        return round(value) if self.whole else value


@dataclass(frozen=True)
class Choices:
    """Some values without an order."""

    values: tuple[Any, ...]

    def draw(self, rng: random.Random, present: Any = None) -> Any:
        """Any value but the present one."""
        others = [value for value in self.values if value != present]
        return rng.choice(others) if others else present

    def perturb(self, present: Any, rng: random.Random, *, shrink: float, grow: float) -> Any:  # noqa: ARG002
        return self.draw(rng, present)

    def contains(self, value: Any) -> bool:
        return value in self.values

    def nearest(self, value: Any) -> Any:
        """A default, or the first choice if it is not among them."""
        return value if value in self.values else self.values[0]

    def __str__(self) -> str:
        return f"one of {', '.join(map(str, self.values))}"


Range = Span | Choices


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_ranges(given: Any) -> Any:
    """`SETTING=LOW..HIGH` and `SETTING=VALUE,VALUE` arguments of the command line as a mapping.

    In a file the same text, a list of choices, or a mapping with min and max. ValueError says what is wrong.
    """
    if isinstance(given, list):
        words = [str(word).partition("=") for word in given]
        if wrong := next((key for key, equals, text in words if not equals or not text), None):
            raise ValueError(f"{wrong!r} must be written as SETTING=LOW..HIGH or SETTING=VALUE,VALUE")
        if twice := {key for key, _, _ in words if sum(key == other for other, _, _ in words) > 1}:
            raise ValueError(f"{', '.join(sorted(twice))} is given twice")
        given = {key: text if DOTS in text else read_value(f"[{text}]") for key, _, text in words}
    if not isinstance(given, Mapping):
        return given
    return {str(key): _normal(str(key), value) for key, value in given.items()}


def _normal(key: str, value: Any) -> Any:
    """A range as settings keep it: a mapping with min and max, or a list."""
    if isinstance(value, str) and DOTS in value:
        first, _, last = value.partition(DOTS)
        value = {"min": first, "max": last}
    if isinstance(value, Mapping):
        if set(value) != {"min", "max"}:
            raise ValueError(f"{key}: a range has min and max, not {', '.join(map(str, value))}")
        try:
            low, high = float(value["min"]), float(value["max"])
        except (TypeError, ValueError):
            raise ValueError(f"{key}: {value['min']!r} to {value['max']!r} is not a range of numbers") from None
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"{key}: a range goes from a lower to a higher number, not from {low:g} to {high:g}")
        return {"min": low, "max": high}
    if not isinstance(value, list) or len(value) < 2:
        raise ValueError(f"{key}: give a range such as 1e-6..1e-4, or at least two choices")
    return [_number(one) for one in value]


def _number(value: Any) -> Any:
    """A choice that is a number, as one: YAML reads 1e-4, without a point, as a text."""
    try:
        number = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        return value
    return number if math.isfinite(number) else value


def make_range(value: Any, *, whole: bool) -> Range:
    """The range that settings describe; `whole` for a setting that is an integer."""
    if isinstance(value, Mapping):
        return Span(value["min"], value["max"], whole)
    return Choices(tuple(value))
