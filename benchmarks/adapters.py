"""Episodes of several LoRA adapters on one base in one batch, with the local engine.

    python benchmarks/adapters.py --model smollm2 --episodes 16 --turns 1 --answer 32      # CPU
    python benchmarks/adapters.py --model qwen3-0.6b --episodes 128 --turns 10 --answer 32 --length 4096  # GPU

The same episodes as in `rollouts.py` are played with no adapter, with one that is the policy's own
(what online training does), and with 1, 8, … adapters by name. Attempts at the same task have
the same adapter; episodes with different adapters share no prefix, so more prompt tokens are read.
With `--apart`, they share none with a single adapter either: what remains is the cost of computing.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

import torch
from measure import failure_in, machine, now, release

from bough.config.groups import SamplingConfig
from bough.engines.local.engine import LocalEngine
from bough.policy.adapters import AdapterWeights, Lora, add_actor
from bough.policy.policy import Policy
from bough.types import Call
from models import NAMES, build
from rollouts import Report, Script, gap, scripts, step_time

SCORED = 16  # calls that are compared with what training computes


def random_adapters(model: str, number: int, rank: int) -> tuple[list[AdapterWeights], Policy]:
    """Adapters that change what the model says a little, and a policy with the first as its own."""
    base = add_actor(build(model), Lora(r=rank, alpha=2 * rank))
    weights = []
    for seed in range(number, 0, -1):
        torch.manual_seed(seed)
        with torch.no_grad():
            for name, parameter in base.named_parameters():
                if "lora_" in name:
                    parameter.normal_(std=0.02)
        weights.append(AdapterWeights.of(base))
    return weights[::-1], Policy(base, attention="sdpa").eval()


async def play(engine: LocalEngine, played: list[Script], answer: int, adapters: list[str]) -> list[list[Call]]:
    """The calls by episode. Episodes come in pairs, which have the same adapter."""
    sampling = SamplingConfig(max_new_tokens=answer)

    async def one(e: int, script: Script) -> list[Call]:
        ids, calls = list(script[0]), []
        name, adapter = f"episode-{e}", adapters[e // 2 % len(adapters)]
        for t, observation in enumerate(script[1]):
            drawn = await engine.generate(name, ids, sampling=sampling, seed=1000 * e + t, stop_ids=[], adapter=adapter)
            calls.append(Call(prompt_ids=ids, completion_ids=drawn.completion_ids, logprobs=drawn.logprobs))
            ids = ids + drawn.completion_ids + observation
        engine.release(name, adapter=adapter)
        return calls

    return await asyncio.gather(*(one(e, script) for e, script in enumerate(played)))


def measure(
    report: Report,
    name: str,
    policy: Policy,
    judge: Policy,
    played: list[Script],
    answer: int,
    weights: list[AdapterWeights],
    **options: Any,
) -> None:
    """One contender; `judge` says the log-probabilities of the episodes with the first adapter."""
    engine = LocalEngine.of(policy, max_running=max(len(played), 2), **options)
    adapters = [f"{number}" for number in range(len(weights))] or [""]
    for adapter, each in zip(adapters, weights, strict=False):
        engine.set_adapter(adapter, each)
    calls: list[list[Call]] = []

    def once() -> list[Call]:
        calls[:] = asyncio.run(play(engine, played, answer, adapters))
        return [call for episode in calls for call in episode]

    def notes(_: list[Call]) -> str:
        s = engine.scheduler
        mine = [e for e in range(len(played)) if e // 2 % len(adapters) == 0]
        some = [call for e in mine for call in calls[e]][:SCORED]
        read = f"prompt tokens read {s.num_prefilled}, shared {s.num_shared}; {engine.num_steps} steps"
        return f"{read}{step_time(engine)}; log-probabilities apart {gap(judge, some)}"

    failed: list[str] = []
    with failure_in(failed):
        if torch.cuda.is_available():
            begin = now()
            once()  # and everything is recorded
            print(f"(the first time: {now() - begin:.1f} s)", flush=True)
            s = engine.scheduler
            s.num_prefilled = s.num_kept = s.num_shared = engine.num_steps = 0
        report.measure(name, once, notes)
    asyncio.run(engine.close())
    for reason in failed:
        print(reason, flush=True)
    release()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=NAMES, default="smollm2")
    parser.add_argument("--episodes", type=int, default=16)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--answer", type=int, default=32, help="tokens of each answer")
    parser.add_argument("--length", type=int, default=None, help="the longest episode, in tokens")
    parser.add_argument("--adapters", type=int, nargs="+", default=[1, 8], help="numbers of adapters by name")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--apart", action="store_true", help="share prefixes with one adapter only as with the most")
    parser.add_argument("--output", type=Path, help="a Markdown file to which the result is added")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    weights, own = random_adapters(options.model, max(options.adapters), options.rank)
    base = Policy(build(options.model), attention="sdpa").eval()
    played = scripts(options.model, base.base.config.vocab_size, options.episodes, options.turns)
    if options.apart:
        most = max(options.adapters)
        played = [([e // 2 % most, *start], said) for e, (start, said) in enumerate(played)]
    report = Report(
        f"## {options.model}: {options.episodes} episodes, {options.turns} × {options.answer} tokens each, "
        f"rank {options.rank}{', prefixes apart' * options.apart}\n\n{machine()}.",
        options.output,
    )
    usual: dict[str, Any] = {"max_length": options.length}
    if not options.apart:
        measure(report, "no adapter", base, base, played, options.answer, [], **usual)
        measure(report, "the policy's own adapter", own, own, played, options.answer, [], **usual)
    for number in options.adapters:
        name = f"{number} by name"
        measure(report, name, base, own, played, options.answer, weights[:number], **usual)
    first = report.rates.get(f"{options.adapters[0]} by name")
    for name, rate in report.rates.items():
        if first and name.endswith("by name"):
            print(f"({name}: {first / rate - 1:+.0%} time against {options.adapters[0]} by name)", flush=True)
    report.write()


if __name__ == "__main__":
    main()
