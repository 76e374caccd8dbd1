"""What the loop does when a step goes wrong; that it trains is shown in tests/training."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bough.config.run_folder import MetricsFile, RunDir
from bough.errors import BoughError
from bough.methods.sft import SFT, Demonstration, SFTConfig
from bough.policy.adapters import Lora
from bough.policy.policy import Policy, RowReader
from bough.training.checkpoint import checkpoints
from bough.training.loop import Trainer
from bough.training.plan import Batch, PlannedSource
from bough.training.step import Step
from bough.types import Call

ADAMW = torch.optim.AdamW
EXAMPLES = [
    Demonstration(
        calls=[Call(prompt_ids=[5, 6, 7, i], completion_ids=[20 + i, 2])],
        weights=(1.0,),
        place=f"a:{i}",
        cluster=str(i),
    )
    for i in range(4)
]


def trainer(tmp_path: Path, *, lora: Lora | None = Lora(r=4), **settings: Any) -> Trainer:  # noqa: B008  frozen
    torch.manual_seed(0)
    config = SFTConfig(
        train_file=Path("a"),
        output_dir=tmp_path,
        batch_size=2,
        num_epochs=2,
        learning_rate=1e-2,
        **{"token_budget": 512} | settings,
    )
    run = RunDir(tmp_path)
    run.create(config)
    policy = Policy.load("tiny", lora=lora)
    return Trainer(policy, SFT(config), PlannedSource(EXAMPLES, config), config, run, lambda folder, _: folder.mkdir())


def failing(monkeypatch: pytest.MonkeyPatch, times: int, *, backward: bool = True) -> None:
    """The first `times` passes with a gradient run out of memory, or those of evaluations."""
    real, left = Step.run, [times]

    def run(self: Step, *arguments: Any, **options: Any) -> Any:
        if left[0] and options["backward"] == backward:
            left[0] -= 1
            raise torch.cuda.OutOfMemoryError("no memory")
        return real(self, *arguments, **options)

    monkeypatch.setattr(Step, "run", run)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)


def test_out_of_memory_beside_recordings_frees_them_first_and_keeps_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plain = trainer(tmp_path / "plain")
    plain.train()
    failing(monkeypatch, 2)
    short, kept = trainer(tmp_path / "short"), ["of the first rows"]
    monkeypatch.setattr(RowReader, "has_recordings", property(lambda _: bool(kept)))
    monkeypatch.setattr(RowReader, "give_way", lambda _: bool(kept.pop()))
    assert short.train().budget == 256 and kept == []  # the second time there is nothing left to free
    failing(monkeypatch, 1)
    kept.append("of the first rows")
    once = trainer(tmp_path / "once")
    assert once.train().budget == 512 and kept == []
    assert all(map(torch.equal, once.policy.parameters(), plain.policy.parameters()))


def test_out_of_memory_again_computes_activations_again_and_then_halves_the_budget_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    found = []
    for times in range(5):
        failing(monkeypatch, times)
        short = trainer(tmp_path / str(times))
        caplog.clear()
        counters = short.train()
        assert counters.step == 4 and short.policy.base.is_gradient_checkpointing is counters.gradient_checkpointing
        found.append((counters.budget, counters.gradient_checkpointing))
    assert found == [(512, False), (256, False), (256, True), (128, True), (64, True)]
    assert [line for line in caplog.messages if line.startswith("Out of GPU memory")] == [
        "Out of GPU memory: trying step 1 again with token_budget 256.",
        "Out of GPU memory: trying step 1 again with gradient checkpointing, which is slower.",
        "Out of GPU memory: trying step 1 again with token_budget 128.",
        "Out of GPU memory: trying step 1 again with token_budget 64.",
    ]


def test_layers_that_cannot_be_compiled_are_computed_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    plain, broken = trainer(tmp_path / "plain"), trainer(tmp_path / "broken")
    plain.train()

    def compiled(*_: Any, **__: Any) -> Any:
        raise torch._dynamo.exc.TorchDynamoException("no compiler was found\nset CC")

    for layer in broken.policy.row_reader.layers:
        layer._compiled_call_impl = compiled
    broken.policy.row_reader.compiled = True
    counters = broken.train()
    assert (counters.step, counters.budget, broken.policy.row_reader.compiled) == (4, 512, False)
    assert all(map(torch.equal, broken.policy.parameters(), plain.policy.parameters()))
    said = "The layers cannot be compiled (no compiler was found): continuing without --compile."
    assert [line for line in caplog.messages if "compiled" in line] == [said]


def test_a_call_that_does_not_fit_one_gpu_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    long = replace(EXAMPLES[0], calls=[Call(prompt_ids=[5] * 190, completion_ids=[20] * 10)])
    monkeypatch.setattr(f"{__name__}.EXAMPLES", [long])
    failing(monkeypatch, 3)
    said = (
        r"in step 1: a call of 200 tokens does not fit one GPU even with gradient checkpointing.* "
        r"try a --max-length below 200, --qlora or --shard over more GPUs, then --resume"
    )
    with pytest.raises(BoughError, match=said):
        trainer(tmp_path, token_budget=256).train()  # 128 tokens when it is tried again
    # With a budget of one such call, half of it would give the same row.
    failing(monkeypatch, 2)
    caplog.clear()
    with pytest.raises(BoughError, match=said):
        trainer(tmp_path, token_budget=200).train()
    assert "again with gradient checkpointing" in caplog.text and "again with token_budget" not in caplog.text


def measuring(tmp_path: Path, **settings: Any) -> Trainer:
    made = trainer(tmp_path, eval_file=Path("b"), eval_steps=2, **settings)
    made.held_out = EXAMPLES[:2]
    return made


def test_out_of_memory_in_an_evaluation_halves_the_budget_and_tries_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    plain = measuring(tmp_path / "plain")
    plain.train()
    failing(monkeypatch, 2, backward=False)
    counters = measuring(tmp_path / "short").train()
    assert (counters.step, counters.budget, counters.gradient_checkpointing) == (4, 128, False)
    assert [line for line in caplog.messages if line.startswith("Out of GPU memory")] == [
        "Out of GPU memory: trying the evaluation after step 2 again with token_budget 256.",
        "Out of GPU memory: trying the evaluation after step 2 again with token_budget 128.",
    ]
    losses = [
        [line["eval_loss"] for line in MetricsFile.read(tmp_path / name / "metrics.jsonl") if "eval_loss" in line]
        for name in ("plain", "short")
    ]
    assert losses[0] == pytest.approx(losses[1]) and len(losses[0]) == 2


@pytest.fixture(params=["read first", "guarded"])
def optimizers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The optimizer of a CPU, and the fused one of a GPU, which is started before the loss is read."""
    if request.param == "guarded":
        monkeypatch.setattr(torch.optim, "AdamW", lambda groups, lr, fused: ADAMW(groups, lr=lr, fused=True))


