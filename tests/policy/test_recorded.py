"""Rows recorded as CUDA graphs give the gradients of rows that are computed kernel by kernel."""

import random
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from bough.cli import main
from bough.config.run_folder import MetricsFile
from bough.errors import BoughError
from bough.policy.adapters import Lora
from bough.policy.policy import Policy
from bough.policy.recorded import PER_DOUBLING, RecordedReads, Recording, padded, uses_dropout
from bough.trees.attend import BLOCK
from bough.types import Call
from tests.policy.gpu import GIB, pretend

EXAMPLES = Path(__file__).parents[2] / "examples"
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_a_recorded_row_is_padded_to_one_of_few_lengths_and_by_a_sixteenth_at_most():
    lengths = {length: padded(length, few=True) for length in range(1, 1 << 15)}
    assert all(length <= found and found % BLOCK == 0 for length, found in lengths.items())
    assert all(
        found <= max(2 * BLOCK, length + max(BLOCK, length // PER_DOUBLING)) for length, found in lengths.items()
    )
    assert len(set(lengths.values())) <= 8 + 6 * PER_DOUBLING


def test_the_dropout_of_attention_is_noticed():
    layer = nn.Linear(2, 2)
    assert not uses_dropout(layer)
    layer.attention_dropout = 0.1
    assert uses_dropout(layer)


def calls(seed: int, count: int = 6, length: int = 80) -> list[Call]:
    draw = random.Random(seed)

    def ids(number: int) -> list[int]:
        return [draw.randrange(5, 250) for _ in range(number)]

    start = ids(length)
    return [Call(prompt_ids=start + ids(length), completion_ids=ids(20)) for _ in range(count)]


def policy_of(tuning: str, **more: Any) -> Policy:
    torch.manual_seed(0)
    lora = Lora(r=4) if tuning == "adapter" else None
    model = Policy.load("tiny", dtype=torch.float32, lora=lora, device="cuda").model
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight, std=0.02)
    policy = Policy(model, autocast=torch.bfloat16, probe=False, **more)
    policy.train()
    return policy


def gradients(policy: Policy, batches: list[list[Call]]) -> list[dict[str, torch.Tensor]]:
    """Of each batch the gradient of its rows together, with a step of plain gradient descent after it."""
    found = []
    for batch in batches:
        for row in policy.rows(batch, budget=300):
            torch.cat(policy(row).logprobs).sum().backward()
        trained = {name: weight for name, weight in policy.named_parameters() if weight.grad is not None}
        found.append({name: weight.grad.clone() for name, weight in trained.items()})
        with torch.no_grad():
            for weight in trained.values():
                weight -= 1e-3 * weight.grad / weight.grad.norm().clamp(min=1e-6)
                weight.grad = None
    return found


class OnCpu(RecordedReads):
    """Recordings that compute their row again when they are played back; rows of `too_long` tokens do not fit."""

    too_long = 768

    def _fits(self, static: Any) -> bool:
        return True

    def _recorded(self, inputs: Any) -> Recording:
        if len(inputs[0]) >= self.too_long:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        static = tuple(one.clone() for one in inputs)
        hidden_LD, grad_LD = self.read(*static).detach(), torch.zeros(len(static[0]), 2)
        self._used = self.weights
        self._slopes = [torch.zeros_like(weight) for weight in self.weights]

        def forward() -> None:
            hidden_LD.copy_(self.read(*static).detach())

        @torch.enable_grad()
        def backward() -> None:
            torch._foreach_copy_(self._slopes, torch.autograd.grad(self.read(*static), self.weights, grad_LD))

        graphs = [SimpleNamespace(replay=one) for one in (forward, backward)]
        return Recording(static, graphs[0], hidden_LD, graphs[1], grad_LD)  # type: ignore[arg-type]


@pytest.mark.parametrize(("part", "fits"), [(1.0, True), (0.2, True), (0.1, False)])
def test_a_recording_fits_into_what_this_process_may_have(monkeypatch: pytest.MonkeyPatch, part: float, fits: bool):
    """10 GiB, where 60 of 80 GiB are free."""
    pretend(monkeypatch, free=60, part=part)
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, Mock())
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    reads = RecordedReads(Mock(), [nn.Parameter(torch.zeros(1))])
    monkeypatch.setattr(reads, "_warm_up", lambda _: 10 * GIB)
    token_L = torch.zeros(4, dtype=torch.int64)
    assert reads._fits((token_L, token_L, token_L)) is fits


