"""Several data files with weights: which records come when, and weights that mutate."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import bough
from bough.errors import InputError
from bough.experiments.evolve_settings import EvolveConfig, Mixer, file_weights, is_valid, own_values
from bough.experiments.generation import read_records
from bough.experiments.lessons import Pupil, RecordLessons
from bough.experiments.members import method_of
from bough.experiments.recipe import load_recipe
from bough.experiments.run import Run
from bough.methods.dpo import DPOConfig
from bough.policy.load import load_call_builder
from bough.training.method import Example
from tests.experiments.small import SETTINGS, pairs

FILES = {"own": Path("own.jsonl"), "expert": Path("expert.jsonl")}


def mixed(**changes: Any) -> EvolveConfig:
    return EvolveConfig(**{"mixture": FILES, "set": {"batch_size": 4}, **changes})


def pupil(step: int, **weights: float) -> Pupil:
    return Pupil(DPOConfig(train_file=Path("a.jsonl"), batch_size=4), step, weights)


def lessons(**sizes: int) -> RecordLessons:
    files = {name: [Example([], f"{name}-{number}", f"{number}") for number in range(n)] for name, n in sizes.items()}
    return RecordLessons(files, seed=3)


def places(found: RecordLessons, step: int, **weights: float) -> list[str]:
    return [example.place for example in found.batches({"m": pupil(step, **weights)}, step)["m"]]


def test_the_file_that_is_furthest_from_its_share_is_next():
    # Shares 2/3 and 1/3: after one record of `a`, `a` is due 4/3 - 1 and `b` 2/3.
    assert Mixer({"a": 2.0, "b": 1.0}).picks(0, 6) == [("a", 0), ("b", 0), ("a", 1), ("a", 2), ("b", 1), ("a", 3)]
    assert {name for name, _ in Mixer({"a": 0.3, "b": 0.0}).picks(0, 20)} == {"a"}
    weights = {"a": 0.1, "b": 5.0, "c": 1.3, "d": 0.7}
    counts = Counter(name for name, _ in Mixer(weights).picks(0, 7100))
    assert all(abs(counts[name] - 1000 * weight) < 2 for name, weight in weights.items())


def test_every_batch_has_its_share_of_each_file_and_passes_over_all_their_records():
    found = lessons(own=6, expert=3)
    batches = [places(found, step, own=3, expert=1) for step in range(4)]
    assert all(Counter(place.partition("-")[0] for place in batch) == {"own": 3, "expert": 1} for batch in batches)
    of_own = [place for batch in batches for place in batch if place.startswith("own")]
    assert len(set(of_own[:6])) == 6 and set(of_own[6:]) == set(of_own[:6])
    # A run that resumes asks for a later batch first.
    assert places(lessons(own=6, expert=3), 3, own=3, expert=1) == batches[3]
    assert places(found, 0, own=3, expert=1) == batches[0]


def test_a_member_has_weights_of_its_own_and_one_must_be_above_zero():
    config = mixed(mixture_weights={"expert": 2}, mutate={"mixture.own": "0..4", "learning_rate": "1e-6..1e-3"})
    assert own_values(config)["mixture.own"] == 1.0
    assert file_weights(config, {"mixture.own": 0.5}) == {"own": 0.5, "expert": 2.0}
    assert is_valid(config, {"mixture.own": 0.0})
    assert not is_valid(mixed(mixture_weights={"expert": 0}), {"mixture.own": 0.0})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train_file": "a.jsonl"}, "either train_file or mixture"),
        ({"method": "grpo", "environment": "household"}, "grpo learns from what members play; leave out mixture"),
        ({"mixture": {"own": "own.jsonl"}}, "at least two files"),
        ({"mixture": {"a b": "own.jsonl", "c": "c.jsonl"}}, "a b cannot be the name of a file"),
        ({"mixture_weights": {"onw": 1}}, "onw is not a file of the mixture; files are own, expert"),
        ({"mixture_weights": {"own": 0, "expert": 0}}, "at least one must be above 0"),
        ({"mutate": {"mixture.onw": "0..1"}}, "mixture.onw is not a file of the mixture"),
        ({"mutate": {"mixture.own": "-1..1"}}, "mixture.own is the weight of a file"),
        ({"mixture_weights": {"own": 1}, "mutate": {"mixture.own": "2..4"}}, "own is set to 1.0, which is not in 2..4"),
        ({"mixture": {}}, "train_file is required for dpo, or a mixture"),
        ({"mixture": {}, "train_file": "a.jsonl", "mixture_weights": {"own": 1}}, "mixture_weights needs mixture"),
    ],
)
def test_mistakes_in_a_mixture_are_named(changes: dict[str, Any], said: str):
    with pytest.raises(InputError, match=said):
        mixed(**changes)


def test_records_that_begin_alike_are_held_out_of_all_files():
    config = mixed(model="tiny", fitness={"test_size": 0.25})
    method = method_of(DPOConfig(train_file=Path("a.jsonl")))
    builder = load_call_builder("tiny", None, max_length=None, stride=1)
    files = {"own": pairs(12), "expert": [*pairs(12)[:6], *pairs(16)[12:]]}
    found = read_records(config, method, builder, files)
    trained = {example.cluster for examples in found.train.values() for example in examples}
    apart = [{example.cluster for example in some} for some in (found.selection, found.test)]
    assert [len(some) for some in (trained, *apart)] == [8, 4, 4]  # of 16 different beginnings
    assert not (trained & apart[0] or trained & apart[1] or apart[0] & apart[1])
    names = [example.place for example in (*found.selection, *found.test)]
    assert len(set(names)) == len(names)  # both files have a first record
    with pytest.raises(InputError, match="the file expert of mixture has the same records as the file own"):
        read_records(config, method, builder, {"own": pairs(), "expert": pairs()})


def test_weights_of_files_mutate_like_other_settings(tmp_path: Path):
    small = {key: SETTINGS[key] for key in ("set", "seed", "test_size")}
    found = bough.evolve(
        "tiny", {"own": pairs(10), "expert": pairs(20)[10:]}, output_dir=tmp_path / "run", population_size=3,
        generations=2, steps=1, no_mutation=0.0, mutate={"mixture.expert": "0.25..4"}, **small,
    )  # fmt: skip
    values = [line["settings"]["mixture.expert"] for line in found.lineage]
    children = [line for line in found.lineage if line["parent"]]
    assert values[0] is not None and len(set(values)) > 2 and all(0.25 <= value <= 4 for value in values)
    assert {line["mutation"]["setting"] for line in children} == {"mixture.expert"}


def test_a_stage_with_a_mixture_reads_nothing_else(tmp_path: Path):
    stages = "model: tiny\nstages:\n  - collect: {environment: household}\n  - pairs:\n"
    (tmp_path / "r.yaml").write_text(f"{stages}  - evolve: {{mixture: {{a: a.jsonl, b: b.jsonl}}}}\n")
    *_, (stage, settings) = Run(load_recipe(tmp_path / "r.yaml", {}), tmp_path / "run").settings()
    assert stage.verb == "evolve" and settings.get("train_file") is None and settings["mixture"]["a"] == "a.jsonl"
