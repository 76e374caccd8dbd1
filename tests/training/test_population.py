"""Members that are trained together become what each becomes alone."""

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from bough.config.training import TrainingConfig
from bough.errors import InputError
from bough.methods.distill import DistillConfig
from bough.methods.dpo import DPO, DPOConfig, Preference
from bough.methods.grpo import GRPO, GRPOConfig
from bough.methods.sft import SFT, Demonstration, SFTConfig
from bough.policy.adapters import Lora, adapted_layers, add_actor
from bough.policy.policy import Policy, RowReader
from bough.policy.population import Population
from bough.policy.reference import Reference
from bough.training.method import Example, GroupExample, Method
from bough.training.population import PopulationStep, PopulationTrainer, Update, Work
from bough.training.step import Step, Updater
from bough.types import Call

FILE = Path("a.jsonl")
HISTORY = list(range(10, 60))
STEPS = 2
RATES = {"learning_rate": 1e-2, "warmup_ratio": 0.0}


def call(start: int, *answer: int) -> Call:
    return Call(prompt_ids=HISTORY[: 6 + 3 * start], completion_ids=[*answer, 2], logprobs=[-3.0] * (len(answer) + 1))


def pair(i: int) -> Preference:
    return Preference(calls=[call(i, 70 + i, 71), call(i, 90 + i)], num_chosen=1)


WIDE_PAIR = Preference(calls=[*(call(i, 70) for i in range(5)), *(call(i, 80, 81) for i in range(5))], num_chosen=5)
GROUP = GroupExample(
    calls=[call(i, 100 + i, 3) for i in range(4)], advantages=(1.0, -0.5, 2.0, 0.5), weights=(1.0,) * 4, denominator=4
)
DEMONSTRATION = Demonstration(calls=[call(i, 110 + i, 5, 6) for i in range(4)], weights=(1.0, 0.5, 2.0, 1.0))

# What a member may be: its adapter, its settings, its examples.
SETTINGS: dict[str, tuple[Lora, TrainingConfig, Sequence[Example]]] = {
    "sft": (Lora(r=4, alpha=8), SFTConfig(train_file=FILE, lr_scheduler="linear", **RATES), [DEMONSTRATION]),
    "dpo": (
        Lora(r=2, alpha=6, targets=("q_proj", "v_proj")),
        DPOConfig(train_file=FILE, beta=0.7, max_grad_norm=0.05, **RATES),
        [pair(0), pair(1), pair(3)],
    ),
    "wide": (Lora(r=8, alpha=8), DPOConfig(train_file=FILE, nll_alpha=0.5, **RATES), [WIDE_PAIR, pair(2)]),
    "ipo": (Lora(r=4, alpha=2), DPOConfig(train_file=FILE, loss_type="ipo", **RATES), [pair(4)]),
    "grpo": (
        Lora(r=3, alpha=3, targets=("down_proj", "o_proj")),
        GRPOConfig(train_file=FILE, temperature=0.7, weight_decay=0.1, **RATES),
        [GROUP],
    ),
}


def method_of(config: TrainingConfig) -> Method[Any]:
    for kind, method in ((SFTConfig, SFT), (DPOConfig, DPO), (GRPOConfig, GRPO)):
        if isinstance(config, kind):
            return method(config)  # type: ignore[arg-type, return-value]
    raise AssertionError(config)


def fill(parameters: Mapping[str, torch.nn.Parameter], name: str) -> None:
    """Weights that do something in both matrices, the same for the same name."""
    generator = torch.Generator().manual_seed(list(SETTINGS).index(name))
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)


@cache
def base_model() -> Any:
    return Policy.load("tiny", device="cpu").model


def base_policy() -> Policy:
    return Policy(deepcopy(base_model()), probe=False).train()


def population_of(names: Sequence[str], *, grouped: bool | None = None) -> Population:
    population = Population(base_policy(), grouped=grouped)
    for name in names:
        fill(dict(population.add(name, SETTINGS[name][0]).named_parameters()), name)
    return population


