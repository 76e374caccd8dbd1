"""Small files that unpack to large ones."""

from __future__ import annotations

import gzip
import json
import lzma

BLOCK = 128 << 10


def zstd_bomb(blocks: int, letter: bytes = b"a", start: bytes = b"", end: bytes = b"") -> bytes:
    """A Zstandard frame of `blocks` blocks, four bytes each, that stand for 128 KiB of one letter each.

    `start` and `end` stand before and after them as they are.
    """
    header = (0xFD2FB528).to_bytes(4, "little") + b"\x00\x38"  # no checksum, a window of 128 KiB
    one = (BLOCK << 3 | 1 << 1).to_bytes(3, "little") + letter
    return header + _raw(start, 0) + one * blocks + _raw(end, 1)


def _raw(text: bytes, last: int) -> bytes:
    return (len(text) << 3 | last).to_bytes(3, "little") + text


def gzip_bomb(megabytes: int) -> bytes:
    return gzip.compress(b"a" * (1 << 20), 9) * megabytes


def xz_bomb(megabytes: int) -> bytes:
    return lzma.compress(b"a" * (1 << 20)) * megabytes


def token_bomb(turns: int) -> bytes:
    """A record of many turns, each of which is shown all that was before: turns² / 2 tokens."""
    turn = {"reply": {"role": "assistant", "content": "x"}, "call": {"prompt_ids": [1], "completion_ids": [1]}}
    rows = [{**turn, "call": {**turn["call"], "shared": 2 * number}} for number in range(turns)]  # type: ignore[dict-item]
    record = {"bough": "trajectory/1", "id": "a", "task": {"id": "a"}, "start": [{"role": "user"}], "turns": rows}
    return json.dumps(record).encode() + b"\n"
