"""The unit after a number, in one spelling: `\\text{ square centimeters}`, `sq. cm` and `cm^2` are one unit."""

from __future__ import annotations

import re

NAMES = {
    "deg": "degree degrees",
    "$": "dollar dollars usd",
    "cent": "cents ¢",
    "€": "euro euros eur",
    "£": "gbp",
    "%": "percent",
    "mm": "millimeter millimeters millimetre millimetres",
    "cm": "centimeter centimeters centimetre centimetres",
    "m": "meter meters metre metres",
    "km": "kilometer kilometers kilometre kilometres",
    "in": "inch inches",
    "ft": "foot feet",
    "yd": "yard yards",
    "mi": "mile miles",
    "mg": "milligram milligrams",
    "g": "gram grams",
    "kg": "kilogram kilograms",
    "oz": "ounce ounces",
    "lb": "lbs pound pounds",
    "ml": "milliliter milliliters millilitre millilitres",
    "l": "liter liters litre litres",
    "gal": "gallon gallons",
    "s": "sec second seconds",
    "min": "mins minute minutes",
    "h": "hr hrs hour hours",
    "day": "days",
    "week": "weeks",
    "month": "months",
    "year": "yr yrs years",
    "unit": "units",
    "mi/h": "mph",
    "km/h": "kph kmh",
}
_SPELLINGS = {spelling: unit for unit, names in NAMES.items() for spelling in (unit, *names.split())}
# Words that change the number or make a list: not units.
_OTHER_WORDS = """
    and or to not plus minus times over by divided mod modulo remainder squared cubed root half quarter third
    zero one two three four five six seven eight nine ten eleven twelve dozen score
    hundred thousand million billion trillion sin cos tan cot csc log exp sqrt gcd lcm max lim det
"""
_WRAPPED = re.compile(r"\\(?:text|mbox|textnormal|textrm|textbf|mathrm|operatorname|rm)\s*\{([^{}]*)\}")
_BASE = re.compile(r"_\{?(\d{1,2})\}?")


def read_unit(text: str) -> str | None:
    """The unit that the text after a number is, "" where there is none; None where it is something else."""
    spaced, text = text[:1].isspace(), text.strip().rstrip(".,")
    if not text:
        return ""
    if base := _BASE.fullmatch(text):
        return f"base {base[1]}"
    in_words, wrapped = _WRAPPED.subn(r" \1 ", text)
    words = in_words.replace("^\\circ", " deg ").replace("\\%", " % ").replace("\\$", " $ ").replace("%", " % ")
    words = re.sub(r"\s*\^\s*\{?([23])\}?", r"^\1", words).lower().replace(".", " ").strip()
    if not re.fullmatch(r"[a-z$€£%¢/ ]+(?:\^[23])?", words):
        return None
    parts = [_one(part.split(), wrapped > 0, spaced) for part in re.split(r"/|\bper\b", words)]
    return None if None in parts else "/".join(part for part in parts if part is not None)


def same_unit(answer: str, gold: str) -> bool:
    """Whether an answer in one unit may stand for a reference in the other.

    An answer may leave the unit out, and may name one that the reference leaves to its
    question ("what percent …?" with 50 as the reference). A base is not such a unit.
    """
    return answer in ("", gold) or (not gold and not answer.startswith("base "))


def _one(words: list[str], wrapped: bool, spaced: bool) -> str | None:
    power = ""
    if len(words) == 2 and (words[0] == "$" == _SPELLINGS.get(words[1]) or words in (["deg", "c"], ["deg", "f"])):
        return "$" if words[0] == "$" else " ".join(words)
    if words and words[0] in ("square", "sq", "cubic", "cu"):
        power = "^2" if words[0].startswith("s") else "^3"
        words = words[1:]
    if words and words[-1][-2:] in ("^2", "^3") and not power:
        power, words = words[-1][-2:], [*words[:-1], words[-1][:-2]]
    # `5m` may be five times m, and `5xy` is not a quantity.
    if len(words) == 1 and words[0] in _SPELLINGS and (wrapped or len(words[0]) > 1 or not words[0].isalpha()):
        return _SPELLINGS[words[0]] + power
    if not 1 <= len(words) <= 3 or set(words) & set(_OTHER_WORDS.split()) or not all(word.isalpha() for word in words):
        return None
    if not wrapped and (not spaced or min(map(len, words)) < 3):
        return None
    return " ".join(words).removesuffix("s") + power