@pytest.mark.usefixtures("optimizers")
def test_a_loss_that_is_no_number_stops_with_the_batch_saved_and_the_weights_untouched(tmp_path: Path):
    broken = trainer(tmp_path)
    weights = {name: value.clone() for name, value in broken.policy.named_parameters()}
    method = broken.method
    real = method.loss

    def loss(*arguments: Any) -> Any:
        found = real(*arguments)
        return found._replace(value=found.value * float("nan"))

    method.loss = loss  # type: ignore[method-assign]
    with pytest.raises(BoughError, match="the loss of step 1 is nan"):
        broken.train()
    rows = [json.loads(line) for line in (tmp_path / "bad-batch-1.jsonl").read_text().splitlines()]
    assert len(rows) == 2 and rows[0]["calls"][0]["prompt_ids"][:3] == [5, 6, 7]
    assert all(torch.equal(value, weights[name]) for name, value in broken.policy.named_parameters())


@pytest.mark.usefixtures("optimizers")
def test_a_gradient_that_is_not_finite_stops_before_it_changes_a_weight(tmp_path: Path):
    broken = trainer(tmp_path, save_steps=1)
    trained = next(parameter for parameter in broken.policy.parameters() if parameter.requires_grad)
    weights: list[torch.Tensor] = []
    steps: list[float] = []

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        if broken.counters.step < 2:
            return gradient
        weights[:] = [parameter.detach().clone() for parameter in broken.policy.parameters()]
        steps[:] = [float(state["step"]) for state in broken.optimizer.state.values()]
        return gradient * float("inf")

    trained.register_hook(spoil)
    with pytest.raises(BoughError, match=r"the loss of step 3 is finite, but its gradient norm is (nan|inf)"):
        broken.train()
    assert weights and all(map(torch.equal, broken.policy.parameters(), weights))
    assert {float(state["step"]) for state in broken.optimizer.state.values()} == set(steps) == {2.0}
    assert all(parameter.grad is None for parameter in broken.policy.parameters())
    assert len((tmp_path / "bad-batch-3.jsonl").read_text().splitlines()) == 2
    assert [found.step for found in checkpoints(tmp_path / "checkpoints")] == [1, 2]
    assert not (tmp_path / "final").exists()


