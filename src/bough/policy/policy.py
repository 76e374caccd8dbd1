"""The policy: a language model, its adapters, and the log-probabilities of what calls answered.

`rows` says what is computed together, calling the policy with a row computes it, and
`logprobs` does both. With `share=False` every call is computed by itself with the model's
own causal attention: slower, the same numbers, other code.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from bough.errors import InputError, first_line
from bough.files import keep_compiled_code
from bough.policy.adapters import ACTOR, Lora, adapted_layers, add_actor, decoder_of, has_adapter, load_actor, reference
from bough.policy.head import Head, Routers, Routing, Teacher, check_head, diverge, predict, routing
from bough.policy.load import base_and_adapter, load_model
from bough.policy.probe import probe as probe_model
from bough.policy.processes import gather, is_sharded, most, shard
from bough.policy.recorded import RecordedReads, padded, uses_dropout
from bough.trees.attend import block_mask, dense_mask, flex_tree_attention, sdpa_tree_attention
from bough.trees.build import CallTokens, PlainRow, TreeRow, plain_row, plain_rows, to_device, tree_rows
from bough.trees.mixers import (
    STATEFUL,
    Sight,
    branching_obstacle,
    known_mixers,
    layer_sights,
    length_matters,
    let_mixers_branch,
)
from bough.trees.recurrent import Branching
from bough.types import Call

log = logging.getLogger(__name__)

BUDGET = 8192
DRAWING_ROUTERS = {"PhimoeTopKRouter"}  # no setting of theirs switches that off


class Policy(nn.Module):
    """A causal language model in training. Called with a row, it gives the row's `Answers`.

    `attention` is how trees are computed: "flex" (FlexAttention, for CUDA), "sdpa" (a dense
    mask), or "auto".
    With `autocast`, matrix products are in that type whatever the weights are kept in:
    what is trained stays float32, so that small steps are not rounded away. With `compile`,
    the layers are compiled: a minute once, then a step is faster.
    `device` is where it will compute, if its weights are elsewhere until they are sharded.
    Without `probe`, nothing is compared with the model's own forward pass first.
    All its log-probabilities and entropies are of the logits divided by `temperature`. With a
    `teacher`, answers also say how far each token's distribution is from the teacher's.
    """

    sharded = False
    temperature = 1.0
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
            self._probe()
        if autocast:
            # peft would lift the inputs of an adapter to the float32 of its weights, for autocast to lower them again.
            for layer in self._adapted_layers:
                layer.cast_input_dtype_enabled = False
        # A hook that stores what it hears does not go into compiled code.
        self.routers = None if compile else Routers.of(self.decoder)
        if compile:
            self.row_reader.compile()

    def _probe(self) -> None:
        """Takes the paths that agree with the model's own forward pass; InputError if none does."""
        check_head(self.base, self.decoder)
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

    def train(self, mode: bool = True) -> Self:
        """Trains what is sampled: routers that draw experts in training mode stay in eval mode."""
        super().train(mode)
        for module in self.modules():
            if type(module).__name__ in DRAWING_ROUTERS:
                module.eval()
        return self

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
        shard(self, self.row_reader.layers, device)
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
        if share and self.obstacle is None:
            rows = tree_rows(calls, budget)
        elif share and self.together:
            rows = plain_rows(calls, budget)
        else:
            rows = [plain_row(calls, [c]) for c, call in enumerate(calls) if len(call.completion_ids)]
        self.check_ids(rows)
        return rows

    def forward(self, row: TreeRow | PlainRow) -> Answers:
        """Compute one row; without compiled layers from now on, if those turn out not to work."""
        try:
            return self._computed(row)
        except torch._dynamo.exc.TorchDynamoException as error:
            # Sharded, the other processes wait in the middle of the row.
            if not self.row_reader.compiled or self.sharded:
                raise
            failure = first_line(error)
        self.row_reader.uncompile(failure)
        return self._computed(row)

    def _computed(self, row: TreeRow | PlainRow) -> Answers:
        teacher = self.teacher
        with torch.no_grad():
            teacher_ME = teacher.policy.predictors(row) if teacher is not None else None
        predictions: tuple[Tensor, ...]
        listening: AbstractContextManager[list[Tensor]] = nullcontext([])
        if self.routers:
            listening = self.routers.listening()
        with self._autocasting(), listening as router_logits:
            hidden_MD, targets_M = self.predictors(row), self.row_reader.tensor(row.targets_M)
            if teacher is None or teacher_ME is None:
                predictions = predict(hidden_MD, targets_M, self.head)
            else:
                other = replace(teacher.policy.head, temperature=self.temperature)
                predictions = diverge(hidden_MD, targets_M, self.head, teacher_ME, other, teacher.beta)
        index_N = self.row_reader.tensor(row.index_N)
        logprobs, entropies, greedy, *divergences = (
            list(torch.split_with_sizes(values_M[index_N], row.lengths)) for values_M in predictions
        )
        routed = routing(router_logits, row, self.routers.top_k) if self.routers else None
        return Answers(logprobs, entropies, greedy, routed, *divergences)

    @property
    def head(self) -> Head:
        """The output layer, at the policy's temperature."""
        return Head.of(self.base, self.temperature)

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


