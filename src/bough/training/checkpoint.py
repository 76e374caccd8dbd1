"""Checkpoints: everything a run needs to resume as if it had never stopped, complete or not there at all.

    checkpoints/step-00000100/
        weights/                the adapter (or model), loadable by anyone
        optimizer.safetensors   the optimizer's tensors
        random.safetensors      the state of every process's random number generators
        state.json              the optimizer's numbers, the counters, the number of processes
        files.json              size and digest of all of these files

A checkpoint is written under another name, synced and renamed, so one that has its name is
complete. What has been damaged since is found by the digests before anything is loaded.
Loading reads safetensors and JSON and executes nothing.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal, NamedTuple, Self

import torch
from pydantic import Field, FiniteFloat, StrictBool, StrictInt, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bough.errors import InputError
from bough.files import drafting, put_in_place, read_json, remove, write_json
from bough.models.resolve import file_digest
from bough.policy.processes import gather, piece

NAME = re.compile(r"step-(\d{8})")
OPTIMIZER, RANDOM, STATE, FILES = "optimizer.safetensors", "random.safetensors", "state.json", "files.json"
# A list of files is a few kilobytes; a larger file is not one and is not parsed.
LONGEST_LIST = 1 << 20
# What reading damaged JSON or safetensors ends in.
BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, SafetensorError)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk."""

    path: Path

    @property
    def step(self) -> int:
        match = NAME.fullmatch(self.path.name)
        assert match is not None
        return int(match[1])

    @property
    def weights(self) -> Path:
        return self.path / "weights"

    def check(self) -> None:
        """InputError where a file is not what it was when it was saved."""
        for name, (size, digest) in self._files().items():
            file = self.path / name
            try:  # the size first: a large file that was not saved is not read
                same = file.is_file() and file.stat().st_size == size and file_digest(file) == digest
            except OSError:
                same = False
            if not same:
                raise self.damaged(f"{name} is {'not what was saved' if file.exists() else 'missing'}")

    def restore(self, optimizer: torch.optim.Optimizer, *, rank: int = 0, count: int = 1) -> Counters:
        """Puts back the optimizer's state and the random state of process `rank`; returns the counters.

        The optimizer's settings stay its own: a run may resume with others than it began with.
        """
        try:
            state = _json(self.path / STATE)
            counters = Counters.from_json(state["counters"])
            if counters.step != self.step:
                raise ValueError(f"its counters are those of step {counters.step}")
            saved = OptimizerState(load_file(self.path / OPTIMIZER), state["optimizer"])
            if (kind := saved.numbers["kind"]) != type(optimizer).__name__:
                raise InputError(f"{self.path} was saved with the optimizer {kind}; a run keeps its --optimizer")
            found = saved.checked(optimizer)
            randomness = _random(load_file(self.path / RANDOM), state["processes"])
        except InputError:
            raise
        except BROKEN as error:
            why = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) and error.args else str(error)
            raise self.damaged(why) from error
        found.put_into(optimizer)
        if len(randomness) != count and rank == 0:
            log.warning(
                "The checkpoint was saved by %d processes and %d resume from it: with dropout the result is not that "
                "of an uninterrupted run.",
                len(randomness),
                count,
            )
        if rank < len(randomness):
            torch.set_rng_state(randomness[rank]["cpu"])
            if "cuda" in randomness[rank] and torch.cuda.is_available():
                torch.cuda.set_rng_state(randomness[rank]["cuda"])
        return counters

    def damaged(self, why: str) -> InputError:
        """The error that says what is wrong and what can be resumed from instead."""
        earlier = [found for found in checkpoints(self.path.parent) if found.step < self.step]
        instead = f"from step {earlier[-1].step} ({earlier[-1].path})" if earlier else "from the beginning"
        return InputError(f"{self.path} is damaged: {why}. Delete this folder, and --resume starts {instead}")

    def _files(self) -> dict[str, tuple[int, str]]:
        """The sizes and digests of the files."""
        file = self.path / FILES
        try:
            if file.stat().st_size > LONGEST_LIST:
                raise ValueError(f"it has {file.stat().st_size} bytes")
            found = {name: (int(one["bytes"]), str(one["sha256"])) for name, one in _json(file).items()}
        except BROKEN as error:
            raise self.damaged(f"{FILES} is not a list of files: {error}") from None
        weights = (file for file in sorted(self.weights.rglob("[!.]*")) if file.is_file())
        loaded = [OPTIMIZER, RANDOM, STATE, *(file.relative_to(self.path).as_posix() for file in weights)]
        if missing := [name for name in loaded if name not in found]:
            raise self.damaged(f"{FILES} does not list {', '.join(missing)}")
        return found


