"""`bough run --cluster`: the stages that play, and populations, are on the cluster."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from bough.config.groups import CollectConfig
from bough.experiments.run import Run, RunConfig
from bough.experiments.wiring import Artifacts, stamped
from bough.rollouts import ray as connection
from tests.standing_in import stand_in

STAGES = [
    {"collect": {"model": "expert", "tasks": 4}},
    {"collect": {"name": "here", "workers": 3, "tasks": 4}},
    {"demos": None},
    {"sft": {"max_steps": 1}},
    {"groups": {"from": "here"}},
    {"grpo": {"name": "offline", "max_steps": 1}},
    {"grpo": {"name": "online", "environment": "household", "max_steps": 1}},
    {"distill": {"name": "of-groups", "teacher": "tiny", "max_steps": 1}},
    {"distill": {"name": "of-own-replies", "environment": "household", "teacher": "tiny", "max_steps": 1}},
    {"evolve": {"method": "sft", "name": "trained", "generations": 1}},
    {"evolve": {"method": "grpo", "name": "played", "generations": 1}},
    {"eval": {"episodes": 4}},
    {"eval": {"name": "measured", "eval_file": "held-out.jsonl"}},
]


def run(folder: Path, stages: list = STAGES, **settings) -> Run:
    file = folder / "r.yaml"
    file.write_text(yaml.safe_dump({"model": "tiny", "defaults": {"environment": "household"}, "stages": stages}))
    return Run.configured(RunConfig(recipe=str(file), output_dir=folder / "run", report_to=["none"], **settings))


def test_the_stages_that_play_and_populations_have_the_cluster(tmp_path: Path):
    found = {stage.name: given for stage, given in run(tmp_path, cluster="auto", workers=2).settings()}
    given = {name: (values.get("cluster"), values.get("workers")) for name, values in found.items()}
    playing = ("collect", "here", "online", "of-own-replies", "eval")
    on_cluster = {name: ("auto", 3 if name == "here" else 2) for name in (*playing, "trained", "played")}
    assert given == dict.fromkeys(found, (None, None)) | on_cluster


def test_a_stage_that_was_played_on_a_cluster_is_the_same_stage(tmp_path: Path):
    def fingerprint(**settings) -> str:
        playing = run(tmp_path, STAGES[:1], **settings)
        return stamped("collect", playing.wiring.config(playing.stages[0], Artifacts("tiny"))).fingerprint

    assert fingerprint() == fingerprint(cluster="10.0.0.1:6379", workers=2, cluster_timeout=5)


def test_workers_need_a_cluster(tmp_path: Path):
    with pytest.raises(ValueError, match="workers needs cluster"):
        run(tmp_path, workers=2)


class FakeRay:
    """Knows whether it runs, and what was done with it."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def is_initialized(self) -> bool:
        return self.done.count("started") > self.done.count("shut down")

    def get_runtime_context(self) -> SimpleNamespace:
        return SimpleNamespace(gcs_address="127.0.0.1:6379")

    def shutdown(self) -> None:
        self.done.append("shut down")


def test_ray_is_started_once_for_all_stages_and_not_for_a_run_that_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ray = FakeRay()

    def play(config: CollectConfig) -> int:
        with connection.connected(config.cluster):
            ray.done.append("played")
        (config.output / "trajectories.jsonl").write_text("{}\n")
        return 0

    monkeypatch.setattr(connection, "import_ray", lambda: ray)
    monkeypatch.setattr(connection, "_connect", lambda *_: ray.done.append("started"))
    stand_in(monkeypatch, "collect", play)
    for _ in range(2):
        run(tmp_path, STAGES[:2], cluster="auto").play(lambda _: None)
        assert ray.done == ["started", "played", "played", "shut down"]
