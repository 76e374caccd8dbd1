"""Which examples are trained in which step.

How many steps there are is known before the first, curriculum or not, so the learning
rate knows what will come. The order is a function of the data and the seed, so a run that
was killed finds its place by the number of the step.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pydantic_core import to_json
from torch import Tensor

from bough.config.training import BUDGET_ON_CPU, CurriculumConfig, MachineConfig, TrainingConfig
from bough.errors import BoughError
from bough.files import replacing
from bough.policy.adapters import decoder_of
from bough.policy.head import Routers
from bough.policy.load import base_and_adapter, load_outline
from bough.policy.processes import Processes, unused_bytes
from bough.policy.recorded import uses_dropout
from bough.training.method import Example, columns
from bough.trees.build import TokenTree
from bough.trees.mixers import branching_obstacle, known_mixers

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlannedStep:
    """The examples of one optimizer step."""

    epoch: int
    examples: list[int]


class Plan:
    """The steps of a run over examples 0, 1, ….

    `clusters[i]` names what example i shares tokens with (its episode): examples of one
    cluster stay together, and the clusters are shuffled again in each epoch. `num_epochs` may be
    a fraction; `max_steps`, where given, decides alone how many steps there are.

    With a `curriculum`, the share of the data, by `difficulty` and lowest first, grows from its
    `start_ratio` to all over its `warmup_epochs`.
    """

    def __init__(
        self,
        clusters: Sequence[Hashable],
        difficulty: Sequence[float],
        *,
        batch_size: int,
        num_epochs: float,
        max_steps: int | None = None,
        curriculum: CurriculumConfig | None = None,
        seed: int = 0,
    ) -> None:
        self.clusters, self.difficulty, self.batch_size, self.seed = clusters, difficulty, batch_size, seed
        self.curriculum = curriculum
        self.num_steps = self._count(num_epochs, max_steps)
        self._steps: list[PlannedStep] = []

    def __len__(self) -> int:
        return self.num_steps

    def __getitem__(self, number: int) -> PlannedStep:
        """Step `number`, counted from 0."""
        if not 0 <= number < self.num_steps:
            raise IndexError(number)
        while number >= len(self._steps):
            epoch = self._steps[-1].epoch + 1 if self._steps else 0
            members: dict[Hashable, list[int]] = {}
            for i in self._share(epoch):
                members.setdefault(self.clusters[i], []).append(i)
            groups = list(members.values())
            random.Random(f"{self.seed}/{epoch}").shuffle(groups)  # noqa: S311  no secret
            order = [i for group in groups for i in group]
            batches = (order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size))
            self._steps += [PlannedStep(epoch, batch) for batch in batches]
        return self._steps[number]

    def laid_out(self, number: int) -> bool:
        """Whether step `number` is in an epoch that is laid out."""
        return 0 <= number < min(len(self._steps), self.num_steps)

    def ends_epoch(self, number: int) -> bool:
        """Whether step `number` is the last of its epoch. The last of all need not be: a run may be made longer."""
        return self[number] is self._steps[-1]

    def _count(self, num_epochs: float, max_steps: int | None) -> int:
        if not self.clusters:
            return 0
        if max_steps is not None:
            return max_steps
        whole = int(num_epochs)
        lengths = [-(-self._num_kept(epoch) // self.batch_size) for epoch in range(whole + 1)]
        return sum(lengths[:whole]) + (
            max(1, round(lengths[whole] * (num_epochs - whole))) if num_epochs > whole else 0
        )

    def _share(self, epoch: int) -> list[int]:
        """The easiest share of the examples, in their own order."""
        count, kept = len(self.difficulty), self._num_kept(epoch)
        if kept == count:
            return list(range(count))
        return sorted(sorted(range(count), key=lambda i: (self.difficulty[i], i))[:kept])

    def _num_kept(self, epoch: int) -> int:
        ratio = 1.0
        if (curriculum := self.curriculum) is not None:
            start = curriculum.start_ratio
            ratio = min(1.0, start + (1 - start) * epoch / curriculum.warmup_epochs)
        return max(1, round(len(self.difficulty) * ratio))


# Records that an error about a batch names.
PLACES_NAMED = 3


@dataclass(frozen=True)
class Batch:
    """The examples of one optimizer step, and numbers about them for the log.

    `own` are those that this process computes, where the source has dealt them out.
    """

    examples: Sequence[Example]
    epoch: int
    values: dict[str, Any] = field(default_factory=dict)
    own: Sequence[Example] | None = None

    def share(self, processes: Processes) -> Sequence[Example]:
        """What this process computes of the batch."""
        return processes.share(self.examples) if self.own is None else self.own

    def dump(self, path: Path) -> str:
        """Writes one line per example, for inspection; returns the path and where the first few examples came from."""
        with replacing(path) as draft:
            draft.write_bytes(b"".join(to_json(asdict(example), fallback=_plain) + b"\n" for example in self.examples))
        places = ", ".join(example.place for example in self.examples[:PLACES_NAMED] if example.place)
        return f"{path} (from {places}…)" if places else str(path)


def _plain(value: Any) -> Any:
    """A value that JSON has no type for, as one that it has."""
    return value.tolist() if isinstance(value, Tensor) else value.model_dump()


class Source(Protocol):
    """Gives the batches of a run in order. A run that resumes asks for a later batch first."""

    @property
    def levels(self) -> Sequence[int]:
        """What a checkpoint keeps of the source, for `restore`."""
        ...

    def __len__(self) -> int:
        """The number of steps."""
        ...

    def batch(self, step: int) -> Batch | None:
        """The batch of step `step`, counted from 0; None where there is nothing left to learn from."""
        ...

    def knows(self, step: int) -> bool:
        """Whether the batch of step `step` is certain, however the steps before it go."""
        ...

    def ends_epoch(self, step: int) -> bool:
        """Whether an epoch ends with this step."""
        ...

    def restore(self, levels: Sequence[int]) -> None:
        """Puts back what a checkpoint kept."""
        ...


class PausedError(BoughError):
    """A source asks to pause the run; the message says why."""


class PlannedSource:
    """Examples that are all known before the first step, in the order of a plan."""

    levels: Sequence[int] = (0,)  # nothing to remember: the plan follows from the settings

    def __init__(self, examples: Sequence[Example], config: TrainingConfig) -> None:
        self.examples = examples
        self.plan = Plan(
            *columns(self.examples),
            batch_size=config.optimizer.batch_size,
            num_epochs=config.optimizer.num_epochs,
            max_steps=config.optimizer.max_steps,
            curriculum=config.curriculum if config.curriculum.enabled else None,
            seed=config.seed,
        )

    def restore(self, levels: Sequence[int]) -> None:
        """The plan knows all that it needs."""

    def __len__(self) -> int:
        return len(self.plan)

    def batch(self, step: int) -> Batch:
        planned = self.plan[step]
        return Batch([self.examples[i] for i in planned.examples], planned.epoch)

    def knows(self, step: int) -> bool:
        return self.plan.laid_out(step)

    def ends_epoch(self, step: int) -> bool:
        return self.plan.ends_epoch(step)


# How many tokens a forward pass reads where the settings do not say: as many as the GPU's memory allows.
# Small passes leave a large GPU idle, too large ones run out of memory. What a token keeps for the backward pass is
# estimated from the model's shape, deliberately high; should it be too low all the same, the loop halves the budget.
# Where a sampler works beside training, the same estimate says how much memory it leaves.

# Past the upper bound nothing gets faster; the lower one holds a few calls.
LEAST, MOST, STEP = 1024, 65_536, 1024
# Of what is left beside the weights. The rest is for the head's logits, kernels' work space and fragmentation.
SHARE = 0.6
# Online the sampler keeps the histories of all episodes in the same memory.
SHARE_ONLINE = 0.3
# Passes that are recorded as CUDA graphs have memory of their own, beside that of passes that are not.
WITH_GRAPHS = 0.5
# Bytes that a token leaves for the backward pass in each layer, bfloat16 with norms in float32: per unit of the
# hidden size (two norms, residuals, query, key, value, attention) and of the size inside the MLP (gate, up,
# activation, product). Adapters keep their inputs and small products too.
PER_HIDDEN, PER_INNER, WITH_ADAPTER = 34, 8, 1.3
# Bytes of a weight: itself in float32, its gradient and two moments, and a copy in bfloat16 to compute with.
TRAINED, TRAINED_8BIT, FROZEN, FROZEN_4BIT = 18, 12, 2, 0.6
COPIED = 4  # of a copy of trained weights, to sample with
# Of a trained weight that is loaded already: its gradient, two moments, and a copy in bfloat16.
BESIDE_WEIGHT = 14


@dataclass(frozen=True)
class Shape:
    """What of a model decides the memory that training takes."""

    parameters: int
    layers: int
    hidden: int
    inner: int

    @classmethod
    def of(cls, model: Any) -> Shape:
        """The shape of a transformers model; its weights may be absent."""
        config = model.config.get_text_config()
        hidden = int(config.hidden_size)
        inner = int(getattr(config, "intermediate_size", None) or 4 * hidden)
        experts = getattr(config, "num_experts_per_tok", None)
        if experts:
            inner = max(inner, int(experts) * int(getattr(config, "moe_intermediate_size", None) or inner))
        parameters = sum(parameter.numel() for parameter in model.parameters())
        return cls(parameters, int(config.num_hidden_layers), hidden, inner)


def budget_for(
    shape: Shape,
    free_bytes: int,
    *,
    lora_r: int | None,
    weight_bytes: float,
    gradient_checkpointing: bool = False,
    share: float = SHARE,
) -> int:
    """Tokens per forward pass, for a GPU with `free_bytes` before the model is loaded.

    `lora_r` is the rank of the adapter that is trained, None where all weights are;
    `weight_bytes` is what a weight of the model takes, with its gradient and moments if it is trained.
    """
    adapter = (lora_r or 0) * shape.layers * (9 * shape.hidden + 3 * shape.inner)
    left = free_bytes - shape.parameters * weight_bytes - adapter * TRAINED
    fits = int(left * share / _token_bytes(shape, adapter=bool(lora_r), gradient_checkpointing=gradient_checkpointing))
    return min(MOST, max(LEAST, fits // STEP * STEP))


def training_bytes(model: Any, token_budget: int, *, adapter: bool, gradient_checkpointing: bool = False) -> int:
    """What training takes beside the weights of a loaded model, for passes of `token_budget` tokens."""
    trained = sum(int(weight.numel()) for weight in model.parameters() if weight.requires_grad)
    token = _token_bytes(Shape.of(model), adapter=adapter, gradient_checkpointing=gradient_checkpointing)
    return trained * BESIDE_WEIGHT + int(token_budget * token / SHARE)


def _token_bytes(shape: Shape, *, adapter: bool, gradient_checkpointing: bool) -> int:
    """What a token keeps for the backward pass."""
    layer = PER_HIDDEN * shape.hidden + PER_INNER * shape.inner
    layer = int(layer * WITH_ADAPTER) if adapter else layer
    # With checkpointing each layer keeps its input, and one layer at a time is computed again.
    return layer + shape.layers * 4 * shape.hidden if gradient_checkpointing else layer * shape.layers


def choose_budget(config: TrainingConfig, processes: Processes) -> int:
    """The budget of a run whose settings name none. Logged, since memory and speed depend on it."""
    if processes.device.type != "cuda":
        return BUDGET_ON_CPU
    shape = Shape.of(load_outline(base_and_adapter(config.model)[0]))
    free = unused_bytes(processes.device, processes.per_gpu)
    found = min(processes.gather([fitting(config, shape, free, processes.count)]))  # one number in the run's settings
    if processes.first:
        log.warning("token_budget: %d (%.0f GiB of GPU memory are free).", found, free / 2**30)
    return found


def fitting(config: TrainingConfig, shape: Shape, free_bytes: int, num_processes: int = 1) -> int:
    """Tokens per pass that fit into the free memory of a GPU with these settings."""
    environment = getattr(config, "environment", None)
    if config.lora.enabled:
        weight = FROZEN_4BIT if config.lora.qlora else FROZEN
    else:
        weight = TRAINED if config.optimizer.name == "adamw" else TRAINED_8BIT
    if config.machine.shard:
        # Online, the first process has a whole copy of the weights to sample with.
        copy = FROZEN if config.lora.enabled else COPIED
        weight = weight / num_processes + (copy if environment and environment.name else 0)
    return budget_for(
        shape,
        free_bytes,
        lora_r=config.lora.r if config.lora.enabled else None,
        weight_bytes=weight,
        gradient_checkpointing=config.machine.gradient_checkpointing,
        share=(SHARE_ONLINE if environment else SHARE) * (WITH_GRAPHS if config.machine.cuda_graphs else 1),
    )


# Settings of the machine that a run decides by itself where they are left open.
CHOSEN = ("token_budget", "compile", "cuda_graphs")

# Whether a run compiles the layers and records its passes, where the settings leave that open.
# On a GPU both make the steps of a small model several times faster. Compiling takes a minute or two first, so only a
# long run gains from it. Recordings take memory, which a large model needs for its rows. Numbers may differ in their
# last bits, so what was chosen stands in the run's settings, and --resume repeats it.

COMPILING_S = 90  # on an H200, with nothing in the cache
# What compiled layers save on an H200 for a token, a layer and a unit of the hidden size: the same for SmolLM2 and for
# the shape of Qwen3-4B, because they save traffic to memory. A slower GPU saves more.
SAVED_S = 2.3e-10
# A recording takes about a second for each length of row.
FEWEST_STEPS = 100
# Parameters. The kernels of larger models take longer than Python takes to start them.
LARGEST_RECORDED = 2 * 10**9
# Shorter rows share less, and cost more than recordings gain.
SHORTEST_ROWS = 8192
SAMPLED = 4  # batches that are looked at, to know how many tokens a step has


@dataclass(frozen=True)
class Work:
    """What a run will compute."""

    num_steps: int
    num_tokens: float

    @classmethod
    def of(cls, source: PlannedSource) -> Work:
        """All steps, as many tokens each as the first few have."""
        sizes: list[int] = []
        for step in range(min(SAMPLED, len(source))):
            if step and not source.knows(step):
                break
            calls = [call for example in source.batch(step).examples for call in example.calls]
            sizes.append(len(TokenTree.of(calls)))
        return cls(len(source), len(source) * sum(sizes) / max(1, len(sizes)))


def accelerated(config: TrainingConfig, processes: Processes, source: PlannedSource | None) -> MachineConfig:
    """The settings of the machine with nothing left open about compiling and recording.

    Without `source` the run samples what it learns from: the sampler needs the memory, and what will be
    computed is not known.
    """
    machine = config.machine
    if machine.compile is not None and machine.cuda_graphs is not None:
        return machine
    if processes.device.type != "cuda" or source is None:
        return machine.model_copy(update={"compile": bool(machine.compile), "cuda_graphs": bool(machine.cuda_graphs)})
    outline = load_outline(base_and_adapter(config.model)[0])
    work = processes.first_does(lambda: Work.of(source))
    free = min(processes.gather([unused_bytes(processes.device, processes.per_gpu)]))
    machine, reasons = choose(config, outline, free, work)
    if processes.first:
        log.warning("%s.", "; ".join(reasons))
    return machine


def choose(config: TrainingConfig, model: Any, free_bytes: int, work: Work) -> tuple[MachineConfig, list[str]]:
    """The same on a GPU, and in words what was chosen and why. The model's weights may be absent."""
    machine, shape, decoder = config.machine, Shape.of(model), decoder_of(model)
    saved_s = work.num_tokens * shape.layers * shape.hidden * SAVED_S
    recorded = config.model_copy(update={"machine": machine.model_copy(update={"cuda_graphs": True})})
    # Compiled code does not hear routers; the rest has not been tried.
    against_both = {
        "--shard": machine.shard,
        "--qlora": config.lora.qlora,
        "dropout": uses_dropout(model) or (config.lora.enabled and config.lora.dropout > 0),
        "a mixture of experts": Routers.of(decoder) is not None,
        "layers that carry state": bool(known_mixers(decoder)),
    }
    against = {
        "compile": {f"it takes {COMPILING_S} s and would save about {saved_s:.0f} s": saved_s < 2 * COMPILING_S},
        "cuda_graphs": {
            "--gradient-checkpointing": machine.gradient_checkpointing,
            "rows are not computed with FlexAttention": machine.attention == "sdpa"
            or not machine.share
            or bool(branching_obstacle(decoder)),
            f"the run has fewer than {FEWEST_STEPS} steps": work.num_steps < FEWEST_STEPS,
            "the model is large enough to keep the GPU busy": shape.parameters > LARGEST_RECORDED,
            "its memory is needed for longer rows": fitting(recorded, shape, free_bytes)
            < (machine.token_budget or SHORTEST_ROWS),
        },
    }
    gains = {"compile": f"{COMPILING_S} s once, to save about {saved_s / 60:.0f} min; ", "cuda_graphs": ""}
    found, reasons = dict[str, bool](), list[str]()
    for name, own in against.items():
        if getattr(machine, name) is None:
            why_not = next((why for why, holds in {**against_both, **own}.items() if holds), None)
            found[name] = why_not is None
            on = f"on ({gains[name]}--no-{name.replace('_', '-')} turns it off)"
            reasons.append(f"{name}: {on if why_not is None else f'off ({why_not})'}")
    return machine.model_copy(update=found), reasons


def not_recorded(config: TrainingConfig) -> list[str]:
    """Settings that rule out CUDA graphs; what of a model does, `RowReader.not_recordable` knows."""
    given = {
        "--gradient-checkpointing": config.machine.gradient_checkpointing,
        "--qlora": config.lora.qlora,
        "--lora-dropout": config.lora.enabled and config.lora.dropout > 0,
    }
    return [name for name, holds in given.items() if holds]
