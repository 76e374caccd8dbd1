from pathlib import Path
from typing import Any

import pytest

from bough.errors import InputError
from bough.experiments.evolve_settings import EvolveConfig

MANIFEST: dict[str, Any] = {
    "algorithm": {"name": "DPO", "batch_size": 16, "beta": 0.001, "lr": 5e-6, "update_epochs": 1, "max_grad_norm": 0.1},
    "environment": {"dataset": "HumanLLMs/Human-Like-DPO-Dataset"},
    "training": {"max_steps": 100000, "evo_steps": 10, "pop_size": 4, "eval_loop": 1, "evaluation_interval": 5},
    "mutation": {
        "mutation_sd": 0.1,
        "rand_seed": 7,
        "probabilities": {"no_mut": 0.1, "arch_mut": 0.0, "params_mut": 0.0, "act_mut": 0.0, "rl_hp_mut": 0.6},
        "rl_hp_selection": {"lr": {"min": 1e-7, "max": 1e-5, "grow_factor": 1.5}, "beta": {"min": 1e-4, "max": 0.01}},
    },
    "selection_strategy": {"tournament_size": 3, "elitism": False},
    "network": {
        "pretrained_model_name_or_path": "Qwen/Qwen2.5-0.5B",
        "max_context_length": 1024,
        "lora_config": {"lora_r": 16, "lora_alpha": 64, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"},
    },
}
INIT_HP: dict[str, Any] = {
    "INIT_HP": {"ALGO": "DPO", "BATCH_SIZE": 2, "TOURN_SIZE": 2, "ELITISM": True, "POP_SIZE": 6, "EVO_STEPS": 5},
    "MUTATION_PARAMS": {
        **{"NO_MUT": 0.1, "RL_HP_MUT": 0.6, "MIN_LR": 1e-7, "MAX_LR": 1e-5},
        **{"MIN_GROUP_SIZE": 4, "MAX_GROUP_SIZE": 12},
    },
}


def test_a_manifest_is_read_as_it_is_written():
    config = EvolveConfig(**MANIFEST)
    assert (config.method, config.model, config.seed) == ("dpo", "Qwen/Qwen2.5-0.5B", 7)
    assert str(config.train_file) == "hf:HumanLLMs/Human-Like-DPO-Dataset"
    # 100,000 samples in batches of 16 are 6,250 updates, 10 of them a generation.
    assert (config.population.size, config.population.steps, config.population.generations) == (4, 10, 625)
    assert (config.selection.tournament_size, config.selection.elitism) == (3, False)
    assert (config.mutation.no_mutation, config.mutation.hyper_parameter) == (0.1, 0.6)
    assert (config.mutation.grow_factor, config.mutation.shrink_factor) == (1.5, 0.8)
    assert config.mutation.mutate == {
        "learning_rate": {"min": 1e-7, "max": 1e-5},
        "beta": {"min": 1e-4, "max": 0.01},
    }
    assert config.set["learning_rate"] == 5e-6 and config.set["lora_target_modules"] == ["q_proj"]


def test_the_older_names_in_capitals_are_read_too():
    config = EvolveConfig(train_file=Path("pairs.jsonl"), **INIT_HP)
    assert (config.population.size, config.population.steps, config.population.initial) == (6, 5, "same")
    assert config.mutation.mutate == {"learning_rate": {"min": 1e-7, "max": 1e-5}}


def test_own_names_go_before_translated_ones():
    config = EvolveConfig(**MANIFEST, population_size=3, set={"beta": 0.5}, mutate={"beta": "0.1..1"})
    assert config.population.size == 3 and config.set["beta"] == 0.5 and config.set["batch_size"] == 16
    assert config.mutation.mutate["beta"] == {"min": 0.1, "max": 1.0}


@pytest.mark.parametrize(
    ("section", "values", "said"),
    [
        ("algorithm", {"name": "GRPO"}, "GRPO cannot be evolved"),
        ("algorithm", {"update_epochs": 2}, "update_epochs is 2"),
        ("algorithm", {"colour": "red"}, "colour is a name of AgileRL that bough evolve does not know"),
        ("mutation", {"probabilities": {"arch_mut": 0.2}}, "arch_mut is 0.2: adapters have no architecture"),
    ],
)
def test_what_bough_does_not_do_is_refused(section: str, values: dict[str, Any], said: str):
    with pytest.raises(InputError, match=said):
        EvolveConfig(**{**MANIFEST, section: {**MANIFEST[section], **values}})
