"""The policy: a language model, its adapters, and the log-probabilities of what calls answered.

`rows` says what is computed together, calling the policy with a row computes it, and
`logprobs` does both. With `share=False` every call is computed by itself with the model's
own causal attention: slower, the same numbers, other code.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from bough.cache import keep_compiled_code
from bough.errors import InputError, first_line
from bough.policy.adapters import ACTOR, Lora, adapted_layers, add_actor, has_adapter, load_actor, reference
from bough.policy.answers import Answers
from bough.policy.attention import Attention, uncompiled
from bough.policy.divergence import Divergences, Teacher, diverge
from bough.policy.head import Head, Predictions, predict
from bough.policy.head_check import check_head
from bough.policy.layers import Layers
from bough.policy.load import base_and_adapter, load_model
from bough.policy.probe import probe as probe_model
from bough.policy.routing import Routers, routing
from bough.policy.row_reader import RowReader
from bough.policy.shard import gather, most, shard
from bough.trees.build import CallTokens
from bough.trees.layers import length_matters
from bough.trees.pack import PlainRow, TreeRow, plain_row, plain_rows, tree_rows
from bough.types import Call

log = logging.getLogger(__name__)

BUDGET = 8192


class Policy(nn.Module):
    """A causal language model in training. Called with a row, it gives the row's `Answers`.

    `attention` is how trees are computed: "flex" (FlexAttention, for CUDA), "sdpa" (a dense
    mask), or "auto".
    With `autocast`, matrix products are in that type whatever the weights are kept in:
    what is trained stays float32, so that small steps are not rounded away. With `compile`,
    the layers are compiled: a minute once, then a step is faster.
    `device` is where it will compute, if its weights are elsewhere until they are sharded.
    Without `probe`, nothing is compared with the model's own forward pass first.
    All its log-probabilities and entropies are of the logits divided by `temperature`; if it is
    None, by the temperature that each call was sampled at. With a `teacher`, answers also say how
    far each token's distribution is from the teacher's.
    """

    sharded = False
    temperature: float | None = 1.0
    teacher: Teacher | None = None
    router_coefficient = 0.0  # weight of the routers' load-balancing loss in training

    def __init__(
        self,
        model: Any,
        *,
        attention: Attention = "auto",
        autocast: torch.dtype | None = None,
        compile: bool = False,
        device: torch.device | None = None,
        probe: bool = True,
    ) -> None:
        super().__init__()
        self.model = model
        self.autocast = autocast
        self.row_reader = RowReader(self.base, attention, autocast=autocast, device=device)
        if compile or (device or self.device).type == "cuda":
            keep_compiled_code()
        self.together = not length_matters(self.decoder.config)
        if probe:
            check_head(self.base, self.decoder)
            self._probe()
        if autocast:
            # peft would lift the inputs of an adapter to the float32 of its weights, for autocast to lower them again.
            for layer in self._adapted_layers:
                layer.cast_input_dtype_enabled = False
        # A hook that stores what it hears does not go into compiled code.
        self.routers = None if compile else Routers.of(self.decoder)
        self.layers = Layers(self.row_reader, self.routers)
        if compile:
            self.layers.compile()

    def _probe(self) -> None:
        """Takes the paths that agree with the model's own forward pass; InputError if none does."""
        reader, flex = self.row_reader, self.row_reader.flex
        with uncompiled() if flex else nullcontext():
            found = probe_model(
                self.base,
                f"{reader.plain_attention} {reader.tree_attention}",
                lambda small: Policy(small, attention="flex" if flex else "sdpa", probe=False),
            )
        name = type(self.base).__name__
        if found.refusal:
            raise InputError(f"{name} ({self.base.config.model_type}) {found.refusal}")
        reader.obstacle = reader.obstacle or found.obstacle
        self.together = self.together and found.together
        if self.obstacle:
            log.warning("%s cannot share tokens between calls (%s): plain rows", name, self.obstacle)

    @classmethod
    def load(
        cls,
        name: str,
        *,
        dtype: torch.dtype | None = None,
        attention: Attention = "auto",
        adapter: str | Path | None = None,
        lora: Lora | None = None,
        quantize: bool = False,
        gradient_checkpointing: bool = False,
        device: str | torch.device | None = None,
    ) -> Self:
        """Load a built-in model, a local folder (of an adapter too) or a hub id.

        With `adapter`, a folder, or `lora`, a new one, only that adapter is trained.
        """
        name, folder = base_and_adapter(name)
        adapter = adapter or folder
        if adapter and lora:
            raise InputError(f"the adapter {adapter} has its own shape; give either it or a new lora")
        device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        model = load_model(name, dtype=dtype, device=device, quantize=quantize)
        if gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if adapter:
            model = load_actor(model, Path(adapter))
        elif lora:
            model = add_actor(model, lora)
        return cls(model, attention=attention)

    @property
    def has_adapter(self) -> bool:
        """Whether an adapter is trained; otherwise all weights are."""
        return has_adapter(self.model)

    @property
    def base(self) -> Any:
        """The transformers model inside, with its adapters' layers in place."""
        return self.model.get_base_model() if self.has_adapter else self.model

    @property
    def decoder(self) -> Any:
        """The model without its head; of a vision-language model, the language model."""
        return self.row_reader.decoder

    @property
    def device(self) -> torch.device:
        return self.row_reader.device

    @property
    def obstacle(self) -> str | None:
        """Why the model cannot read trees; None if it can."""
        return self.row_reader.obstacle

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Within it the policy answers as its reference does: the adapter of that name, or none."""
        with reference(self.model, self._adapted_layers):
            self.row_reader.who = "reference"
            try:
                yield
            finally:
                self.row_reader.who = "policy"

    @cached_property
    def _adapted_layers(self) -> list[Any]:
        return adapted_layers(self.model)

    def shard(self, device: torch.device) -> None:
        """From now on each process keeps a piece of every weight; they must make the same passes together."""
        shard(self, self.layers, device)
        self.sharded = True

    def weights(self) -> dict[str, Tensor]:
        """What is kept of the policy, by the names in `model`: the actor, or all weights.

        Sharded, every process must ask; the first gets them whole, the others nothing.
        """
        state = {name.removeprefix("model."): value for name, value in self.state_dict(keep_vars=True).items()}
        if self.has_adapter:
            state = {name: value for name, value in state.items() if f".{ACTOR}" in name}
        return gather(state)

    def logprobs(self, calls: Sequence[CallTokens], *, share: bool = True, budget: int = BUDGET) -> list[Tensor]:
        """For each call the log-probability of each answered token: float32, differentiable.

        The graph of all calls is held at once; training goes row by row instead. A teacher is not asked.
        """
        result = [torch.empty(0, device=self.device)] * len(calls)
        rows = self.rows(calls, share=share, budget=budget)
        teacher, self.teacher = self.teacher, None
        try:
            with self.row_reader.unrecorded():
                answered = self.answers(rows)
        finally:
            self.teacher = teacher
        for row, answers in zip(rows, answered, strict=True):
            for c, logprobs in zip(row.calls, answers.logprobs, strict=True):
                result[c] = logprobs
        return result

    def answers(self, rows: Sequence[TreeRow | PlainRow]) -> list[Answers]:
        """Compute rows, one after the other."""
        return [self(row) for row in self.passes(rows)][: len(rows)]

    def passes(self, rows: Sequence[TreeRow | PlainRow]) -> list[TreeRow | PlainRow]:
        """The rows; if sharded, padded with rows of one token until all processes have the same number.

        A layer's pieces come together only where all processes read that layer.
        """
        if not self.sharded:
            return list(rows)
        filler = self.rows([Call(prompt_ids=[0], completion_ids=[0])])
        return [*rows, *filler * (most(len(rows), self.device) - len(rows))]

    def rows(
        self, calls: Sequence[CallTokens], *, share: bool = True, budget: int = BUDGET
    ) -> list[TreeRow] | list[PlainRow]:
        """What to compute together, at most `budget` tokens a row. Calls that answered nothing are in no row."""
        rows: list[TreeRow] | list[PlainRow]
        temperatures = self._temperatures(calls)
        if share and self.obstacle is None:
            rows = tree_rows(calls, budget, temperatures)
        elif share and self.together:
            rows = plain_rows(calls, budget, temperatures)
        else:
            rows = [plain_row(calls, [c], temperatures) for c, call in enumerate(calls) if len(call.completion_ids)]
        self.check_ids(rows)
        return rows

    def _temperatures(self, calls: Sequence[CallTokens]) -> list[float] | None:
        """Of each call its own; None if all have the policy's."""
        if self.temperature is not None:
            return None
        return [call.sampled_at if isinstance(call, Call) else 1.0 for call in calls]

    def forward(self, row: TreeRow | PlainRow) -> Answers:
        """Compute one row; without compiled layers from now on, if those turn out not to work."""
        try:
            return self._computed(row)
        except torch._dynamo.exc.TorchDynamoException as error:
            # Sharded, the other processes wait in the middle of the row.
            if not self.layers.compiled or self.sharded:
                raise
            failure = first_line(error)
        self.layers.uncompile(failure)
        return self._computed(row)

    def _computed(self, row: TreeRow | PlainRow) -> Answers:
        teacher = self.teacher
        teacher_ME = teacher.hidden(row) if teacher is not None else None
        predictions: Predictions | Divergences
        with self._autocasting(), self._listening() as router_logits:
            hidden_MD, targets_M = self.predictors(row), self.row_reader.tensor(row.targets_M)
            if teacher is None or teacher_ME is None:
                own = None if row.temperature_M is None else self.row_reader.tensor(row.temperature_M)
                predictions = predict(hidden_MD, targets_M, self.head, own)
            else:
                assert self.temperature is not None, "a teacher and its student have one temperature"
                other = replace(teacher.policy.head, temperature=self.temperature)
                predictions = diverge(hidden_MD, targets_M, self.head, teacher_ME, other, teacher.beta)
        index_N = self.row_reader.tensor(row.index_N)
        logprobs, entropies, greedy, *divergences = (
            list(torch.split_with_sizes(values_M[index_N], row.lengths)) for values_M in predictions
        )
        routed = routing(router_logits, row, self.routers.top_k) if self.routers else None
        return Answers(logprobs, entropies, greedy, routed, *divergences)

    def _listening(self) -> AbstractContextManager[list[Tensor]]:
        """Collects the logits of the routers, if there are any."""
        return self.routers.listening() if self.routers else nullcontext([])

    @property
    def head(self) -> Head:
        """The output layer, at the policy's temperature if it has one for all calls."""
        return Head.of(self.base, self.temperature or 1.0)

    def predictors(self, row: TreeRow | PlainRow) -> Tensor:
        """The hidden states [M, D] that predict the targets of a row."""
        with self._autocasting():
            hidden_ID = self.row_reader(row)
            return hidden_ID[self.row_reader.tensor(row.predictors_M)]

    def _autocasting(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, self.autocast, enabled=self.autocast is not None)

    def check_ids(self, rows: Sequence[TreeRow | PlainRow]) -> None:
        """A GPU answers an id outside the vocabulary with an assertion that ends the process."""
        size = self.base.get_input_embeddings().weight.shape[0]
        ids = np.concatenate([[0], *(part.ravel() for row in rows for part in (row.tokens, row.targets_M))])
        if not 0 <= ids.min() <= ids.max() < size:
            raise InputError(f"token ids from {ids.min()} to {ids.max()}: the model's vocabulary is 0 to {size - 1}")
