"""The model as the engine uses it: token ids in, hidden states and logits out, keys and values kept by a cache.

The cache is ours. A model hands each layer's new keys and values to `update` and passes
what comes back on to its attention function, which is ours too and knows what it is.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from ctypes import CDLL
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from bough.bit_exact import without_onednn
from bough.engines.local.adapters import AdaptedLayers, Fold, Segments
from bough.policy.head import Head
from bough.policy.policy import Policy
from bough.policy.processes import unused_bytes
from bough.trees.mixers import Sight

UNBOUNDED = 1 << 20  # tokens of context where the configuration sets no limit
NAME = "bough_local"  # our attention among those of transformers


class Reader:
    """A policy's newest weights, ready to be read with.

    With `fold`, an adapter is folded into a second copy of the weights. Call `renew` when weights have
    changed.
    """

    in_order = True  # a pass reads tokens of several episodes, one after the other

    def __init__(self, policy: Policy, *, fold: bool = False) -> None:
        self.policy = policy
        self.attention = policy.row_reader.plain_attention  # its name among those of transformers
        self.context: int = getattr(policy.decoder.config, "max_position_embeddings", None) or UNBOUNDED
        self.vocabulary: int = policy.base.get_input_embeddings().weight.shape[0]
        self.dtype: torch.dtype = policy.autocast or policy.base.dtype
        self._head = Head.of(policy.base)
        self.fold = Fold(policy.model) if fold and policy.has_adapter else None
        self.adapters = AdaptedLayers(policy, fold=self.fold, dtype=self.dtype, in_order=self.in_order)

    @property
    def device(self) -> torch.device:
        return self.policy.device

    def renew(self) -> None:
        """Brings copies of the policy's weights up to date."""
        if self.fold:
            self.fold.renew()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Within it the model is ready to be read; afterwards it is as it was."""
        training = self.policy.training
        if training:  # layers that save memory in training throw caches away
            self.policy.eval()
        self.policy.row_reader.attend_with(self.attention)
        # Layers that were compiled for training are not used as such: that was for no cache.
        compiled = [(layer, layer._compiled_call_impl) for layer in self.policy.row_reader.layers]
        for layer, _ in compiled:
            layer._compiled_call_impl = None
        try:
            with self._folded(), torch.inference_mode():
                yield
        finally:
            for layer, form in compiled:
                layer._compiled_call_impl = form
            if training:
                self.policy.train()

    def _folded(self) -> AbstractContextManager[None]:
        return self.fold.inside() if self.fold else nullcontext()

    def logits(self, hidden_MD: Tensor) -> Tensor:
        with self.precision():
            return self._head.logits(hidden_MD)

    def precision(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.policy.autocast, enabled=self.policy.autocast is not None)


class TokenReader(Reader):
    """Reads tokens of many episodes with our own cache and attention, where every layer keeps keys and values."""

    def __init__(self, policy: Policy, *, fold: bool = False) -> None:
        from transformers import AttentionInterface

        AttentionInterface.register(NAME, _attend)
        config = policy.decoder.config
        self.num_layers: int = config.num_hidden_layers
        self.num_heads: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        self.head_size: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        kinds = getattr(config, "layer_types", None) or [next(iter(policy.row_reader.sights))] * self.num_layers
        self.sights: list[Sight] = [policy.row_reader.sights[kind] for kind in kinds]
        super().__init__(policy, fold=fold)
        self.attention = NAME
        on_cpu = self.device.type == "cpu" and self.dtype == torch.float32
        layers = packable([*policy.decoder.modules(), self._head.layer]) if on_cpu else []
        with self._folded():
            self.packed = PackedLinears(layers) if layers else None

    def renew(self) -> None:
        super().renew()
        if self.packed:
            with self._folded():
                self.packed.renew()

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.num_layers * self.num_heads * self.head_size * self.dtype.itemsize

    @contextmanager
    def reading(self) -> Iterator[None]:
        shared = self.device.type == "cpu" and torch.get_num_threads() > 1
        with (
            without_onednn(),
            super().reading(),
            self.packed.inside() if self.packed else nullcontext(),
            OneThread() if shared else nullcontext(),
        ):
            yield

    def hidden(self, tokens_BQ: Tensor, positions_BQ: Tensor, cache: Any, plan: Segments | None = None) -> Tensor:
        """The hidden states [B, Q, D] of tokens whose keys and values go to `cache`, with adapters as planned."""
        with self.precision(), self.adapters.applied(plan):
            output = self.policy.decoder(
                input_ids=tokens_BQ, position_ids=positions_BQ, past_key_values=cache, use_cache=True
            )
        return output.last_hidden_state  # type: ignore[no-any-return]


def _attend(
    module: Any,  # noqa: ARG001  as transformers calls it
    query: Tensor,
    key: Callable[..., Tensor],  # what `update` of our cache gave back
    value: None,  # noqa: ARG001
    attention_mask: None,  # noqa: ARG001
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    return key(query, query.shape[-1] ** -0.5 if scaling is None else scaling, softcap, s_aux), None


# Trying a way of reading before anything is sampled: on a few made-up tokens, against the policy's own.

TRIED = 32  # tokens, and as many more as the longest window has, if that is not longer than this:
LONGEST_WINDOW = 256
WINDOWS = ("sliding_window", "attention_chunk_size", "attention_window_size", "window_size")


def agrees(difference: float, reader: Reader) -> bool:
    """Whether log-probabilities that are this far apart on average are those of one model, rounded differently."""
    if torch.finfo(reader.dtype).eps > 1e-5:
        return difference <= 0.1
    # cuDNN's convolutions round more coarsely, even in float32.
    return difference <= (1e-4 if reader.device.type == "cpu" else 1e-3)


def trial_length(reader: Reader) -> int:
    """Tokens enough to look past a window, where that is cheap."""
    config: Any = reader.policy.decoder.config
    windows = [value for name in WINDOWS if isinstance(value := getattr(config, name, None), int)]
    longest = max((window for window in windows if window <= LONGEST_WINDOW), default=0)
    return min(TRIED + longest, reader.context)


def trial_tokens(reader: Reader, length: int, seed: int = 0) -> list[int]:
    """Made-up tokens."""
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(0, reader.vocabulary, (length,), generator=generator).tolist()
    return tokens


# Large linear layers with weights packed in advance, for the few rows of a decode step on a CPU.
# BLAS copies a weight into the order that its kernel reads, for every product; with few rows that takes longer than
# the product itself. The kernels of oneDNN, on ARM those of the Arm Compute Library behind it, take weights that were
# packed once. The packed weights lie beside the policy's own: as much memory again as these layers take. Call `renew`
# after weights have changed.
# A row's bits must not depend on the other rows, so every shape of weight is tried first, with the number of threads
# that computes. oneDNN on x86_64 keeps them from two rows on, and the engine never multiplies a single one; with
# weights that are not packed it does not.

X86 = platform.machine() in ("x86_64", "AMD64")
# Bytes of a weight: with smaller ones the call itself takes longer than what is saved.
SMALLEST = 1 << (18 if X86 else 20)
ROWS = (3, 5, 8, 16, 33, 129, 600)  # numbers of rows that are tried against two
MOST_PRODUCTS = 1 << 28  # and multiplications of one try: a head never has many rows


class PackedLinears:
    """The large linear layers of a model on the CPU, in float32. Within `inside` they compute with packed weights."""

    def __init__(self, layers: Iterable[nn.Linear]) -> None:
        self.layers = list(layers)
        self._packed: list[Tensor] = []
        self.renew()

    def renew(self) -> None:
        """Packs the newest weights."""
        self._packed = []  # frees the old ones first
        with torch.inference_mode():
            self._packed = [_pack(layer.weight) for layer in self.layers]

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Within it the layers use their packed weights; gradients cannot be taken."""
        threads = torch.get_num_threads()
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if _on_arm() and 1 < threads < cores:  # the Arm Compute Library knows one thread or all
            yield
            return
        shapes = {layer.weight.shape for layer in self.layers}
        agreed = {shape for shape in shapes if rows_agree(*shape, threads)}
        used = [(number, layer) for number, layer in enumerate(self.layers) if layer.weight.shape in agreed]
        for number, layer in used:
            # Looked up in each call: weights may be renewed while the engine is at work.
            layer.forward = lambda x, i=number: _product(self._packed[i], self.layers[i].bias, x)  # type: ignore[method-assign, misc]
        try:
            with _no_team() if _on_arm() and threads == 1 else nullcontext():
                yield
        finally:
            for _, layer in used:
                del layer.forward


