"""The direct way gives what the tokenizer's own call gives."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from bough.chat.tokenizer import BYTES, DirectTokenizer, _TokenBytes
from tests.chat.conftest import FAMILIES, template_of, tokenizer_of

TOKENIZERS = {family: template_of(family).tokenizer for family in FAMILIES}
SPECIAL = [token.content for each in TOKENIZERS.values() for token in each.added_tokens_decoder.values()]
texts = st.lists(st.one_of(st.text(max_size=8), st.sampled_from(SPECIAL), st.just("go to shelf 1"))).map("".join)


@pytest.mark.parametrize("family", FAMILIES)
@given(text=texts)
@settings(max_examples=60, deadline=None)
def test_text_to_ids_and_back(family: str, text: str):
    tokenizer = TOKENIZERS[family]
    direct = DirectTokenizer(tokenizer)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert direct.encode(text) == ids
    assert direct.decode(ids) == tokenizer.decode(ids)
    assert direct._encodes is not None and direct._decodes is not None


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_ids_to_text(family: str, data: st.DataObject):
    """Tokens of single bytes too, which are no whole character, and ids that the vocabulary does not have."""
    tokenizer = TOKENIZERS[family]
    direct = DirectTokenizer(tokenizer)
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) + 3), max_size=12))
    assert direct.decode(ids) == tokenizer.decode(ids)
    assert direct._bytes is not None


def test_every_byte_sequence_is_repaired_as_the_library_does():
    alphabet = {character: i for i, character in enumerate(sorted(BYTES))} | {"é€x": 256}
    backend = Tokenizer(models.BPE(alphabet, []))
    backend.decoder = decoders.ByteLevel()
    table, ids = _TokenBytes(backend), {byte: alphabet[character] for character, byte in BYTES.items()}
    rng = random.Random(0)
    for _ in range(3000):
        # Bytes at the borders of UTF-8's rules, in any order.
        drawn = rng.choices([0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2, 0xDF, 0xE0, 0xED, 0xEF, 0xF0,
                             0xF4, 0xF5, 0xFF], k=rng.randint(1, 6))  # fmt: skip
        given = [*(ids[byte] for byte in drawn), *rng.choices([256, 999], k=1)]
        assert b"".join(map(table.__getitem__, given)).decode(errors="replace") == backend.decode(given)


def test_what_another_call_left_behind_changes_nothing():
    tokenizer = tokenizer_of("chatml")
    direct = DirectTokenizer(tokenizer)
    text = "<|im_start|>user\nYou see a mug 1.<|im_end|>"
    expected = tokenizer(text, add_special_tokens=False)["input_ids"]
    tokenizer(text, truncation=True, max_length=2, padding="max_length", split_special_tokens=True)
    assert direct.encode(text) == expected


class Shouting:
    """A tokenizer with an own way, as some models have."""

    def __init__(self, tokenizer: Any) -> None:
        self.backend_tokenizer, self._tokenizer = tokenizer.backend_tokenizer, tokenizer

    def __call__(self, text: str, **options: Any) -> Any:
        return self._tokenizer(text.upper(), **options)

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids)).lower()


def test_a_tokenizer_with_an_own_way_keeps_it():
    tokenizer = TOKENIZERS["chatml"]
    direct = DirectTokenizer(Shouting(tokenizer))
    ids = tokenizer("GO TO SHELF 1", add_special_tokens=False)["input_ids"]
    assert direct.encode("go to shelf 1") == ids
    assert direct.decode(ids) == "go to shelf 1"
