"""AgileRL's configuration, its manifests and its INIT_HP files, as settings of `bough evolve`.

    algorithm: name, lr, batch_size, beta, …             method, set: learning_rate, batch_size, beta, …
    training: pop_size, evo_steps, max_steps (samples)   population_size, steps, generations
    mutation: probabilities (no_mut, rl_hp_mut)          no_mutation, hyper_parameter
    mutation: rl_hp_selection: {lr: {min, max}}          mutate: {learning_rate: {min, max}}
    selection_strategy or tournament_selection           tournament_size, elitism
    network: pretrained_model_name_or_path, lora_config  model, set: lora_r, lora_alpha, …
    INIT_HP, MUTATION_PARAMS                             the same, in capitals

What mutates a network's architecture, weights or activations must be 0. Names of memory, speed and
logging are read and have no effect.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

SECTIONS = ("algorithm", "training", "selection_strategy", "tournament_selection", "network", "INIT_HP")
# Keys by which AgileRL's `mutation` is told from Bough's.
OF_MUTATION = {"probabilities", "rl_hp_selection", "mutation_sd", "rand_seed"}
SETTINGS = {
    "lr": "learning_rate",
    "max_context_length": "max_length",
    "r": "lora_r",
    "target_modules": "lora_target_modules",
    **{
        name: name
        for name in (
            *("batch_size", "beta", "nll_alpha", "label_smoothing", "max_grad_norm", "gradient_checkpointing"),
            *("lora_r", "lora_alpha", "lora_dropout"),
        )
    },
}
OF_EVOLVE = {
    "pop_size": "population_size",
    "evo_steps": "steps",
    "tourn_size": "tournament_size",
    "tournament_size": "tournament_size",
    "elitism": "elitism",
    "seed": "seed",
    "rand_seed": "seed",
    "pretrained_model_name_or_path": "model",
    "no_mut": "no_mutation",
    "no_mutation": "no_mutation",
    "rl_hp_mut": "hyper_parameter",
    "rl_hp": "hyper_parameter",
}
WITHOUT_EFFECT = {
    *("calc_position_embeddings", "use_separate_reference_adapter", "reduce_memory_peak", "use_liger_loss"),
    *("micro_batch_size_per_gpu", "device", "torch_compiler", "task_type", "mutation_sd", "mut_sd"),
    *("eval_loop", "evaluation_interval", "num_epochs", "num_batches", "checkpoint_steps", "wandb"),
    *("wandb_api_key", "wandb_project", "wandb_entity", "wandb_run_name", "target_score", "mutate_elite"),
}
NETWORK_MUTATIONS = {
    *("arch_mut", "architecture", "new_layer", "new_layer_prob", "params_mut", "parameters", "act_mut", "activation"),
}
METHODS = ("dpo", "sft")


def translate(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with AgileRL's sections as Bough's own; what Bough's own names say goes first.

    ValueError where a section asks for what Bough does not do.
    """
    rest = dict(values)
    flat: dict[str, Any] = {}
    for name in SECTIONS:
        if isinstance(section := rest.get(name), Mapping):
            flat |= _flat(rest.pop(name))
    if isinstance(section := rest.get("mutation"), Mapping) and OF_MUTATION & set(section):
        flat |= _flat(rest.pop("mutation"))
    flat |= _flat(rest.pop("MUTATION_PARAMS", {}))
    if isinstance(section := rest.get("environment"), Mapping) and "dataset" in section:
        rest.pop("environment")
        rest.setdefault("train_file", f"hf:{section['dataset']}")
    if not flat:
        return rest
    found = _translated(flat)
    for key in ("set", "mutate"):
        if isinstance(own := rest.get(key), Mapping):
            rest[key] = {**found.get(key, {}), **own}
    return {**found, **rest}


def _flat(section: Mapping[str, Any]) -> dict[str, Any]:
    """The names of a section in small letters, those of the sections inside it too; empty values are left out."""
    flat: dict[str, Any] = {}
    for key, value in section.items():
        name = str(key).lower()
        if isinstance(value, Mapping) and name in ("probabilities", "lora_config"):
            flat |= _flat(value)
        elif value is not None:
            flat[name] = value
    return flat


def _translated(flat: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"set": {}, "initial": "same"}
    method = str(flat.pop("algo", flat.pop("name", "dpo"))).lower()
    if method not in METHODS:
        raise ValueError(f"AgileRL's {method.upper()} cannot be evolved; {' and '.join(METHODS)} can")
    found["method"] = method
    if (passes := flat.pop("update_epochs", 1)) != 1:
        raise ValueError(f"update_epochs is {passes}: members pass once over each batch; leave it out")
    if (samples := flat.pop("max_steps", None)) is not None:
        updates = math.ceil(samples / flat.get("batch_size", 16))
        found["generations"] = math.ceil(updates / flat.get("evo_steps", updates))
    mutate = {name: dict(span) for name, span in dict(flat.pop("rl_hp_selection", {})).items()}
    # MIN_LR and MAX_LR are a range; those of other methods' settings (group_size) are dropped.
    for name in [key.removeprefix("min_") for key in flat if key.startswith("min_")]:
        low, high = flat.pop(f"min_{name}"), flat.pop(f"max_{name}", None)
        if high is None:
            raise ValueError(f"min_{name} is given without max_{name}")
        if name in SETTINGS:
            mutate[name] = {"min": low, "max": high}
    for key, value in flat.items():
        if key in SETTINGS:
            found["set"][SETTINGS[key]] = value
        elif key in OF_EVOLVE:
            found[OF_EVOLVE[key]] = value
        elif key in NETWORK_MUTATIONS:
            if value:
                raise ValueError(f"{key} is {value}: adapters have no architecture or activations to mutate; set it 0")
        elif key not in WITHOUT_EFFECT:
            raise ValueError(f"{key} is a name of AgileRL that bough evolve does not know; remove it")
    for factor in ("grow_factor", "shrink_factor"):
        given = {span.pop(factor) for span in mutate.values() if factor in span}
        if len(given) > 1:
            raise ValueError(f"{factor} must be the same for all hyper-parameters; it is {sorted(given)}")
        if given:
            found[factor] = given.pop()
    found["mutate"] = {SETTINGS.get(name, name): span for name, span in mutate.items()}
    return found