def trainer_of(names: Sequence[str], *, grouped: bool | None = None, **options: Any) -> PopulationTrainer:
    trainer = PopulationTrainer(population_of(names, grouped=grouped), **options)
    for name in names:
        trainer.add(name, method_of(SETTINGS[name][1]), SETTINGS[name][1], STEPS)
    return trainer


class Alone:
    """A member's training by the code that trains single policies."""

    def __init__(self, name: str) -> None:
        lora, self.config, self.examples = SETTINGS[name]
        self.policy = Policy(add_actor(deepcopy(base_model()), lora), probe=False).train()
        self.method = method_of(self.config)
        self.policy.temperature = self.method.temperature
        self.weights = {n: p for n, p in self.policy.named_parameters() if p.requires_grad}
        fill(self.weights, name)
        self.updater = Updater(self.policy, self.config)

    def gradient(self) -> tuple[float, torch.Tensor]:
        parts = [part for example in self.examples for part in self.method.parts(example)]
        step = Step(self.policy, self.method, parts, budget=4096)
        reference = Reference(self.policy) if self.method.needs_reference else None
        loss = step.run(sum(map(self.method.amount, self.examples)), reference, backward=True).loss
        return loss, flat(parameter.grad for parameter in self.weights.values())

    def step(self, number: int) -> tuple[float, float, float]:
        rate = self.updater.set_learning_rate(number, STEPS)
        loss, _ = self.gradient()
        norm = float(self.updater.clip())
        self.updater.apply()
        return loss, norm, rate


def flat(tensors: Any) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float(torch.linalg.norm(found - expected) / torch.linalg.norm(expected))


Trained = tuple[float, torch.Tensor, list[tuple[float, float, float]], torch.Tensor]


@pytest.fixture(scope="module")
def alone() -> dict[str, Trained]:
    """Of each member: its first loss and gradient, its steps, and its weights after them."""
    found = {}
    for name in SETTINGS:
        one = Alone(name)
        loss, gradient = one.gradient()
        one.updater.optimizer.zero_grad()
        steps = [one.step(number) for number in range(STEPS)]
        found[name] = loss, gradient, steps, flat(one.weights.values())
    return found


# Without shrinking: a failure is as clear with five members as with two, and each example is a training run.
@settings(max_examples=3, phases=(Phase.explicit, Phase.generate))
@example(names=list(SETTINGS), layout=(30, True), grouped=None)
@example(names=list(SETTINGS), layout=(4096, True), grouped=True)
@given(
    names=st.permutations(list(SETTINGS)).flatmap(lambda o: st.integers(1, len(o)).map(lambda n: o[:n])),
    layout=st.sampled_from([(16, True), (30, True), (64, True), (4096, True), (4096, False)]),
    grouped=st.sampled_from([None, True]),
)
def test_members_together_equal_each_alone(
    alone: dict[str, Trained], names: list[str], layout: tuple[int, bool], grouped: bool | None
):
    budget, share = layout
    trainer = trainer_of(names, grouped=grouped, budget=budget, share=share)
    examples = {name: SETTINGS[name][2] for name in names}
    work = {name: Work(trainer.training[name].method, own) for name, own in examples.items()}
    found = PopulationStep(trainer.population, work, budget=budget, share=share).run(backward=True)
    for name in names:
        loss, gradient = alone[name][:2]
        own = list(trainer.population.members[name].parameters())
        assert found[name].loss == pytest.approx(loss, rel=1e-5)
        assert apart(flat(parameter.grad for parameter in own), gradient) < 1e-5
        trainer.training[name].updater.optimizer.zero_grad()
    updates = [trainer.update(examples) for _ in range(STEPS)]
    for name in names:
        _, _, steps, weights = alone[name]
        for update, expected in zip(updates, steps, strict=True):
            own_update = update[name]
            did = own_update.gradient.loss, own_update.grad_norm, own_update.learning_rate
            assert did == pytest.approx(expected, rel=1e-5)
        assert apart(flat(trainer.population.members[name].parameters()), weights) < 1e-5


def test_members_share_rows_but_no_tokens():
    """The same examples of two members are computed twice, in one row."""
    population = population_of(["sft", "dpo"])
    calls = DEMONSTRATION.calls
    (row,) = population.rows({"sft": calls, "dpo": calls})
    assert list(row) == ["sft", "dpo"]
    single = population.policy.rows(calls)[0].tokens.size
    assert [own.tokens.size for own in row.values()] == [single, single]


