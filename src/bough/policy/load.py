"""Load a language model to be trained: from which folder, in which precision, on which device."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bough.chat.builder import CallBuilder
from bough.chat.template import load_template
from bough.errors import InputError
from bough.files import read_json
from bough.models import scikit_learn
from bough.models.gguf_read import FOLDER as GGUF_FOLDER
from bough.models.resolve import check_hub, context_length, refuse_pickle
from bough.models.sizes import load_config, outline

if TYPE_CHECKING:
    import torch


RANDOM = re.compile(r"dropout|pdrop|layerdrop|jitter")


def load_model(name: str, *, dtype: torch.dtype | None, device: torch.device, quantize: bool) -> Any:
    """The causal language model `name`, without dropout: its log-probabilities are a function of its weights.

    float32 on the CPU and bfloat16 on CUDA unless `dtype` says otherwise; with `quantize`
    the weights are NF4 and `dtype` is what they compute in.
    """
    scikit_learn.import_later(models=True)
    import torch

    from bough.models.resolve import resolve
    from bough.terminal.console import no_bars

    dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
    options = _quantized(dtype, device) if quantize else {}
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
    scikit_learn.import_later(models=True)
    from bough.models.resolve import resolve

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


def _quantized(dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    from transformers import BitsAndBytesConfig

    if device.type != "cuda":
        raise InputError(f"quantize needs a CUDA device (bitsandbytes); this is {device.type}")
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )
    return {"quantization_config": config, "device_map": {"": device}}
