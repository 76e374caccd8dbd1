"""Members of a population: their layers, their files, and what each says in a common row."""

from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bough.errors import InputError
from bough.policy.adapters import Lora, adapted_layers, add_actor, load_actor
from bough.policy.load import save_weights
from bough.policy.policy import Policy
from bough.policy.population import AdaptedSegment, Population
from bough.policy.recorded import padded
from bough.types import Call

CALLS = [Call(prompt_ids=[10, 11, 12, 13 + i], completion_ids=[20, 21 + i, 2]) for i in range(3)]


@cache
def base_model() -> Any:
    return Policy.load("tiny", device="cpu").model


def policy_of(model: Any) -> Policy:
    return Policy(model, probe=False).eval()


def fill(parameters: Iterator[torch.nn.Parameter], seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in parameters:
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)


@pytest.fixture
def population() -> Population:
    made = Population(policy_of(deepcopy(base_model())))
    # "m1" is the beginning of another name, which peft's own filter of names would confuse.
    for seed, (name, lora) in enumerate([("m1", Lora(r=4)), ("m10", Lora(r=2, alpha=7, targets=("q_proj",)))]):
        fill(made.add(name, lora).parameters(), seed)
    return made


def logprobs(population: Population, name: str, **options: Any) -> torch.Tensor:
    (row,) = population.rows({name: CALLS})
    return torch.cat(population.answers(row, **options)[name].logprobs).detach()


def test_a_new_member_answers_as_the_base_does(population: Population):
    population.add("new", Lora(r=3))
    base = torch.cat(policy_of(deepcopy(base_model())).logprobs(CALLS)).detach()
    torch.testing.assert_close(logprobs(population, "new"), base)
    assert not torch.allclose(logprobs(population, "m1"), base, atol=1e-3)
    torch.testing.assert_close(logprobs(population, "m1", reference=True), base)


def test_members_adapt_the_layers_of_the_base_and_never_each_others(population: Population):
    population.add("third", Lora(r=2))
    alone = add_actor(deepcopy(base_model()), Lora(r=2))
    assert len(adapted_layers(population.policy.model)) == len(adapted_layers(alone))
    count = sum(p.numel() for n, p in alone.named_parameters() if "lora_" in n)
    assert sum(p.numel() for p in population.members["third"].parameters()) == count
    assert all(".q_proj." in name for name, _ in population.members["m10"].named_parameters())


def test_only_members_are_trained(population: Population):
    population.freeze("m1")
    trained = {name for name, parameter in population.policy.model.named_parameters() if parameter.requires_grad}
    members = population.members.values()
    assert trained == {name for member in members for name, _ in member.named_parameters()}


def test_members_keep_their_own_temperature(population: Population):
    rows = population.rows({"m1": CALLS, "m10": CALLS})
    (row,) = rows
    found = population.answers(row, {"m1": 0.5, "m10": 2.0})
    for name, temperature in {"m1": 0.5, "m10": 2.0}.items():
        alone = logprobs(population, name, temperatures={name: temperature})
        torch.testing.assert_close(torch.cat(found[name].logprobs).detach(), alone)
    assert not torch.allclose(torch.cat(found["m1"].logprobs), logprobs(population, "m1"), atol=1e-2)