def test_rows_that_there_is_no_memory_to_record_are_read_without_a_graph(caplog: pytest.LogCaptureFixture):
    weight = nn.Parameter(torch.tensor([2.0, 3.0]))
    reads = OnCpu(lambda token, position, end: token[:, None] * weight, [weight])

    def read(length: int) -> None:
        weight.grad = None
        reads(*[torch.full((length,), 5)] * 3, "policy").sum().backward()
        assert weight.grad is not None and weight.grad.tolist() == [5.0 * length, 5.0 * length]

    for length in (256, 256, 512, 512):
        read(length)
    assert [key[0] for key in reads.recordings] == [256, 512]
    for length in (1024, 1024):  # the second time there is no memory: all recordings are dropped
        read(length)
    assert (reads.recordings, reads.limit) == ({}, 1023)
    for length in (256, 768, 768, 256, 512, 1024):
        read(length)
    assert [key[0] for key in reads.recordings] == [256, 512] and reads.limit == 767
    assert [one.getMessage() for one in caplog.records] == [
        "Out of GPU memory: rows of more than 1023 tokens run without CUDA graphs from now on."
    ]


def test_after_another_failure_of_a_recording_nothing_is_recorded_any_more(caplog: pytest.LogCaptureFixture):
    reads = OnCpu(lambda token, position, end: token[:, None] * torch.ones(2), [])
    reads._recorded = Mock(side_effect=RuntimeError("operation not permitted\nwhen capturing"))  # type: ignore
    for length in (256, 256, 256, 128, 128):
        assert reads(*[torch.ones(length)] * 3, "policy").tolist() == [[1.0, 1.0]] * length
    assert reads._recorded.call_count == 1
    assert caplog.messages == [
        "A row cannot be recorded as a CUDA graph (operation not permitted): continuing without CUDA graphs."
    ]


def test_recordings_give_way_to_rows_and_then_only_rows_of_half_the_length_are_recorded():
    weight = nn.Parameter(torch.tensor([2.0, 3.0]))
    reads = OnCpu(lambda token, position, end: token[:, None] * weight, [weight])
    assert not reads.give_way() and reads.limit > 10**9
    for length in (128, 128, 256, 256, 512, 512):
        reads(*[torch.full((length,), 5)] * 3, "policy").sum().backward()
    assert reads.give_way() and not reads.recordings and reads.limit == 256
    for length in (512, 256):
        reads(*[torch.full((length,), 5)] * 3, "policy").sum().backward()
    assert [key[0] for key in reads.recordings] == [256]


@on_gpu
@pytest.mark.parametrize("tuning", ["adapter", "all weights"])
def test_recorded_rows_have_the_gradients_of_plain_ones_while_the_weights_change(tuning: str):
    batches = [calls(seed) for seed in range(5)]
    plain = gradients(policy_of(tuning), batches)
    policy = policy_of(tuning)
    policy.row_reader.record()
    assert policy.row_reader.recorded
    recorded = gradients(policy, batches)
    assert policy.row_reader.recorded.recordings, "nothing was recorded"
    for one, other in zip(plain, recorded, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert torch.allclose(one[name], other[name], rtol=1e-3, atol=1e-4 * float(one[name].abs().max())), name


@on_gpu
def test_recorded_passes_without_gradient_follow_the_weights_and_the_reference_does_not():
    policy = policy_of("adapter")
    row = policy.rows(calls(0))[0]

    def values() -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            own = torch.cat(policy(row).logprobs)
            with policy.reference():
                return own, torch.cat(policy(row).logprobs)

    plain = values()
    policy.row_reader.record()
    assert policy.row_reader.recorded
    for _ in range(3):
        assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(values(), plain, strict=True))
    assert len(policy.row_reader.recorded.recordings) == 2
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                weight *= 3
    changed = values()
    assert not torch.allclose(changed[0], plain[0], atol=1e-2)
    assert torch.allclose(changed[1], plain[1], atol=1e-4)


