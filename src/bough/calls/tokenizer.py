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
        text: str = self.tokenizer.decode(ids) if self._decodes is None else self._decodes.decode(ids, False)
        return text


def has_common(tokenizer: Any, methods: tuple[str, ...]) -> bool:
    """Whether the tokenizer has these methods from transformers itself, not from the code of one model."""
    found = [getattr(type(tokenizer), method, None) for method in methods]
    return all(getattr(method, "__module__", "").startswith("transformers.tokenization_utils") for method in found)


def _cleans_up(tokenizer: Any) -> bool:
    return bool(getattr(tokenizer, "clean_up_tokenization_spaces", True))
