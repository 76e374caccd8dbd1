"""Multi-turn episodes: Bough's local engine against transformers' `generate`, which reads the history anew each turn.

    python benchmarks/rollouts.py --model smollm2 --episodes 4 --turns 8            # CPU
    python benchmarks/rollouts.py --model qwen3-0.6b --episodes 128 --turns 10      # GPU

Both play the same episodes: the prompts and observations of `examples/household.jsonl`, one
after the other, and between them answers of the same number of tokens, drawn at temperature 1.
Prompts are the example's own tokens with SmolLM2 and random tokens, one for four characters, with
the other models. transformers takes all episodes of a turn as one padded batch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

import torch
from measure import failure_in, machine, now, table

from bough.config.sampling import SamplingConfig
from bough.engines.local import schedule
from bough.engines.local.engine import LocalEngine
from bough.training.policy import Policy
from bough.types import Call
from models import NAMES, build

EXAMPLES = Path(__file__).parent.parent / "examples" / "household.jsonl"
Script = tuple[list[int], list[list[int]]]  # the first prompt, and what is added to it behind each answer


def scripts(model: str, vocabulary: int, episodes: int, turns: int) -> list[Script]:
    """What the environment says in each episode. Every second episode is another attempt at the same task."""
    recorded = [json.loads(line)["conversations"] for line in EXAMPLES.read_text().splitlines()]
    encode = _encoder(model, vocabulary)
    result = []
    for e in range(episodes):
        spoken = recorded[e // 2 % len(recorded)]
        others = [message["value"] for message in spoken[2:] if message["from"] == "human"]
        start = encode(f"<|im_start|>system\n{spoken[0]['value']}<|im_end|>\n{_user(spoken[1]['value'])}")
        result.append((start, [encode("<|im_end|>\n" + _user(others[t % len(others)])) for t in range(turns)]))
    return result


def _user(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def _encoder(model: str, vocabulary: int) -> Any:
    if model == "smollm2":
        from bough.models.resolve import load_tokenizer

        tokenizer = load_tokenizer(model)
        return lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]

    def encode(text: str) -> list[int]:
        generator = random.Random(text)
        return [generator.randrange(vocabulary) for _ in range(max(len(text) // 4, 1))]

    return encode


async def ours(engine: LocalEngine, played: list[Script], answer: int) -> list[Call]:
    sampling = SamplingConfig(max_new_tokens=answer)

    async def play(e: int, script: Script) -> list[Call]:
        ids, calls = list(script[0]), []
        for t, observation in enumerate(script[1]):
            drawn = await engine.generate(f"episode-{e}", ids, sampling=sampling, seed=1000 * e + t, stop_ids=[])
            calls.append(Call(prompt_ids=ids, completion_ids=drawn.completion_ids, logprobs=drawn.logprobs))
            ids = ids + drawn.completion_ids + observation
        engine.release(f"episode-{e}")
        return calls

    return [call for calls in await asyncio.gather(*(play(e, s) for e, s in enumerate(played))) for call in calls]


@torch.inference_mode()
def theirs(model: Any, played: list[Script], answer: int, until: float) -> int:
    """How many tokens were drawn; what is not begun by `until` is left out."""
    histories = [list(start) for start, _ in played]
    drawn = 0
    for t in range(len(played[0][1])):
        longest = max(map(len, histories))
        ids = torch.tensor([[0] * (longest - len(h)) + h for h in histories], device=model.device)
        mask = torch.tensor([[0] * (longest - len(h)) + [1] * len(h) for h in histories], device=model.device)
        out = model.generate(
            ids, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
            min_new_tokens=answer, max_new_tokens=answer, pad_token_id=0, use_cache=True,
        )[:, longest:].tolist()  # fmt: skip
        drawn += sum(map(len, out))
        for history, reply, (_, observations) in zip(histories, out, played, strict=True):
            history += reply + observations[t]
        if time.monotonic() > until:
            break
    return drawn


def step_time(engine: LocalEngine) -> str:
    """How long a step takes in which all draw, by itself: the largest graph, played again."""
    graphs = getattr(engine.worker.runner, "_graphs", None)
    if graphs is None:
        return ""
    shape = max(graphs._recorded)
    with engine.reader.reading():
        begin = now()
        for _ in range(20):
            graphs(*shape)
        return f"; a step for {shape[0]} takes {(now() - begin) / 20 * 1e3:.1f} ms"


def gap(policy: Policy, calls: list[Call]) -> str:
    """How far the sampled log-probabilities are from those that training computes."""
    with torch.no_grad():
        scored = policy.logprobs(calls)
    apart = torch.cat([(torch.tensor(c.logprobs) - s.cpu()).abs() for c, s in zip(calls, scored, strict=True)])
    return f"at most {apart.max():.1e}, {apart.mean():.1e} on average"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=NAMES, default="smollm2")
    parser.add_argument("--episodes", type=int, default=4)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--answer", type=int, default=24, help="tokens of each answer")
    parser.add_argument("--length", type=int, default=None, help="the longest episode, in tokens")
    parser.add_argument("--compile", action="store_true", help="also with the small layers compiled")
    parser.add_argument("--eager", action="store_true", help="also without CUDA graphs")
    parser.add_argument("--unshared", action="store_true", help="also with no prefix shared between episodes")
    parser.add_argument("--limit-s", type=float, default=3600, help="no contender begins another turn after so long")
    options = parser.parse_args()
    cuda = torch.cuda.is_available()
    if not cuda:
        torch.set_num_threads(1)
    until = time.monotonic() + options.limit_s
    model = build(options.model).eval()
    policy = Policy(model, attention="sdpa").eval()  # nothing to compile before the first number
    played = scripts(options.model, model.config.vocab_size, options.episodes, options.turns)
    prompts = [len(start) for start, _ in played]
    added = [len(words) + options.answer for _, observations in played for words in observations]
    print(f"\n## {options.model}: {options.episodes} episodes of {options.turns} turns, {options.answer} tokens each\n")
    growth = sum(added) / len(added)
    print(f"{machine()}. First prompts {min(prompts)} to {max(prompts)} tokens, {growth:.0f} more a turn.\n")
    rows: list[list[object]] = []
    rates: dict[str, float] = {}

    def measure(name: str, work: Any, notes: Any = lambda _: "") -> None:
        failed: list[str] = []
        with failure_in(failed):
            begin = now()
            done = work()
            seconds = now() - begin
            num_tokens = done if isinstance(done, int) else sum(len(call.completion_ids) for call in done)
            rates[name] = num_tokens / seconds
            rows.append([name, num_tokens, f"{seconds:.1f}", f"{rates[name]:.1f}", notes(done)])
        rows.extend([name, "", "", "", reason] for reason in failed)
        print(f"({rows[-1]})", flush=True)

    def with_engine(name: str, **more: Any) -> None:
        engine = LocalEngine.of(policy, max_length=options.length, max_running=max(options.episodes, 2), **more)

        async def once() -> list[Call]:
            return await ours(engine, played, options.answer)

        async def closed() -> None:
            await engine.close()

        def notes(calls: list[Call]) -> str:
            s = engine.scheduler
            tokens = f"prompt tokens read {s.num_prefilled}, kept {s.num_kept}, shared {s.num_shared}"
            return f"{tokens}{step_time(engine)}; log-probabilities apart {gap(policy, calls)}"

        failed: list[str] = []
        with failure_in(failed):
            if cuda:  # graphs are recorded before the clock starts, as kernels are chosen for the other
                asyncio.run(once())
                s = engine.scheduler
                s.num_prefilled = s.num_kept = s.num_shared = 0
            measure(name, lambda: asyncio.run(once()), notes)
        asyncio.run(closed())

    with_engine("Bough")
    if options.eager:
        with_engine("Bough, no CUDA graphs", graphs=False)
    if options.unshared:
        usual, schedule.WORTH_SHARING = schedule.WORTH_SHARING, 1 << 60
        with_engine("Bough, nothing shared between episodes")
        schedule.WORTH_SHARING = usual
    model.config.use_cache = True
    model.set_attn_implementation("sdpa")
    if cuda:
        theirs(model, [(start, said[:1]) for start, said in played], 8, until)
    else:
        # With oneDNN, as torch comes, matrix products on ARM are slower: both are shown.
        torch.backends.mkldnn.enabled = False
        measure("transformers generate, oneDNN off", lambda: theirs(model, played, options.answer, until))
        torch.backends.mkldnn.enabled = True
    measure("transformers generate", lambda: theirs(model, played, options.answer, until))
    if options.compile:
        compile_small(model)
        with_engine("Bough, norms and MLPs compiled")
    print("\n" + table(["contender", "tokens drawn", "seconds", "tokens/s", "notes"], rows))
    others = {name: rate for name, rate in rates.items() if name.startswith("transformers")}
    for name, rate in rates.items():
        if name.startswith("Bough"):
            print(f"\n{name}: " + ", ".join(f"{rate / other:.1f}× {their}" for their, other in others.items()))


def compile_small(model: Any) -> None:
    """Compiles what needs no cache, each kind of module once."""
    for module in model.modules():
        if type(module).__name__.endswith(("RMSNorm", "MLP")):
            module.compile(dynamic=True)


if __name__ == "__main__":
    main()
