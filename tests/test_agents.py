"""A run becomes an agent that is shipped with the repository, and the shipped agents load and play."""

from pathlib import Path

import pytest
import yaml
from benchmarks.agents import ADAPTER, EVALUATION, WEIGHTS, in_16_bits, ship
from safetensors.torch import load_file

from bough.cli import main
from bough.errors import InputError
from bough.evaluation.results import Results
from bough.experiments.recipe import Recipe
from bough.experiments.run import Run
from bough.files import cache_folder, read_json
from bough.models import resolve
from bough.worlds.web.browser import find as find_browser

AGENTS = Path(__file__).parents[1] / "agents"
SHIPPED = sorted(file.parent for file in AGENTS.glob(f"*/{ADAPTER}"))
MOST_BYTES = 20_000_000
RECIPE = Recipe(
    name="shipping",
    model="tiny",
    defaults={"environment": "household", "max_turns": 4, "max_new_tokens": 8},
    stages=[
        {"collect": {"model": "expert", "tasks": 3, "max_turns": 50}},
        {"demos": {}},
        {"sft": {"max_steps": 1}},
        {"eval": {"name": "unseen", "tasks": 2}},
    ],
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "shipping"
    Run(RECIPE, folder).play(lambda _: None)
    return folder


def test_an_agent_repeats_the_evaluation_of_its_run(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    agent = Path("agents/tiny")
    ship(run, agent, "unseen")
    assert read_json(agent / ADAPTER)["base_model_name_or_path"] == "tiny"
    assert "# tiny" in (agent / "README.md").read_text()
    assert main(["eval", "--config", f"{agent / EVALUATION}"]) == 0
    before, after = Results.read(run / "04-unseen"), Results.read(Path("runs/tiny-unseen"))
    assert [one.digest for one in after.models[0].outcomes] == [one.digest for one in before.models[0].outcomes]
    assert after.models[0].settings["max_new_tokens"] == 8


def test_an_adapter_is_shipped_in_16_bits(run: Path, tmp_path: Path):
    source = run / "03-sft" / "final" / WEIGHTS
    in_16_bits(source, tmp_path / WEIGHTS)
    before, after = load_file(source), load_file(tmp_path / WEIGHTS)
    assert {str(tensor.dtype) for tensor in after.values()} == {"torch.bfloat16"}
    assert all((after[name].float() - one).abs().max() <= one.abs().max() / 128 for name, one in before.items())


def test_what_cannot_be_shipped_is_refused(run: Path, tmp_path: Path):
    with pytest.raises(InputError, match=r"no evaluation 'seen' .* there are: unseen"):
        ship(run, tmp_path / "agent", "seen")
    config = run / "03-sft" / "final" / ADAPTER
    config.rename(config.with_name("config.json"))
    try:
        with pytest.raises(InputError, match="all weights were trained"):
            ship(run, tmp_path / "agent", "unseen")
    finally:
        config.with_name("config.json").rename(config)
    assert not (tmp_path / "agent").exists()


def test_shipped_agents_are_small():
    assert sum(file.stat().st_size for file in AGENTS.rglob("*") if file.is_file()) <= MOST_BYTES


@pytest.mark.parametrize("agent", SHIPPED, ids=lambda folder: folder.name)
def test_a_shipped_agent_plays(agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert read_json(agent / ADAPTER)["base_model_name_or_path"] == "smollm2"
    if not (cache_folder() / resolve.FOLDER).exists():
        pytest.skip("the weights of smollm2 are not in the cache")
    if yaml.safe_load((agent / EVALUATION).read_text())["environment"] == "web" and not find_browser():
        pytest.skip("there is no browser")
    monkeypatch.chdir(AGENTS.parent)
    flags = ["--tasks", "1", "--max-turns", "1", "--output", f"{tmp_path / 'out'}"]
    assert main(["eval", "--config", f"{(agent / EVALUATION).relative_to(AGENTS.parent)}", *flags]) == 0
    outcomes = Results.read(tmp_path / "out").models[0].outcomes
    assert len(outcomes) == 1 and not any(one.errors for one in outcomes)  # it has learnt the form of actions
