"""A GRPO update: a group of attempts at one task. Bough against TRL's GRPOTrainer, and against itself without sharing.

    python benchmarks/grpo.py --model qwen3-4b --checkpointing

The attempts are given: TRL's trainer runs as it is but for its sampling, which hands out the
same tokens, observations masked. All average over tokens and clip at 0.2 and 0.28, without
KL. The log-probabilities before the update are those of the update's own first pass in
TRL; Bough's are computed before the clock starts, so both compute one gradient. Bough
computes them in the step where they are not on file: that has a line of its own.
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import peer
import torch
from dpo import vocabulary
from episodes import Episode, Lengths, Source
from measure import Gauge, Peak, failure_in, machine, seconds_of, table
from ours import Ours, policy_of
from torch.nn.utils.rnn import pad_sequence

import models
from bough.curation.advantages import group_advantages
from bough.methods.grpo import GRPO, GRPOConfig
from bough.policy.adapters import Lora
from bough.policy.reference import Reference
from bough.training.method import GroupExample


class Result(NamedTuple):
    """How fast, in how much memory, and what came out."""

    name: str
    seconds: float
    peak_gib: float
    gauge: Gauge
    note: str


def advantages_of(options: argparse.Namespace) -> list[float]:
    """Of attempts of which every third succeeded."""
    values = group_advantages([float(i % 3 == 0) for i in range(options.group)], normalise=True).values
    return [float(value) for value in values]


def run_ours(options: argparse.Namespace, episodes: list[Episode], name: str, *, share: bool, known: bool) -> Result:
    calls = [episode.calls() for episode in episodes]
    spread = [a for a, of_attempt in zip(advantages_of(options), calls, strict=True) for _ in of_attempt]
    all_calls = [call for of_attempt in calls for call in of_attempt]
    num_trained = sum(len(call.completion_ids) for call in all_calls)
    group = GroupExample(
        calls=all_calls, advantages=tuple(spread), weights=(1.0,) * len(spread), denominator=float(num_trained)
    )
    with Peak() as peak:
        gauge, seconds, note = _measure_ours(options, group, share=share, known=known)
    return Result(name, seconds, peak.gib, gauge, note)


def _measure_ours(
    options: argparse.Namespace, group: GroupExample, *, share: bool, known: bool
) -> tuple[Gauge, float, str]:
    compiled = options.compile and share  # without sharing every row has a length of its own
    policy = policy_of(options.model, lora=options.lora, checkpointing=options.checkpointing, compile=compiled)
    before = Reference(policy)
    if known:
        _compute_actor(before, group, options)
    objective = GRPO(GRPOConfig(train_file="unused"))
    ours = Ours(policy, objective, options.budget, share=share, known=before)
    gauge = ours.gauge([group])
    times = options.steps if share else options.trl_steps
    seconds = seconds_of(lambda: ours.step([group]), warm_up=options.warm_up if share else 0, times=times)
    return gauge, seconds, ours.layout([group], seconds, reference=not known)


def _compute_actor(before: Reference, group: GroupExample, options: argparse.Namespace) -> None:
    """Log-probabilities of the policy as it is now, adapter included, as if they were on file."""
    with torch.no_grad():
        values = before.policy.logprobs(group.calls, budget=options.budget)
    before._known = {id(call): logprobs for call, logprobs in zip(group.calls, values, strict=True)}


def run_trl(options: argparse.Namespace, episodes: list[Episode], batch: int) -> Result:
    with Peak() as peak:
        watch = peer.run(_trainer(options, episodes, batch))
    seconds = watch.seconds(skip=options.group // batch) / options.trl_steps
    note = f"{sum(len(episode.row()[0]) for episode in episodes):,} tokens without padding"
    return Result(f"TRL, batch {batch}", seconds, peak.gib, watch.gauges[0], note)


def _trainer(options: argparse.Namespace, episodes: list[Episode], batch: int) -> Any:
    from datasets import Dataset
    from trl import GRPOConfig as TRLConfig
    from trl import GRPOTrainer

    given = _inputs(options, episodes)

    class Given(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:  # noqa: ARG002  whatever was asked for
            return dict(given)

    common = peer.settings(batch, options.group // batch, 1 + options.trl_steps, checkpointing=options.checkpointing)
    del common["train_sampling_strategy"]
    trainer = Given(
        model=models.build(options.model, full=options.lora is None),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=TRLConfig(**common, num_generations=options.group, epsilon=0.2, epsilon_high=0.28, beta=0.0),
        train_dataset=Dataset.from_list([{"prompt": "<eos>"}] * (1 + options.trl_steps)),
        processing_class=peer.tokenizer(),
        peft_config=peer.lora_config(options.rank, options.alpha) if options.lora else None,
    )
    models.fill_adapter(trainer.model)
    return trainer


def _inputs(options: argparse.Namespace, episodes: list[Episode]) -> dict[str, torch.Tensor]:
    """The group in the form in which TRL's sampling returns one."""
    rows = [episode.row() for episode in episodes]
    start = len(episodes[0].start)
    completions = [torch.tensor(ids[start:]) for ids, _ in rows]
    answered = pad_sequence([torch.tensor(mask[start:]).long() for _, mask in rows], batch_first=True)
    prompts = torch.tensor([episode.start for episode in episodes])
    inputs = {
        "prompt_ids": prompts,
        "prompt_mask": torch.ones_like(prompts),
        "completion_ids": pad_sequence(completions, batch_first=True),
        "completion_mask": pad_sequence([torch.ones_like(ids) for ids in completions], batch_first=True),
        "tool_mask": answered,
        "advantages": torch.tensor(advantages_of(options)),
        "num_items_in_batch": answered.sum(),
    }
    return {name: value.to(models.device()) for name, value in inputs.items()}


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    options.lora = Lora(options.rank, options.alpha) if options.tuning == "lora" else None
    lengths = Lengths(start=options.prompt, answer=options.answer, observation=options.observation)
    episodes = Source(vocabulary(options.model)).attempts(options.group, options.turns, lengths)

    mine = run_ours(options, episodes, "Bough", share=True, known=True)
    others = [run_ours(options, episodes, "Bough, share=False", share=False, known=True)]
    if options.lora:
        name = "Bough, log-probabilities before it computed in the step"
        others.append(run_ours(options, episodes, name, share=True, known=False))
    theirs: list[Result] = []
    for batch in options.trl_batches:
        with failure_in(problems := []):
            theirs.append(run_trl(options, episodes, batch))
        print(f"TRL, batch {batch}: {problems[0] if problems else f'{theirs[-1].seconds:.3g} s'}", flush=True)
    best = min(theirs, key=lambda result: result.seconds)

    kind = "full fine-tuning" if options.lora is None else f"LoRA r={options.rank}"
    answered = sum(len(episode.row()[0]) - options.prompt for episode in episodes) // len(episodes)
    attempts = f"{options.group} attempts of {options.turns} turns after a prompt of {options.prompt} tokens"
    print(f"\n### GRPO: {options.model}, {kind}, {attempts}, {answered:,} tokens a response\n\n{machine()}\n")
    rows = [
        [r.name, f"{r.seconds:.3g}", f"{r.seconds / mine.seconds:.2f}×", f"{r.peak_gib:.1f} GiB",
         f"{r.gauge.loss:.6f}", f"{r.gauge.gradient_norm:.5f}", r.note]
        for r in (mine, *others, *theirs)
    ]  # fmt: skip
    print(table(["", "seconds an update", "Bough is faster by", "peak memory", "loss", "gradient norm", ""], rows))
    print(f"\nBough and {best.name}: {mine.gauge.against(best.gauge)}.")
    print(f"\n**{best.seconds / mine.seconds:.2f}× TRL's best, {others[0].seconds / mine.seconds:.2f}× share=False**\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=models.NAMES, default="tiny")
    parser.add_argument("--tuning", choices=["full", "lora"], default="lora")
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=2560)
    parser.add_argument("--answer", type=int, default=300, help="mean tokens of an answer")
    parser.add_argument("--observation", type=int, default=100, help="mean tokens of an observation")
    parser.add_argument("--trl-batches", type=int, nargs="+", default=[2, 4, 8], help="attempts in a batch of TRL's")
    parser.add_argument(
        "--trl-steps", type=int, default=1, help="steps of TRL's, and without sharing, that are counted"
    )
    parser.add_argument("--budget", type=int, default=16_384, help="tokens in a row of ours")
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--alpha", type=int, default=128)
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing, for all")
    parser.add_argument("--compile", action="store_true", help="our layers under torch.compile")
    parser.add_argument("--warm-up", type=int, default=1, help="steps of ours that are not counted")
    parser.add_argument("--steps", type=int, default=3, help="steps of ours that are counted")
    parser.add_argument("--threads", type=int, default=1, help="of torch, on a CPU")
    return parser.parse_args()


if __name__ == "__main__":
    main()
