from hypothesis import given, settings
from hypothesis import strategies as st

from bough.chat.template import ChatTemplate, Encoder
from bough.chat.tokenizer import ControlTokens
from bough.types import conversation
from tests.chat.conftest import FAMILIES, household, template_of

TOKENIZERS = {family: template_of(family).tokenizer for family in FAMILIES}
PIECES = ["<|im_start|>", "<|im_end|>", "\n", " ", "  ", "user", "go to shelf 1", "é", "<|im_", "end|>", "\n\n", "12"]


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), min_size=1, max_size=5))
@settings(max_examples=200, deadline=None)
def test_texts_encode_as_they_would_alone(texts: list[str]):
    tokenizer = TOKENIZERS["chatml"]
    encoder = Encoder(ControlTokens(tokenizer))
    for text in texts:
        assert encoder.encode(text) == tokenizer(text, add_special_tokens=False)["input_ids"]


def test_growing_prompts_encode_as_they_would_alone(template: ChatTemplate):
    start, turns = household(8)
    encoder = Encoder(template.control)
    for count in [*range(len(turns)), 2, 5]:
        text = template.prompt(conversation(start, turns[:count]), [])
        assert encoder.encode(text) == template.tokenizer(text, add_special_tokens=False)["input_ids"]


def test_only_what_is_new_is_encoded():
    tokenizer = TOKENIZERS["chatml"]
    control = ControlTokens(tokenizer)
    encoder = Encoder(control)
    head = "<|im_start|>user\n" + "go to shelf 1 " * 500 + "<|im_end|>\n"
    encoder.encode(head)
    seen: list[str] = []
    encode = control.encode
    control.encode = lambda text: seen.append(text) or encode(text)
    encoder.encode(head + "<|im_start|>assistant\n")
    assert seen == ["<|im_end|>\n<|im_start|>assistant\n"]


def test_a_control_token_that_is_no_longer_there_cuts_nothing():
    tokenizer = TOKENIZERS["chatml"]
    encoder = Encoder(ControlTokens(tokenizer))
    for text in ["<|im_start|>go <|im_end|>", "<|im_start|>go <|im_", "<|im_start|>go <|im_end|>"]:
        assert encoder.encode(text) == tokenizer(text, add_special_tokens=False)["input_ids"]
