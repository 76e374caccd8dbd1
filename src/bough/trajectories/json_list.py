"""The elements of a JSON list, one at a time: only the current element is in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import IO

from bough.errors import RowError

PIECE = 1 << 16
# Outside a string: a complete string, the start of one that continues in the next piece, brackets and commas.
_INSIDE_ELEMENT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{}]', re.DOTALL)
_BETWEEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{},]', re.DOTALL)
# Inside a string: the rest of it.
_REST = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+(?:(?P<end>")|(?P<backslash>\\)?\Z)', re.DOTALL)


def elements(stream: IO[bytes], longest: int) -> Iterator[bytes | RowError]:
    """The text of each element, or its RowError. The stream is positioned after the opening bracket."""
    scan = _Scan()
    element, count, too_long = bytearray(), 0, False
    while piece := stream.read(PIECE):
        start = 0
        for end, mark in scan.ends(piece):
            element += piece[start:end]
            start = end + 1
            if not _blank(element) or too_long or count or mark == b",":
                count += 1
                yield _whole(element, longest, too_long)
            element.clear()
            too_long = False
            if mark != b",":
                rest = chain([mark.strip(b"]"), piece[start:]], iter(lambda: stream.read(PIECE), b""))
                if any(more.strip() for more in rest):
                    raise RowError("not_json", "there is text after the end of the JSON list")
                return
        element += piece[start:]
        if len(element) > longest:
            too_long = True
            element.clear()
    raise RowError("not_json", "the file starts with a JSON list that does not end")


def _whole(element: bytearray, longest: int, too_long: bool) -> bytes | RowError:
    if too_long or len(element) > longest:
        return RowError("too_large", f"the element is longer than {longest >> 20} MiB")
    if _blank(element):
        return RowError("not_json", "not JSON: an element of the list is empty")
    return bytes(element) + b"\n"


def _blank(text: bytearray) -> bool:
    return not text or text.isspace()


class _Scan:
    """Finds the ends of elements, piece by piece."""

    def __init__(self) -> None:
        self.depth, self.in_string, self.escaped = 0, False, False

    def ends(self, piece: bytes) -> Iterator[tuple[int, bytes]]:
        """The end of each element that ends in this piece, and the character that ends it: a comma or a bracket."""
        at = self._rest_of_string(piece, 0) if self.in_string else 0
        while found := (_INSIDE_ELEMENT if self.depth else _BETWEEN).search(piece, at):
            at, mark = found.end(), found[0]
            if mark == b'"':
                at = self._rest_of_string(piece, at)
            elif mark in b"[{":
                self.depth += 1
            elif mark in b"]}" and self.depth:
                self.depth -= 1
            elif mark in b"]},":
                yield found.start(), mark

    def _rest_of_string(self, piece: bytes, at: int) -> int:
        """The position after the string that starts before `at`; the end of the piece if the string continues."""
        found = _REST.match(piece, at + self.escaped)
        assert found is not None
        self.in_string, self.escaped = found["end"] is None, found["backslash"] is not None
        return found.end()
