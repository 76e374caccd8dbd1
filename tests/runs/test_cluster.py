"""`bough run --cluster`: the stages that play do so on the cluster."""

from pathlib import Path

import pytest
import yaml

from bough.config.run import RunConfig
from bough.runs.run import Run
from bough.runs.wiring import Artifacts, stamped

STAGES = [
    {"collect": {"model": "expert", "tasks": 4}},
    {"collect": {"name": "here", "workers": 3, "tasks": 4}},
    {"demos": None},
    {"sft": {"max_steps": 1}},
    {"groups": {"from": "here"}},
    {"grpo": {"name": "offline", "max_steps": 1}},
    {"grpo": {"name": "online", "environment": "household", "max_steps": 1}},
    {"eval": {"episodes": 4}},
    {"eval": {"name": "measured", "eval_file": "held-out.jsonl"}},
]


def run(folder: Path, stages: list = STAGES, **settings) -> Run:
    file = folder / "r.yaml"
    file.write_text(yaml.safe_dump({"model": "tiny", "defaults": {"environment": "household"}, "stages": stages}))
    return Run.configured(RunConfig(recipe=str(file), output_dir=folder / "run", report_to=["none"], **settings))


def test_the_stages_that_play_have_the_cluster(tmp_path: Path):
    found = {stage.name: given for stage, given in run(tmp_path, cluster="auto", workers=2).settings()}
    given = {name: (values.get("cluster"), values.get("workers")) for name, values in found.items()}
    on_cluster = {name: ("auto", 3 if name == "here" else 2) for name in ("collect", "here", "online", "eval")}
    assert given == dict.fromkeys(found, (None, None)) | on_cluster


def test_a_stage_that_was_played_on_a_cluster_is_the_same_stage(tmp_path: Path):
    def fingerprint(**settings) -> str:
        playing = run(tmp_path, STAGES[:1], **settings)
        return stamped("collect", playing.wiring.config(playing.stages[0], Artifacts("tiny"))).fingerprint

    assert fingerprint() == fingerprint(cluster="10.0.0.1:6379", workers=2, cluster_timeout=5)


def test_workers_need_a_cluster(tmp_path: Path):
    with pytest.raises(ValueError, match="workers needs cluster"):
        run(tmp_path, workers=2)
