"""A policy's twin: its own trained weights, everything else shared."""

import asyncio

import pytest
import torch

from bough.config.groups import SamplingConfig
from bough.policy.adapters import Lora
from bough.policy.policy import Policy
from bough.policy.reference import Twin
from bough.types import Call
from tests.engines.local.playing import prompt, small_engine

CALLS = [Call(prompt_ids=prompt(name, 12), completion_ids=prompt(f"{name}!", 6)) for name in "ab"]


def trained(lora: Lora | None) -> Policy:
    torch.manual_seed(0)
    return Policy.load("tiny", device="cpu", lora=lora)


def learn(policy: Policy, rate: float = 0.5) -> None:
    """A step that changes what the policy answers."""
    optimizer = torch.optim.SGD([w for w in policy.parameters() if w.requires_grad], lr=rate)
    torch.cat(policy.logprobs(CALLS)).sum().backward()
    optimizer.step()


@torch.no_grad()
def logprobs(policy: Policy) -> torch.Tensor:
    return torch.cat(policy.logprobs(CALLS))


@pytest.mark.bit_exact
@pytest.mark.parametrize("lora", [Lora(r=4), None], ids=["adapter", "all weights"])
def test_a_twin_keeps_its_weights_until_it_is_renewed(lora: Lora | None):
    policy = trained(lora)
    policy.temperature = 0.7
    learn(policy)
    twin = Twin(policy)
    before = logprobs(policy)
    assert torch.equal(logprobs(twin.policy), before)
    learn(policy)
    assert torch.equal(logprobs(twin.policy), before) and not torch.allclose(logprobs(policy), before)
    twin.renew()
    assert torch.equal(logprobs(twin.policy), logprobs(policy))


def test_only_trained_weights_are_copied():
    policy = trained(Lora(r=4))
    twin = Twin(policy)
    for (name, own), source in zip(twin.policy.named_parameters(), policy.parameters(), strict=True):
        assert (own.data_ptr() == source.data_ptr()) == ("lora_" not in name), name
        assert own is not source and not own.requires_grad
    assert twin.num_bytes == 4 * sum(w.numel() for name, w in policy.named_parameters() if "lora_" in name)
    whole = trained(None)
    assert Twin(whole).num_bytes == 4 * sum(w.numel() for w in whole.parameters())


@pytest.mark.bit_exact
@pytest.mark.parametrize("fold", [True, False])
def test_an_engine_apart_samples_with_the_weights_of_its_last_renewal(fold: bool):
    """The policy computes gradients and changes while an answer is under way."""
    sampling = SamplingConfig(max_new_tokens=100)

    async def answer(policy: Policy, *, disturb: bool) -> list[float]:
        learn(policy)  # a new adapter would change nothing
        engine = small_engine(policy, fold=fold, apart=True)
        asked = asyncio.ensure_future(engine.generate("e", prompt("e", 20), sampling=sampling, seed=3, stop_ids=[]))
        while engine.num_steps < 3:
            await asyncio.sleep(0)
        if disturb:
            await asyncio.to_thread(learn, policy)
        drawn = (await asked).logprobs
        await engine.close()
        return drawn

    undisturbed, policy = trained(Lora(r=4)), trained(Lora(r=4))
    expected = asyncio.run(answer(undisturbed, disturb=False))
    assert asyncio.run(answer(policy, disturb=True)) == expected
    learn(undisturbed)
    assert torch.equal(logprobs(policy), logprobs(undisturbed)), "and the engine changes nothing in training"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_an_engine_apart_has_a_stream_of_its_own_and_samples_while_the_policy_trains():
    """On a GPU the log-probabilities are those of the weights before training, up to rounding."""
    torch.manual_seed(0)
    policy = Policy.load("tiny", device="cuda", lora=Lora(r=4))
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.05)
    sampling = SamplingConfig(max_new_tokens=100)
    prompts = [prompt(f"{n}", 20) for n in range(8)]

    async def answers() -> list[Call]:
        engine = small_engine(policy, apart=True)
        assert engine.stream is not None
        asked = [
            asyncio.ensure_future(engine.generate(f"{n}", ids, sampling=sampling, seed=n, stop_ids=[]))
            for n, ids in enumerate(prompts)
        ]
        while engine.num_steps < 2:
            await asyncio.sleep(0)
        for _ in range(5):
            # Large weights would make bfloat16 itself wrong by more than is checked here.
            await asyncio.to_thread(learn, policy, 0.005)
        drawn = await asyncio.gather(*asked)
        engine.pause()
        engine.renew("after", keep=True)
        engine.resume()
        again = await engine.generate("new", prompts[0], sampling=sampling, seed=0, stop_ids=[])
        await engine.close()
        return [
            Call(prompt_ids=ids, completion_ids=one.completion_ids, logprobs=one.logprobs)
            for ids, one in zip([*prompts, prompts[0]], [*drawn, again], strict=True)
        ]

    unchanged = Twin(policy)
    *before, after = asyncio.run(answers())
    with torch.no_grad():
        for known, calls in ((unchanged.policy, before), (policy, [after])):
            found = torch.cat(known.logprobs(calls)).cpu()
            sampled = torch.tensor([value for call in calls for value in call.logprobs or ()])
            assert (found - sampled).abs().mean() < 2e-2