def checkpoints(folder: Path) -> list[Checkpoint]:
    """The checkpoints of a run, oldest first."""
    if not folder.exists():
        return []
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder, so it holds no checkpoints; move it away")
    return sorted((Checkpoint(p) for p in folder.iterdir() if NAME.fullmatch(p.name)), key=lambda c: c.step)


def random_state() -> dict[str, Tensor]:
    """The state of this process's random number generators."""
    state = {"cpu": torch.get_rng_state()}
    return state | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def save(
    folder: Path,
    save_weights: Callable[[Path], None],
    optimizer: OptimizerState,
    randomness: Sequence[Mapping[str, Tensor]],
    counters: Counters,
    *,
    keep: int,
) -> Checkpoint:
    """Writes a checkpoint and then removes all but the newest `keep`. `randomness` is each process's `random_state`."""
    draft = folder / f".step-{counters.step:08}"
    saved = Checkpoint(folder / f"step-{counters.step:08}")
    with drafting(draft, saved.path):
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(".step-*"):
            remove(leftover)
        draft.mkdir()
        save_weights(draft / "weights")
        save_file(optimizer.tensors, draft / OPTIMIZER)
        by_rank = {f"{name}.{rank}": value for rank, state in enumerate(randomness) for name, value in state.items()}
        save_file(by_rank, draft / RANDOM)
        state = {"optimizer": optimizer.numbers, "counters": asdict(counters), "processes": len(randomness)}
        (draft / STATE).write_text(json.dumps(state), encoding="utf-8")
        files = sorted(file for file in draft.rglob("*") if file.is_file())
        write_json(draft / FILES, {str(file.relative_to(draft).as_posix()): _listed(file) for file in files})
        put_in_place(draft, saved.path)
    for old in checkpoints(folder)[:-keep]:
        # A rename first: a removal that is cut short must not leave half a checkpoint under its name.
        doomed = old.path.with_name(f".{old.path.name}")
        old.path.rename(doomed)
        remove(doomed)
    return saved


def _listed(file: Path) -> dict[str, int | str]:
    return {"bytes": file.stat().st_size, "sha256": file_digest(file)}


def _json(file: Path) -> dict[str, Any]:
    found = read_json(file)
    if not isinstance(found, dict):
        raise TypeError(f"{file.name} does not hold a JSON object")
    return found


def _random(tensors: dict[str, Tensor], processes: Any) -> list[dict[str, Tensor]]:
    """The random state of each process. ValueError or KeyError where one is missing or is none."""
    if not isinstance(processes, int) or isinstance(processes, bool) or not 0 < processes <= len(tensors):
        raise ValueError(f"{RANDOM} holds no state of {processes!r} processes")
    states = [{"cpu": tensors[f"cpu.{rank}"]} for rank in range(processes)]
    for rank, state in enumerate(states):
        if (cuda := tensors.get(f"cuda.{rank}")) is not None:
            state["cuda"] = cuda
        if any(value.dtype != torch.uint8 or value.dim() != 1 for value in state.values()):
            raise ValueError(f"{RANDOM} holds no state of process {rank}")
        if state["cpu"].shape != torch.get_rng_state().shape:
            raise ValueError(f"the random state of process {rank} has another size than this machine's")
    return states


# Writes checkpoints in the background: training continues as soon as their tensors are copied.
# One is written at a time, and the next waits for it. A kill finds the one before it whole, as ever: a checkpoint
# gets its name when it is complete.


