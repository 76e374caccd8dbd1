"""Numbers with their units, written as a final result and not as a calculation that is still to be done.

    315   -1,234.50   2/3   \\frac{2}{3}   2\\frac{1}{2}   1.5\\times 10^{3}   0.\\overline{3}
    5\\sqrt{2}   \\frac{1+\\sqrt{5}}{2}   2\\pi   3-4i   2(1+\\sqrt{3})

The parser reads the longest number at the start of a text and says whether it is in
simplest form: fractions in lowest terms, no square factor under a root, like terms added.
`6/3`, `\\sqrt{8}`, `2+3` and `5(7)` are numbers but not in simplest form. A unit is read in
one spelling: `\\text{ square centimeters}`, `sq. cm` and `cm^2` are one unit.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

MAX_LENGTH = 1_000
MAX_DEPTH = 8
MAX_EXPONENT = 300
# A product of sums has as many terms as the product of their numbers.
MAX_TERMS = 8
# Finding the square factors of larger numbers takes too long.
MAX_RADICAND = 10**10

# The kind of a term: √ of a square-free number, a power of π, a power of i.
Kind = tuple[int, int, int]
PLAIN: Kind = (1, 0, 0)

_DIGITS = re.compile(r"\s*(\d{1,3}(?:,\d{3})+(?![\d,])|\d+)?(\.\d*)?(?:\\overline\s*\{(\d+)\})?")
_SCIENTIFIC = re.compile(r"\s*(?:(?:\\times|\\cdot|×|\*)\s*10\s*\^\s*(?:\{\s*([-+]?\d+)\s*\}|(-?\d+))|[eE]([-+]?\d+))")
_SYMBOLS = {"\\pi": (1, 1, 0), "i": (1, 0, 1)}
_SIGN = re.compile(r"\s*([-+])")
_SYMBOL = re.compile(r"\s*(\\pi|i)(?![A-Za-z])")
_MIXED = re.compile(r"\s*(?:\\frac\{(\d+)\}\{(\d+)\}|(?<=\s)(\d+)/(\d+)(?!\d))")
# Each unit with its other spellings; a plural ends with s.
UNITS = """
    deg degree, $ dollar usd, cent ¢, € euro eur, £ gbp, % percent, mm millimeter millimetre, cm centimeter centimetre,
    m meter metre, km kilometer kilometre, in inch inches, ft foot feet, yd yard, mi mile, mg milligram, g gram,
    kg kilogram, oz ounce, lb lbs pound, ml milliliter millilitre, l liter litre, gal gallon, s sec second,
    min mins minute, h hr hrs hour, day days, week, month, year yr yrs, unit, mi/h mph, km/h kph kmh
"""
_SPELLINGS = {
    name + plural: names.split()[0]
    for names in UNITS.split(",")
    for name in names.split()
    for plural in (("", "s") if len(name) > 3 else ("",))
}
# Words that change the number or make a list: not units.
_OTHER_WORDS = """
    and or to not plus minus times over by divided mod modulo remainder squared cubed root half quarter third
    zero one two three four five six seven eight nine ten eleven twelve dozen score
    hundred thousand million billion trillion sin cos tan cot csc log exp sqrt gcd lcm max lim det
