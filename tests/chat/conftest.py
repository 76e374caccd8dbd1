"""The template families, each on a real BPE tokenizer that knows the family's special tokens."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bough.chat.template import ChatTemplate
from bough.models.resolve import load_tokenizer
from bough.types import Message, Turn

TEMPLATES = Path(__file__).parent.parent / "templates"
SPECIAL = {
    "chatml": [],
    "qwen3": [],
    "llama3": ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    "mistral": ["<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
                "[TOOL_RESULTS]", "[/TOOL_RESULTS]"],
    "gemma": ["<bos>", "<start_of_turn>", "<end_of_turn>"],
}  # fmt: skip
END_OF_TURN = {
    "chatml": "<|im_end|>", "qwen3": "<|im_end|>", "llama3": "<|eot_id|>", "mistral": "</s>", "gemma": "<end_of_turn>",
}  # fmt: skip
FAMILIES = list(SPECIAL)


def tokenizer_of(family: str) -> Any:
    tokenizer = load_tokenizer("tiny")
    tokenizer.add_special_tokens({"extra_special_tokens": SPECIAL[family]})
    if family == "mistral":
        tokenizer.bos_token, tokenizer.eos_token = "<s>", "</s>"
    if family == "gemma":
        tokenizer.bos_token = "<bos>"
    if family == "qwen3":
        tokenizer.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>"])
    tokenizer.chat_template = (TEMPLATES / f"{family}.jinja").read_text()
    return tokenizer


@cache
def template_of(family: str) -> ChatTemplate:
    """Shared by all tests of a process: none may change it."""
    return ChatTemplate(tokenizer_of(family), family)


@pytest.fixture(scope="session", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def templates() -> dict[str, ChatTemplate]:
    return {family: template_of(family) for family in FAMILIES}


@pytest.fixture
def template(family: str) -> ChatTemplate:
    return template_of(family)


def system(text: str) -> Message:
    return Message(role="system", content=text)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def assistant(text: str, **more: Any) -> Message:
    return Message(role="assistant", content=text, **more)


def household(rounds: int = 3) -> tuple[list[Message], list[Turn]]:
    start = [system("You are in a house."), user("You are in the middle of a room. Your task is to: find an apple.")]
    turns = [
        Turn(
            reply=assistant(f"THOUGHT: Shelf {i} may hold it.\nACTION: go to shelf {i}"),
            observation=[user(f"On the shelf {i}, you see a book {i}.")],
        )
        for i in range(1, rounds + 1)
    ]
    return start, turns
