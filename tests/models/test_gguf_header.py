"""Heads of GGUF files that are damaged, cut off or hostile end in a sentence, without much memory or time."""

import struct
from pathlib import Path
from typing import Any

import pytest

from bough.errors import InputError
from bough.models.gguf_read import Header, TensorInfo, model_config, read_header
from bough.models.gguf_write import write_gguf
from tests.models.gguf_samples import make_model, make_tokenizer


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(make_model("llama"), make_tokenizer("gpt-2"), path, "f32")
    return path.read_bytes()


def head(num_tensors: int = 0, num_keys: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_keys)


def text(said: str, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(said) if length is None else length) + said.encode()


def key(name: str, kind: int, content: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + content


def tensor(shape: tuple[int, ...], kind: int = 0, offset: int = 0, name: str = "t") -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def test_keys_and_tensors_are_found(whole: bytes, tmp_path: Path):
    (tmp_path / "a.gguf").write_bytes(whole)
    header = read_header(tmp_path / "a.gguf")
    assert header.architecture == "llama" and header.key("block_count") == 2
    assert header.tensors["blk.0.ffn_up.weight"].shape == (96, 64)
    assert model_config(header).head_dim == 32


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is cut off within its head"),
        (b"GGUF", "it is cut off within its head"),
        (b"PK\x03\x04 and more", "it does not begin with GGUF"),
        (head(version=1), "its version is 1; versions 2 and 3 can be read"),
        (head(num_tensors=2**60), "it claims to have 0 keys and 1152921504606846976 tensors"),
        (head(num_keys=1), "it is cut off within its head"),
        (head(num_keys=1) + text("a", 2**62), "one of its texts claims"),
        (head(num_keys=1) + key("a", 99, b""), r"of an unknown type \(99\)"),
        (head(num_keys=1) + key("a", 9, struct.pack("<IQ", 4, 2**61)), "longer than the file"),
        (head(num_keys=1) + key("a", 9, struct.pack("<IQ", 9, 1) + b"." * 9), "contains lists"),
        (head(num_keys=1) + key("a", 8, struct.pack("<Q", 1) + b"\xff"), "can't decode byte 0xff"),
        (head(num_keys=1) + key("general.alignment", 4, struct.pack("<I", 0)), "its alignment is 0"),
        (head(num_tensors=1) + tensor((1,) * 5), "has 5 dimensions"),
        (head(num_tensors=1) + tensor((4,), kind=77), r"of an unknown type \(77\)"),
        (head(num_tensors=1) + tensor((33,), kind=8), "which its type cannot have"),
        (head(num_tensors=1) + tensor((2**40, 2**40)), "it is cut off: its tensor 't' ends at byte"),
        (head(num_tensors=1) + tensor((4,), offset=2**63), "it is cut off: its tensor 't' ends at byte"),
        (head(num_tensors=2) + tensor((1,)) * 2 + b"\0" * 99, "two of its tensors have one name"),
        (head(num_tensors=2) + tensor((4,)) + tensor((4,), name="u", offset=12) + b"\0" * 99, "'u' overlaps another"),
    ],
)
def test_a_hostile_head_is_refused_with_a_sentence(content: bytes, said: str, tmp_path: Path):
    (tmp_path / "a.gguf").write_bytes(content)
    with pytest.raises(InputError, match=said) as error:
        read_header(tmp_path / "a.gguf")
    assert str(error.value).startswith(f"{tmp_path / 'a.gguf'} cannot be read as GGUF: ")


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.5, 0.999])
def test_a_file_that_is_cut_off_anywhere_is_refused(whole: bytes, share: float, tmp_path: Path):
    (tmp_path / "a.gguf").write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(InputError, match="cut off"):
        read_header(tmp_path / "a.gguf")


def test_a_head_without_a_model_is_refused(tmp_path: Path):
    (tmp_path / "a.gguf").write_bytes(head(num_keys=1) + key("general.architecture", 8, text("rwkv")))
    with pytest.raises(InputError, match="the model is of the family 'rwkv'; readable: llama, qwen2, qwen3"):
        model_config(read_header(tmp_path / "a.gguf"))
    (tmp_path / "a.gguf").write_bytes(head(num_keys=1) + key("general.architecture", 8, text("llama")))
    with pytest.raises(InputError, match=r"llama\.attention\.head_count is None"):
        model_config(read_header(tmp_path / "a.gguf"))


@pytest.mark.parametrize(
    ("family", "changed", "said"),
    [
        # Transformers makes a list of the kinds of all layers.
        ("qwen3", {"block_count": 2**31}, r"qwen3\.block_count is 2,147,483,648 and the file has 1 tensors"),
        ("llama", {"attention.layer_norm_rms_epsilon": [1]}, "its settings are not those of a model: TypeError"),
        ("llama", {"rope.freq_base": "x"}, "its settings are not those of a model: ValueError"),
        ("llama", {"attention.head_count": 3}, "its settings are not those of a model"),
    ],
)
def test_hostile_settings_are_refused_with_a_sentence(family: str, changed: dict[str, Any], said: str):
    settings = {"attention.head_count": 4, "embedding_length": 64, "block_count": 1, "feed_forward_length": 96,
                "context_length": 256, **changed}  # fmt: skip
    metadata = {"general.architecture": family} | {f"{family}.{name}": value for name, value in settings.items()}
    with pytest.raises(InputError, match=said):
        model_config(Header(metadata, {"token_embd.weight": TensorInfo((100, 64), 0, 0, 25600)}))
