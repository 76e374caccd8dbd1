"""The adapters of a policy: "actor" is trained, "reference" is frozen and is what the actor is compared with."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from bough.config.training import LoraConfig, TrainingConfig
from bough.errors import BoughError, InputError, first_line
from bough.files import read_json
from bough.models.resolve import file_shapes
from bough.policy.load import base_and_adapter, load_outline

ACTOR = "actor"
REFERENCE = "reference"
CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
Targets = str | tuple[str, ...]
# What peft says of tensors of another size, and of layers without a tensor; of these only the first is told.
MISFIT = re.compile(r"size mismatch.*|missing adapter keys[^,\]]*")
# Settings of an adapter that change the model it is loaded into or import a module.
FOREIGN = ("layer_replication", "megatron_config")


@dataclass(frozen=True)
class Lora:
    """A new LoRA adapter.

    `targets` are names of modules, a pattern that whole names match, or "all-linear": every
    linear layer of the language model but the head. With `experts`, the experts get one too.
    """

    r: int = 16
    alpha: int = 32
    dropout: float = 0.0
    targets: Targets = "all-linear"
    experts: bool = False


def has_adapter(model: Any) -> bool:
    """Whether a model carries adapters: then only its actor is trained."""
    return hasattr(model, "peft_config")


def add_actor(model: Any, lora: Lora) -> Any:
    """The model with a new actor, which changes nothing until it is trained."""
    from peft import LoraConfig, get_peft_model

    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    if lora.experts and lora.dropout:
        raise InputError("lora_experts needs lora_dropout 0: experts are adapted as weights, not by their inputs")
    config = LoraConfig(
        r=lora.r, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=targets, task_type="CAUSAL_LM",
        exclude_modules=out_of_reach(model, all_linear=targets == "all-linear"),
        target_parameters=expert_parameters(model) if lora.experts else None,
    )  # fmt: skip
    try:
        return get_peft_model(model, config, adapter_name=ACTOR)
    except ValueError as error:
        raise InputError(f"lora_target_modules does not fit the model: {error}") from error


def _whole(load: Callable[..., Any]) -> Callable[..., Any]:
    """`load(model, folder, …)`, whose errors about files that are damaged or do not fit are InputErrors."""

    @wraps(load)
    def guarded(model: Any, folder: Path, **options: Any) -> Any:
        check_rank(folder)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", "Found missing adapter keys")
                return load(model, folder, **options)
        except (BoughError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # peft and safetensors raise errors of many kinds
            if misfit := MISFIT.search(str(error)):
                said, base = misfit[0].rstrip(". "), _read_config(folder)
                other = f" but of {name}" if (name := base.get("base_model_name_or_path")) else ""
                raise InputError(f"{folder}: the adapter is not one of this model{other}: {said}") from error
            said = str(error).partition("\n")[0]
            raise InputError(f"{folder}: the adapter cannot be loaded: {type(error).__name__}: {said}") from error

    return guarded


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = read_json(folder / CONFIG)
        if isinstance(config, dict):
            return config
        raise ValueError("it is not a JSON object")
    except FileNotFoundError:
        raise InputError(f"{folder} contains no adapter: {CONFIG} is missing") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: {CONFIG} cannot be read as JSON: {error}") from None


def check_rank(folder: Path) -> dict[str, Any]:
    """The configuration of the adapter in `folder`. InputError unless it is LoRA of at most the ranks in the file."""
    config, file = _read_config(folder), folder / TENSORS
    if (kind := config.get("peft_type")) != "LORA":
        raise InputError(f"{folder}: an adapter of type {kind}; Bough uses LoRA adapters")
    if odd := [name for name in FOREIGN if config.get(name)]:
        raise InputError(f"{folder}: an adapter with {', '.join(odd)} is not loaded")
    if not file.is_file():  # peft would take a pickle in its place, or ask the hub
        problem = "not a regular file" if file.exists() else "missing"
        raise InputError(f"{folder} contains no adapter: {file.name} is {problem}")
    try:
        shapes = file_shapes(file)
    except (OSError, ValueError, SafetensorError):
        return config  # peft says what is wrong with it
    downs = {name: one for name, one in shapes.items() if math.prod(one) and re.search(r"\.lora_(embedding_)?A", name)}
    if not downs:
        raise InputError(f"{folder}: the adapter has no matrices: none in {file.name} is named lora_A")
    name, largest = max(downs.items(), key=lambda one: one[1][:1])
    patterns = config.get("rank_pattern")
    ranks = {"r": config.get("r"), **(patterns if isinstance(patterns, dict) else {})}
    for setting, rank in ranks.items():
        if isinstance(rank, int) and rank > largest[0]:
            raise InputError(f"{folder / CONFIG}: {setting} is {rank}, but {name} in {file.name} is {list(largest)}")
    return config


@_whole
def load_actor(model: Any, folder: Path, *, dropout: float | None = None) -> Any:
    """The model with the adapter in `folder` as its actor, and with another dropout than it had if one is given."""
    from peft import PeftConfig, PeftModel

    config = PeftConfig.from_pretrained(folder)
    if dropout is not None:
        config.lora_dropout = dropout
    return PeftModel.from_pretrained(model, folder, adapter_name=ACTOR, is_trainable=True, config=config)


@_whole
def load_named(model: Any, folder: Path, *, name: str) -> Any:
    """The model, which may have adapters already, with the adapter in `folder` under a name of its own."""
    from peft import PeftModel

    if not has_adapter(model):
        return PeftModel.from_pretrained(model, folder, adapter_name=name, is_trainable=True)
    _add(model, folder, name, is_trainable=True)
    return model


@_whole
def add_reference(model: Any, folder: Path) -> None:
    """Loads the adapter in `folder` as the reference of a model that has an actor."""
    _add(model, folder, REFERENCE, is_trainable=False)


def _add(model: Any, folder: Path, name: str, *, is_trainable: bool) -> None:
    if missing := model.load_adapter(str(folder), adapter_name=name, is_trainable=is_trainable).missing_keys:
        raise ValueError(f"missing adapter keys: {missing}")


def _layers(name: str, targets: Targets) -> set[str]:
    """The layers of the model `name` that `targets` mean."""
    return set(add_actor(load_outline(name), Lora(r=1, targets=targets)).targeted_module_names)


def adapted_layers(model: Any) -> list[Any]:
    """The layers that hold adapters."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    return [module for module in model.modules() if isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper)]


