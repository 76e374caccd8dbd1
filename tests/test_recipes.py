from pathlib import Path

import pytest

from bough import recipes
from bough.cli import main
from bough.commands import table
from bough.experiments.evolve_settings import EvolveConfig, trained_by
from bough.experiments.recipe import load_recipe, shipped_recipes
from bough.experiments.run import Run
from bough.methods.dpo import DPOConfig
from bough.methods.grpo import GRPOConfig
from bough.methods.sft import SFTConfig

FILES = sorted(Path(recipes.__file__).parent.glob("*.yaml"))
SHIPPED = shipped_recipes()
OF_STAGES = [file for file in FILES if file.stem in SHIPPED]


@pytest.mark.parametrize("file", [file for file in FILES if file not in OF_STAGES], ids=lambda file: file.stem)
def test_settings_of_one_verb_are_valid(file: Path):
    config = table.command(file.stem.partition("-")[0]).config
    config.load(file)


@pytest.mark.parametrize("file", OF_STAGES, ids=lambda file: file.stem)
def test_every_stage_of_a_recipe_is_valid(file: Path, tmp_path: Path):
    playing = Run(load_recipe(file, {}), tmp_path / "run")
    assert [stage.verb for stage, _ in playing.settings()][-1] == "eval"
    assert main(["run", file.stem, "--dry-run"]) == 0
    assert not (tmp_path / "run").exists()


def file(name: str) -> Path:
    return Path(recipes.__file__).parent / f"{name}.yaml"


def load(name: str, config: type) -> object:
    return config.load(file(name))  # type: ignore[attr-defined]


def test_the_seeds_numbers_are_in_the_recipes():
    roundwise = load("dpo-roundwise", DPOConfig)
    assert isinstance(roundwise, DPOConfig)
    assert (roundwise.lora.r, roundwise.lora.alpha, roundwise.lora.dropout) == (64, 128, 0.0)
    assert (roundwise.optimizer.learning_rate, roundwise.optimizer.num_epochs) == (8e-7, 1)
    assert roundwise.calls.max_length == 2048
    agilerl = load("dpo-agilerl", DPOConfig)
    assert isinstance(agilerl, DPOConfig)
    assert (agilerl.optimizer.batch_size, agilerl.optimizer.learning_rate) == (32, 5e-6)
    assert (agilerl.beta, agilerl.seed) == (0.001, 42)
    assert (agilerl.nll_alpha, agilerl.optimizer.max_grad_norm) == (1.0, 0.1)
    tcr = load("grpo-tcr-on-file", GRPOConfig)
    assert isinstance(tcr, GRPOConfig)
    optimizer = tcr.optimizer
    assert (optimizer.learning_rate, optimizer.batch_size, optimizer.num_epochs) == (1e-6, 4, 3)
    assert tcr.calls.max_length == 2560 + 10480
    assert (tcr.clip_low, tcr.clip_high, tcr.dual_clip, tcr.kl_coef, tcr.averaging) == (0.2, 0.28, 10, 0, "token_mean")
    online = GRPOConfig(environment="x", output_dir="y", **load_recipe(file("grpo-tcr"), {}).stages[1]["grpo"])
    for name in ("learning_rate", "batch_size", "max_length", "clip_low", "clip_high", "dual_clip", "kl_coef"):
        assert online.flat_dump()[name] == tcr.flat_dump()[name], name
    assert (online.rollouts.group_size, online.optimizer.max_steps, online.rollouts.updates) == (8, 366 * 4, 4)
    assert online.rewards["overlong"] == {"weight": 1, "max_length": 10480, "buffer": 3000}
    knowlyr = load("sft-knowlyr", SFTConfig)
    assert isinstance(knowlyr, SFTConfig)
    assert (knowlyr.model, knowlyr.optimizer.batch_size, knowlyr.calls.max_length) == ("Qwen/Qwen2.5-Coder-7B", 4, 4096)
    assert knowlyr.step_weighted_loss and knowlyr.curriculum.enabled
    staged = SFTConfig(model=knowlyr.model, output_dir="y", **load_recipe(file("knowlyr"), {}).stages[0]["sft"])
    other = {"train_file", "output_dir"}
    assert {k: v for k, v in staged.flat_dump().items() if k not in other} == {
        k: v for k, v in knowlyr.flat_dump().items() if k not in other
    }


def test_the_seeds_population_is_in_its_recipe():
    [(_, settings), (_, evaluation)] = Run(load_recipe(file("agilerl-population"), {}), Path("run")).settings()
    assert evaluation["eval_file"] not in settings.values()  # nothing is selected on what the winner is evaluated on
    config = EvolveConfig(**{key: value for key, value in settings.items() if key != "resume"})
    alone = load("dpo-agilerl", DPOConfig)
    assert isinstance(alone, DPOConfig)
    member = trained_by(config, {})
    assert isinstance(member, DPOConfig)
    for name in ("model", "batch_size", "learning_rate", "beta", "nll_alpha", "max_grad_norm"):
        assert member.flat_dump()[name] == alone.flat_dump()[name], name
    assert (config.selection.tournament_size, config.selection.elitism) == (2, True)
    assert (config.mutation.no_mutation, config.mutation.hyper_parameter, config.seed) == (0.1, 0.6, 42)
    # 12,800 samples in batches of 32 are 400 updates, 10 of them a generation.
    assert (config.population.size, config.population.steps, config.population.generations) == (4, 10, 40)