"""
_WRAPPED = re.compile(r"\\(?:text|mbox|textnormal|textrm|textbf|mathrm|operatorname|rm)\s*\{([^{}]*)\}")
_BASE = re.compile(r"_\{?(\d{1,2})\}?")


@dataclass(frozen=True)
class Number:
    """A sum of terms of different kinds.

    `simple` says whether it was written in simplest form, `coefficient` whether it was
    written as digits or a fraction; a product in simplest form has only one coefficient.
    """

    parts: dict[Kind, Fraction]
    simple: bool
    coefficient: bool = False


class NotANumberError(ValueError):
    """The text does not start with a number."""


def read_number(text: str) -> tuple[Number, str] | None:
    """The number at the start of a text and the rest of the text; None if it does not start with one."""
    if len(text) > MAX_LENGTH:
        return None
    reader = _Reader(text)
    try:
        number = reader.sum(0)
    except (NotANumberError, ZeroDivisionError):
        return None
    return number, text[reader.at :]


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def sum(self, depth: int) -> Number:
        """Terms separated by signs."""
        if depth > MAX_DEPTH:
            raise NotANumberError
        parts: dict[Kind, Fraction] = {}
        simple, sign = True, self._match(_SIGN)
        while True:
            # Adjacent factors, optionally divided by one denominator after a slash.
            term = _product([self._factor(depth), *self._more_factors(depth)])
            if self._take("/"):
                term = _quotient(term, self._factor(depth))
                if self._more_factors(depth):
                    raise NotANumberError  # 1/2π is two numbers
            simple = simple and term.simple and not parts.keys() & term.parts.keys()
            for kind, value in term.parts.items():
                parts[kind] = parts.get(kind, Fraction(0)) + (-value if sign and sign[1] == "-" else value)
            if not (sign := self._match(_SIGN)):
                break
        kept = {kind: value for kind, value in parts.items() if value}
        return Number(kept, simple and (len(kept) == len(parts) or parts == {PLAIN: 0}))

    def _more_factors(self, depth: int) -> list[Number]:
        factors: list[Number] = []
        while True:
            start = self.at
            try:
                factors.append(self._factor(depth, first=False))
            except NotANumberError:
                self.at = start
                return factors

    def _factor(self, depth: int, first: bool = True) -> Number:
        if first and (number := self._digits()) is not None:
            return number
        if self._take("\\frac"):
            return _quotient(self._group(depth), self._group(depth))
        if self._take("\\sqrt"):
            inside = self._group(depth)
            value = inside.parts.get(PLAIN)
            if len(inside.parts) != 1 or value is None or value.denominator != 1 or not 0 < value <= MAX_RADICAND:
                raise NotANumberError
            square, rest = _square_out_of(value.numerator)
            return Number({(rest, 0, 0): Fraction(square)}, inside.simple and square == 1 and rest > 1)
        if symbol := self._match(_SYMBOL):
            return Number({_SYMBOLS[symbol[1]]: Fraction(1)}, True)
        if self._take("("):
            start, inside = self.at, self._inside(depth, ")")
            if "," in self.text[start : self.at]:  # (4,112) is two numbers
                raise NotANumberError
            # In simplest form brackets contain a sum that cannot be added up; around one number they are a product.
            return Number(inside.parts, inside.simple and len(inside.parts) > 1)
        raise NotANumberError

    def _group(self, depth: int) -> Number:
        if not self._take("{"):
            raise NotANumberError
        return self._inside(depth, "}")

    def _inside(self, depth: int, end: str) -> Number:
        number = self.sum(depth + 1)
        if not self._take(end):
            raise NotANumberError
        return number

    def _digits(self) -> Number | None:
        """A whole, decimal, mixed or scientific number."""
        found = _DIGITS.match(self.text, self.at)
        if found is None or not (found[1] or len(found[2] or "") > 1 or found[3]) or (found[3] and not found[2]):
            return None
        self.at = found.end()
        whole, decimals, repeating = (found[1] or "0").replace(",", ""), (found[2] or ".")[1:], found[3]
        value = Fraction(int(whole + decimals), 10 ** len(decimals))
        if repeating:
            value += Fraction(int(repeating), 10 ** len(decimals) * (10 ** len(repeating) - 1))
        if found[2] is None and (mixed := self._match(_MIXED)):
            top, bottom = (int(part) for part in mixed.groups() if part is not None)
            proper = 0 < top < bottom and math.gcd(top, bottom) == 1 and value > 0
            return Number({PLAIN: value + Fraction(top, bottom)}, proper, coefficient=True)
        if power := self._match(_SCIENTIFIC):
            exponent = int(next(part for part in power.groups() if part is not None))
            if abs(exponent) > MAX_EXPONENT:
                raise NotANumberError
            return Number({PLAIN: value * Fraction(10) ** exponent}, 1 <= value < 10, coefficient=True)
        return Number({PLAIN: value}, True, coefficient=True)

    def _take(self, word: str) -> bool:
        return self._match(re.compile(r"\s*" + re.escape(word))) is not None

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found


def _product(factors: list[Number]) -> Number:
    """In simplest form: at most one coefficient, one root, one π, one i and one sum in brackets."""
    number = factors[0]
    for factor in factors[1:]:
        parts: dict[Kind, Fraction] = {}
        for (root, pi, i), value in number.parts.items():
            for (other_root, other_pi, other_i), other in factor.parts.items():
                square, rest = _square_out_of(root * other_root)
                turn = i + other_i
                kind = (rest, pi + other_pi, turn % 2)
                parts[kind] = parts.get(kind, Fraction(0)) + value * other * square * (-1 if turn > 1 else 1)
        if len(parts) > MAX_TERMS:
            raise NotANumberError
        number = Number({kind: value for kind, value in parts.items() if value}, False)
    if len(factors) == 1:
        return number
    sums = [factor for factor in factors if len(factor.parts) > 1]
    kinds = [kind for factor in factors if len(factor.parts) == 1 for kind in factor.parts]
    once = len(sums) <= 1 and sum(factor.coefficient for factor in factors) <= 1
    once = once and all(sum(kind[place] != PLAIN[place] for kind in kinds) <= 1 for place in range(3))
    return Number(number.parts, once and all(factor.simple and factor.parts != {PLAIN: 0} for factor in factors))


def _quotient(top: Number, bottom: Number) -> Number:
    """Divides by a whole number, a root or π. Raises NotANumberError if the denominator is a sum."""
    if len(bottom.parts) != 1:
        raise NotANumberError
    [((root, pi, i), value)] = bottom.parts.items()
    if i:
        raise NotANumberError
    parts: dict[Kind, Fraction] = {}
    for (other_root, other_pi, other_i), other in top.parts.items():
        square, rest = _square_out_of(other_root * root)
        parts[(rest, other_pi - pi, other_i)] = other * square / (value * root)
    whole = [part for number in (top, bottom) for part in number.parts.values()]
    lowest = all(part.denominator == 1 for part in whole) and value > 0 and not (value == 1 and root == 1 and pi == 0)
    lowest = lowest and math.gcd(*(part.numerator for part in top.parts.values()), value.numerator) == 1
    shared = math.gcd(*(part.numerator for part in top.parts.values()), root) if root > 1 else 1
    roots = all(math.gcd(other_root, root) == 1 for other_root, _, _ in top.parts)
    same_pi = pi != 0 and any(other_pi for _, other_pi, _ in top.parts)
    simple = top.simple and bottom.simple and bool(top.parts) and lowest and shared == 1 and roots and not same_pi
    return Number(parts, simple, coefficient=True)


def _square_out_of(number: int) -> tuple[int, int]:
    """The root of the largest square factor of a number, and the remaining factor."""
    if number > MAX_RADICAND:
        raise NotANumberError
    square, free, rest, factor = 1, 1, number, 2
    while factor**3 <= rest:
        while rest % (factor * factor) == 0:
            rest //= factor * factor
            square *= factor
        if rest % factor == 0:
            rest //= factor
            free *= factor
        factor += 1
    # Without factors up to its cube root, a number is a prime, its square, or a product of two primes.
    root = math.isqrt(rest)
    return (square * root, free) if root * root == rest else (square, free * rest)


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
