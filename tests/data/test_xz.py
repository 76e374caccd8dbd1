import io
import lzma

import pytest

from bough.data.compressed import XzStream

TEXT = b"".join(b"%d a line\n" % n for n in range(50_000))


def text(packed: bytes) -> bytes:
    return io.BufferedReader(XzStream(io.BytesIO(packed))).read()


def test_streams_follow_each_other_with_zeros_between_them():
    one = lzma.compress(TEXT)
    assert text(one) == TEXT and text(one + one + bytes(8) + one + bytes(4)) == TEXT * 3
    assert text(lzma.compress(TEXT, format=lzma.FORMAT_ALONE)) == TEXT


def test_a_cut_end_and_damage_are_said():
    packed = lzma.compress(TEXT)
    with pytest.raises(EOFError, match="end-of-stream"):
        text(packed[:-100])
    with pytest.raises(lzma.LZMAError):
        text(packed + b"garbage that follows")


def test_a_header_cannot_ask_for_all_of_the_memory():
    greedy = lzma.compress(TEXT, filters=[{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 29}])
    with pytest.raises(lzma.LZMAError, match=r"[Mm]emory"):
        text(greedy)
