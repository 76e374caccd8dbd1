import io
import os

import pytest
import zstandard

from bough.data.compressed import SMALL_PIECE, pack, unpack, whole_size
from tests.data.bombs import BLOCK, zstd_bomb

TEXT = b"".join(b"%d a line\n" % n for n in range(12_000)) + os.urandom(60_000)  # packed and random blocks
SKIPPED = (0x184D2A53).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"other"


def text(packed: bytes) -> bytes:
    return b"".join(piece for piece, _ in unpack(io.BytesIO(packed)))


@pytest.mark.parametrize("level", [1, 3, 19])
@pytest.mark.parametrize("options", [{}, {"write_checksum": True}, {"write_content_size": False}])
def test_frames_of_every_kind_are_unpacked(level: int, options: dict[str, bool]):
    packer = zstandard.ZstdCompressor(level=level, **options)
    assert text(packer.compress(TEXT)) == TEXT
    stream = packer.compressobj()  # does not know the size before
    assert text(stream.compress(TEXT) + stream.flush()) == TEXT
    assert text(b"".join(packer.compress(part) for part in (b"", b"a", TEXT[:70], b""))) == b"a" + TEXT[:70]


def test_frames_of_something_else_are_skipped():
    assert text(SKIPPED + pack(b"a") + SKIPPED + pack(b"b") + SKIPPED) == b"ab"


def test_a_piece_of_text_is_small_however_small_it_is_packed():
    pieces = [len(piece) for piece, _ in unpack(io.BytesIO(zstd_bomb(1000, start=b"x", end=b"y")))]
    assert sum(pieces) == 1000 * BLOCK + 2 and max(pieces) <= SMALL_PIECE // 4 * BLOCK


def test_a_cut_frame_gives_its_whole_blocks_and_then_says_so():
    packed = pack(TEXT)
    for cut in (3, 5, 9, len(packed) // 2, len(packed) - 1):
        pieces = list[bytes]()
        with pytest.raises(EOFError, match="cut off"):
            pieces.extend(piece for piece, _ in unpack(io.BytesIO(pack(b"first\n") + packed[:cut])))
        got = b"".join(pieces)
        assert (b"first\n" + TEXT).startswith(got) and got.startswith(b"first\n")
        assert whole_size(io.BytesIO(pack(b"first\n") + packed[:cut])) == len(pack(b"first\n"))


def test_damage_is_an_error():
    packed = bytearray(pack(TEXT))
    packed[-2] ^= 1  # the checksum
    for damaged in (
        bytes(packed),
        b"nonsense",
        zstd_bomb(1)[:6] + b"\xff\xff\xff" + b"x" * 20,
        b"\x28\xb5\x2f\xfd\xff",
    ):
        with pytest.raises((OSError, EOFError)):
            text(damaged)
