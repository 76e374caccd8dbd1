"""Where an online run trains."""

from pathlib import Path

import pytest

from bough.errors import InputError
from bough.methods.distill import DistillConfig
from bough.methods.grpo import GRPOConfig
from bough.online.source import with_learners
from bough.training.checkpoint import Counters
from bough.training.run import Trained
from tests.online.test_online import settings

TRAINED = Trained(Path("final"), Counters(), [])


def test_learners_are_not_started_by_each_of_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="--learners starts the processes that train; leave out accelerate launch"):
        with_learners(settings(tmp_path, cluster="auto", learners=2), lambda _: TRAINED)


def test_learners_train_on_the_cluster_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    started = []
    monkeypatch.setattr(
        "bough.rollouts.ray_learners.train_with_learners", lambda *given: started.append(given) or TRAINED
    )
    config = settings(tmp_path, cluster="auto", learners=2)
    assert with_learners(config, train) is TRAINED
    assert started == [(config, config.cluster, train)]


def train(_: object) -> Trained:
    raise AssertionError("it trains in this process")


def test_learners_on_data_from_files_are_refused():
    said = "learners needs environment; on data from files, accelerate launch starts several processes"
    with pytest.raises(InputError, match=said):
        GRPOConfig(train_file=Path("groups.jsonl"), cluster="auto", learners=2)
    with pytest.raises(InputError, match=said):
        DistillConfig(train_file=Path("played.jsonl"), teacher="tiny", cluster="auto", learners=2)