def test_a_saved_member_is_a_plain_adapter_that_loads_everywhere(population: Population, tmp_path: Path):
    expected = logprobs(population, "m1")
    population.members["m1"].save(tmp_path / "m1")
    assert sorted(file.name for file in (tmp_path / "m1").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert not any("m1" in name for name in load_file(tmp_path / "m1" / "adapter_model.safetensors"))
    alone = policy_of(load_actor(deepcopy(base_model()), tmp_path / "m1"))
    torch.testing.assert_close(torch.cat(alone.logprobs(CALLS)).detach(), expected)
    population.add("again", tmp_path / "m1")
    torch.testing.assert_close(logprobs(population, "again"), expected)
    first = Population(policy_of(deepcopy(base_model())))
    first.add("first", tmp_path / "m1")
    torch.testing.assert_close(logprobs(first, "first"), expected)
    save_weights(alone, tmp_path / "alone", alone.weights())
    for file in ("adapter_model.safetensors", "adapter_config.json"):
        assert (tmp_path / "alone" / file).read_bytes() == (tmp_path / "m1" / file).read_bytes()


def test_a_removed_member_leaves_the_others_as_they_were(population: Population):
    population.freeze("m1")
    before = logprobs(population, "m10")
    population.remove("m1")
    assert list(population.members) == ["m10"] and list(population.policy.model.peft_config) == ["m10"]
    assert torch.equal(logprobs(population, "m10"), before)
    assert all(parameter.requires_grad for parameter in population.members["m10"].parameters())
    with pytest.raises(InputError, match="last member"):
        population.remove("m10")


@pytest.mark.parametrize(
    ("name", "start", "said"),
    [
        ("m1", Lora(), "a member named m1 already"),
        ("a.b", Lora(), "cannot be a member's name"),
        ("new", Lora(targets=("lm_head",)), "cannot adapt the head"),
        ("new", Lora(targets=("no_such_layer",)), "does not fit the model"),
        ("new", Lora(experts=True), "cannot adapt experts"),
        ("new", Path("no-such-folder"), "contains no adapter"),
    ],
)
def test_what_cannot_be_a_member_is_refused_and_changes_nothing(
    population: Population, name: str, start: Lora | Path, said: str
):
    with pytest.raises(InputError, match=said):
        population.add(name, start)
    assert list(population.members) == ["m1", "m10"] == list(population.policy.model.peft_config)


def test_padding_is_read_with_the_last_member_and_a_layer_that_reads_other_tokens_is_refused(population: Population):
    """FlexAttention reads whole blocks. Experts read routed tokens: which are whose is not known there."""
    layer, last = adapted_layers(population.policy.model)[0], 4200
    end = padded(last, few=False)
    assert end > last
    population.lora.segments = [AdaptedSegment("m1", 0, last)]
    assert len(layer(torch.zeros(end, layer.in_features))) == end
    for count in (last - 1, end + 1):
        with pytest.raises(InputError, match=f"reads {count} tokens of a row of 4200: the model routes tokens"):
            layer(torch.zeros(count, layer.in_features))


def test_grouped_products_equal_the_loop(population: Population):
    """A layer on which one segment has an adapter, one another, one none; tokens after the last belong to it."""
    layers = adapted_layers(population.policy.model)
    layer = next(one for one in layers if "m10" in one.lora_A)
    x = torch.randn(1, 32, layer.in_features, requires_grad=True)
    slope = torch.randn(1, 32, layer.out_features)
    places = [("m10", 0, 8), (None, 8, 16), ("m1", 16, 24)]
    population.lora.segments = [AdaptedSegment(*place) for place in places]
    results = []
    for grouped in (False, True):
        population.lora.grouped = grouped
        output = layer(x)
        weights = [layer.lora_A["m1"].weight, layer.lora_B["m10"].weight, x]
        results.append([output.detach(), *torch.autograd.grad((output * slope).sum(), weights)])
    torch.testing.assert_close(*results)
    assert torch.equal(results[0][0][:, 8:16], layer.base_layer(x)[:, 8:16])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="grouped products in bfloat16 need CUDA")
def test_grouped_products_on_cuda_equal_the_loop():
    torch.manual_seed(0)
    policy = Policy(deepcopy(base_model()).to("cuda", torch.bfloat16), autocast=torch.bfloat16, probe=False)
    population = Population(policy.train())
    for seed, name in enumerate(["red", "green", "blue"]):
        fill(population.add(name, Lora(r=4 + seed)).parameters(), seed)
    rows = population.rows(dict.fromkeys(population.members, CALLS))
    found = []
    for grouped in (False, None):
        population.lora.grouped = grouped
        (row,) = rows
        answers = population.answers(row)
        sum(torch.cat(own.logprobs).sum() for own in answers.values()).backward()
        gradients = [p.grad for member in population.members.values() for p in member.parameters()]
        found.append((torch.cat([g.flatten() for g in gradients]), answers))
        policy.zero_grad()
    (looped, said), (grouped_gradient, also) = found
    assert torch.linalg.norm(grouped_gradient - looped) < 2e-2 * torch.linalg.norm(looped)
    for name in population.members:
        # Two roundings to bfloat16, whose numbers are 2**-8 apart.
        torch.testing.assert_close(torch.cat(also[name].logprobs), torch.cat(said[name].logprobs), atol=0, rtol=2**-7)
