"""The optimizer, AdamW or one of bitsandbytes' 8-bit versions, and its learning rate by step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from bough.errors import InputError
from bough.policy.processes import gather, piece

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

    @property
    def not_finite(self) -> str | None:
        """Which tensor holds a value that is not finite, if one does."""
        return not_finite(self.tensors)

    def checked(self, optimizer: torch.optim.Optimizer) -> OptimizerState:
        """This state. ValueError and the like where the optimizer cannot have had it or a value is not finite."""
        weights = _weights(optimizer)
        groups = [group["params"] for group in optimizer.state_dict()["param_groups"]]
        if [group["params"] for group in self.numbers["param_groups"]] != groups:
            raise ValueError("the optimizer's groups are not those of the weights that are trained")
        for index, values in self._by_weight().items():
            if not 0 <= index < len(weights):
                raise ValueError(f"the optimizer's state is of weight {index} of {len(weights)}")
            for name in MOMENTS:
                if name in values and not _alike(values[name], weights[index]):
                    raise ValueError(f"the optimizer's {name} of weight {index} has not the weight's shape and type")
        if (broken := self.not_finite) is not None:
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


def _alike(value: Any, weight: Tensor) -> bool:
    return isinstance(value, Tensor) and (value.shape, value.dtype) == (weight.shape, weight.dtype)


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
