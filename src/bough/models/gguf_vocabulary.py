"""A tokenizer as GGUF holds it: a list of tokens, the merges, and a name for how llama.cpp splits text.

llama.cpp has the rules of splitting in its code and looks them up by name. A name is given
only to a tokenizer whose own rules are those; any other would be read as if it were another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gguf import GGUFWriter, TokenType

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

GPT2_RULE = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
BYTES_ONLY = GPT2_RULE | {"use_regex": False}
QWEN2_RULE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [GPT2_RULE],
    "smollm": [{"type": "Digits", "individual_digits": True}, GPT2_RULE],
    "qwen2": [
        {"type": "Split", "pattern": {"Regex": QWEN2_RULE}, "behavior": "Isolated", "invert": False},
        BYTES_ONLY,
    ],
}
# llama.cpp does not compose characters, not for Qwen either: text that is not in NFC is split otherwise there.
NORMALIZERS = {"gpt-2": (None,), "smollm": (None,), "qwen2": (None, {"type": "NFC"})}
PLAIN_BPE = {
    "type": ("BPE",),
    "dropout": (None,),
    "unk_token": (None,),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "byte_fallback": (False,),
    "ignore_merges": (False,),
}


class Vocabulary:
    """What `tokenizer` knows, with a token for each of the `num_rows` of the embedding."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, num_rows: int) -> None:
        self.tokenizer = tokenizer
        self.num_rows = num_rows
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self.rules: dict[str, Any] = json.loads(backend.to_str()) if backend else {}

    def problems(self) -> Iterator[str]:
        """Why llama.cpp would read text otherwise than the tokenizer does."""
        bpe = self.rules.get("model", {})
        if any(bpe.get(key) not in allowed for key, allowed in PLAIN_BPE.items()):
            yield "its tokenizer is not a plain byte-level BPE"
            return
        if self.split_name() is None:
            yield f"its tokenizer splits text by a rule without a known name in llama.cpp; allowed: {', '.join(SPLITS)}"
        if (last_id := max(self.tokenizer.get_vocab().values())) >= self.num_rows:
            yield f"its tokenizer has a token {last_id} and its embedding only {self.num_rows} rows"
        if self.tokenizer.eos_token_id is None:
            yield "its tokenizer names no eos token, without which llama.cpp ends replies at a token of its own choice"
        if self.begins_with_bos() is None:
            yield "its tokenizer adds other tokens to a text than a bos token at the start"
        for token in self.rules["added_tokens"]:
            if token["lstrip"] or token["rstrip"] or token["single_word"]:
                yield f"its token {token['content']!r} swallows spaces or stands for whole words only"

    def split_name(self) -> str | None:
        """llama.cpp's name of the rule by which text is split before it is merged, None if it has none."""
        rule = self.rules["pre_tokenizer"] or {}
        steps = rule.get("pretokenizers", [rule])
        steps = [{key: value for key, value in step.items() if key != "trim_offsets"} for step in steps]
        for name, split in SPLITS.items():
            if steps == split and self.rules["normalizer"] in NORMALIZERS[name]:
                return name
        return None

    def begins_with_bos(self) -> bool | None:
        """Whether a text begins with a bos token; None if anything else is added to it."""
        plain = self.tokenizer("a", add_special_tokens=False).input_ids
        whole = self.tokenizer("a").input_ids
        if whole == plain:
            return False
        return True if whole == [self.tokenizer.bos_token_id, *plain] else None

    def add_to(self, writer: GGUFWriter) -> None:
        """The keys of the tokenizer in a GGUF file."""
        tokens, types = zip(*self.tokens(), strict=True)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(self.split_name())
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        writer.add_token_merges([" ".join(pair) for pair in self.rules["model"]["merges"]])
        for add_id, token_id in (
            (writer.add_bos_token_id, self.tokenizer.bos_token_id),
            (writer.add_eos_token_id, self.tokenizer.eos_token_id),
            (writer.add_unk_token_id, self.tokenizer.unk_token_id),
            (writer.add_pad_token_id, self.tokenizer.pad_token_id),
        ):
            if token_id is not None:
                add_id(token_id)
        writer.add_add_bos_token(self.begins_with_bos())
        writer.add_add_eos_token(False)
        if self.tokenizer.chat_template:
            writer.add_chat_template(self.tokenizer.get_chat_template())

    def tokens(self) -> Iterator[tuple[str, TokenType]]:
        """Each row's token and its type; rows that no token has are named and marked as unused."""
        added = self.tokenizer.added_tokens_decoder
        by_id = {token_id: token for token, token_id in self.tokenizer.get_vocab().items()}
        for token_id in range(self.num_rows):
            if token_id in added:
                yield added[token_id].content, TokenType.CONTROL if added[token_id].special else TokenType.USER_DEFINED
            elif token_id in by_id:
                yield by_id[token_id], TokenType.NORMAL
            else:
                yield f"[PAD{token_id}]", TokenType.UNUSED