@contextmanager
def reference(model: Any, layers: Sequence[Any]) -> Iterator[None]:
    """Within it the model is the reference, without gradients: its adapter of that name, or no adapter at all.

    peft has this too, but walks the whole model for it and marks every weight as frozen and
    back: on a large model a tenth of a second each time, and not for weights that are sharded.
    """
    if not has_adapter(model):
        raise InputError(
            "a policy without an adapter contains no reference; train an adapter, "
            "load the reference as a separate policy, or precompute its log-probabilities"
        )
    name, inside, outside = "_disable_adapters", True, False  # type: tuple[str, Any, Any]
    if REFERENCE in model.peft_config:
        name, inside, outside = "_active_adapter", [REFERENCE], [ACTOR]
    try:
        for layer in layers:
            setattr(layer, name, inside)
        with torch.no_grad():
            yield
    finally:
        for layer in layers:
            setattr(layer, name, outside)


# A LoRA adapter's matrices by themselves, without a model: what an engine needs to sample with it.

# As peft saves a tensor, and as a model in memory names it (then with the adapter's name).
TENSOR = re.compile(r"(?:base_model\.model\.)?(?P<layer>.+)\.lora_(?P<side>[AB])(?:\.[^.]+)?\.weight")
VARIANTS = ("use_dora", "use_qalora", "alora_invocation_tokens", "layer_replication")


class LoraPair(NamedTuple):
    """What is added to a layer's output for its input x: x · downᵀ · upᵀ. The scale is in `up_OR`."""

    down_RI: Tensor
    up_OR: Tensor