@pytest.mark.parametrize("what", ["weights", "moments"])
def test_what_is_not_finite_is_never_saved(tmp_path: Path, what: str):
    broken = trainer(tmp_path, save_steps=1)
    kept = broken.config.checkpoints.model_copy(update={"save_best_model": True})
    broken.held_out, broken.config = EXAMPLES[:1], broken.config.model_copy(update={"checkpoints": kept})
    trained = next(parameter for parameter in broken.policy.parameters() if parameter.requires_grad)

    def spoil(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if broken.counters.step == 2:
            target = trained if what == "weights" else optimizer.state[trained]["exp_avg"]
            target.detach().view(-1)[0] = float("nan")

    broken.optimizer.register_step_post_hook(spoil)
    with pytest.raises(BoughError, match="after step 3 the weights or the optimizer's state are not finite"):
        broken.train()
    assert [found.step for found in checkpoints(tmp_path / "checkpoints")] == [1, 2]
    assert not (tmp_path / "final").exists()


def test_gradients_are_clipped_to_the_norm_that_the_settings_name(tmp_path: Path):
    clipped = trainer(tmp_path, max_grad_norm=0.01)
    seen: list[float] = []

    def look(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        seen.append(float(torch.cat([gradient.flatten() for gradient in gradients]).norm()))

    clipped.optimizer.register_step_pre_hook(look)
    clipped.train()
    norms = [line["grad_norm"] for line in MetricsFile.read(tmp_path / "metrics.jsonl")]
    assert len(norms) == 4 and min(norms) > 0.01  # as they were
    assert seen == pytest.approx([0.01] * 4, rel=1e-3)


def test_a_run_that_stops_early_leaves_a_checkpoint_and_stays_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def impatient(patience: int) -> Trainer:
        made = trainer(tmp_path, eval_file=Path("b"), eval_steps=1, early_stopping_patience=patience)
        made.held_out = EXAMPLES[:1]
        return made

    monkeypatch.setattr(Trainer, "_evaluate", _no_gain)
    with caplog.at_level(logging.WARNING):
        assert impatient(2).train().step == 2
    assert "Stopped early after step 2: eval loss has not fallen 2 times in a row" in caplog.text
    (last,) = checkpoints(tmp_path / "checkpoints")
    assert last.step == 2 and (tmp_path / "final").is_dir()
    assert impatient(2).train(last).step == 2  # killed before its end, it would end the same
    assert impatient(3).train(last).step == 3
    assert impatient(2).train(last, same_held_out=False).step == 4  # measured on other data, it starts to count again


def test_a_run_with_nothing_left_to_learn_from_leaves_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    ending = trainer(tmp_path)
    batch = ending.source.batch
    monkeypatch.setattr(ending.source, "batch", lambda step: batch(step) if step < 3 else None)
    assert ending.train().step == 3
    assert "Stopped after step 3: there is nothing left to learn from" in caplog.text
    assert [found.step for found in checkpoints(tmp_path / "checkpoints")] == [3]


def _no_gain(self: Trainer) -> dict[str, Any]:
    self.counters.evaluations_without_gain += 1
    return {"step": self.counters.step, "eval_loss": 1.0}


def test_a_budget_that_memory_forced_stays_until_another_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    failing(monkeypatch, 1)
    trainer(tmp_path, save_steps=2).train()
    (half_way, _) = checkpoints(tmp_path / "checkpoints")
    assert trainer(tmp_path).train(half_way).budget == 256
    assert trainer(tmp_path, token_budget=128).train(half_way).budget == 128
    assert trainer(tmp_path, token_budget=1024).train(half_way).budget == 1024


def test_a_run_resumes_with_the_gradient_checkpointing_that_memory_forced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    failing(monkeypatch, 2)
    trainer(tmp_path, save_steps=2).train()
    (half_way, _) = checkpoints(tmp_path / "checkpoints")
    again, other = trainer(tmp_path), trainer(tmp_path, token_budget=128)
    assert again.train(half_way).gradient_checkpointing and again.policy.base.is_gradient_checkpointing
    assert not other.train(half_way).gradient_checkpointing and not other.policy.base.is_gradient_checkpointing


def test_a_finished_run_says_so_and_can_be_made_longer(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    assert trainer(tmp_path).train().step == 4
    (last,) = checkpoints(tmp_path / "checkpoints")
    with caplog.at_level(logging.WARNING):
        assert trainer(tmp_path).train(last).step == 4
    assert "4 steps are done already" in caplog.text
    assert trainer(tmp_path, max_steps=6).train(last).step == 6
    assert [line["step"] for line in MetricsFile.read(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]


def test_a_run_made_longer_learns_what_one_that_was_never_stopped_does(tmp_path: Path):
    # The first run ends in the middle of an epoch, which must not count as one.
    growing = {"lr_scheduler": "constant", "warmup_ratio": 0.0, "curriculum": True, "curriculum_start_ratio": 0.5}
    whole, short = (trainer(tmp_path / name, max_steps=steps, **growing) for name, steps in (("whole", 6), ("cut", 3)))
    whole.train()
    short.train()
    longer = trainer(tmp_path / "cut", max_steps=6, **growing)
    longer.policy.load_state_dict(short.policy.state_dict())
    longer.train(checkpoints(tmp_path / "cut" / "checkpoints")[-1])
    assert longer.counters == whole.counters
    assert all(torch.equal(a, b) for a, b in zip(longer.policy.parameters(), whole.policy.parameters(), strict=True))


def test_held_out_examples_are_measured_at_the_end_of_a_run_that_ends_within_an_epoch(tmp_path: Path):
    measuring = trainer(tmp_path, max_steps=3)
    measuring.held_out = EXAMPLES[:1]
    measuring.train()
    lines = MetricsFile.read(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines if "eval_loss" in line] == [2, 3]


def test_numbers_that_come_with_a_batch_are_logged_whether_or_not_its_step_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    playing = trainer(tmp_path, logging_steps=3)
    batch = playing.source.batch

    def played(step: int) -> Batch:
        found = batch(step)
        assert found is not None
        return Batch(found.examples, found.epoch, {"reward": 0.5} if step == 1 else {})

    monkeypatch.setattr(playing.source, "batch", played)
    playing.train()
    lines = MetricsFile.read(tmp_path / "metrics.jsonl")
    assert [(line["step"], line.get("reward")) for line in lines] == [(2, 0.5), (3, None), (4, None)]


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


def test_lines_behind_the_step_that_is_resumed_are_forgotten(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    first = MetricsFile(path, 0)
    for step in range(1, 5):
        first.append({"step": step, "loss": step / 2})
    MetricsFile(path, 2).append({"step": 3, "loss": 9.0})
    assert [(line["step"], line["loss"]) for line in MetricsFile.read(path)] == [(1, 0.5), (2, 1.0), (3, 9.0)]


def test_a_line_that_was_cut_off_is_passed_over(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "lo')
    assert MetricsFile.read(path) == [{"step": 1}]
    assert MetricsFile.read(tmp_path / "none") == []


def test_what_is_not_a_steps_line_is_skipped(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n3\n[]\n{}\n{"step": "2"}\n\xff\xfe\n{"step": true}\n{"step": 2}\n')
    with path.open("a") as file:
        file.write('{"step": 3, "a": ' + "[" * 200_000 + "\n" + '{"step": 1' + "0" * 400 + "}\n" + '{"step": 4}\n')
    assert MetricsFile.read(path) == [{"step": 1}, {"step": 2}, {"step": 4}]
    MetricsFile(path, 1).append({"step": 2})
    assert MetricsFile.read(path) == [{"step": 1}, {"step": 2}]


def test_numbers_that_are_not_finite_become_null(tmp_path: Path):
    file = MetricsFile(tmp_path / "metrics.jsonl", 0)
    file.append({"step": 1, "loss": float("nan")})
    assert MetricsFile.read(file.path) == [{"step": 1, "loss": None}]
