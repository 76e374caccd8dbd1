import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bough.methods.dpo import Preference
from bough.methods.examples import (
    FILES,
    Chunk,
    StoreWriter,
    difficulties,
    open_store,
    read_summary,
)
from bough.methods.sft import Demonstration
from bough.training.method import Example, GroupExample
from bough.types import Call

RNG = random.Random(0)


def episode(length: int) -> list[Call]:
    """Calls whose prompts grow, with everything that a call may carry; the last one starts differently."""
    seen, calls = [RNG.randrange(2**32) for _ in range(length)], []
    for turn in range(4):
        answer = [RNG.randrange(2**17) for _ in range(1 + turn)]
        logprobs = [-RNG.expovariate(1.0) for _ in answer] if turn % 2 else None
        more = {"logprobs": logprobs, "logprobs_temperature": 0.1 + 0.2, "temperature": 0.7 if turn else None}
        text = f"{turn}: \u2028 ü 🙂"
        calls.append(
            Call(prompt_ids=seen, completion_ids=answer, text=text, finish="stop", policy="step-3", **more)  # type: ignore[arg-type]
        )
        seen = [*seen, *answer, 7]
    return [*calls, Call(prompt_ids=[1, *seen], completion_ids=[2])]


DEMONSTRATIONS = [
    Demonstration(episode(n), f"f:{n}", f"c{n % 2}", weights=(0.1, 1 / 3, 2.0, 1.0, 1e-300), reward=[None, 0.5][n % 2])
    for n in range(1, 5)
]
PREFERENCES = [Preference(episode(3), "f:1", "c", num_chosen=2, reason="loop", margin=0.1 + 0.2)]
GROUPS = [GroupExample(episode(3), "f:1", "c", advantages=(0.1, -2.0), weights=(1.0, 0.25), denominator=2.5)]


def chunk_of(examples: list[Example], scores: list[float | None]) -> Chunk:
    chunk = Chunk()
    for example, score in zip(examples, scores, strict=True):
        chunk.add(example, score)
    return chunk


@pytest.mark.parametrize("examples", [DEMONSTRATIONS, PREFERENCES, GROUPS], ids=["sft", "dpo", "grpo"])
@pytest.mark.parametrize("on_disk", [True, False])
def test_examples_come_back_bit_for_bit(tmp_path: Path, examples: list[Example], on_disk: bool):
    writer = StoreWriter(tmp_path if on_disk else None)
    for example in examples:  # chunks of one
        writer.add(chunk_of([example], [None]))
    if on_disk:
        writer.finish({})
    kind = type(examples[0])
    store = open_store(tmp_path, kind) if on_disk else writer.in_memory(kind)
    found = [replace(example, difficulty=0.0) for example in store]
    assert found == examples and len(store) == len(examples)
    assert store[-1].calls == examples[-1].calls == store[len(examples) - 1 :][0].calls
    with pytest.raises(IndexError):
        store[len(examples)]


def test_a_shared_history_is_stored_once():
    chunk = chunk_of([Demonstration(episode(100), "f:1", "c")], [None])
    last = 1 + 100 + (1 + 2 + 3 + 4) + 4 + 1  # the call that starts differently
    assert len(chunk.tokens[0]) == 4 * (100 + (1 + 2 + 3 + 4) + 3 + last)


def test_clusters_and_difficulties_are_known_without_reading_an_example():
    writer = StoreWriter()
    writer.add(chunk_of(DEMONSTRATIONS, [example.reward for example in DEMONSTRATIONS]))
    store = writer.in_memory(Demonstration)
    first, second, third, fourth = store.clusters
    assert first == third != second == fourth
    assert [example.difficulty for example in store] == store.difficulties == [0.0, 0.25, 0.0, 0.25]


def test_short_and_highly_rewarded_is_easy():
    assert difficulties(np.array([3, 1, 2]), np.array([1.0, np.nan, 0.0])) == [0.5, 0.25, 0.75]
    assert difficulties(np.array([], int), np.array([])) == []


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["byte", "cut", "gone"])
def test_a_damaged_file_is_found(tmp_path: Path, name: str, damage: str):
    writer = StoreWriter(tmp_path)
    writer.add(chunk_of(DEMONSTRATIONS, [None] * len(DEMONSTRATIONS)))
    writer.finish({"digest": "x"})
    assert read_summary(tmp_path)["digest"] == "x"
    content = (tmp_path / name).read_bytes()
    if damage == "gone":
        (tmp_path / name).unlink()
    else:
        changed = content[:-1] + (bytes([content[-1] ^ 1]) if damage == "byte" else b"")
        (tmp_path / name).write_bytes(changed)
    with pytest.raises((ValueError, OSError)):
        read_summary(tmp_path)
