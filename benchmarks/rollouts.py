"""Multi-turn episodes: Bough's local engine against vLLM and transformers' `generate`.

    python benchmarks/rollouts.py --model smollm2 --episodes 8 --turns 6                        # CPU
    python benchmarks/rollouts.py --model qwen3-0.6b --episodes 128 --turns 10 --alone --vllm   # GPU

All play the same episodes to the end: the prompts and observations of `examples/household.jsonl`, one
after the other, and between them answers of the same number of tokens, drawn at temperature 1 with their
log-probabilities. vLLM keeps the history by its prefix cache.
Prompts are the example's own tokens with SmolLM2 and random tokens, one for four characters, with
the other models. transformers takes all episodes of a turn as one padded batch, and reads the whole
history in each turn, as trainers do that call `generate`; or it is given its cache of the turn before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import failure_in, machine, now, release, seconds_of, table

from bough.config.groups import SamplingConfig
from bough.engines.local import schedule
from bough.engines.local.engine import LocalEngine
from bough.engines.local.pages import Graphs
from bough.engines.local.schedule import SamplingParams, draw
from bough.policy.policy import Policy
from bough.types import Call
from models import NAMES, build, config_folder

EXAMPLES = Path(__file__).parent.parent / "examples" / "household.jsonl"
BYTES_PER_SECOND = 4.3e12  # of an H200's memory, as measured
Script = tuple[list[int], list[list[int]]]  # the first prompt, and what is added to it after each answer


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
def theirs(model: Any, played: list[Script], answer: int) -> int:
    """Plays all turns of all episodes; how many tokens were drawn."""
    histories = [list(start) for start, _ in played]
    drawn = 0
    for t in range(len(played[0][1])):
        ids, mask = _padded(histories, model.device)
        out = model.generate(
            ids, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
            min_new_tokens=answer, max_new_tokens=answer, pad_token_id=0, use_cache=True,
        )[:, ids.shape[1] :].tolist()  # fmt: skip
        drawn += sum(map(len, out))
        for history, reply, (_, observations) in zip(histories, out, played, strict=True):
            history += reply + observations[t]
    return drawn


@torch.inference_mode()
def theirs_with_cache(model: Any, played: list[Script], answer: int) -> int:
    """The same, with the cache of the turn before; observations are padded to the longest, and the padding stays."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    ids, mask = _padded([start for start, _ in played], model.device)
    drawn = 0
    for t in range(len(played[0][1])):
        out = model.generate(
            ids, attention_mask=mask, past_key_values=cache, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
            min_new_tokens=answer, max_new_tokens=answer, pad_token_id=0,
        )  # fmt: skip
        drawn += out.shape[0] * (out.shape[1] - ids.shape[1])
        said, said_mask = _padded([observations[t] for _, observations in played], model.device)
        mask = torch.cat([mask, mask.new_ones(len(mask), out.shape[1] - ids.shape[1]), said_mask], 1)
        ids = torch.cat([out, said], 1)
    return drawn


