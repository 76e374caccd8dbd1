"""Text to token ids and back, without the work that a transformers tokenizer repeats on each call.

A turn has a few dozen tokens, and for so few the wrapper around the tokenizer's Rust library
costs as much as the tokenising. Where the wrapper adds nothing to the result, the library is
called directly; any other tokenizer is used as it is.
"""

from __future__ import annotations

from typing import Any

# Methods of the wrapper that must be transformers' own: some models' tokenizers change the text in theirs.
ENCODING, DECODING = ("__call__", "_encode_plus"), ("decode", "_decode")


class DirectTokenizer:
    """Encodes and decodes exactly as `tokenizer(text, add_special_tokens=False)` and `tokenizer.decode(ids)` do."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._encodes = backend if has_common(tokenizer, ENCODING) else None
        self._decodes = backend if has_common(tokenizer, DECODING) and not _cleans_up(tokenizer) else None
        self._bytes = _TokenBytes(backend) if _is_byte_level(self._decodes) else None

    def encode(self, text: str) -> list[int]:
        backend = self._encodes
        if backend is None:
            return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        # The wrapper sets these on each call, and another user of the tokenizer may have changed them.
        if backend.truncation is not None:
            backend.no_truncation()
        if backend.padding is not None:
            backend.no_padding()
        if backend.encode_special_tokens != self.tokenizer.split_special_tokens:
            backend.encode_special_tokens = self.tokenizer.split_special_tokens
        # Unlike `encode`, a batch lets other Python threads run meanwhile; "fast" is without offsets.
        ids: list[int] = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def decode(self, ids: list[int]) -> str:
        if self._bytes is not None:
            return b"".join(map(self._bytes.__getitem__, ids)).decode(errors="replace")
        text: str = self.tokenizer.decode(ids) if self._decodes is None else self._decodes.decode(ids, False)
        return text


class _TokenBytes(dict[int, bytes]):
    """The bytes of each token of a byte-level vocabulary, looked up once. Ids that it does not have are no text."""

    def __init__(self, backend: Any) -> None:
        super().__init__()
        self._backend = backend

    def __missing__(self, id: int) -> bytes:
        token = self._backend.id_to_token(id)
        if token is None:
            return b""  # not kept: a token may be added later
        try:
            found = bytes([BYTES[character] for character in token])
        except KeyError:  # as the library does: a token with any other character is text as it is
            found = token.encode()
        self[id] = found
        return found


def _byte_characters() -> dict[str, int]:
    """The byte of each character of a byte-level vocabulary: printable ones themselves, the others from 256 up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTES = _byte_characters()


def _is_byte_level(backend: Any) -> bool:
    # By its class, since importing the library takes a second of a command that may not need it.
    return type(getattr(backend, "decoder", None)).__qualname__ == "ByteLevel"


def has_common(tokenizer: Any, methods: tuple[str, ...]) -> bool:
    """Whether the tokenizer has these methods from transformers itself, not from the code of one model."""
    found = [getattr(type(tokenizer), method, None) for method in methods]
    return all(getattr(method, "__module__", "").startswith("transformers.tokenization_utils") for method in found)


def _cleans_up(tokenizer: Any) -> bool:
    return bool(getattr(tokenizer, "clean_up_tokenization_spaces", True))
