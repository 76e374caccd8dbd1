"""Bough's distillation loss beside TRL's GKD loss, on the same tokens of the same two models.

    python benchmarks/distill.py [--output FILE]

TRL must be installed (1.16 was used). Two small Llama models with random weights, of different
widths and one tokenizer. Four episodes of three calls each are computed by Bough as one token
tree and by TRL's `GKDTrainer.generalized_jsd_loss` call by call, from whole logits.
"""

from __future__ import annotations

import argparse
import platform
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from trl.experimental.gkd import GKDTrainer

from bough.methods.distill import divergence_loss
from bough.policy.head import Teacher
from bough.policy.policy import Policy
from bough.types import Call

VOCABULARY = 211


def model(seed: int, width: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.4,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def episodes() -> list[Call]:
    draw = torch.Generator().manual_seed(3)
    calls = []
    for _ in range(4):
        history = list(range(1, 8))
        for _ in range(3):
            new = torch.randint(1, VOCABULARY, (9,), generator=draw).tolist()
            calls.append(Call(prompt_ids=history, completion_ids=new[:5]))
            history = history + new
    return calls


def theirs(student: LlamaForCausalLM, teacher: LlamaForCausalLM, calls: list[Call], beta: float, heat: float) -> float:
    """TRL's loss over the answered tokens, one call at a time, and the gradient in the student's weights."""
    count = sum(len(call.completion_ids) for call in calls)
    total = 0.0
    for call in calls:
        ids = torch.tensor([call.prompt_ids + call.completion_ids])
        answered = slice(len(call.prompt_ids) - 1, -1)
        with torch.no_grad():
            wanted = teacher(input_ids=ids).logits[:, answered]
        loss = GKDTrainer.generalized_jsd_loss(
            student(input_ids=ids).logits[:, answered], wanted, beta=beta, temperature=heat, num_items_in_batch=count
        )
        loss.backward()
        total += float(loss.detach())
    return total


def ours(student: LlamaForCausalLM, teacher: LlamaForCausalLM, calls: list[Call], beta: float, heat: float) -> float:
    policy = Policy(student)
    policy.temperature, policy.teacher = heat, Teacher(Policy(teacher), beta)
    total = 0.0
    count = sum(len(call.completion_ids) for call in calls)
    for row in policy.rows(calls):
        loss = divergence_loss(torch.cat(policy(row).trained), denominator=count).value
        loss.backward()
        total += float(loss.detach())
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    lines = [
        "| beta | temperature | TRL | Bough | largest difference of a gradient, relative |",
        "|---|---|---|---|---|",
    ]
    calls = episodes()
    for beta, heat in [(1.0, 1.0), (0.0, 1.0), (0.5, 1.0), (0.1, 0.7), (0.9, 1.5)]:
        student, other, teacher = model(1, 32), model(1, 32), model(2, 48)
        expected, found = theirs(student, teacher, calls, beta, heat), ours(other, teacher, calls, beta, heat)
        pairs = zip(student.parameters(), other.parameters(), strict=True)
        worst = max(float((a.grad - b.grad).abs().max() / a.grad.abs().max()) for a, b in pairs)  # type: ignore[union-attr,operator]
        lines.append(f"| {beta:g} | {heat:g} | {expected:.6f} | {found:.6f} | {worst:.1e} |")
        assert abs(expected - found) < 1e-5 * abs(expected) and worst < 1e-4, lines[-1]
    versions = ", ".join(f"{name} {version(name)}" for name in ("trl", "transformers", "torch"))
    text = "\n".join(
        [f"float32 on a CPU; {versions}, Python {platform.python_version()}, {platform.machine()}", "", *lines]
    )
    print(text)
    if options.output:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