def _padded(rows: list[list[int]], device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids padded on the left, and their mask."""
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows], device=device)
    return ids, torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=device)


def step_time(engine: LocalEngine) -> str:
    """How long a step takes in which all draw, by itself: the largest graph, played again; and its draw alone."""
    runner: Any = engine.runner
    graphs = getattr(runner, "_draws", None) or getattr(runner, "_graphs", None)
    if not isinstance(graphs, Graphs):
        return ""
    shape = max(graphs._recorded)
    with engine.reader.reading():
        logits_BV = torch.randn(shape[0], engine.reader.vocabulary, device="cuda", dtype=torch.bfloat16)
        wishes = SamplingParams.of([(SamplingConfig(), 0.5)] * shape[0], "cuda")
        drawing = Graphs(lambda: draw(logits_BV, wishes, cut=False)[0])
        step_ms = seconds_of(lambda: graphs(*shape), warm_up=3, times=20) * 1e3
        draw_ms = seconds_of(drawing, warm_up=3, times=20) * 1e3
        kernels(lambda: graphs(*shape))
    return f"; a graph for {shape[0]} takes {step_ms:.1f} ms; a draw by itself {draw_ms:.2f}"


def kernels(step: Callable[[], object]) -> None:
    """Prints what a step spends its time on."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    averages = seen.key_averages()
    print(f"({sum(event.count for event in averages) // 3} kernels a step)")
    print(averages.table(sort_by="self_cuda_time_total", row_limit=16, max_name_column_width=70), flush=True)


def gap(policy: Policy, calls: list[Call]) -> str:
    """How far the sampled log-probabilities are from those that training computes."""
    with torch.no_grad():
        calls = calls[:: max(len(calls) // 40, 1)]  # a sample will do
        scored = policy.logprobs(calls)
    apart = torch.cat([(torch.tensor(c.logprobs) - s.cpu()).abs() for c, s in zip(calls, scored, strict=True)])
    return f"at most {apart.max():.1e}, {apart.mean():.1e} on average"


class Report:
    """The table, printed line by line and, with a file, added to it at the end."""

    def __init__(self, title: str, output: Path | None) -> None:
        self.title, self.output = title, output
        self.rows: list[list[object]] = []
        self.rates: dict[str, float] = {}

    def measure(self, name: str, work: Callable[[], Any], notes: Callable[[Any], str] = lambda _: "") -> None:
        failed: list[str] = []
        with failure_in(failed):
            begin = now()
            done = work()
            seconds = now() - begin
            num_tokens = done if isinstance(done, int) else sum(len(call.completion_ids) for call in done)
            self.rates[name] = num_tokens / seconds
            self.rows.append([name, num_tokens, f"{seconds:.1f}", f"{self.rates[name]:.1f}", ""])
            self.rows[-1][-1] = notes(done)
        self.rows.extend([name, "", "", "", reason] for reason in failed)
        print(f"({self.rows[-1]})", flush=True)

    def write(self) -> None:
        parts = [self.title, table(["contender", "tokens drawn", "seconds", "tokens/s", "notes"], self.rows)]
        others = {name: rate for name, rate in self.rates.items() if not name.startswith("Bough")}
        for name, rate in self.rates.items():
            if name.startswith("Bough") and others:
                ratios = ", ".join(f"{rate / other:.1f}× {their}" for their, other in others.items())
                parts.append(f"{name}: {ratios}.")
        text = "\n\n".join(parts) + "\n"
        print("\n" + text, flush=True)
        if self.output:
            with self.output.open("a", encoding="utf-8") as file:
                file.write("\n" + text)


def play_ours(report: Report, name: str, policy: Policy, played: list[Script], answer: int, **options: Any) -> None:
    """Measures the engine, once its graphs are recorded and its kernels compiled."""
    engine = LocalEngine.of(policy, max_running=max(len(played), 2), **options)

    async def once() -> list[Call]:
        return await ours(engine, played, answer)

    async def closed() -> None:
        await engine.close()

    def notes(calls: list[Call]) -> str:
        s = engine.scheduler
        tokens = f"prompt tokens read {s.num_prefilled}, kept {s.num_kept}, shared {s.num_shared}"
        steps = f"; {engine.num_steps} steps"
        return f"{tokens}{steps}{step_time(engine)}; log-probabilities apart {gap(policy, calls)}"

    failed: list[str] = []
    with failure_in(failed):
        if torch.cuda.is_available():
            begin = now()
            asyncio.run(once())
            print(f"(the first time, with everything recorded: {now() - begin:.1f} s)", flush=True)
            s = engine.scheduler
            s.num_prefilled = s.num_kept = s.num_shared = engine.num_steps = 0
        report.measure(name, lambda: asyncio.run(once()), notes)
    asyncio.run(closed())


def play_theirs(report: Report, model: Any, played: list[Script], answer: int) -> None:
    model.config.use_cache = True
    model.set_attn_implementation("sdpa")
    if torch.cuda.is_available():
        theirs(model, [(start, said[:1]) for start, said in played], 8)
    else:
        # With oneDNN, as torch comes, matrix products on ARM may be slower: both are shown.
        torch.backends.mkldnn.enabled = False
        report.measure("transformers generate, oneDNN off", lambda: theirs(model, played, answer))
        report.measure(
            "transformers generate, cache kept, oneDNN off", lambda: theirs_with_cache(model, played, answer)
        )
        torch.backends.mkldnn.enabled = True
    report.measure("transformers generate", lambda: theirs(model, played, answer))
    report.measure("transformers generate, cache kept", lambda: theirs_with_cache(model, played, answer))


def play_vllm(report: Report, model: str, played: list[Script], answer: int, length: int, packages: str) -> None:
    """vLLM needs the GPU for itself, so it plays in another process, after ours has given back its memory."""
    with tempfile.TemporaryDirectory() as folder, failure_in(problems := []):
        weights, load_format = config_folder(model, Path(folder))
        work = {"model": str(weights), "load_format": load_format, "scripts": played, "answer": answer}
        (file := Path(folder) / "work.json").write_text(json.dumps(work | {"length": length}))
        environment = os.environ | ({"PYTHONPATH": packages} if packages else {})
        command = [sys.executable, str(Path(__file__).parent / "vllm_rollouts.py"), str(file)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError("\n".join(done.stderr.splitlines()[-12:]))
        found = json.loads(done.stdout.splitlines()[-1])
        rate = found["tokens"] / found["seconds"]
        report.rates[name := f"vLLM {found['version']}"] = rate
        report.rows.append([name, found["tokens"], f"{found['seconds']:.1f}", f"{rate:.1f}", "the better of two times"])
    report.rows.extend(["vLLM", "", "", "", reason] for reason in problems)
    print(f"({report.rows[-1]})", flush=True)


def limit(model: Any, played: list[Script], answer: int) -> str:
    """What memory allows: every step reads all weights and each episode's keys and values once."""
    config = model.config
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    of_token = 2 * config.num_hidden_layers * config.num_key_value_heads * size * 2
    weights = 2 * sum(p.numel() for p in model.parameters())
    seconds, num_tokens = 0.0, 0
    lengths = [len(start) for start, _ in played]
    for t in range(len(played[0][1])):
        kept = sum(lengths) + len(lengths) * answer / 2
        seconds += answer * (weights + of_token * kept) / BYTES_PER_SECOND
        num_tokens += answer * len(lengths)
        lengths = [old + answer + len(said[t]) for old, (_, said) in zip(lengths, played, strict=True)]
    return f"Memory at {BYTES_PER_SECOND / 1e12} TB/s would allow {num_tokens / seconds:,.0f} tokens/s."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=NAMES, default="smollm2")
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--answer", type=int, default=24, help="tokens of each answer")
    parser.add_argument("--length", type=int, default=None, help="the longest episode, in tokens")
    parser.add_argument("--general", action="store_true", help="also on the general path")
    parser.add_argument("--alone", action="store_true", help="without transformers' generate")
    parser.add_argument("--vllm", nargs="?", const="", metavar="PYTHONPATH", help="also vLLM, installed or found there")
    parser.add_argument("--eager", action="store_true", help="also without CUDA graphs")
    parser.add_argument("--unshared", action="store_true", help="also with no prefix shared between episodes")
    parser.add_argument("--output", type=Path, help="a Markdown file to which the result is added")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    model = build(options.model).eval()
    policy = Policy(model, attention="sdpa").eval()  # nothing to compile before the first number
    played = scripts(options.model, model.config.vocab_size, options.episodes, options.turns)
    prompts = [len(start) for start, _ in played]
    added = [len(words) + options.answer for _, observations in played for words in observations]
    growth = sum(added) / len(added)
    report = Report(
        f"## {options.model}: {options.episodes} episodes of {options.turns} turns, {options.answer} tokens each\n\n"
        f"{machine()}. First prompts {min(prompts)} to {max(prompts)} tokens, {growth:.0f} more a turn.",
        options.output,
    )
    usual: dict[str, Any] = {"max_length": options.length}
    play_ours(report, "Bough", policy, played, options.answer, **usual)
    if options.eager:
        play_ours(report, "Bough, no CUDA graphs", policy, played, options.answer, graphs=False, **usual)
    if options.unshared:
        worth, schedule.WORTH_SHARING = schedule.WORTH_SHARING, 1 << 60
        play_ours(report, "Bough, nothing shared between episodes", policy, played, options.answer, **usual)
        schedule.WORTH_SHARING = worth
    if options.general:
        play_ours(report, "Bough, general path", policy, played, options.answer, layout="general", **usual)
    if not options.alone:
        play_theirs(report, model, played, options.answer)
    if options.vllm is not None:
        longest = max(len(start) + sum(map(len, said)) + options.answer * len(said) for start, said in played)
        report.title += f" {limit(model, played, options.answer)}"
        model = policy = None
        release()
        play_vllm(report, options.model, played, options.answer, longest + 16, options.vllm)
    report.write()


if __name__ == "__main__":
    main()