@dataclass(frozen=True)
class AdapterWeights:
    """The two matrices of each adapted layer, by the layer's name in the base model. Ranks may differ."""

    layers: Mapping[str, LoraPair]

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """The adapter in a folder."""
        folder = Path(folder)
        config = check_rank(folder)
        try:
            return cls.of_tensors(load_file(folder / TENSORS), config)
        except (OSError, ValueError, SafetensorError, InputError) as error:
            raise InputError(f"{folder}: the adapter cannot be loaded: {first_line(error)}") from error

    @classmethod
    def of(cls, model: Any, name: str = ACTOR) -> Self:
        """A copy of the adapter `name` of a peft model."""
        return cls.of_each(model, [name])[name]

    @classmethod
    def of_each(cls, model: Any, names: Iterable[str]) -> dict[str, Self]:
        """Copies of several adapters of a peft model, whose modules are walked through once for all of them."""
        layers: dict[str, dict[str, LoraPair]] = {name: {} for name in names}
        for name in layers:
            if name not in getattr(model, "peft_config", {}):
                raise InputError(f"the model has no adapter named {name!r}")
        adapted = {id(layer) for layer in adapted_layers(model)}
        for path, layer in model.get_base_model().named_modules():
            for name, own in layers.items() if id(layer) in adapted else ():
                lora = name in getattr(layer, "lora_A", {})
                odd = any(name in getattr(layer, part, {}) for part in ("lora_embedding_A", "modules_to_save"))
                if lora and not odd:
                    odd = hasattr(layer, "parameter_name") or name in layer.lora_variant or layer.lora_bias.get(name)
                if odd:
                    raise InputError(f"the adapter on {path} is not plain LoRA on a linear layer")
                if lora:
                    down, up = layer.lora_A[name].weight.detach(), layer.lora_B[name].weight.detach()
                    own[path] = _scaled(down, up, layer.scaling[name])
        return {name: cls(own) for name, own in layers.items()}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Self:
        """An adapter from named tensors and the configuration that peft saves with them."""
        from peft.utils.other import get_pattern_key

        if odd := [variant for variant in VARIANTS if config.get(variant)]:
            raise InputError(f"an adapter with {', '.join(odd)}; adapters by name are plain LoRA")
        sides: dict[str, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            found = TENSOR.fullmatch(key)
            if found is None:
                raise InputError(f"{key} is not part of a plain LoRA adapter on linear layers")
            sides.setdefault(found["layer"], {})[found["side"]] = tensor.detach()
        if not sides:
            raise InputError("the adapter has no matrices")
        if single := [layer for layer, side in sides.items() if len(side) < 2]:
            raise InputError(f"{single[0]} has only one of its two matrices")
        alphas, pairs = config.get("alpha_pattern") or {}, {}
        for layer, side in sides.items():
            alpha, rank = alphas.get(get_pattern_key(alphas.keys(), layer), config.get("lora_alpha")), len(side["A"])
            if not isinstance(alpha, int | float) or not rank:
                raise InputError(f"{layer} has lora_alpha {alpha!r} and rank {rank}; both must be numbers above 0")
            scale = alpha / rank**0.5 if config.get("use_rslora") else alpha / rank
            pairs[layer] = _scaled(side["A"], side["B"], scale)
        return cls(pairs)


def _scaled(down_RI: Tensor, up_OR: Tensor, scale: float) -> LoraPair:
    return LoraPair(down_RI.to(torch.float32, copy=True), up_OR.float() * scale)


# Which parts of a model an adapter reaches: its language model, and on request its experts.
# Experts are not linear layers but stacks of matrices in one parameter each, so "all-linear" passes over them; peft
# adapts them as parameters by name.


def decoder_of(model: Any) -> Any:
    """The transformers model `model` without its head; of a vision-language model, the language model."""
    # Llama 4 does not find its own, and ModernBERT calls its head so.
    found = (model.get_decoder(), model.base_model, getattr(model, "model", None))
    return next(one for one in found if one is not model and hasattr(one, "config"))


def expert_parameters(model: Any) -> list[str]:
    """The names, from the layer down, of the parameters that hold a layer's experts; InputError if there are none."""
    found = set()
    for name, module in decoder_of(model).named_modules():
        if "Expert" in type(module).__name__:
            below_layer = re.sub(r"^.*\.\d+\.(?=\D)", "", name)
            found |= {f"{below_layer}.{one}" for one, weight in module.named_parameters() if weight.dim() == 3}
    if not found:
        raise InputError(
            f"lora_experts: {type(model).__name__} ({model.config.model_type}) has no experts an adapter can reach; "
            "it is not a mixture of experts, or its experts are quantized, as those of gpt-oss are in its published "
            "weights (MXFP4); load weights in bfloat16, or leave lora_experts out"
        )
    return sorted(found)


def out_of_reach(model: Any, *, all_linear: bool) -> str | None:
    """A pattern of the names of modules that get no adapter, None where there are none.

    They are what surrounds the language model (a vision tower, a projector) and, of
    `all_linear` layers, those that an adapter would break or not be felt in: that compute more
    than a product (the router of Llama 4), or whose weight is read past their forward pass, as
    a router's (LongCat) and those of Mamba are. Merged, such an adapter would change the model.
    """
    names: list[str] = []
    inside, head = {id(module) for module in decoder_of(model).modules()}, model.get_output_embeddings()
    # Linear layers other than the head stand beside the language model.
    if any(isinstance(m, nn.Linear) and m is not head and id(m) not in inside for m in model.modules()):
        names += _outside(model, inside)
    if all_linear:
        for name, module in model.named_modules():
            kind = type(module).__name__
            linear = any(isinstance(one, nn.Linear) for one in module.modules())
            if linear and ("Router" in kind or "GroupedLinear" in kind or name.endswith(".router")):
                names.append(name)
            elif hasattr(module, "A_log") and hasattr(module, "D"):  # Mamba
                names += [f"{name}.{one}" for one in ("dt_proj", "out_proj") if hasattr(module, one)]
    patterns = sorted({re.sub(r"\\\.\d+\\\.", r"\\.\\d+\\.", re.escape(name)) for name in names})
    return rf"({'|'.join(patterns)})(\..*)?" if patterns else None


def freeze_surroundings(model: Any) -> None:
    """What surrounds the language model, such as a vision tower, is not trained: no call reaches it."""
    reached = {id(one) for part in (decoder_of(model), model.get_output_embeddings()) for one in part.parameters()}
    for parameter in model.parameters():
        if id(parameter) not in reached:
            parameter.requires_grad_(False)


def _outside(module: nn.Module, inside: set[int], prefix: str = "") -> list[str]:
    """The largest modules that neither are in the language model nor contain it."""
    names = []
    for name, child in module.named_children():
        if id(child) in inside:
            continue
        if any(id(one) in inside for one in child.modules()):
            names += _outside(child, inside, f"{prefix}{name}.")
        elif name != "lm_head":
            names.append(f"{prefix}{name}")
    return names


# An adapter in a larger shape that computes the same: another rank, more layers, another scale.
# The rank becomes the larger of the two, the layers the union. What is new in A is freshly drawn and what is new in B
# is zero, so the product is unchanged and yet can be trained; B takes up the difference between the scales (alpha /
# r).

# What else an adapter may be told; with any of these its weights mean something else.
UNSUPPORTED = (
    *("use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "fan_in_fan_out"),
    "target_parameters",
)


def read_shape(folder: Path) -> Lora:
    """The shape of the LoRA adapter in `folder`."""
    config = check_rank(folder)
    targets = config["target_modules"]
    names = targets if isinstance(targets, str) else tuple(sorted(targets))
    return Lora(config["r"], config["lora_alpha"], config["lora_dropout"], names, bool(config.get("target_parameters")))


def larger(old: Lora, wanted: Lora) -> Lora:
    """The shape that an adapter of shape `old` is grown to."""
    targets = old.targets
    if old.targets != wanted.targets:
        named = not isinstance(old.targets, str) and not isinstance(wanted.targets, str)
        targets = tuple(sorted({*old.targets, *wanted.targets})) if named else "all-linear"
    return Lora(max(old.r, wanted.r), wanted.alpha, wanted.dropout, targets, old.experts or wanted.experts)


def grow(model: Any, folder: Path, wanted: Lora) -> Any:
    """The model with an actor of the larger shape that computes what the adapter in `folder` computes."""
    config = _read_config(folder)
    odd = [name for name in UNSUPPORTED if config.get(name)]
    if odd:
        raise InputError(f"{folder}: an adapter with {', '.join(odd)} cannot be grown; merge it into the model first")
    old = read_shape(folder)
    tensors = load_file(folder / TENSORS)
    shape = larger(old, wanted)
    grown = add_actor(model, shape)
    parameters = dict(grown.named_parameters())
    correction = (old.alpha / old.r) / (shape.alpha / shape.r)
    with torch.no_grad():
        for key, tensor in tensors.items():
            name = key.replace(".lora_A.", f".lora_A.{ACTOR}.").replace(".lora_B.", f".lora_B.{ACTOR}.")
            if name not in parameters:
                raise InputError(f"{folder}: the adapter has weights for {key}, which this model does not have")
            if ".lora_A." in key:
                parameters[name][: old.r] = tensor
            else:
                parameters[name][:, : old.r] = tensor * correction
    return grown


# The shape of the adapter that is trained: as the settings say, or as the adapter has it that the run starts from.

C = TypeVar("C", bound=TrainingConfig)
MODULE = re.compile(r"[\w.]+")


def lora(config: LoraConfig) -> Lora:
    """The shape that the settings ask for."""
    names = config.target_modules
    # Adapters of other tools may have a pattern in place of names.
    one = len(names) == 1 and (names[0] == "all-linear" or not MODULE.fullmatch(names[0]))
    return Lora(config.r, config.alpha, config.dropout, names[0] if one else tuple(sorted(names)), config.experts)


def start_adapter(config: C, *, may_grow: bool = True) -> tuple[Path | None, C]:
    """The adapter to start from, and the settings with what will be its shape: its own where nothing else was asked.

    `may_grow` says whether the command has --merge-lora.
    """
    start = config.lora.adapter or base_and_adapter(config.model)[1]
    if start is None:
        return None, config
    if not config.lora.enabled:
        raise InputError(f"--no-use-lora cannot start from the adapter {start}; merge it into the model first")
    shape = read_shape(start)
    own = _settings(shape)
    config = _with(config, {k: v for k, v in own.items() if k not in config.lora.model_fields_set})
    if config.lora.merge:
        return start, _with(config, _settings(larger(shape, lora(config.lora))))
    wanted, base = lora(config.lora), base_and_adapter(config.model)[0]
    # Its dropout can be changed at any time.
    pairs: list[tuple[str, Any, Any]] = [
        (f"lora_{name}", getattr(wanted, name), getattr(shape, name)) for name in ("r", "alpha", "experts")
    ]
    if wanted.targets != shape.targets and _layers(base, wanted.targets) != _layers(base, shape.targets):
        pairs.append(("lora_target_modules", wanted.targets, shape.targets))
    if differences := [f"{name} is {mine} here and {theirs} there" for name, mine, theirs in pairs if mine != theirs]:
        grow = "--merge-lora grows it to fit, " if may_grow else ""
        raise InputError(
            f"the start adapter {start} has another shape; {grow}leaving these settings out takes it as it is:",
            differences,
        )
    return start, _with(config, {"target_modules": own["target_modules"]})


def _with(config: C, values: dict[str, Any]) -> C:
    """The settings with these of the adapter."""
    return config.model_copy(update={"lora": config.lora.model_copy(update=values)})


def _settings(shape: Lora) -> dict[str, Any]:
    """A shape as the settings that ask for it."""
    targets = [shape.targets] if isinstance(shape.targets, str) else list(shape.targets)
    kept = {name: getattr(shape, name) for name in ("r", "alpha", "dropout", "experts")}
    return {**kept, "target_modules": targets}


INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of a weight
BLOCK = 1024  # weights that are added up together
HASHED_WHOLE = 1 << 16  # tensors up to this size are hashed as they are: in few weights, changes can cancel in a sum


def weights_digest(weights: Iterable[tuple[str, Tensor]]) -> str:
    """A digest of named tensors.

    The bits of a large tensor are added up as integers, block by block, where the tensor is,
    and only the sums are hashed: integer sums are exact on any device, and a large model need
    not be copied to the CPU. A training step moves nearly all weights, so some sum differs after it.
    """
    hasher = blake2b(digest_size=16)
    for name, weight in weights:
        hasher.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        bits = weight.detach().contiguous().view(-1).view(INTEGERS[weight.element_size()])
        if len(bits) > HASHED_WHOLE:
            whole = len(bits) // BLOCK * BLOCK
            sums = bits[:whole].view(-1, BLOCK).sum(-1, dtype=torch.int64)
            bits = torch.cat([sums, bits[whole:].sum(dtype=torch.int64)[None]])
        hasher.update(bits.cpu().numpy().tobytes())
    return hasher.hexdigest()