@pytest.mark.parametrize("kind", ["loss", "weights"])
def test_a_step_that_is_not_finite_skips_its_member_only(
    alone: dict[str, Trained], kind: str, caplog: pytest.LogCaptureFixture
):
    names = ["dpo", "sft", "wide"]
    trainer = trainer_of(names, budget=4096)
    examples = {name: list(SETTINGS[name][2]) for name in names}
    spoiled = trainer.population.members["sft"]
    if kind == "loss":
        examples["sft"] = [replace(DEMONSTRATION, weights=(3e38,) * 4)]  # overflows in the sum
    else:
        with torch.no_grad():
            next(iter(spoiled.parameters())).fill_(math.inf)
    before = flat(spoiled.parameters())
    updates: list[dict[str, Update]] = [trainer.update(examples) for _ in range(STEPS)]
    assert [update["sft"].skipped for update in updates] == [True] * STEPS
    assert torch.equal(flat(spoiled.parameters()), before)
    assert not trainer.training["sft"].updater.optimizer.state
    assert trainer.training["sft"].step == STEPS
    assert "Member sft: step 1 changed nothing" in caplog.text
    for name in names:
        if name != "sft":
            assert not any(update[name].skipped for update in updates)
            assert apart(flat(trainer.population.members[name].parameters()), alone[name][3]) < 1e-5


def test_memory_is_the_base_once_and_an_adapter_with_two_moments_for_each_member():
    names = list(SETTINGS)
    base = sum(p.numel() * p.element_size() for p in base_model().parameters())
    trainer = trainer_of(names)
    population = trainer.population
    adapters = {name: population.members[name].num_bytes for name in names}
    assert all(adapters.values()) and len(set(adapters.values())) > 2
    total = sum(p.numel() * p.element_size() for p in population.policy.parameters())
    assert total == base + sum(adapters.values())
    trainer.update({name: SETTINGS[name][2] for name in names})
    for name in names:
        state = trainer.training[name].updater.optimizer.state
        moments = sum(value.numel() * value.element_size() for each in state.values() for value in each.values())
        assert moments == 2 * adapters[name] + 4 * len(state)  # and the number of steps of each tensor
    assert all(parameter.grad is None for parameter in population.policy.parameters())


def test_a_frozen_reference_is_the_member_as_it_was(alone: dict[str, Trained]):
    trainer = trainer_of(["dpo", "ipo"])
    population = trainer.population
    population.freeze("dpo")
    examples = {"dpo": [pair(0), pair(1)], "ipo": [pair(4)]}
    first = trainer.update(examples)
    # A policy that equals its reference prefers neither side; without a frozen copy the base is the reference.
    assert first["dpo"].gradient.loss == pytest.approx(math.log(2), rel=1e-6)
    assert first["ipo"].gradient.loss == pytest.approx(alone["ipo"][0], rel=1e-5)
    assert trainer.update(examples)["dpo"].gradient.loss < first["dpo"].gradient.loss
    population.freeze("dpo")  # again, at the weights it has now
    assert trainer.update(examples)["dpo"].gradient.loss == pytest.approx(math.log(2), rel=1e-6)


def test_measuring_gives_the_same_losses_and_no_gradient(alone: dict[str, Trained]):
    names = ["wide", "grpo"]
    trainer = trainer_of(names, budget=30)
    found = trainer.measure({name: SETTINGS[name][2] for name in names})
    assert [found[name].loss for name in names] == pytest.approx([alone[n][0] for n in names], rel=1e-5)
    assert all(parameter.grad is None for parameter in trainer.population.policy.parameters())
    assert trainer.population.policy.training


# A short example of a member beside the rows that another member's pair is spread over: in some layouts they share one.
DROPPING: dict[str, Sequence[Example]] = {
    "sft": [Demonstration(calls=[call(0, 110), call(1, 111)], weights=(1.0, 1.0))],
    "wide": [WIDE_PAIR, pair(2)],
    "dpo": [pair(0), pair(4)],
}


