"""A policy on disk: load a model to be trained, and save an adapter or a whole model as transformers and peft do."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bough.chat.template import CallBuilder, load_template
from bough.errors import InputError
from bough.files import drafting, put_in_place, read_json, write_json
from bough.models.gguf_read import FOLDER as GGUF_FOLDER
from bough.models.resolve import check_hub, context_length, load_config, load_tokenizer, outline, refuse_pickle, resolve
from bough.models.tiny import postpone_scikit_learn
from bough.terminal.console import no_bars

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from bough.policy.policy import Policy


RANDOM = re.compile(r"dropout|pdrop|layerdrop|jitter")


def load_model(name: str, *, dtype: torch.dtype | None, device: torch.device, quantize: bool) -> Any:
    """The causal language model `name`, without dropout: its log-probabilities are a function of its weights.

    float32 on the CPU and bfloat16 on CUDA unless `dtype` says otherwise; with `quantize`
    the weights are NF4 and `dtype` is what they compute in.
    """
    postpone_scikit_learn(models=True)
    import torch

    dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
    options: dict[str, Any] = {}
    if quantize:
        from transformers import BitsAndBytesConfig

        if device.type != "cuda":
            raise InputError(f"quantize needs a CUDA device (bitsandbytes); this is {device.type}")
        nf4 = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": dtype}
        options = {"quantization_config": BitsAndBytesConfig(load_in_4bit=True, **nf4), "device_map": {"": device}}
    source = resolve(name)
    check_hub(source)
    refuse_pickle(source)
    with _told(name):
        config = load_config(source)
        _compute_alike(config.get_text_config())
        _outline(source, config)
        with no_bars():
            model = _auto_class(config).from_pretrained(
                source, config=config, dtype=dtype, trust_remote_code=False, use_safetensors=True, **options
            )
    return model if quantize else model.to(device)


def load_outline(name: str) -> Any:
    """The model `name` without its weights: which layers it has, at no cost."""
    postpone_scikit_learn(models=True)
    source = resolve(name)
    check_hub(source)
    with _told(name):
        return _outline(source, load_config(source))


@contextmanager
def _told(name: str) -> Iterator[None]:
    """What a damaged or foreign model raises, as a sentence: readers of its files raise errors of many kinds."""
    import torch

    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        said = str(error).partition("\n")[0]
        if not isinstance(error, OSError | ValueError | RuntimeError):
            said = f"{type(error).__name__}: {said}"
        raise InputError(f"the model {name} cannot be loaded: {said}") from error


def _outline(source: Path | str, config: Any) -> Any:
    return outline(source, config, lambda: _auto_class(config).from_config(config, trust_remote_code=False))


def base_and_adapter(name: str) -> tuple[str, Path | None]:
    """A folder that holds only an adapter names its base model; any other name is a model's."""
    folder = Path(name)
    if not (folder / "adapter_config.json").is_file() or (folder / "config.json").is_file():
        return name, None
    try:
        settings = read_json(folder / "adapter_config.json")
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}/adapter_config.json: cannot be read: {error}") from None
    base = settings.get("base_model_name_or_path") if isinstance(settings, dict) else None
    if not base or not isinstance(base, str):
        raise InputError(f"{folder}/adapter_config.json does not say which model it is for; name that and the adapter")
    if GGUF_FOLDER.fullmatch(Path(base).name) and not Path(base).is_dir():
        raise InputError(
            f"the base model of {folder} was made of a GGUF file, in a folder of the cache that is gone; "
            f"name the file and the adapter: --model FILE.gguf --adapter {folder}"
        )
    return base, folder


def load_call_builder(model: str, chat_template: Path | None, *, max_length: int | None, stride: float) -> CallBuilder:
    """Builds calls as the model is trained on them: with the chat template and the context of its base model."""
    base = base_and_adapter(model)[0]
    template = load_template(base, chat_template)
    return CallBuilder(template, max_length=max_length, stride=stride, context=context_length(base))


