"""An evolution from its settings to its winner, and what must be the same after a kill."""

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from bough.errors import InputError
from bough.evaluation.intervals import wilson
from bough.experiments.evolve import Evolved, evolve, opened
from bough.experiments.generation import Generation
from bough.experiments.members import RecordLessons, _population
from bough.methods.sft import SFTConfig
from bough.models.resolve import resolve
from bough.types import Call
from tests.experiments.small import SETTINGS, config, pairs, pairs_file
from tests.policy.families import make

ADAPTER = "adapter_model.safetensors"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Evolved:
    """A run that is never killed."""
    return evolve(config(tmp_path_factory.mktemp("whole")))


def test_every_member_of_every_generation_has_a_line(whole: Evolved):
    by_generation = [[line for line in whole.lineage if line["generation"] == number] for number in range(3)]
    assert [len(lines) for lines in by_generation] == [4, 4, 4]
    for before, after in pairwise(by_generation):
        known = {line["name"]: line for line in before}
        for line in after:
            if line["name"] in known:
                assert known[line["name"]]["lives"] and line["step"] == known[line["name"]]["step"] + 2
                continue
            parent = known[line["parent"]]
            assert line["born"] == line["generation"] and line["step"] == parent["step"] + 2
            changed = {key: value for key, value in line["settings"].items() if value != parent["settings"][key]}
            if line["mutation"]["kind"] == "hyper_parameter":
                setting = line["mutation"]["setting"]
                assert changed == ({setting: line["mutation"]["after"]} if changed else {})
            else:
                assert changed == {}
        assert sum(line["children"] for line in before) + sum(line["lives"] for line in before) == 4


def test_the_winner_is_measured_again_on_records_that_no_member_was_selected_on(whole: Evolved):
    report = whole.report
    last = [line for line in whole.lineage if line["generation"] == 2]
    assert report["winner"]["name"] == last[0]["name"] and report["selected"]["fitness"] == last[0]["fitness"]
    assert report["selected"]["tasks"] == report["untouched"]["tasks"] == 4  # a quarter of 16 each
    for measured in (*whole.lineage, report["selected"], report["untouched"]):
        low, high = measured["interval"]
        assert (low, high) == wilson(4 * measured["fitness"], 4)
    assert report["shrinkage"] == report["selected"]["fitness"] - report["untouched"]["fitness"]
    assert report["updates"] == 3 * 2 * 4
    trained = whole.folder / "checkpoints" / "generation-00002-trained" / report["winner"]["name"] / ADAPTER
    assert (whole.weights / ADAPTER).read_bytes() == trained.read_bytes()
    assert (whole.weights / "tokenizer_config.json").exists()
    assert json.loads((whole.folder / "report.json").read_text()) == report


def test_children_go_on_with_the_moments_of_their_parents(whole: Evolved):
    trained = Generation.read(whole.folder / "checkpoints" / "generation-00002-trained")
    assert any(individual.born == 2 for individual in trained.individuals().values())
    for name in trained.members:
        moments = load_file(trained.folder(name) / "optimizer.safetensors")
        assert {float(value) for key, value in moments.items() if key.endswith(".step")} == {6.0}


def test_a_run_can_be_made_longer_and_only_that(tmp_path: Path):
    small = {"steps": 1, "population_size": 2}
    evolve(config(tmp_path, generations=1, **small))
    with pytest.raises(InputError, match="already contains a run"):
        evolve(config(tmp_path, generations=9, **small))
    with pytest.raises(InputError, match="began with other settings"):
        evolve(config(tmp_path, generations=9, steps=2, population_size=2, resume=True))
    longer = evolve(config(tmp_path, generations=9, **small, resume=True, max_updates=3))
    # No generation begins after three updates: the second made the third and the fourth.
    assert [line["generation"] for line in longer.lineage] == [0, 0, 1, 1] and longer.report["updates"] == 4


def test_no_generation_begins_after_the_minutes_or_tokens_are_used_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    learnt: list[Call] = []
    own = RecordLessons.batches

    def noted(self: RecordLessons, pupils: Any, update: int) -> Any:
        found = own(self, pupils, update)
        learnt.extend(call for examples in found.values() for example in examples for call in example.calls)
        return found

    monkeypatch.setattr(RecordLessons, "batches", noted)
    small = {"steps": 1, "population_size": 2, "generations": 3}
    # With nothing shared, every call is computed from its first token to its last but one.
    settings = {"set": {**SETTINGS["set"], "share": False}, **small}
    first = evolve(config(tmp_path, **settings, max_minutes=1e-9))
    assert [line["generation"] for line in first.lineage] == [0, 0]
    tokens = first.report["tokens_computed"]
    assert tokens == sum(len(call.prompt_ids) + len(call.completion_ids) - 1 for call in learnt) > 0
    longer = evolve(config(tmp_path, **settings, resume=True, max_tokens=tokens + 1))
    assert [line["generation"] for line in longer.lineage] == [0, 0, 1, 1]
    assert longer.report["tokens_computed"] > tokens


