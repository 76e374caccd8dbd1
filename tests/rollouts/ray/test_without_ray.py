"""Without --cluster nothing of Ray is loaded or needed."""

import sys
from pathlib import Path

import pytest
import yaml

from bough.experiments.sweep import Sweep, SweepConfig
from tests.warm import Warm

# All commands, and all modules that use the package for clusters. Of what is loaded, other libraries stay, unless only
# tests have loaded them.
IMPORTS = """
import sys
from importlib import import_module
from pathlib import Path

from tests.loaded import WITHOUT_TESTS

assert {"torch", "transformers", "peft", "accelerate"} < WITHOUT_TESTS
for name in list(sys.modules):
    if name not in WITHOUT_TESTS or name.partition(".")[0] == "bough":
        del sys.modules[name]

import bough
from bough.commands import table

source = Path(bough.__file__).parents[1]
users = [file for file in source.rglob("*.py") if "bough.rollouts.ray" in file.read_text()]
names = {".".join(file.relative_to(source).with_suffix("").parts) for file in users}
for name in sorted(names | {row.module for row in table.TABLE.values()}):
    import_module(name)
    print(name, [loaded for loaded in sys.modules if loaded.partition(".")[0] == "ray"])
"""
# Every command that takes --cluster.
STAGES = [
    {"collect": {"model": "expert", "tasks": 2, "max_turns": 40}},
    {"demos": None},
    {"evolve": {"method": "sft", "population_size": 2, "generations": 1, "steps": 1, "eval_tasks": 2}},
    {"grpo": {"batch_size": 1, "group_size": 3, "max_steps": 1}},
    {"distill": {"teacher": "tiny", "batch_size": 1, "max_steps": 1}},
    {"eval": {"episodes": 2}},
]


def test_nothing_of_ray_is_imported_without_a_cluster():
    with Warm(None, code=IMPORTS) as program:
        loaded = dict(line.split(maxsplit=1) for line in program.communicate().splitlines())
    assert program.wait() == 0
    assert loaded == dict.fromkeys(loaded, "[]")
    assert loaded.keys() > {
        "bough.rollouts.ray_pool",
        "bough.experiments.cluster",
        "bough.experiments.run",
    }


def test_all_that_takes_a_cluster_works_where_ray_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    file = tmp_path / "all.yaml"
    shared = {"environment": "household", "max_turns": 2, "max_new_tokens": 4}
    file.write_text(yaml.safe_dump({"model": "tiny", "defaults": shared, "stages": STAGES}))
    played = [f"{stage}.environment=tests.online.letters:Letters" for stage in ("grpo", "distill")]
    given = {"set": played, "vary": ["eval.max_turns=1"], "seeds": 1, "output": tmp_path / "sweep"}
    sweep = Sweep.configured(SweepConfig(recipe=str(file), **given))
    (row,) = sweep.play(lambda _: None)
    assert (row.success.episodes, sweep.failed) == (2, {})
