"""Mixers, the modules of a model that carry state along the sequence, and how they read trees.

All mixers in transformers are written alike: projections around a few functions that look at
other tokens (`causal_conv1d_fn`, `torch_chunk_gated_delta_rule`, `mamba2_chunk_scan`). For a
tree, the mixer's own `forward` runs with those functions in their tree form; everything else
stays the model's own code. A mixer that calls a function unknown here is left as it is.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from bough.trees.recurrent import Branching, tree_convolution

# What a model's layers look at, read off the model: which masks it needs, and whether it can branch.

# What a mask over positions can express. GPT-Neo's "local" layers look back along the row instead.
EXPRESSIBLE = {"full_attention", "sliding_attention", "chunked_attention", "global"}
# Layers with a mixer; a hybrid layer has attention as well.
STATEFUL = {"conv", "linear_attention", "hybrid"}
POINTWISE = {"mlp", "moe"}  # look at no other token


@dataclass(frozen=True)
class Sight:
    """How far back a layer looks along the path from the root; None is all the way.

    `window` counts positions back from the token, itself included; `chunk` cuts the path
    into pieces of that size and looks back to the start of the token's own piece.
    """

    window: int | None = None
    chunk: int | None = None

    def since(self, position_L: Tensor) -> Tensor | None:
        """The earliest position that each token sees, or None where all see everything."""
        if self.window is not None:
            return position_L - (self.window - 1)
        if self.chunk is not None:
            return position_L // self.chunk * self.chunk
        return None


def layer_sights(decoder: nn.Module) -> dict[str, Sight]:
    """The kinds of attention layers of a decoder and what each sees."""
    config: Any = decoder.config
    # A config may name a window that its model never looks at.
    slides = hasattr(_code(decoder), "create_sliding_window_causal_mask")
    window = getattr(config, "sliding_window", None) if slides else None
    sights = {
        "full_attention": Sight(),
        "sliding_attention": Sight(window=window),
        "chunked_attention": Sight(chunk=getattr(config, "attention_chunk_size", None)),
    }
    all_alike = ["full_attention" if window is None else "sliding_attention"]  # Mistral names no types
    kinds = set(getattr(config, "layer_types", None) or all_alike)
    if "hybrid" in kinds:
        kinds.add("full_attention")
    return {kind: sights[kind] for kind in sorted(kinds - STATEFUL - POINTWISE)}


def length_matters(config: Any) -> bool:
    """Whether the rotary frequencies depend on the longest sequence of the row."""
    rope = getattr(config, "rope_parameters", None) or {}
    per_kind = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    return any(parameters.get("rope_type") in ("dynamic", "longrope") for parameters in per_kind)


def branching_obstacle(decoder: nn.Module) -> str | None:
    """Why the decoder cannot read a tree, or None if it can.

    A tree needs layers that look at other tokens through attention or a known mixer only,
    positions that come from `position_ids`, and a mask that is used as it is given.
    """
    config: Any = decoder.config
    layer_types = [*(getattr(config, "layer_types", None) or ()), *(getattr(config, "attention_layers", None) or ())]
    mixers = known_mixers(decoder)
    num_stateful = sum(kind in STATEFUL for kind in layer_types)
    foreign = set(layer_types) - EXPRESSIBLE - POINTWISE - (STATEFUL if len(mixers) == num_stateful else set())
    if foreign:
        return f"it has layers of kind {', '.join(sorted(foreign))}"
    inside = {child for mixer in mixers for child in mixer.modules()}
    unknown = any(isinstance(module, nn.Conv1d) and module not in inside for module in decoder.modules())
    if unknown or (getattr(decoder, "_is_stateful", False) and not mixers):
        return "its layers carry state along the sequence"
    if mixers and not layer_sights(decoder):
        return None  # without attention, a token's place is nowhere used
    if getattr(config, "alibi", False) or "position_ids" not in inspect.signature(decoder.forward).parameters:
        return "its positions do not come from position ids"
    if length_matters(config):
        return "its rotary frequencies depend on the length of the row"
    if not hasattr(_code(decoder), "create_causal_mask"):
        return "it makes its own attention mask"
    return None


def _code(decoder: nn.Module) -> ModuleType:
    return sys.modules[type(decoder).__module__]


# The gated delta rule over a tree (Qwen3-Next, Qwen3.5, OLMo Hybrid; Kimi's form has a gate per channel).

CHUNK = 64  # transformers' own default


def tree_delta_rule(
    branching: Branching,
    rule: Callable[..., tuple[Tensor, Tensor]],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[Tensor, None]:
    """The model's own `rule` (transformers' `torch_chunk_gated_delta_rule`) with a state per segment.

    Inputs and output are [1, L, heads, ...]. Where a segment ends before the others of its
    batch, a gate of 0 in log space and a beta of 0 keep its state.
    """
    options = {"output_final_state": True, "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel}
    inputs = [each[0] for each in (query, key, value, g, beta)]
    kernel = fla_kernel(KIMI_DELTA_RULE if g.dim() == key.dim() else DELTA_RULE, query)
    if kernel is not None:
        return branching.linear_scan(inputs, _packed(kernel, **options))[None], None

    def step(inputs: Sequence[Tensor], state_S: Tensor | None) -> tuple[Tensor, Tensor]:
        q, k, v, g, beta = inputs
        # A short segment would be padded to a whole chunk.
        chunk_size = min(CHUNK, 1 << (q.shape[1] - 1).bit_length())
        return rule(q, k, v, g=g, beta=beta, initial_state=state_S, chunk_size=chunk_size, **options)

    return branching.scan(inputs, step)[None], None


def row_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """The gated delta rule over plain rows on CUDA, as transformers calls it: a kernel that can be trained."""
    kernel = fla_kernel(DELTA_RULE, query)
    assert kernel is not None
    output, state = kernel(
        query, key, value, g=g, beta=beta, cu_seqlens=cu_seqlens,
        initial_state=None if initial_state is None else initial_state.float(),
        output_final_state=output_final_state, use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
    )  # fmt: skip
    return output, state


def _packed(kernel: Callable[..., Any], **options: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    """The kernel as a step over queries, keys, values, gates and, for the delta rule, betas."""

    def step(
        inputs: Sequence[Tensor], state_S: Tensor | None, bounds: Tensor, bounds_on_cpu: Tensor
    ) -> tuple[Tensor, Tensor]:
        named = dict(zip(("g", "beta"), inputs[3:], strict=False))
        places = {"initial_state": state_S, "cu_seqlens": bounds, "cu_seqlens_cpu": bounds_on_cpu}
        output, state = kernel(*inputs[:3], **named, **places, **options)
        return output, state

    return step


# The Mamba-2 scan over a tree (Granite 4, Nemotron-H, Falcon-H1, Bamba, Zamba2, Mamba-2).

SMALLEST_ON_CUDA = 16  # the shortest chunk that the kernels of mamba-ssm can multiply


def tree_scan(
    branching: Branching,
    scan: Callable[..., Any],
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    **_: Any,
) -> Tensor:
    """The model's own `scan` (transformers' `mamba2_chunk_scan`) with a state per segment.

    Inputs are [1, L, heads or groups, ...]. A time step of 0 leaves a state alone, so the time
    steps are made here, before segments are padded: made of padding they would not be 0.
    """
    if dt_bias is not None:
        dt = dt + dt_bias.to(dt.dtype)
    if dt_softplus:
        dt = softplus(dt)
    dt = dt.clamp(*dt_limit)
    kernel = fla_kernel(LINEAR_ATTENTION, hidden_states)
    if kernel is not None:
        # Mamba-2 is linear attention with a decay per head: keys B, queries C, values x * dt.
        repeats = hidden_states.shape[2] // B.shape[2]
        q, k = (each.repeat_interleave(repeats, dim=2) for each in (C, B))
        v = (hidden_states * dt[..., None]).to(hidden_states.dtype)
        decay = A.float() * dt.float()
        packed = _packed(kernel, scale=1.0, output_final_state=True)
        output = branching.linear_scan([each[0] for each in (q, k, v, decay)], packed)[None]
        return output if D is None else output + D[:, None] * hidden_states

    def step(inputs: Sequence[Tensor], state_S: Tensor | None) -> tuple[Tensor, Tensor]:
        x, dt, b, c = inputs
        # A short segment would be padded to a whole chunk.
        smallest = SMALLEST_ON_CUDA if x.is_cuda else 1
        chunk = min(chunk_size, max(smallest, 1 << (x.shape[1] - 1).bit_length()))
        output, state = scan(
            x, dt, A, b, c, chunk_size=chunk, D=D, initial_states=state_S, return_final_states=True
        )  # fmt: skip
        return output, state

    return branching.scan([each[0] for each in (hidden_states, dt, B, C)], step)[None]


TREE_FORMS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": tree_convolution,
    "torch_chunk_gated_delta_rule": tree_delta_rule,
    "chunk_kimi_delta_attention": tree_delta_rule,
    "mamba2_chunk_scan": tree_scan,
    # As if the kernel that does a whole Mamba-2 layer in one were not installed.
    "mamba2_split_conv1d_scan_combined": lambda *_, **__: None,
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
    forward: Callable[..., Any] = type(mixer).forward
    # Installed kernels that cannot do the work here are not called.
    if kernels_installed() and _on_cpu(mixer):
        forward = _with_functions(mixer, _torch_forms(mixer))
    elif kernels_installed() and torch.is_grad_enabled() and head_gates_refused():
        forward = _with_functions(mixer, {"torch_chunk_gated_delta_rule": row_delta_rule})
    return forward(mixer, *inputs, attention_mask=attention_mask, **options)


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


# Kernels of flash-linear-attention (fla), used on CUDA where the package is installed.
# On Hopper GPUs, Triton 3.4 to 3.7.0 miscompiles the gradient of kernels with one gate per head, and fla refuses to
# compute it. Its kernels with a gate per channel are not affected and give the same result when all channels of a
# head have the same gate, so they take over there.

DELTA_RULE = "gated_delta_rule.chunk_gated_delta_rule"
KIMI_DELTA_RULE = "kda.chunk_kda"
LINEAR_ATTENTION = "simple_gla.chunk_simple_gla"
# Kernels with a gate per head, and those with a gate per channel that compute the same.
PER_CHANNEL = {DELTA_RULE: KIMI_DELTA_RULE, LINEAR_ATTENTION: "gla.chunk_gla"}


def fla_kernel(name: str, example: Tensor) -> Callable[..., Any] | None:
    """The kernel `fla.ops.<name>` for tensors like `example`; None where the plain torch form must be used.

    It takes q, k and v [1, T, heads, size] by position and the rest by name. States are float32
    and gradients flow through them.
    """
    if not example.is_cuda:
        return None
    if name in PER_CHANNEL and head_gates_refused():
        kernel = _imported(PER_CHANNEL[name])
        return None if kernel is None else with_gates_per_channel(kernel)
    return _imported(name)


@cache
def head_gates_refused() -> bool:
    """Whether fla refuses the backward pass of kernels with a gate per head on this machine."""
    try:
        found = import_module("fla.utils")
        miscompiled = found.TRITON_ABOVE_3_4_0 and not found.TRITON_ABOVE_3_7_1
        return bool(found.IS_NVIDIA_HOPPER and miscompiled)
    except (ImportError, AttributeError):  # not installed, or another version that no longer needs the check
        return False


def with_gates_per_channel(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel with a gate per channel as one that takes a gate per head, `g` [1, T, heads]."""

    def run(q: Tensor, k: Tensor, v: Tensor, *, g: Tensor, **options: Any) -> Any:
        return kernel(q, k, v, g=g[..., None].expand(*g.shape, k.shape[-1]), **options)

    return run


@cache
def _imported(name: str) -> Callable[..., Any] | None:
    package, _, function = name.rpartition(".")
    try:
        kernel: Callable[..., Any] = getattr(import_module(f"fla.ops.{package}"), function)
    except ImportError:
        return None
    return kernel