# How the rows of training are read: the attention function, masks, padding and CUDA graphs of each kind of row.

RECOMPILE_LIMIT = 64


class RowReader:
    """Reads rows with the decoder of `base`, a transformers model. Called with a row, it gives hidden states.

    `obstacle` says why the model cannot read trees, None if it can; `flex` whether they are computed with
    FlexAttention. `plain_attention` and `tree_attention` are names as transformers knows them. Rows are read
    under `autocast`, which the caller switches on. `device` is where the model will compute, if its weights are
    elsewhere still.

    Compiled, a layer's small operations become a few kernels. Recorded, whole rows are played back as CUDA
    graphs. Recomputed (gradient checkpointing), the backward pass computes activations again instead of
    keeping them.
    """

    compiled = False
    recorded: RecordedReads | None = None  # plays trees back as CUDA graphs, after `record`
    who: Literal["policy", "reference"] = "policy"  # whose adapter is switched on: recordings differ

    def __init__(
        self, base: Any, attention: Attention, *, autocast: torch.dtype | None, device: torch.device | None
    ) -> None:
        from transformers import AttentionInterface
        from transformers.modeling_layers import GradientCheckpointingLayer

        self.base, self.autocast = base, autocast
        self.layers = [one for one in self.decoder.modules() if isinstance(one, GradientCheckpointingLayer)]
        AttentionInterface.register(FLEX, flex_tree_attention)
        AttentionInterface.register(SDPA, sdpa_tree_attention)
        kind = (device or self.device).type
        # SDPA leaves out the capping of scores (Gemma 2) silently.
        capped = getattr(base.config.get_text_config(), "attn_logit_softcapping", None)
        self.plain_attention = "sdpa" if base._supports_sdpa and not capped else "eager"
        # Hybrid models call their attention through the same interface, whether or not they say so.
        supports_flex = base._supports_flex_attn or (base._supports_sdpa and bool(known_mixers(base)))
        if attention == "flex" and not supports_flex:
            raise InputError(f"{type(base).__name__} does not support FlexAttention; choose attention='sdpa'")
        self.flex = attention == "flex" or (attention == "auto" and kind == "cuda" and supports_flex)
        sdpa = SDPA if self.plain_attention == "sdpa" and kind == "cpu" else self.plain_attention
        self.tree_attention = FLEX if self.flex else sdpa
        self.obstacle = branching_obstacle(self.decoder)
        self._sights = {} if self.obstacle else layer_sights(self.decoder)
        self.carries_state = bool(known_mixers(self.decoder))
        let_mixers_branch(self.decoder)
        self.attend_with(self.plain_attention)

    @property
    def decoder(self) -> Any:
        """The model without its head; of a vision-language model, the language model."""
        return decoder_of(self.base)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.base.get_input_embeddings().weight.device
        return device

    @property
    def sights(self) -> dict[str, Sight]:
        """What each kind of attention layer sees; empty if the model cannot read trees."""
        return {} if self.obstacle else self._sights

    def __call__(self, row: TreeRow | PlainRow) -> Tensor:
        """Hidden states [I, D] of a row's tokens, in the order that the row numbers them in."""
        if isinstance(row, PlainRow):  # padding comes last, where no token looks: no mask
            return self._read(self.tensor(row.tokens_BL), None, self.plain_attention).flatten(0, 1)
        tree = row.tree
        length = padded(len(tree), few=self.recorded is not None) if self.flex else len(tree)
        token_L, position_L = np.zeros(length, np.int64), np.zeros(length, np.int64)
        end_L = np.arange(1, length + 1)  # padding sees itself: a softmax over nothing is NaN
        token_L[: len(tree)], position_L[: len(tree)], end_L[: len(tree)] = tree.token, tree.position, tree.end
        nodes = self.tensor(token_L), self.tensor(position_L), self.tensor(end_L)
        if self.recorded:
            return self.recorded(*nodes, self.who)
        branching = None
        if self.carries_state:
            parent_L = np.arange(-1, length - 1)
            parent_L[: len(tree)] = tree.parent
            parent_L[len(tree) : len(tree) + 1] = -1  # padding is one more tree
            branching = Branching(parent_L, self.device)
        return self._read_nodes(*nodes, branching)

    def tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        """An array of a row, on the device of the model."""
        return to_device(torch.from_numpy(array), self.device)

    def attend_with(self, attention: str) -> None:
        """From now on the decoder uses this attention function, by its name in transformers.

        A model around the decoder (one that also sees) may have another and not let it be changed.
        """
        if self.decoder.config._attn_implementation != attention:
            self.decoder.set_attn_implementation(attention)

    def compile(self) -> None:
        """From now on all layers of a kind share one compiled form, for rows of any length."""
        # With and without a gradient, with and without the adapter, for each kind of attention: more forms than
        # torch makes by itself, and a form too many would be computed without its kernels.
        torch._dynamo.config.recompile_limit = max(RECOMPILE_LIMIT, torch._dynamo.config.recompile_limit)
        for layer in self.layers:
            layer.compile(dynamic=True)
        self.compiled = True

    def uncompile(self, failure: str) -> None:
        """From now on layers are computed as they are, because of this failure."""
        log.warning("The layers cannot be compiled (%s): continuing without --compile.", failure)
        for layer in self.layers:
            layer._compiled_call_impl = None
        if self.recorded:
            self.recorded.drop()
        self.compiled = False

    @property
    def recomputed(self) -> bool:
        """Whether the backward pass computes activations again."""
        return bool(self.base.is_gradient_checkpointing)

    @property
    def can_recompute(self) -> bool:
        """Whether activations are kept for the backward pass, and could be computed again instead."""
        return self.base.supports_gradient_checkpointing and bool(self.layers) and not self.recomputed

    def recompute(self) -> None:
        """From now on the backward pass computes activations again (gradient checkpointing), without CUDA graphs."""
        self.base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.recorded = None

    def record(self) -> None:
        """From now on trees are read by CUDA graphs; InputError where they cannot be."""
        if found := self.not_recordable():
            raise InputError(f"--cuda-graphs cannot record this model: {', '.join(found)}")

        def read(token_L: Tensor, position_L: Tensor, end_L: Tensor) -> Tensor:
            # Weights are cast inside the graph: a cast from before it would keep the weights of that step.
            enabled = self.autocast is not None
            with torch.autocast(self.device.type, self.autocast, enabled=enabled, cache_enabled=False):
                return self._read_nodes(token_L, position_L, end_L)

        self.recorded = RecordedReads(read, self.decoder.parameters())

    def not_recordable(self) -> list[str]:
        """Why rows cannot be read by CUDA graphs; nothing if they can."""
        hindrances = {
            "it does not use FlexAttention": not self.flex or bool(self.obstacle),
            "its layers carry state": self.carries_state,
            "it is sharded (--shard)": is_sharded(self.layers),
            "it routes tokens to experts": not self.compiled and Routers.of(self.decoder) is not None,
            "it recomputes activations (--gradient-checkpointing)": self.recomputed,
            "its weights are quantized (--qlora)": getattr(self.base, "is_quantized", False),
            "it has dropout (--lora-dropout, or the model's own)": uses_dropout(self.base),
        }
        return [reason for reason, holds in hindrances.items() if holds]

    @property
    def has_recordings(self) -> bool:
        """Whether recordings take memory."""
        return self.recorded is not None and bool(self.recorded.recordings)

    def give_way(self) -> bool:
        """Frees the memory of recordings, and records less from now on; False if nothing is recorded."""
        return self.recorded is not None and self.recorded.give_way()

    def free_memory(self) -> None:
        """Gives the GPU's unused memory back, that of recordings too."""
        if self.recorded:
            self.recorded.drop()
        torch.cuda.empty_cache()

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Within it no row is read by a CUDA graph: for rows whose backward passes all come at the end."""
        recorded, self.recorded = self.recorded, None
        try:
            yield
        finally:
            self.recorded = recorded

    def _read_nodes(
        self, token_L: Tensor, position_L: Tensor, end_L: Tensor, branching: Branching | None = None
    ) -> Tensor:
        dtype = self.autocast or self.base.dtype
        masks: dict[str, Any] = {
            kind: block_mask(end_L, position_L, sight) if self.flex else dense_mask(end_L, position_L, sight, dtype)
            for kind, sight in self.sights.items()
        }
        if branching is not None:
            if not self.sights:  # a model without attention makes no masks, and hands options on to its mixers
                return self._read(token_L[None], None, self.tree_attention, branching=branching)[0]
            masks |= dict.fromkeys(STATEFUL, branching)
        mask = masks if len(masks) > 1 else next(iter(masks.values()))
        return self._read(token_L[None], mask, self.tree_attention, position_ids=position_L[None])[0]

    def _read(self, tokens_BL: Tensor, mask: Any, attention: str, **more: Any) -> Tensor:
        self.attend_with(attention)
        # No cache is read here, and with one transformers treats repeated positions differently.
        hidden_BLD: Tensor = self.decoder(
            input_ids=tokens_BL, attention_mask=mask, use_cache=False, **more
        ).last_hidden_state
        return hidden_BLD


class Answers(NamedTuple):
    """What the policy says to the calls of a row, a tensor for each call.

    Of each answered token its log-probability and, without gradient, the entropy of the
    distribution it came from, both float32, and whether it was the likeliest token. Of a
    mixture of experts also how the row was routed. With a teacher, `divergences` are trained
    instead of the log-probabilities and have the gradient.
    """

    logprobs: list[Tensor]
    entropies: list[Tensor]
    greedy: list[Tensor]
    routing: Routing | None = None
    divergences: Sequence[Tensor] = ()

    @property
    def trained(self) -> list[Tensor]:
        """What the loss is a function of."""
        return list(self.divergences) or self.logprobs

    def detach(self) -> Answers:
        """The same without a gradient."""
        logprobs, entropies, greedy = ([value.detach() for value in values] for values in self[:3])
        divergences = [value.detach() for value in self.divergences]
        return Answers(logprobs, entropies, greedy, self.routing and self.routing.detach(), divergences)


# Which attention functions a model is computed with: one for plain rows, one for trees.

Attention = Literal["auto", "flex", "sdpa"]
FLEX, SDPA = "bough_flex", "bough_sdpa"  # our names for them among the attention functions of transformers


@contextmanager
def uncompiled() -> Iterator[None]:
    """Within it nothing is compiled: for a handful of tokens that would take a minute."""
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        yield
