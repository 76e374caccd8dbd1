import random

import pytest
import torch

from bough.engines.local import paths
from bough.engines.local.paths import BLOCK, RaggedRunner, RaggedStore, short_blocks
from bough.engines.local.reader import TokenReader
from bough.engines.local.schedule import Resident, Span
from bough.policy.adapters import Lora
from bough.policy.policy import Policy
from tests.engines.local.playing import hash_of, play, prompt, run, small_engine
from tests.engines.local.test_engine import SAMPLING
from tests.policy.families import make

SEQUENCES = [prompt(f"sequence {i}", 700) for i in range(4)]


def length_of(reader: TokenReader) -> int:
    return min(reader.context - 16, 700)


def read(reader: TokenReader, plan: list[list[tuple[int, int]]]) -> dict[int, torch.Tensor]:
    """The hidden states of sequences that are read step by step; a step is (sequence, how many tokens) of several."""
    store, runner = RaggedStore(reader), RaggedRunner(reader)
    residents, hidden = {}, {}
    with reader.reading():
        for step in plan:
            spans = []
            for sequence, size in step:
                if sequence not in residents:
                    residents[sequence] = Resident()
                    store.allocate(residents[sequence], length_of(reader))
                known = len(residents[sequence].ids)
                spans.append(Span(residents[sequence], SEQUENCES[sequence][known : known + size], False))
            states = runner.read(spans)
            for sequence, size in step:
                hidden.setdefault(sequence, []).append(states[:size])
                states = states[size:]
    return {sequence: torch.cat(parts) for sequence, parts in hidden.items()}


def made_up_plan(generator: random.Random, length: int) -> list[list[tuple[int, int]]]:
    left = dict.fromkeys(generator.sample(range(4), generator.randint(1, 4)), length)
    plan = []
    while left:
        step = [(s, min(left[s], generator.choice([1, 1, 2, 7, 33, 129, 384]))) for s in left]
        plan.append(step)
        left = {s: left[s] - size for s, size in step if left[s] > size}
    return plan


def policies():
    yield "llama", lambda: Policy(make("llama"))
    yield "gemma3", lambda: Policy(make("gemma3"))
    yield "gpt2", lambda: Policy(make("gpt2"))  # every head has keys of its own: one row to a matrix product
    yield "sinks", lambda: Policy(make("granite_swa"))
    yield "lora", lambda: Policy.load("tiny", device="cpu", lora=Lora(r=4))


@pytest.mark.bit_exact
@pytest.mark.parametrize(("name", "build"), list(policies()), ids=[name for name, _ in policies()])
def test_a_tokens_state_has_the_same_bits_however_the_tokens_are_cut_and_mixed(name, build):
    torch.set_num_threads(1)
    reader = TokenReader(build().eval())
    length = length_of(reader)
    whole = [read(reader, [[(s, length)]])[s] for s in range(4)]
    generator = random.Random(name)
    for _ in range(4):
        for sequence, states in read(reader, made_up_plan(generator, length)).items():
            assert torch.equal(states, whole[sequence])


@pytest.mark.bit_exact
def test_a_buffer_that_grows_keeps_what_it_holds():
    policy = Policy.load("tiny", device="cpu").eval()
    start = prompt("long", 470)  # the first turn fits into 512 tokens, the third does not
    engine = small_engine(policy)
    (grown,) = run(engine, play(engine, "e", 3, SAMPLING, start))
    assert engine.scheduler.num_dropped == 0 and engine.scheduler.num_kept > 900
    for turn, (ids, drawn) in enumerate(grown):
        fresh = small_engine(policy)
        (again,) = run(fresh, fresh.generate("e", ids, sampling=SAMPLING, seed=hash_of("e") + turn, stop_ids=[2]))
        assert again == drawn


@pytest.fixture
def _unknown():
    short_blocks.cache_clear()
    yield
    short_blocks.cache_clear()


@pytest.mark.bit_exact
@pytest.mark.usefixtures("_unknown")
def test_where_a_shorter_block_of_keys_is_rounded_differently_all_blocks_are_whole(monkeypatch):
    """The two ways give the same bits, for here a short block is rounded as a whole one."""
    reader = TokenReader(Policy.load("tiny", device="cpu").eval())
    short = read(reader, [[(0, 300), (1, 500)], [(0, 1), (1, 40)]])
    own, seen = paths.attend, set()

    def attend(query, keys, values, *rest):
        out, norm = own(query, keys, values, *rest)
        seen.add(keys.shape[2] % BLOCK)
        return (out, norm) if keys.shape[2] % BLOCK == 0 else (out.nextafter(out + 1), norm)

    monkeypatch.setattr(paths, "attend", attend)
    short_blocks.cache_clear()
    assert not short_blocks()
    seen.clear()
    whole = read(reader, [[(0, 300), (1, 500)], [(0, 1), (1, 40)]])
    assert seen == {0}
    assert all(torch.equal(short[s], whole[s]) for s in short)