class CheckpointWriter:
    """Runs one function at a time in a thread. On leaving its `with` the last one is done.

    What the function raises is raised by the next `check`, `wait` or `begin`.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[Any] | None = None

    def begin(self, write: Callable[[], Any]) -> None:
        """Starts to write, after what is being written."""
        self.wait()
        self._writing = self._thread.submit(write)

    def check(self) -> None:
        """Raises what writing failed with, if it is over."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Returns when everything is written."""
        if (writing := self._writing) is None:
            return
        try:
            writing.result()
        finally:
            if writing.done():  # else the wait was interrupted, and `__exit__` waits for the rest
                self._writing = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            self.wait()
        except Exception as failure:
            if error is None:
                raise
            log.error("%s", failure)


def snapshot(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies in the CPU's memory, which training does not change. A tensor under two names stays one."""
    copies: dict[tuple[Any, ...], Tensor] = {}
    found = {}
    for name, tensor in tensors.items():
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) if tensor.numel() else (name,)
        if key not in copies:
            copies[key] = tensor.detach().to("cpu", copy=True)
        found[name] = copies[key]
    return found


Count = Annotated[StrictInt, Field(ge=0)]
OF_EARLIER_VERSIONS = {"success_total", "success_count", "overflows", "loss_scale"}  # counters