def _auto_class(config: Any) -> Any:
    """How transformers loads a model of this config: most vision-language models are not among its causal ones."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    causal = type(config) in AutoModelForCausalLM._model_mapping
    pictures = type(config) in AutoModelForImageTextToText._model_mapping
    return AutoModelForImageTextToText if pictures and not causal else AutoModelForCausalLM


def _compute_alike(config: Any) -> None:
    """Makes a model compute in training what it computes in sampling.

    Switches off dropout, layers left out and noise on the inputs of routers, also where a part of the model has a
    config of its own (DBRX); and RWKV's rescaling, which in sampling divides weights and not the adapters beside them.
    """
    from transformers import PretrainedConfig

    for key, value in list(vars(config).items()):
        # What PhiMoE calls the routers' noise is no noise: sampling depends on it too.
        threshold = key == "router_jitter_noise" and config.model_type == "phimoe"
        if isinstance(value, PretrainedConfig):
            _compute_alike(value)
        elif RANDOM.search(key) and isinstance(value, float) and not threshold:
            setattr(config, key, 0.0)
    if config.model_type == "rwkv":
        config.rescale_every = 0


def save_policy(policy: Policy, tokenizer: Any, folder: Path, weights: dict[str, Tensor] | None = None) -> None:
    """Writes the actor, or all weights where there is no adapter, and the tokenizer with its chat template.

    `weights` are `policy.weights()`, which all processes of a sharded policy ask for together.
    """
    save_weights(policy, folder, policy.weights() if weights is None else weights)
    tokenizer.save_pretrained(folder)


def save_weights(policy: Policy, folder: Path, weights: dict[str, Tensor]) -> None:
    """Writes the actor, or all weights where there is no adapter, with their config."""
    from bough.policy.adapters import ACTOR

    if policy.has_adapter:
        save_adapter(policy.model, ACTOR, folder, weights)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        with no_bars():
            policy.model.save_pretrained(folder, state_dict=weights)


def save_adapter(model: Any, name: str, folder: Path, weights: dict[str, Tensor]) -> None:
    """Writes one adapter of a peft model; `weights` are its own, by their names in the model."""
    folder.mkdir(parents=True, exist_ok=True)
    # peft writes an empty model card with each adapter, which takes longer than a small adapter itself.
    # Left in place: two threads may write adapters of one model at the same time.
    model.create_or_update_model_card = lambda _folder: None
    model.save_pretrained(folder, selected_adapters=[name], state_dict=weights)
    # peft puts an adapter that has a name into a folder of that name.
    for file in (folder / name).iterdir():
        file.rename(folder / file.name)
    shutil.rmtree(folder / name)
    # peft writes the adapted layers as a set, in another order in each process; equal adapters make equal files.
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    if isinstance(config["target_modules"], list):
        config["target_modules"].sort()
    write_json(folder / "adapter_config.json", config)


def merge_adapter(adapter: Path, output: Path, *, base: str | None = None, gguf_type: str | None = None) -> str:
    """Writes an adapter into its base model, a folder or a .gguf file; returns the name of the base model."""
    import torch

    from bough.models.gguf_write import write_gguf
    from bough.policy.adapters import load_actor

    is_gguf = output.suffix == ".gguf"
    if output.exists():
        raise InputError(f"{output} exists; give another {'file' if is_gguf else 'folder'}")
    base = base or base_and_adapter(str(adapter))[0]
    model = load_model(base, dtype=torch.float32, device=torch.device("cpu"), quantize=False)
    whole = merged(load_actor(model, adapter))
    tokenizer = load_tokenizer(str(adapter) if (adapter / "tokenizer.json").is_file() else base)
    if is_gguf:
        write_gguf(whole, tokenizer, output, gguf_type or "f16")
        return base
    draft = output.with_name(f".{output.name}")
    with drafting(draft, output), no_bars():
        whole.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        put_in_place(draft, output)
    return base


def merged(model: Any) -> Any:
    """The model with its adapter in its weights; InputError where two adapters would go into one weight."""
    import torch

    from bough.policy.adapters import adapted_layers

    layers = [layer.get_base_layer() for layer in adapted_layers(model) if hasattr(layer, "get_base_layer")]
    places = [layer.weight.data_ptr() for layer in layers if isinstance(getattr(layer, "weight", None), torch.Tensor)]
    if len({*places}) < len(places):
        raise InputError(
            f"{type(model.get_base_model()).__name__} uses some weights in several layers, each with an adapter of its "
            "own, so the adapter cannot be merged; use the model with its adapter"
        )
    return model.merge_and_unload()
