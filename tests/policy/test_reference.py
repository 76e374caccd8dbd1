from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from bough.errors import BoughError
from bough.models.resolve import load_tokenizer
from bough.policy.adapters import Lora, add_reference
from bough.policy.load import save_policy
from bough.policy.policy import Policy
from bough.policy.reference import Reference
from bough.types import Call

CALLS = [Call(prompt_ids=[5, 6, 7], completion_ids=[8, 2]), Call(prompt_ids=[5, 6, 9], completion_ids=[10, 11, 2])]


@pytest.fixture
def policy() -> Policy:
    torch.manual_seed(0)
    loaded = Policy.load("tiny", lora=Lora(r=4, dropout=0.5)).train()
    for name, parameter in loaded.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    return loaded


def test_the_reference_is_the_model_without_its_adapter_and_without_dropout(policy: Policy):
    (row,) = policy.rows(CALLS)
    (found,) = Reference(policy).of([row], CALLS)
    bare = Policy.load("tiny").logprobs(CALLS)
    for c, logprobs in zip(row.calls, found, strict=True):
        assert torch.allclose(logprobs, bare[c], atol=1e-5)
        assert not logprobs.requires_grad
    assert policy.training
    assert not torch.allclose(policy.eval().logprobs(CALLS)[0], bare[0], atol=1e-2)


@pytest.mark.parametrize("computed", ["in each step", "in advance"])
def test_a_reference_adapter_has_no_dropout(policy: Policy, tmp_path: Path, computed: str):
    save_policy(policy, load_tokenizer("tiny"), tmp_path / "start")
    add_reference(policy.model, tmp_path / "start")
    policy.train()
    layers = [module for name, module in policy.named_modules() if name.endswith("lora_dropout.reference")]
    assert layers and all(layer.p == 0.5 and layer.training for layer in layers)
    reference = Reference(policy)
    if computed == "in advance":
        reference.compute(CALLS, 4096, tmp_path / "cache", "tiny")
    (row,) = policy.rows(CALLS)
    (found,) = reference.of([row], CALLS)
    exact = policy.eval().logprobs(CALLS)  # the actor is still what the reference is
    for c, logprobs in zip(row.calls, found, strict=True):
        assert torch.allclose(logprobs, exact[c], atol=1e-5)


def out_of_memory(policy: Policy, monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """Passes run out of memory so many times; the budgets that were tried."""
    real, budgets = policy.logprobs, list[int]()

    def logprobs(calls: Any, *, budget: int) -> Any:
        budgets.append(budget)
        if len(budgets) <= times:
            raise torch.cuda.OutOfMemoryError("no memory")
        return real(calls, budget=budget)

    monkeypatch.setattr(policy, "logprobs", logprobs)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    return budgets


def test_a_reference_that_memory_runs_out_for_is_computed_with_smaller_budgets(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    budgets = out_of_memory(policy, monkeypatch, 2)
    Reference(policy).compute(CALLS, 64, tmp_path, "tiny")
    assert budgets == [64, 32, 16] and policy.training
    assert caplog.messages[-1] == "Out of GPU memory: computing the reference again with token_budget 16."
    bare = torch.cat(Policy.load("tiny").logprobs(CALLS))
    (path,) = tmp_path.iterdir()
    assert torch.allclose(load_file(path)["logprobs"], bare, atol=1e-5)


def test_a_reference_whose_longest_call_does_not_fit_is_a_failure_with_advice(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    budgets = out_of_memory(policy, monkeypatch, 99)
    with pytest.raises(
        BoughError, match=r"with token_budget 4 and calls of up to 6 tokens; try a smaller --max-length"
    ):
        Reference(policy).compute(CALLS, 64, tmp_path, "tiny")
    assert budgets == [64, 32, 16, 8, 4]
    policy.sharded = True
    budgets.clear()
    with pytest.raises(BoughError, match="with token_budget 64"):
        Reference(policy).compute(CALLS, 64, tmp_path, "tiny")
    assert budgets == [64]


@pytest.mark.parametrize("damage", ["truncated", "empty", "not finite", "too short", "another name"])
def test_a_damaged_file_of_log_probabilities_is_computed_again(
    policy: Policy, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
):
    first = Reference(policy)
    first.compute(CALLS, 4096, tmp_path, "tiny")
    (file,) = tmp_path.glob("*.safetensors")
    good = load_file(file)["logprobs"].clone()  # not a view of the file, which is about to change
    if damage == "truncated":
        file.write_bytes(file.read_bytes()[:-4])
    elif damage == "empty":
        file.write_bytes(b"")
    else:
        values = {"not finite": good * float("nan"), "too short": good[:-1], "another name": good}[damage]
        save_file({"x" if damage == "another name" else "logprobs": values}, file)
    again = Reference(policy)
    again.compute(CALLS, 4096, tmp_path, "tiny")
    assert f"{file} is damaged" in caplog.text
    assert torch.equal(load_file(file)["logprobs"], good)
    (row,) = policy.rows(CALLS)
    assert all(map(torch.equal, first.of([row], CALLS)[0], again.of([row], CALLS)[0]))


def test_what_was_computed_beforehand_is_read_back_from_disk(policy: Policy, tmp_path: Path):
    (row,) = policy.rows(CALLS)
    (expected,) = Reference(policy).of([row], CALLS)
    first = Reference(policy)
    first.compute(CALLS, 4096, tmp_path, "tiny")
    again = Reference(policy)
    with torch.no_grad():  # a policy that has moved on must not change what is on file
        for parameter in policy.parameters():
            parameter.add_(1.0)
    again.compute(CALLS, 4096, tmp_path, "tiny")
    for a, b, c in zip(first.of([row], CALLS)[0], again.of([row], CALLS)[0], expected, strict=True):
        assert torch.equal(a, b) and torch.allclose(a, c, atol=1e-6)


def test_a_policy_that_has_been_trained_in_full_is_not_its_own_reference(tmp_path: Path):
    expected = Policy.load("tiny").logprobs(CALLS)
    trained, loaded = Policy.load("tiny"), []
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.mul_(1.5)

    def start() -> Policy:
        loaded.append(Policy.load("tiny"))
        return loaded[-1]

    for _ in range(2):  # the second time it is on file, and nothing is loaded
        reference = Reference(trained)
        reference.compute(CALLS, 4096, tmp_path, "tiny", start=start)
        (row,) = trained.rows(CALLS)
        for c, logprobs in zip(row.calls, reference.of([row], CALLS)[0], strict=True):
            assert torch.allclose(logprobs, expected[c], atol=1e-6)
    assert len(loaded) == 1


def test_other_data_another_model_or_another_temperature_is_another_file(policy: Policy, tmp_path: Path):
    for calls, name in ((CALLS, "tiny"), (CALLS[:1], "tiny"), (CALLS, "other")):
        Reference(policy).compute(calls, 4096, tmp_path, name)
    assert len(list(tmp_path.glob("*.safetensors"))) == 3
    policy.temperature = 0.7
    Reference(policy).compute(CALLS, 4096, tmp_path, "tiny")
    assert len(list(tmp_path.glob("*.safetensors"))) == 4
