"""The tokenizer of a GGUF file: tokens and merges from the file, the rule of splitting by its name.

llama.cpp has the rules in its code and composes no characters (NFC); the models' own tokenizers do where they
were trained so, and so does what is made here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeGuard

from gguf import GGUFWriter, TokenType

from bough.errors import InputError
from bough.models.gguf_read import Header

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


# A tokenizer as GGUF holds it: a list of tokens, the merges, and a name for how llama.cpp splits text.
# llama.cpp has the rules of splitting in its code and looks them up by name. A name is given only to a tokenizer
# whose own rules are those; any other would be read as if it were another.

GPT2_RULE = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
BYTES_ONLY = GPT2_RULE | {"use_regex": False}
QWEN2_RULE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_RULE = QWEN2_RULE.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
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
        for name in ("bos", "eos", "unk", "pad"):
            if (token_id := getattr(self.tokenizer, f"{name}_token_id")) is not None:
                getattr(writer, f"add_{name}_token_id")(token_id)
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


LLAMA3_SPLIT = [
    {"type": "Split", "pattern": {"Regex": LLAMA3_RULE}, "behavior": "Isolated", "invert": False},
    BYTES_ONLY,
]
# llama.cpp's names of the rules; "default" is what old files have that were made before there were names.
RULES: dict[str, list[dict[str, Any]]] = {
    **SPLITS,
    "default": SPLITS["gpt-2"],
    "deepseek-r1-qwen": SPLITS["qwen2"],
    "llama-bpe": LLAMA3_SPLIT,
    "llama3": LLAMA3_SPLIT,
    "llama-v3": LLAMA3_SPLIT,
}
COMPOSED = ("qwen2", "deepseek-r1-qwen")
# A merge is not needed where a whole word is a token, in the tokenizers of Llama 3.
WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3")
# Control tokens that end a reply by their name, as in llama.cpp.
ENDS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>",
    "<|end_of_text|>", "<eos>",
)  # fmt: skip


def load_gguf_tokenizer(header: Header, context: int) -> PreTrainedTokenizerBase:
    """The tokenizer of the file whose head is `header`."""
    if (kind := header.metadata.get("tokenizer.ggml.model")) != "gpt2":
        raise InputError(f"its tokenizer is of the kind {kind!r:.40}; readable: gpt2 (byte-level BPE)")
    tokenizer = _byte_level(header)
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        token_id = header.metadata.get(f"tokenizer.ggml.{key}_token_id")
        token = _tokens(header)[token_id] if _is_id(token_id, header) else None
        setattr(tokenizer, f"{name}_token", token)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    template = header.metadata.get("tokenizer.chat_template")
    tokenizer.chat_template = template if isinstance(template, str) else None
    tokenizer.model_max_length = context
    return tokenizer


def ends(header: Header) -> list[int]:
    """All tokens that end a reply: those that the file names, and control tokens known to."""
    named = [header.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    by_name = [i for i, token in enumerate(_tokens(header)) if token in ENDS and _types(header)[i] == TokenType.CONTROL]
    return list(dict.fromkeys(i for i in [*named, *by_name] if _is_id(i, header)))


def _byte_level(header: Header) -> PreTrainedTokenizerBase:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    rule = header.metadata.get("tokenizer.ggml.pre", "default")
    if not isinstance(rule, str) or rule not in RULES:
        raise InputError(f"its tokenizer splits text by the rule {rule!r:.40}; readable: {', '.join(RULES)}")
    tokens, types = _tokens(header), _types(header)
    merges = header.metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, list):
        raise InputError("its tokenizer has no merges")
    added = [
        {"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        | {"special": types[i] == TokenType.CONTROL}
        for i, token in enumerate(tokens)
        if types[i] in (TokenType.CONTROL, TokenType.USER_DEFINED)
    ]
    processor, bos = None, header.metadata.get("tokenizer.ggml.bos_token_id")
    if header.metadata.get("tokenizer.ggml.add_bos_token") and _is_id(bos, header):
        begin = {"SpecialToken": {"id": tokens[bos], "type_id": 0}}
        first, second = ({"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB"))
        processor = {
            "type": "TemplateProcessing",
            "single": [begin, first],
            "pair": [begin, first, begin, second],
            "special_tokens": {tokens[bos]: {"id": tokens[bos], "ids": [bos], "tokens": [tokens[bos]]}},
        }
    described = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if rule in COMPOSED else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                step | ({"trim_offsets": True} if step["type"] == "ByteLevel" else {}) for step in RULES[rule]
            ],
        },
        "post_processor": processor,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            **dict.fromkeys(["dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"]),
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": rule in WHOLE_WORDS,
            # Rows without a token are named [PAD7] and unused; they are not text.
            "vocab": {token: i for i, token in enumerate(tokens) if types[i] != TokenType.UNUSED},
            "merges": merges,
        },
    }
    try:
        backend = Tokenizer.from_str(json.dumps(described))
    except Exception as error:  # tokenizers raises plain exceptions, for instance for a merge of unknown tokens
        raise InputError(f"its tokenizer is inconsistent: {error}") from None
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def _tokens(header: Header) -> list[str]:
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        raise InputError("the file contains no tokenizer")
    return tokens


def _types(header: Header) -> list[int]:
    tokens, types = _tokens(header), header.metadata.get("tokenizer.ggml.token_type")
    if types is None:
        return [TokenType.NORMAL] * len(tokens)
    if not isinstance(types, list) or len(types) != len(tokens):
        raise InputError("its tokenizer has not one type for each token")
    return types


def _is_id(value: Any, header: Header) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(_tokens(header))