@dataclass
class Counters:
    """Where a run is: counts since its start, which a checkpoint keeps as numbers."""

    step: Count = 0
    tokens_trained: Count = 0
    tokens_computed: Count = 0
    tokens_raw: Count = 0
    token_budget: Count = 0  # as it was set
    budget: Count = 0  # as it is, where memory ran out
    gradient_checkpointing: StrictBool = False  # switched on where memory ran out
    best_loss: FiniteFloat | None = None
    evaluations_without_gain: Count = 0
    levels: Annotated[list[Count], Field(min_length=1)] = field(default_factory=lambda: [0])

    def count_evaluation(self, loss: float) -> bool:
        """Notes an evaluation's loss; whether it is the lowest so far. One that is not finite never is."""
        best = math.isfinite(loss) and (self.best_loss is None or loss < self.best_loss)
        self.best_loss = loss if best else self.best_loss
        self.evaluations_without_gain = 0 if best else self.evaluations_without_gain + 1
        return best

    @classmethod
    def from_json(cls, values: Any) -> Counters:
        """The counters of a checkpoint. ValueError where one is missing or out of range."""
        names = {one.name for one in fields(cls)}
        if not isinstance(values, dict) or not names <= values.keys() <= names | OF_EARLIER_VERSIONS:
            raise ValueError(f"the counters are not {', '.join(sorted(names))}")
        try:
            return TypeAdapter(cls).validate_python(values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise ValueError(f"the counter {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


# The optimizer, AdamW or one of bitsandbytes' 8-bit versions, its learning rate by step, and its state as it is kept.

Decay = Literal["cosine", "linear", "constant"]
Kind = Literal["adamw", "adamw_8bit", "paged_adamw_8bit"]


def make_optimizer(
    parameters: Iterable[tuple[str, nn.Parameter]], *, kind: Kind, learning_rate: float, weight_decay: float
) -> torch.optim.Optimizer:
    """An optimizer for the named parameters. Vectors (norms, biases) do not decay."""
    trained = [parameter for _, parameter in parameters if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trained if parameter.dim() > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in trained if parameter.dim() <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if kind == "adamw":
        # One kernel for all weights on a GPU; the plain loop elsewhere, which is bit-exact from run to run.
        on_gpu = all(parameter.is_cuda for parameter in trained)
        return torch.optim.AdamW(groups, lr=learning_rate, fused=on_gpu)
    if not torch.cuda.is_available():
        raise InputError(f"optimizer {kind} needs CUDA; use adamw without it")
    try:
        from bitsandbytes import optim
    except ImportError:
        raise InputError(f"optimizer {kind} needs bitsandbytes; pip install 'bough[qlora]'") from None
    made: torch.optim.Optimizer = {"adamw_8bit": optim.AdamW8bit, "paged_adamw_8bit": optim.PagedAdamW8bit}[kind](
        groups, lr=learning_rate
    )
    return made


def learning_rate(step: int, num_steps: int, *, peak: float, warmup_ratio: float, decay: Decay) -> float:
    """The rate of step 0, 1, …, `num_steps` - 1: a function of the step alone, so there is nothing to save.

    It rises in equal parts over the first `warmup_ratio` of the steps (the first step has
    its part already, never 0), reaches `peak` after them, and falls towards 0, which it
    would reach one step after the last.
    """
    warmup = math.ceil(num_steps * warmup_ratio)
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    done = (step - warmup) / max(1, num_steps - warmup)
    if decay == "cosine":
        return peak * 0.5 * (1 + math.cos(math.pi * done))
    return peak * (1 - done) if decay == "linear" else peak


MOMENTS = ("exp_avg", "exp_avg_sq")


class OptimizerState(NamedTuple):
    """An optimizer's state as a checkpoint keeps it: tensors by name, and numbers as JSON."""

    tensors: dict[str, Tensor]
    numbers: dict[str, Any]

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer) -> OptimizerState:
        """The state as it is now. Where weights are sharded every process must ask; the first gets it whole."""
        state = optimizer.state_dict()
        tensors: dict[str, Tensor] = {}
        numbers: dict[str, Any] = {
            "kind": type(optimizer).__name__,
            "state": {},
            "param_groups": state["param_groups"],
        }
        for index, values in state["state"].items():
            for name, value in _unwrapped(values).items():
                if isinstance(value, Tensor):
                    tensors[f"{index}.{name}"] = value
                else:
                    numbers["state"].setdefault(str(index), {})[name] = value
        return cls(_each_by_itself(gather(tensors)), numbers)

    def checked(self, optimizer: torch.optim.Optimizer) -> OptimizerState:
        """This state. ValueError and the like where the optimizer cannot have had it or a value is not finite."""
        weights = _weights(optimizer)
        groups = [group["params"] for group in optimizer.state_dict()["param_groups"]]
        if [group["params"] for group in self.numbers["param_groups"]] != groups:
            raise ValueError("the optimizer's groups are not those of the weights that are trained")
        for index, values in self._by_weight().items():
            if not 0 <= index < len(weights):
                raise ValueError(f"the optimizer's state is of weight {index} of {len(weights)}")
            weight = weights[index]
            for name in MOMENTS:
                value = values.get(name, weight)
                if not isinstance(value, Tensor) or (value.shape, value.dtype) != (weight.shape, weight.dtype):
                    raise ValueError(f"the optimizer's {name} of weight {index} has not the weight's shape and type")
        if (broken := not_finite(self.tensors)) is not None:
            raise ValueError(f"the optimizer's {broken} holds a value that is not finite")
        return self

    def put_into(self, optimizer: torch.optim.Optimizer) -> None:
        """Makes it the optimizer's state, cut as the weights are; the optimizer's settings stay its own."""
        weights = _weights(optimizer)
        state = {
            index: {
                name: piece(value, weights[index]) if isinstance(value, Tensor) else value
                for name, value in values.items()
            }
            for index, values in self._by_weight().items()
        }
        kept, own = self.numbers["param_groups"], optimizer.state_dict()["param_groups"]
        groups = [old | mine | {"params": old["params"]} for old, mine in zip(kept, own, strict=True)]
        optimizer.load_state_dict({"state": state, "param_groups": groups})

    def _by_weight(self) -> dict[int, dict[str, Any]]:
        state: dict[int, dict[str, Any]] = {int(i): dict(values) for i, values in self.numbers["state"].items()}
        for key, value in self.tensors.items():
            index, _, name = key.partition(".")
            state.setdefault(int(index), {})[name] = value
        return state


def not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of a tensor that holds a value which is not finite; None where all are."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            return name
    return None


def _weights(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def _unwrapped(values: dict[str, Any]) -> dict[str, Any]:
    """bitsandbytes keeps what belongs to 8-bit moments in a dictionary of its own; it reads it without one too."""
    inner = [value for value in values.values() if isinstance(value, dict)]
    flat = {name: value for name, value in values.items() if not isinstance(value, dict)}
    return {name: value for part in (flat, *inner) for name, value in part.items()}


def _each_by_itself(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A file holds no tensor under two names, as bitsandbytes has its quantization maps."""
    seen: set[int] = set()
    found = {}
    for name, tensor in tensors.items():
        found[name] = tensor.clone() if tensor.data_ptr() in seen else tensor.contiguous()
        seen.add(tensor.data_ptr())
    return found
