"""Mixers, the modules of a model that carry state along the sequence, and how they read trees.

All mixers in transformers are written alike: projections around a few functions that look at
other tokens (`causal_conv1d_fn`, `torch_chunk_gated_delta_rule`, `mamba2_chunk_scan`). For a
tree, the mixer's own `forward` runs with those functions in their tree form; everything else
stays the model's own code. A mixer that calls a function unknown here is left as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.util import find_spec
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from bough.trees.convolution import tree_convolution
from bough.trees.delta_net import row_delta_rule, tree_delta_rule
from bough.trees.kernels import head_gates_refused
from bough.trees.mamba2 import tree_scan
from bough.trees.recurrent import Branching


def _no_fused_form(*_: Any, **__: Any) -> None:
    """As if the kernel that does a whole Mamba-2 layer in one were not installed."""


TREE_FORMS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": tree_convolution,
    "torch_chunk_gated_delta_rule": tree_delta_rule,
    "chunk_kimi_delta_attention": tree_delta_rule,
    "mamba2_chunk_scan": tree_scan,
    "mamba2_split_conv1d_scan_combined": _no_fused_form,
}
# Functions that mixers call with a cache only, or that look at one token at a time.
HARMLESS = {
    "apply_mask_to_padding_states",
    "causal_conv1d_update",
    "torch_recurrent_gated_delta_rule",
    "recurrent_kimi_delta_attention",
    "mamba2_selective_state_update",
}


def known_mixers(decoder: nn.Module) -> list[nn.Module]:
    """The mixers of a decoder that can read trees."""
    return [module for module in decoder.modules() if _is_known(type(module))]


def unknown_convolutions(decoder: nn.Module) -> bool:
    """Whether the decoder has convolutions outside of known mixers."""
    inside = {child for mixer in known_mixers(decoder) for child in mixer.modules()}
    return any(isinstance(module, nn.Conv1d) and module not in inside for module in decoder.modules())


def let_mixers_branch(decoder: nn.Module) -> None:
    """From now on the mixers of `decoder` take a `Branching` as their attention mask."""
    for mixer in known_mixers(decoder):
        mixer.forward = MethodType(_forward, mixer)


def _forward(
    mixer: nn.Module, *inputs: Any, attention_mask: Any = None, branching: Branching | None = None, **options: Any
) -> Any:
    if branching is None and isinstance(attention_mask, Branching):
        branching = attention_mask
    if branching is not None:
        return _tree_forward(branching, mixer, *inputs, **options)
    if functions := _instead_of_kernels(mixer):
        return _with_functions(mixer, functions)(mixer, *inputs, attention_mask=attention_mask, **options)
    return type(mixer).forward(mixer, *inputs, attention_mask=attention_mask, **options)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # every tree has other levels
def _tree_forward(branching: Branching, mixer: nn.Module, *inputs: Any, **options: Any) -> Any:
    functions = _torch_forms(mixer) if _on_cpu(mixer) else _own_forward(mixer).__globals__
    forms = {name: partial(form, branching, functions.get(name)) for name, form in TREE_FORMS.items()}
    return _with_functions(mixer, forms)(mixer, *inputs, attention_mask=None, **options)


def _with_functions(mixer: nn.Module, functions: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """The mixer's own `forward`, calling these functions where it would call those of the same names."""
    own = _own_forward(mixer)
    forward = FunctionType(
        own.__code__, {**own.__globals__, **functions}, own.__name__, own.__defaults__, own.__closure__
    )
    forward.__kwdefaults__ = own.__kwdefaults__
    return forward


def _instead_of_kernels(mixer: nn.Module) -> Mapping[str, Callable[..., Any]]:
    """What the mixer calls without a tree in place of installed kernels that cannot do the work here."""
    if not kernels_installed():
        return {}
    if _on_cpu(mixer):
        return _torch_forms(mixer)
    if torch.is_grad_enabled() and head_gates_refused():
        return {"torch_chunk_gated_delta_rule": row_delta_rule}
    return {}


def _torch_forms(mixer: nn.Module) -> dict[str, Callable[..., Any]]:
    """What the mixer calls, in plain torch: an installed kernel takes its place on a CPU too, where it cannot run."""
    own = _own_forward(mixer)
    return {name: inspect.unwrap(own.__globals__[name]) for name in own.__code__.co_names if _is_local(own, name)}


@cache
def kernels_installed() -> bool:
    """Whether transformers finds kernels that it calls instead of its own functions."""
    return any(find_spec(package) for package in ("fla", "causal_conv1d", "mamba_ssm"))


def _on_cpu(mixer: nn.Module) -> bool:
    return next(mixer.parameters()).device.type == "cpu"


def _own_forward(mixer: nn.Module) -> FunctionType:
    own: FunctionType = inspect.unwrap(type(mixer).forward)
    return own


def _is_known(kind: type[nn.Module]) -> bool:
    own = inspect.unwrap(kind.forward)
    if not inspect.isfunction(own) or "causal_conv1d_fn" not in own.__code__.co_names:
        return False
    if "attention_mask" not in inspect.signature(own).parameters:
        return False
    called = {name for name in own.__code__.co_names if _is_local(own, name)}
    return called <= TREE_FORMS.keys() | HARMLESS


def _is_local(own: FunctionType, name: str) -> bool:
    """Whether the name, as `own` uses it, is a function of the file that `own` is in."""
    found = own.__globals__.get(name)
    return inspect.isfunction(found) and inspect.unwrap(found).__module__ == own.__module__