def dropping_step(budget: int, *, share: bool, recompute: bool = False) -> PopulationStep:
    """A step of three members with dropout."""
    trainer = trainer_of(list(DROPPING), budget=budget, share=share)
    population = trainer.population
    for layer in adapted_layers(population.policy.model):
        layer.lora_dropout.update({name: torch.nn.Dropout(0.5) for name in layer.lora_dropout})
    if recompute:
        population.policy.row_reader.recompute()
    work = {name: Work(trainer.training[name].method, own) for name, own in DROPPING.items()}
    return PopulationStep(population, work, budget=budget, share=share)


@pytest.mark.parametrize("layout", [(20, True), (30, True), (34, True), (64, False)], ids=str)
def test_both_passes_of_a_row_draw_the_same_dropout(layout: tuple[int, bool], monkeypatch: pytest.MonkeyPatch):
    """A slope is used at the log-probabilities that it was found at, whoever is in the row and whatever came before."""
    gradients = []
    for recompute in (False, True):
        step = dropping_step(layout[0], share=layout[1], recompute=recompute)
        first: dict[int, torch.Tensor] = {}
        last: dict[int, torch.Tensor] = {}
        answers = step.population.answers

        def noting(
            row: Any, *args: Any, reference: bool = False, first: Any = first, last: Any = last, answers: Any = answers
        ) -> Any:
            found = answers(row, *args, reference=reference)
            if not reference:
                seen = last if torch.is_grad_enabled() else first
                seen |= {id(own): torch.cat(found[name].logprobs).detach() for name, own in row.items()}
            return found

        monkeypatch.setattr(step.population, "answers", noting)
        torch.manual_seed(0)
        step.run(backward=True)
        assert first and first.keys() < last.keys()  # some parts are not spread
        assert max(float((values - last[row]).abs().max()) for row, values in first.items()) < 1e-5
        gradients.append(flat(p.grad for m in step.population.members.values() for p in m.parameters()))
    assert apart(gradients[1], gradients[0]) < 1e-6


def test_out_of_memory_halves_the_token_budget_then_computes_activations_again_then_halves_it_further(
    alone: dict[str, Trained], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    names = ["sft", "dpo"]
    examples = {name: SETTINGS[name][2] for name in names}
    longest = max(len(c.prompt_ids) + len(c.completion_ids) for own in examples.values() for e in own for c in e.calls)
    found = []
    for times in range(5):
        trainer, left = trainer_of(names, budget=16 * longest), [times]
        answers, layers = trainer.population.answers, trainer.population.policy.row_reader

        def within_memory(
            *args: Any, left: list[int] = left, answers: Any = answers, layers: RowReader = layers, **options: Any
        ) -> Any:
            if left[0] and torch.is_grad_enabled():
                left[0] -= 1
                for parameter in layers.base.parameters():  # what rows before this one have left
                    parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
                raise torch.cuda.OutOfMemoryError
            return answers(*args, **options)

        monkeypatch.setattr(trainer.population, "answers", within_memory)
        caplog.clear()
        first = trainer.update(examples)
        for name in names:
            assert first[name].grad_norm == pytest.approx(alone[name][2][0][1], rel=1e-5)
        found.append((trainer.budget // longest, layers.recomputed))
    assert found == [(16, False), (8, False), (8, True), (4, True), (2, True)]
    assert [line.partition("again with ")[2] for line in caplog.messages] == [
        f"token_budget {8 * longest}.",
        "gradient checkpointing, which is slower.",
        f"token_budget {4 * longest}.",
        f"token_budget {2 * longest}.",
    ]


@pytest.mark.parametrize(
    ("name", "config", "said"),
    [
        ("nobody", SFTConfig(train_file=FILE), "no member named nobody; there are sft"),
        ("sft", DistillConfig(train_file=FILE, teacher="tiny"), "cannot be distilled"),
    ],
)
def test_training_that_a_population_cannot_do_is_refused(name: str, config: TrainingConfig, said: str):
    trainer = PopulationTrainer(population_of(["sft"]))
    with pytest.raises(InputError, match=said):
        trainer.add(name, SFT(SFTConfig(train_file=FILE)), config, 1)
