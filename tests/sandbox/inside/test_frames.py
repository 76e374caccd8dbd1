import pytest

from bough.sandbox.inside import frames


def test_a_message_is_none_until_it_is_whole():
    packed = frames.pack({"a": 1})
    assert [frames.unpack(packed[:size]) for size in range(len(packed))] == [None] * len(packed)
    assert frames.unpack(packed) == {"a": 1}


@pytest.mark.parametrize(
    "data",
    [b"\0\0\0\2[]", b"\0\0\0\2{]", b"\0\0\0\2{}x", b"\xff\xff\xff\xff", b"\0\1\0\0" + b"[" * 65536],
)
def test_anything_else_is_a_value_error(data: bytes):
    with pytest.raises(ValueError, match=r"\w"):
        frames.unpack(data)