def packable(modules: Iterable[nn.Module]) -> list[nn.Linear]:
    """The layers among these that gain from packing and keep their bits, if memory holds their weights once more."""
    if not _available():
        return []
    threads = torch.get_num_threads()
    large = [
        module
        for module in dict.fromkeys(modules)
        if type(module) is nn.Linear
        and module.weight.device.type == "cpu"
        and module.weight.dtype == torch.float32
        and module.weight.nbytes >= SMALLEST
        and "forward" not in module.__dict__
        and rows_agree(*module.weight.shape, threads)
    ]
    fits = free_bytes(torch.device("cpu")) > sum(layer.weight.nbytes for layer in large)
    return large if fits else []


@cache
def rows_agree(outputs: int, inputs: int, threads: int) -> bool:  # noqa: ARG001
    """Whether a row's product with a packed weight of this shape has the same bits beside any number of rows.

    `threads` are torch's own at the moment: with another number the answer may be another.
    """
    most = max(MOST_PRODUCTS // (outputs * inputs), min(ROWS))
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        rows = torch.randn(max(ROWS), inputs, generator=generator)
        packed = _pack(torch.randn(outputs, inputs, generator=generator))
        for number in (number for number in ROWS if number <= most):
            product = _product(packed, None, rows[:number])
            if not torch.equal(product[:2], _product(packed, None, rows[:2])):
                return False
            if not torch.equal(product[-2:], _product(packed, None, rows[number - 2 : number])):
                return False
    return True


def _available() -> bool:
    library: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return library and (X86 or _on_arm()) and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


def _on_arm() -> bool:
    """Whether oneDNN leaves its products to the Arm Compute Library."""
    found: bool = torch.backends.mkldnn.is_acl_available()  # type: ignore[no-untyped-call]
    return found


def _pack(weight_OI: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_OI.detach(), None)
    return packed


def _product(packed: Tensor, bias_O: Tensor | None, x: Tensor) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias_O, "none", [], "")
    return out