@on_gpu
def test_rows_that_are_read_before_the_backward_pass_of_another_are_refused():
    policy = policy_of("adapter")
    policy.row_reader.record()
    row = policy.rows(calls(0))[0]
    for _ in range(3):
        torch.cat(policy(row).logprobs).sum().backward()
    first = torch.cat(policy(row).logprobs).sum()
    with pytest.raises(BoughError, match="overwritten"):
        (first + torch.cat(policy(row).logprobs).sum()).backward()


@on_gpu
def test_log_probabilities_of_many_rows_at_once_are_not_recorded():
    policy = policy_of("adapter")
    policy.row_reader.record()
    for _ in range(3):
        torch.cat(policy.logprobs(calls(0), budget=300)).sum().backward()
    assert policy.row_reader.recorded and not policy.row_reader.recorded.num_read


@on_gpu
def test_a_step_of_several_rows_is_recorded(tmp_path: Path):
    sft = ["sft", "--model", "tiny", "--train-file", str(EXAMPLES / "household.jsonl"), "--batch-size", "3"]
    sft += ["--token-budget", "600", "--max-steps", "12", "--no-use-lora", "--learning-rate", "1e-3"]
    assert main([*sft, "--output-dir", str(tmp_path / "plain")]) == 0
    assert main([*sft, "--output-dir", str(tmp_path / "recorded"), "--cuda-graphs"]) == 0
    plain, recorded = (
        [line["loss"] for line in MetricsFile.read(tmp_path / run / "metrics.jsonl")] for run in ("plain", "recorded")
    )
    assert recorded == pytest.approx(plain, rel=0.05)


@on_gpu
def test_where_recording_fails_the_run_goes_on_without_it():
    """In a process of its own: a capture that fails in the middle could spoil those of other tests."""
    done = subprocess.run([sys.executable, "-c", FAILING], capture_output=True, text=True, timeout=200)
    assert done.stdout.split() == ["0", "0", "ok"], done.stdout + done.stderr
    assert "continuing without CUDA graphs" in done.stderr


FAILING = """
import torch
from bough.policy.recorded import RecordedReads
weight = torch.nn.Parameter(torch.ones(3, device="cuda"))
def read(token, position, end):
    return token[:, None].float() * weight * float(weight.sum())  # waits for the GPU: not allowed in a graph
reads = RecordedReads(read, [weight])
nodes = (torch.ones(256, dtype=torch.long, device="cuda"),) * 3
torch.manual_seed(0)
expected = torch.rand(3, device="cuda").tolist()
torch.manual_seed(0)
stream = torch.cuda.current_stream()
for _ in range(4):
    weight.grad = None
    reads(*nodes, "policy").sum().backward()
    assert weight.grad.tolist() == [256 * 3.0] * 3
assert torch.cuda.current_stream() == stream
assert torch.rand(3, device="cuda").tolist() == expected
torch.cuda.get_rng_state()
torch.cuda.empty_cache()
torch.cuda.synchronize()
print(len(reads.recordings), reads.limit, "ok")
"""


@on_gpu
def test_out_of_memory_in_a_recording_leaves_the_gpu_usable():
    """In a process of its own, as above."""
    done = subprocess.run([sys.executable, "-c", TOO_LARGE], capture_output=True, text=True, timeout=200)
    assert done.stdout.split() == ["0", "255", "ok"], done.stdout + done.stderr


TOO_LARGE = """
import torch
from bough.policy.recorded import RecordedReads
weight = torch.nn.Parameter(torch.ones(3, device="cuda"))
def read(token, position, end):
    if torch.cuda.is_current_stream_capturing() and len(token) == 256:
        torch.empty(1 << 42, dtype=torch.uint8, device="cuda")  # 4 TiB
    return token[:, None].float() * weight
reads = RecordedReads(read, [weight])
def nodes(length):
    return (torch.ones(length, dtype=torch.long, device="cuda"),) * 3
for length in (128, 128, 256, 256, 256):
    weight.grad = None
    reads(*nodes(length), "policy").sum().backward()
    assert weight.grad.tolist() == [length] * 3
torch.rand(3, device="cuda").sum().item()
print(len(reads.recordings), reads.limit)
for _ in range(2):
    weight.grad = None
    reads(*nodes(128), "policy").sum().backward()
    assert weight.grad.tolist() == [128] * 3 and len(reads.recordings) == 1
print("ok")
"""
