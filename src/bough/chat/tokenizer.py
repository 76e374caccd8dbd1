"""Text to token ids and back, without the work that a transformers tokenizer repeats on each call.

A turn has a few dozen tokens, and for so few the wrapper around the tokenizer's Rust library
costs as much as the tokenising. Where the wrapper adds nothing to the result, the library is
called directly; any other tokenizer is used as it is.
"""

from __future__ import annotations

import json
import re
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, TypeVar

from bough.types import Message

# Methods of the wrapper that must be transformers' own: some models' tokenizers change the text in theirs.
ENCODING, DECODING = ("__call__", "_encode_plus"), ("decode", "_decode")


class DirectTokenizer:
    """Encodes and decodes exactly as `tokenizer(text, add_special_tokens=False)` and `tokenizer.decode(ids)` do."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._encodes = backend if has_common(tokenizer, ENCODING) else None
        cleans_up = getattr(tokenizer, "clean_up_tokenization_spaces", True)
        self._decodes = backend if has_common(tokenizer, DECODING) and not cleans_up else None
        # By its class, since importing the library takes a second of a command that may not need it.
        byte_level = type(getattr(self._decodes, "decoder", None)).__qualname__ == "ByteLevel"
        self._bytes = _TokenBytes(backend) if byte_level else None

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


# The byte of each character of a byte-level vocabulary: printable ones themselves, the others from 256 up.
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
BYTES = {chr(byte): byte for byte in PRINTABLE} | {chr(256 + i): byte for i, byte in enumerate(OTHERS)}


def has_common(tokenizer: Any, methods: tuple[str, ...]) -> bool:
    """Whether the tokenizer has these methods from transformers itself, not from the code of one model."""
    found = [getattr(type(tokenizer), method, None) for method in methods]
    return all(getattr(method, "__module__", "").startswith("transformers.tokenization_utils") for method in found)


# Control tokens inside contents: text from a page, a tool or a user never opens or closes a turn.
# Control tokens are the tokenizer's special tokens, and the added tokens that the chat template puts around messages.
# If a content contains the text of one, that text is escaped before the template renders it: `BREAK` is inserted
# after its first character. What the template writes itself is a control token; escaped text is encoded as plain
# text.

Json = TypeVar("Json")
# Digits survive everything that templates do to text (strip, JSON, upper case). The first digit occurs
# once, so that a break overlaps with no other; one that a content has already is escaped like a token.
BREAK = "7184605239318456"
# Attempts at one task see the same observations again and again, and begin with the same prompt: this many texts of
# up to this many characters keep their ids. Of larger ones the last does: the choices of a request have one prompt.
SHORT, LONG, ANY = (4096, 2_000), (64, 32_000), (1, sys.maxsize)


def plain(text: str) -> str:
    """The text without its escapes."""
    return text.replace(BREAK, "")


class ControlTokens:
    """The control tokens of a tokenizer.

    `around` are those that the template puts around messages, special or not. `inside` are
    those with which it writes tool calls or reasoning inside an answer (Mistral's
    `[TOOL_CALLS]`): in the content of a reply these stay tokens, as the model writes them.
    """

    def __init__(self, tokenizer: Any, around: Iterable[str] = (), inside: Iterable[str] = ()) -> None:
        self.tokenizer = tokenizer
        self.direct = DirectTokenizer(tokenizer)
        self._known = [(size, lru_cache(count)(self._encode)) for count, size in (SHORT, LONG, ANY)]
        special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
        # A single character is text, whatever the tokenizer calls it ("!" is the padding of some).
        self.tokens = frozenset(token for token in special.union(around) if len(token) > 1 and not token.isspace())
        self._own = any_of(self.tokens)
        self._in_contents = any_of({*self.tokens, BREAK})
        self._in_replies = any_of({*self.tokens.difference(inside), BREAK})

    def escape(self, text: str, *, reply: bool = False) -> str:
        """The text with its control tokens escaped."""
        return (self._in_replies if reply else self._in_contents).sub(
            lambda token: token[0][0] + BREAK + token[0][1:], text
        )

    def escape_message(self, message: Message) -> Message:
        reply = message.role == "assistant"
        texts = self._in_replies if reply else self._in_contents
        more = message.reasoning or message.name or message.tool_call_id or message.tool_calls
        if not more and texts.search(message.content) is None:  # most messages, on each turn
            return message
        changed: dict[str, Any] = {}
        for field in ("content", "reasoning", "name", "tool_call_id"):
            text = getattr(message, field)
            if text and (safe := self.escape(text, reply=reply and field in ("content", "reasoning"))) != text:
                changed[field] = safe
        calls = [call.model_copy(update=self.escape_json(dict(call))) for call in message.tool_calls]
        if calls != message.tool_calls:
            changed["tool_calls"] = calls
        return message.model_copy(update=changed) if changed else message

    def escape_json(self, value: Json) -> Json:
        """The same value with every text in it escaped."""
        escaped: Json = _with_texts(value, self.escape)
        return escaped

    def found(self, messages: Iterable[Message], tools: Iterable[dict[str, Any]] = ()) -> Iterator[str]:
        """The control tokens whose text occurs in the contents."""
        names: list[str] = []

        def note(text: str) -> str:
            names.extend(self._own.findall(text))
            return text

        _with_texts([*(message.model_dump() for message in messages), *tools], note)
        yield from names

    def encode(self, text: str) -> list[int]:
        """The ids of a text, as the tokenizer gives them without adding tokens of its own; what is escaped is text."""
        return list(next(known for size, known in self._known if len(text) <= size)(text))

    def _encode(self, text: str) -> list[int]:
        if BREAK not in text:
            return self.direct.encode(text)
        ids: list[int] = []
        tokens, stretches = self._own.findall(text), [plain(stretch) for stretch in self._own.split(text)]
        if self._exchanged:
            own = [self._names[token] for token in tokens]
            exchanged = "".join(chain.from_iterable(zip(stretches, [*own, ""], strict=True)))
            return list(self._exchanged.encode_batch_fast([exchanged], add_special_tokens=False)[0].ids)
        # A tokenizer written in Python cuts a text at its tokens and encodes each piece by itself.
        for number, name in enumerate(tokens):
            id = self.tokenizer.convert_tokens_to_ids(name)
            token = self.tokenizer.added_tokens_decoder[id]
            before, after = stretches[number : number + 2]
            ids += [*self._encode_text(before.rstrip() if token.lstrip else before), id]
            stretches[number + 1] = after.lstrip() if token.rstrip else after
        return ids + self._encode_text(stretches[-1])

    def _encode_text(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])

    @cached_property
    def cuts(self) -> tuple[frozenset[int], re.Pattern[str]]:
        """The ids and texts of the tokens at which any text can be cut: what is before them is encoded by itself."""
        added = self.tokenizer.added_tokens_decoder.items()
        # A token that swallows white space to its left changes what stands before it; any text may become <unk>.
        known = self.tokens - {self.tokenizer.unk_token}
        tokens = {id: one.content for id, one in added if one.special and one.content in known and not one.lstrip}
        return frozenset(tokens), any_of(tokens.values())

    @cached_property
    def _names(self) -> dict[str, str]:
        """A random name for each control token, which cannot occur in a content."""
        secret = str(secrets.randbelow(10**24))
        return {token: token[0] + secret + token[1:] for token in self.tokens}

    @cached_property
    def _exchanged(self) -> Any:
        """The same tokenizer, whose control tokens have other names: their own names are text like any other.

        So the rest of a text becomes the very tokens it always does, which it would not if
        it were encoded in pieces: some tokenizers treat the start of a text differently.
        """
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            return None
        from tokenizers import Tokenizer

        rules = json.loads(backend.to_str())
        for added in rules["added_tokens"]:
            added["content"] = self._names.get(added["content"], added["content"])
        model, names = rules["model"], self._names
        if isinstance(model["vocab"], dict):
            model["vocab"] = {names.get(entry, entry): id for entry, id in model["vocab"].items()}
        else:
            model["vocab"] = [[names.get(entry, entry), score] for entry, score in model["vocab"]]
        if model.get("unk_token") in names:
            model["unk_token"] = names[model["unk_token"]]
        if "merges" in model:
            pairs = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"]]
            model["merges"] = [[a, b] for a, b in pairs if names.keys().isdisjoint((a, b, a + b))]
        rules |= dict.fromkeys(["truncation", "padding", "post_processor"])
        return Tokenizer.from_str(json.dumps(rules))


def any_of(words: Iterable[str]) -> re.Pattern[str]:
    """A pattern that finds the longest of `words`, as fast for thousands as for one."""
    tree: dict[str, Any] = {}
    for word in words:
        node = tree
        for character in word:
            node = node.setdefault(character, {})
        node[""] = {}
    return re.compile(_expression(tree) if tree else r"(?!)")


def _expression(node: dict[str, Any]) -> str:
    ways = [re.escape(character) + _expression(below) for character, below in sorted(node.items()) if character]
    if not ways:
        return ""
    either = ways[0] if len(ways) == 1 and "" not in node else f"(?:{'|'.join(ways)})"
    return f"{either}?" if "" in node else either


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_with_texts(key, change): _with_texts(each, change) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_texts(each, change) for each in value]
    return value