@contextmanager
def _no_team() -> Iterator[None]:
    """Leaves all work to the calling thread: the library starts as many threads as there are cores, whatever torch
    was told, and where others compute too, waiting for them takes longer than they save."""
    found = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    if not found:
        yield
        return
    openmp = CDLL(str(found[0]))
    before = openmp.omp_get_max_active_levels()
    openmp.omp_set_max_active_levels(0)
    try:
        yield
    finally:
        openmp.omp_set_max_active_levels(before)


# Functions of single numbers whose rounding depends on how torch's threads share the work, left to one thread.
# A thread rounds what is left over after its last whole vector with other instructions, and a cosine depends on the
# other numbers in its vector. Where a thread's part ends depends on the number of rows, so a token's state would too.
# Matrix products, which take the time, keep all threads.

FUNCTIONS: frozenset[Callable[..., Any]] = frozenset(
    {
        functional.silu, functional.gelu, functional.mish, functional.softplus, functional.elu,
        functional.sigmoid, torch.sigmoid, Tensor.sigmoid, functional.tanh, torch.tanh, Tensor.tanh,
        torch.cos, Tensor.cos, torch.sin, Tensor.sin,
    }
)  # fmt: skip


class OneThread(TorchFunctionMode):
    """Within it, activations, cosines and sines have the same bits whatever is computed beside them."""

    def __torch_function__(
        self, function: Callable[..., Any], _: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if function not in FUNCTIONS:
            return function(*args, **kwargs or {})
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return function(*args, **kwargs or {})
        finally:
            torch.set_num_threads(threads)


# How many tokens' keys and values may be kept, read off the machine.

SHARE = 0.5  # of what is free on a computer: others live there too
GPU_SHARE = 0.85  # of what is free on a GPU: passes need some themselves
LEAST = 0.3  # of what is free on a GPU, whatever training asks for: it can make smaller passes, an episode cannot


def free_bytes(device: torch.device, training: int = 0) -> int:
    """What is free for caches now; on a GPU beside the bytes that training will take in the same process."""
    if device.type == "cuda":
        unused = unused_bytes(device)
        return int(max(unused - training, unused * LEAST) * GPU_SHARE)
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        available = 8 << 30  # no Linux: a guess that a laptop can bear
    try:  # what the container may still take
        group = Path("/sys/fs/cgroup")
        most, used = (int((group / name).read_text(encoding="ascii")) for name in ("memory.max", "memory.current"))
        available = min(available, max(most - used, 0))
    except (OSError, ValueError):  # no such group, or "max": no limit
        pass
    return int(available * SHARE)