def test_halving_trains_half_of_the_members_twice_as_long(tmp_path: Path):
    found = evolve(config(tmp_path, halving=True, steps=1, generations=5))
    steps = [(line["generation"], line["step"]) for line in found.lineage]
    assert steps == [(0, 1)] * 4 + [(1, 1 + 2)] * 2
    assert {line["parent"] for line in found.lineage} == {None}


def test_a_start_adapter_is_where_members_begin_and_what_they_are_compared_with(tmp_path: Path, whole: Evolved):
    settings = {"model": str(whole.weights), "set": {"batch_size": 2}, "steps": 1}
    found = evolve(config(tmp_path, generations=1, population_size=2, **settings))
    begun = tmp_path / "run" / "checkpoints" / "generation-00000"
    start = load_file(whole.weights / ADAPTER)
    for name in ("g0-0", "g0-1"):
        weights = load_file(begun / name / ADAPTER)
        assert weights.keys() == start.keys() and all(weights[key].equal(start[key]) for key in start)
    # The loss of a pair whose sides are as likely as for the reference is log 2, whatever β is.
    assert [line["loss"] for line in found.lineage] == pytest.approx([0.693147, 0.693147], abs=1e-6)
    assert {line["rank"] for line in found.lineage} == {2}


def test_a_start_adapter_of_another_model_with_the_same_shapes_is_refused(tmp_path: Path, whole: Evolved):
    model, run = tmp_path / "model", tmp_path / "run"
    shutil.copytree(resolve("tiny"), model)
    weights = load_file(model / "model.safetensors")
    shutil.copytree(whole.folder, run)
    settings = json.loads((run / "final/adapter_config.json").read_text())
    (run / "final/adapter_config.json").write_text(json.dumps(settings | {"base_model_name_or_path": str(model)}))
    given = {"model": str(run / "final"), "output_dir": tmp_path / "again", "set": {"batch_size": 2}}
    with opened(config(tmp_path, **given)):
        pass  # a copy of the model is the same model
    save_file({name: tensor + 0.01 for name, tensor in weights.items()}, model / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"run/final was trained on another model than .*/model is now"):
        evolve(config(tmp_path, **given, overwrite=True))


def test_records_that_cannot_be_split_or_are_missing_are_named(tmp_path: Path):
    one = pairs(17)[16:]  # which is not among the records that are trained on
    with pytest.raises(InputError, match=r"held-out\.jsonl has too few different beginnings"):
        evolve(config(tmp_path, eval_file="held-out.jsonl"), pairs(), one)
    with pytest.raises(InputError, match="records: no row can be trained on"):
        evolve(config(tmp_path), [])


def test_a_file_that_is_given_twice_is_refused(tmp_path: Path):
    path = pairs_file(tmp_path)
    with pytest.raises(InputError, match="eval_file has the same records as train_file"):
        evolve(config(tmp_path, eval_file=path))
    with pytest.raises(InputError, match="test_file has the same records as eval_file"):
        evolve(config(tmp_path), pairs(), pairs(12), pairs(12))


def test_a_shape_or_dropout_that_the_start_adapter_does_not_have_is_refused(tmp_path: Path, whole: Evolved):
    with pytest.raises(InputError, match="has another shape; leaving these settings out takes it as it is"):
        evolve(config(tmp_path, model=str(whole.weights), set={"lora_r": 8}))
    with pytest.raises(InputError, match=r"has lora_dropout 0\.0, and members keep it"):
        evolve(config(tmp_path, model=str(whole.weights), set={"lora_dropout": 0.3}))


def test_a_load_balancing_loss_that_would_be_left_out_is_refused(tmp_path: Path):
    make("mixtral").save_pretrained(tmp_path)  # its config asks for one
    settings = {"train_file": Path("a.jsonl"), "model": str(tmp_path), "token_budget": 512}
    with pytest.raises(InputError, match=r"router_aux_loss_coef is 0\.001, .*: --set router_aux_loss_coef=0"):
        _population(SFTConfig(**settings), torch.device("cpu"))
    assert _population(SFTConfig(**settings, router_aux_loss_coef=0.0), torch.device("cpu")).policy.routers
