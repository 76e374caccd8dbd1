"""The beginning and the end of a stream of any length."""

from __future__ import annotations


class Output:
    """Accepts any number of bytes and keeps at most `most` of them."""

    def __init__(self, most: int) -> None:
        self.half = most // 2
        self.head, self.tail = bytearray(), bytearray()
        self.left_out = 0

    def add(self, data: bytes) -> None:
        room = self.half - len(self.head)
        self.head += data[:room]
        self.tail += data[room:] if room else data
        surplus = len(self.tail) - self.half
        if surplus > 0:
            del self.tail[:surplus]
            self.left_out += surplus

    @property
    def text(self) -> str:
        if not self.left_out:
            return (self.head + self.tail).decode(errors="replace")
        head, tail = self.head.decode(errors="replace"), self.tail.decode(errors="replace")
        return f"{head}\n… {self.left_out:,} bytes left out …\n{tail}"
