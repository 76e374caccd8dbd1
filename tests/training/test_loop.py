"""What the loop does when a step goes wrong; that it trains is shown in tests/stages."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from bough.config.training import SFTConfig
from bough.errors import BoughError
from bough.rundir import RunDir
from bough.stages.sft import Demonstration, SFTObjective
from bough.training.adapters import Lora
from bough.training.checkpoint import checkpoints
from bough.training.loop import Trainer
from bough.training.policy import Policy
from bough.training.source import FileSource
from bough.training.step import Step
from bough.types import Call

EXAMPLES = [
    Demonstration(
        calls=[Call(prompt_ids=[5, 6, 7, i], completion_ids=[20 + i, 2])],
        weights=(1.0,),
        place=f"a:{i}",
        cluster=str(i),
    )
    for i in range(4)
]


def trainer(tmp_path: Path, **settings: Any) -> Trainer:
    torch.manual_seed(0)
    config = SFTConfig(
        train_file=Path("a"),
        output_dir=tmp_path,
        batch_size=2,
        num_epochs=2,
        learning_rate=1e-2,
        token_budget=512,
        **settings,
    )
    run = RunDir(tmp_path)
    run.create(config)
    policy = Policy.load("tiny", lora=Lora(r=4))
    return Trainer(policy, SFTObjective(), FileSource(EXAMPLES, config), config, run, lambda folder, _: folder.mkdir())


def failing(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    real, left = Step.run, [times]

    def run(self: Step, *arguments: Any, **options: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise torch.cuda.OutOfMemoryError("no memory")
        return real(self, *arguments, **options)

    monkeypatch.setattr(Step, "run", run)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)


def test_out_of_memory_halves_the_budget_and_tries_the_step_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    failing(monkeypatch, 1)
    with caplog.at_level(logging.WARNING):
        counters = trainer(tmp_path).train()
    assert (counters.step, counters.budget) == (4, 256)
    assert "trying step 1 again with token_budget 256" in caplog.text


def test_out_of_memory_twice_is_a_failure_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    failing(monkeypatch, 2)
    with pytest.raises(BoughError, match="out of GPU memory in step 1 even with token_budget 256"):
        trainer(tmp_path).train()


def test_a_loss_that_is_no_number_stops_with_the_batch_saved_and_the_weights_untouched(tmp_path: Path):
    broken = trainer(tmp_path)
    weights = {name: value.clone() for name, value in broken.policy.named_parameters()}
    objective = broken.objective
    real = objective.loss

    def loss(*arguments: Any) -> Any:
        found = real(*arguments)
        return found._replace(value=found.value * float("nan"))

    objective.loss = loss  # type: ignore[method-assign]
    with pytest.raises(BoughError, match="the loss of step 1 is nan"):
        broken.train()
    rows = [json.loads(line) for line in (tmp_path / "bad-batch-1.jsonl").read_text().splitlines()]
    assert len(rows) == 2 and rows[0]["calls"][0]["prompt_ids"][:3] == [5, 6, 7]
    assert all(torch.equal(value, weights[name]) for name, value in broken.policy.named_parameters())


def test_an_adaptive_curriculum_stays_with_the_easy_until_they_are_learnt(tmp_path: Path):
    held_back = trainer(tmp_path, curriculum=True, curriculum_start_ratio=0.5, curriculum_success=1.0)
    seen = []
    held_back.tell = lambda values: seen.append(values["epoch"])
    counters = held_back.train()
    assert counters.levels == [0] * len(counters.levels)
    assert counters.step == 3  # as many as a curriculum that never waits: 2 of 4 examples, then all


def test_bfloat16_keeps_what_is_trained_in_float32(tmp_path: Path):
    torch.manual_seed(0)
    policy = Policy.load("tiny", lora=Lora(r=4), dtype=torch.bfloat16)
    policy.autocast = torch.bfloat16
    assert {parameter.dtype for parameter in policy.parameters() if parameter.requires_grad} == {torch.float32}
    calls = [call for example in EXAMPLES for call in example.calls]
    plain = Policy.load("tiny").logprobs(calls)
    for mine, exact in zip(policy.logprobs(calls), plain, strict=True):
        assert mine.dtype == torch.float32
        assert torch.allclose(mine, exact, atol=0.1)


def test_a_scaled_loss_trains_what_an_unscaled_one_does(tmp_path: Path):
    scaled, plain = trainer(tmp_path / "scaled", fp16=True), trainer(tmp_path / "plain")
    assert scaled.train().overflows == 0
    plain.train()
    for mine, other in zip(scaled.policy.parameters(), plain.policy.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)
    # A power of two changes no digit of a gradient.
    assert scaled.scaler.get_scale() == 65536.0


def test_a_step_that_overflows_is_left_out_counted_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    overflowing = trainer(tmp_path, fp16=True)
    trained = next(parameter for parameter in overflowing.policy.parameters() if parameter.requires_grad)
    hook = trained.register_hook(lambda gradient: gradient * float("inf"))
    weights = [parameter.clone() for parameter in overflowing.policy.parameters()]
    with caplog.at_level(logging.WARNING):
        overflowing._step(overflowing.source.batch(0))
    hook.remove()
    assert "Step 1 changed nothing: its gradients overflow in float16" in caplog.text
    assert (overflowing.counters.step, overflowing.counters.overflows) == (1, 1)
    assert all(torch.equal(a, b) for a, b in zip(overflowing.policy.parameters(), weights, strict=True))
    # The lower scale is what a run goes on with.
    overflowing._save_checkpoint()
    again = trainer(tmp_path, fp16=True)
    assert again.train(checkpoints(tmp_path / "checkpoints")[0]).overflows == 1
    assert again.scaler.get_scale() == 32768.0
