from pathlib import Path

import pytest

from bough.config import flags
from bough.config.groups import ClusterConfig, CollectConfig
from bough.errors import InputError
from bough.evaluation.contest import EvalConfig
from bough.experiments.evolve_settings import EvolveConfig
from bough.experiments.run import RunConfig
from bough.experiments.sweep import SweepConfig
from bough.methods.distill import DistillConfig
from bough.methods.grpo import GRPOConfig

WORDS = ["--environment", "household", "--output", "x"]
FLAGS = {"--cluster", "--workers", "--gpus-per-worker", "--cluster-timeout"}


def collect(*words: str) -> CollectConfig:
    settings = flags.parse(CollectConfig, flags.build(CollectConfig, "bough collect"), [*WORDS, *words])
    assert isinstance(settings, CollectConfig)
    return settings


def test_the_flags_are_a_part():
    found = collect(
        "--cluster", "10.0.0.1:6379", "--workers", "4", "--gpus-per-worker", "0.25", "--cluster-timeout", "5"
    )
    assert found.cluster == ClusterConfig(address="10.0.0.1:6379", workers=4, gpus_per_worker=0.25, timeout_s=5)
    assert collect().cluster.address is None


@pytest.mark.parametrize("config", [CollectConfig, EvalConfig, RunConfig, SweepConfig, EvolveConfig])
def test_every_command_that_plays_has_the_flags(config):
    assert set(flags.build(config, "bough x")._option_string_actions) >= FLAGS


@pytest.mark.parametrize("config", [GRPOConfig, DistillConfig])
def test_online_training_has_learners_too(config):
    known = set(flags.build(config, "bough x")._option_string_actions)
    assert known >= FLAGS | {"--learners", "--swap-mid-episode"}


@pytest.mark.parametrize("address", ["", "10.0.0.1", "ray://10.0.0.1:10001", "head:port", "a b:1"])
def test_an_address_is_auto_or_host_and_port(address: str):
    with pytest.raises(InputError, match="it must be auto or the HOST:PORT"):
        ClusterConfig(address=address)
    for good in ("auto", "10.0.0.1:6379", "head.example.org:6379", "[::1]:6379"):
        assert ClusterConfig(address=good).address == good


@pytest.mark.parametrize("words", [["--workers", "2"], ["--gpus-per-worker", "1"]])
def test_settings_of_workers_need_a_cluster(words: list[str]):
    with pytest.raises(InputError, match=f"  - {words[0]} needs --cluster: auto or HOST:PORT"):
        collect(*words)


def test_in_a_file_and_in_python_settings_are_named_as_they_are_written_there(tmp_path: Path):
    with pytest.raises(InputError, match="  - workers and gpus_per_worker need cluster: auto or HOST:PORT"):
        CollectConfig(output=tmp_path, environment="household", workers=2, gpus_per_worker=1)
    file = tmp_path / "run.yaml"
    file.write_text("output: out\nenvironment: household\nworkers: 2\n")
    with pytest.raises(InputError, match="  - workers needs cluster: auto or HOST:PORT"):
        CollectConfig.load(file, {"seed": "3"})


def test_a_worker_has_whole_gpus_or_a_part_of_one():
    with pytest.raises(InputError, match="a worker cannot have one GPU and a part of another"):
        ClusterConfig(address="auto", gpus_per_worker=1.5)
    assert ClusterConfig(address="auto", gpus_per_worker=2).gpus_per_worker == 2


def test_the_models_of_an_evaluation_have_its_cluster():
    cluster = {"cluster": "auto", "workers": 3}
    config = EvalConfig(environment="household", model=["expert"], output="x", **cluster)
    assert config.contestant("expert", config.output).cluster == ClusterConfig(address="auto", workers=3)
