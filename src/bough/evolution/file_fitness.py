"""Fitness on held-out records: preference accuracy, or the negative loss, record by record.

All members are measured by the method's settings as given, not by their own: with another β the
loss of the same model is another number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from bough.calls.builder import CallBuilder
from bough.evolution.generation import Generation
from bough.evolution.score import Score
from bough.methods.base import Data, Example, Examples, Loss, Method
from bough.metrics import Mean, add_metrics
from bough.policy.population import Population
from bough.training.population_step import PopulationStep, Work


class FileFitness:
    """Measures members of a population on records; `metric` is accuracy or loss."""

    def __init__(
        self,
        population: Population,
        method: Method[Any],
        selection: Sequence[Example],
        test: Sequence[Example],
        *,
        metric: str,
        budget: int,
    ) -> None:
        self.population, self.method, self.metric, self.budget = population, method, metric, budget
        self.selection, self.test = selection, test

    def of(self, generation: Generation) -> dict[str, Score]:
        """The scores of the members of a generation, on the same records each time."""
        return self.measured(generation.members, self.selection)

    def of_winner(self, generation: Generation, name: str) -> Score:  # noqa: ARG002  the member is in memory
        """The score of one member on records that no member was selected on."""
        return self.measured([name], self.test)[name]

    def measured(self, names: Sequence[str], examples: Sequence[Example]) -> dict[str, Score]:
        """The scores of members on some records.

        As in an update, one member's NaN reaches all members in its rows: whose result is not finite
        is measured again in rows of its own.
        """
        recorders = self._recorded(names, examples)
        for name in [name for name in names if len(names) > 1 and not recorders[name].finite]:
            recorders |= self._recorded([name], examples)
        return {name: self._score(recorder) for name, recorder in recorders.items()}

    def _recorded(self, names: Sequence[str], examples: Sequence[Example]) -> dict[str, _Recorder]:
        """What each member's loss and metrics are, all members in common rows."""
        recorders = {name: _Recorder(self.method) for name in names}
        work = {name: Work(recorder, examples) for name, recorder in recorders.items()}
        policy = self.population.policy
        training = policy.training
        policy.eval()
        try:
            PopulationStep(self.population, work, budget=self.budget).run(backward=False)
        finally:
            policy.train(training)
        return recorders

    def _score(self, recorder: _Recorder) -> Score:
        sign, name = (1.0, "accuracy") if self.metric == "accuracy" else (-1.0, recorder.LOSS)
        values = {place: sign * metrics[name].value for place, metrics in recorder.metrics.items()}
        return Score(values, rate=self.metric == "accuracy" and all(map(math.isfinite, values.values())))


class _Recorder:
    """The method, noting the metrics and the loss of each record by its place."""

    LOSS = "loss"

    def __init__(self, method: Method[Any]) -> None:
        self.method = method
        self.needs_reference = method.needs_reference
        self.precompute_reference = False
        self.temperature = method.temperature
        self.metrics: dict[str, dict[str, Mean]] = {}
        self._place: dict[int, str] = {}
        self._parts: list[Example] = []  # kept: their ids name them

    @property
    def finite(self) -> bool:
        """Whether the loss of every record is."""
        return all(math.isfinite(metrics[self.LOSS].value) for metrics in self.metrics.values())

    def examples(self, data: Data, builder: CallBuilder) -> Examples[Any]:
        return self.method.examples(data, builder)

    def parts(self, example: Example) -> list[Example]:
        found: list[Example] = self.method.parts(example)
        self._parts += found
        self._place |= {id(part): example.place for part in found}
        return found

    def amount(self, example: Example) -> float:
        return self.method.amount(example)

    def loss(
        self,
        parts: Sequence[Example],
        logprobs: Sequence[Sequence[Tensor]],
        reference: Sequence[Sequence[Tensor]] | None,
        denominator: float,
    ) -> Loss:
        for number, part in enumerate(parts):
            amount = self.method.amount(part)
            one = self.method.loss(
                [part], [logprobs[number]], [reference[number]] if reference is not None else None, amount
            )
            noted = {**one.metrics, self.LOSS: Mean(one.value.detach() * amount, amount)}
            place = self._place[id(part)]
            self.metrics[place] = add_metrics([self.metrics.get(place, {}), noted])
        return self.method.loss(parts, logprobs, reference, denominator)
