"""DPO from top to bottom: log-probabilities of both sides of each pair, against a reference, and a step.

    python examples/dpo_loop.py             # the tiny model, a few seconds
    python examples/dpo_loop.py smollm2

`bough.dpo` does the same and more: held-out loss, checkpoints, other losses, several GPUs.
"""

import sys
from pathlib import Path

import torch

import bough

PAIRS = Path(__file__).parent / "household-pairs.jsonl"
EPOCHS = 3
PAIRS_PER_STEP = 7
BETA = 0.1
LEARNING_RATE = 2e-3


def side_sums(model: bough.LoadedModel, pairs: list[list[list[bough.Call]]]) -> bough.Sides:
    """The log-probability of each side of each pair, summed over the tokens of its calls."""
    calls = [call for pair in pairs for side in pair for call in side]
    logprobs = iter(model.policy.logprobs(calls))  # one token tree: what calls share is computed once
    sums = [torch.stack([sum(next(logprobs).sum() for _ in side) for side in pair]) for pair in pairs]  # type: ignore
    return bough.Sides(*torch.stack(sums).unbind(dim=1))


def side_lengths(pairs: list[list[list[bough.Call]]]) -> bough.Sides:
    """The number of answered tokens of each side."""
    counts = [[sum(len(call.completion_ids) for call in side) for side in pair] for pair in pairs]
    return bough.Sides(*torch.tensor(counts, dtype=torch.float).unbind(dim=1))


def main(name: str = "tiny") -> list[float]:
    """Trains a new adapter; returns the accuracy of each epoch: how often chosen gained more than rejected."""
    model = bough.load(name, lora=bough.Lora(r=16, alpha=32))
    weights = [weight for weight in model.policy.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=LEARNING_RATE)
    # Messages become exact tokens: for each pair the calls of its chosen and of its rejected side.
    pairs = [model.calls(pair) for pair in bough.read(PAIRS)]
    accuracies = []
    for epoch in range(EPOCHS):
        correct, value = 0.0, 0.0
        for begin in range(0, len(pairs), PAIRS_PER_STEP):
            batch = pairs[begin : begin + PAIRS_PER_STEP]
            with model.policy.reference():  # the same model without its adapter
                reference = side_sums(model, batch)
            loss = bough.dpo_loss(
                side_sums(model, batch), reference, side_lengths(batch), denominator=len(batch), beta=BETA
            )
            loss.value.backward()
            optimizer.step()
            optimizer.zero_grad()
            correct += loss.metrics["accuracy"].value * len(batch)
            value += loss.value.item() * len(batch)
        accuracies.append(correct / len(pairs))
        print(f"epoch {epoch + 1}  loss {value / len(pairs):.4f}  accuracy {accuracies[-1]:.1%}")
    return accuracies


if __name__ == "__main__":
    main(*sys.argv[1:])
