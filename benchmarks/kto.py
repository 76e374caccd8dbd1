"""KTO's loss and gradient on one batch, Bough's and TRL's, for the same tokens, policy and reference.

    python benchmarks/kto.py        # needs trl; TRL's line is what tests/methods/test_kto.py compares with

The reference is the tiny model, the policy the same with a seeded change in every matrix. TRL gets token ids in the
columns that it makes itself when it tokenises.
"""

from __future__ import annotations

import copy
import json
import os
import tempfile
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import AutoModelForCausalLM

from bough.methods.dpo import DPOConfig
from bough.methods.kto import KTO, Judged, Mismatched
from bough.models.resolve import load_tokenizer, resolve
from bough.policy.policy import Policy
from bough.training.step import Step
from bough.types import Call

WEIGHTS = {"desirable_weight": 1.5, "undesirable_weight": 0.75}
BETA = 0.2
# Prompt, answer, and whether it is good.
ROWS: list[tuple[list[int], list[int], bool]] = [
    ([10, 11, 12, 13], [50, 51, 2], True),
    ([20, 21, 22], [60, 61, 62, 63, 2], False),
    ([30, 31, 32, 33, 34], [70, 2], True),
    ([40, 41], [80, 81, 82, 2], False),
]


def changed(model: Any, scale: float = 0.02) -> Any:
    """A copy of the model with a seeded change in every matrix."""
    policy = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(1)
    for _, weight in sorted(policy.named_parameters()):
        if weight.dim() > 1:
            weight.data += (torch.rand(weight.shape, generator=generator) - 0.5) * scale
    return policy


def ours(model: Any) -> dict[str, float]:
    """Bough: one step over all rows."""
    examples = Mismatched(
        [
            Judged(
                [Call(prompt_ids=prompt, completion_ids=answer)],
                cluster=str(i),
                num_chosen=int(good),
                num_rejected=int(not good),
            )
            for i, (prompt, answer, good) in enumerate(ROWS)
        ],
        None,
    )
    method = KTO(DPOConfig(train_file="a.jsonl", loss_type="kto", beta=BETA, **WEIGHTS))
    parts = [part for example in examples for part in method.parts(example)]
    reference, policy = Policy(model), Policy(changed(model))
    with torch.no_grad():
        known = reference.logprobs([call for part in parts for call in part.calls], budget=4096)

    class Known:
        """The reference's log-probabilities, by call."""

        def of(self, rows: Any, calls: Any) -> Any:
            by_call = {id(call): values for call, values in zip(calls, known, strict=True)}
            return [[by_call[id(calls[c])] for c in row.calls] for row in rows]

    found = Step(policy, method, parts, budget=4096).run(float(len(parts)), Known(), backward=True)  # type: ignore[arg-type]
    return {
        "loss": found.loss,
        "kl": found.metrics["kl"].value,
        "rewards/chosen": found.metrics["chosen_reward"].value,
        "rewards/rejected": found.metrics["rejected_reward"].value,
        "logps/chosen": found.metrics["chosen_logprob"].value,
        "logps/rejected": found.metrics["rejected_logprob"].value,
        "gradient": gradient_norm(policy),
    }


def trl(model: Any) -> dict[str, float]:
    """TRL: its trainer's loss of the one batch."""
    from datasets import Dataset
    from trl import KTOConfig, KTOTrainer

    policy = changed(model)
    rows = [{"prompt": "a", "completion": "b", "label": good} for _, _, good in ROWS]
    config = KTOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=len(ROWS),
        beta=BETA,
        train_sampling_strategy="sequential",
        use_cpu=True,
        bf16=False,
        report_to="none",
        disable_tqdm=True,
        gradient_checkpointing=False,
        **WEIGHTS,
    )
    trainer = KTOTrainer(
        model=policy,
        ref_model=model,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=load_tokenizer("tiny"),
    )
    answers = [answer for _, answer, _ in ROWS]
    examples = [
        {"prompt_ids": prompt, "completion_ids": answer, "KL_completion_ids": answers[i - 1], "label": good}
        for i, (prompt, answer, good) in enumerate(ROWS)
    ]
    policy.train()
    loss = trainer._compute_loss(policy, trainer.data_collator(examples), return_outputs=False)
    loss.backward()
    metrics = {name: values[-1] for name, values in trainer._metrics["train"].items()}
    names = ("kl", "rewards/chosen", "rewards/rejected", "logps/chosen", "logps/rejected")
    return {"loss": loss.item()} | {name: metrics[name] for name in names} | {"gradient": gradient_norm(policy)}


def gradient_norm(model: Any) -> float:
    return float(torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm())


if __name__ == "__main__":
    for name, side in (("bough", ours), ("trl", trl)):
        # Each side has a model of its own: a policy changes how its model attends.
        tiny = AutoModelForCausalLM.from_pretrained(resolve("tiny"), dtype=torch.float32)
        print(name, json.dumps({key: round(value, 6) for key, value in side(tiny).items()}))
