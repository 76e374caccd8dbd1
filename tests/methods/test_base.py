import json
import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.ledger import Ledger, Mean, add_metrics
from bough.methods.distill import Distill, DistillConfig
from bough.methods.dpo import DPO
from bough.methods.kto import KTO
from bough.methods.sft import SFT, SFTConfig
from bough.training.method import Examples, float_vectors, share


def test_a_mean_counts_only_what_its_mask_says():
    mean = Mean.over(torch.tensor([1.0, 100.0, 4.0]), torch.tensor([True, False, True]))
    assert (float(mean.total), int(mean.count), mean.value) == (5.0, 2, 2.5)


def test_a_value_that_does_not_count_cannot_spoil_a_mean():
    mean = Mean.over(torch.tensor([3.0, math.nan, math.inf]), torch.tensor([True, False, False]))
    assert mean.value == 3.0


def test_a_mean_of_tensors_is_a_plain_number():
    assert isinstance(Mean(torch.tensor(5.0), torch.tensor(2)).value, float)


def test_a_mean_of_nothing_is_nan():
    assert math.isnan(Mean(0.0, 0).value)
    assert math.isnan(Mean.over(torch.tensor([1.0]), torch.tensor([False])).value)


def test_means_add_by_their_sums_not_by_their_averages():
    assert (Mean(1.0, 1) + Mean(9.0, 3)).value == 2.5  # the average of the averages would be 2.0


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.integers(-1000, 1000), max_size=6), min_size=1, max_size=5))
def test_metrics_of_parts_add_up_to_those_of_the_whole(parts):
    def metrics(values):
        return {"m": Mean.over(torch.tensor(values, dtype=torch.float32), torch.ones(len(values), dtype=torch.bool))}

    whole = metrics([value for part in parts for value in part])["m"]
    added = add_metrics(map(metrics, parts))["m"]
    assert (float(added.total), int(added.count)) == (float(whole.total), int(whole.count))


def test_parts_need_not_have_the_same_metrics():
    added = add_metrics([{"a": Mean(1.0, 1)}, {"a": Mean(3.0, 1), "b": Mean(5.0, 1)}])
    assert {name: mean.value for name, mean in added.items()} == {"a": 2.0, "b": 5.0}


def test_a_metric_keeps_no_graph_alive():
    assert not Mean.over(torch.ones(2, requires_grad=True) * 2, torch.ones(2, dtype=torch.bool)).total.requires_grad


@pytest.mark.parametrize("denominator", [0, -1, math.nan, math.inf])
def test_a_denominator_that_counts_nothing_is_an_error(denominator):
    with pytest.raises(AssertionError, match="the whole step trains"):
        share(torch.tensor(1.0), denominator)


def test_a_denominator_may_be_a_fraction():
    assert share(torch.tensor(1.0), 0.5) == 2.0 and share(torch.tensor(1.0), 1) == 1.0


@pytest.mark.parametrize("shapes", [((3,), (1,)), ((3,), (3, 1)), ((2, 3), (2, 3)), ((), ())])
def test_tensors_that_would_broadcast_are_refused(shapes):
    with pytest.raises(AssertionError):
        float_vectors(*map(torch.zeros, shapes))


def test_a_single_vector_has_one_shape():
    assert [vector.tolist() for vector in float_vectors(torch.ones(2))] == [[1.0, 1.0]]


def test_math_is_done_in_float32_or_wider():
    kinds = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64]
    vectors = float_vectors(*[torch.ones(2, dtype=kind) for kind in kinds])
    assert [v.dtype for v in vectors] == [torch.float32, torch.float32, torch.float32, torch.float64, torch.float32]


def test_everything_but_the_examples_survives_in_json():
    kept = Examples("rows.jsonl", (), Ledger("rows"), Ledger("calls"), {1.0, 0.5}, "digest")
    kept.rows.keep(2)
    kept.calls.drop("too_long", 3)
    assert Examples.from_json("rows.jsonl", json.loads(json.dumps(kept.to_json()))) == kept


@pytest.mark.parametrize("method", [SFT, DPO, KTO])
def test_data_that_was_not_sampled_is_scored_at_temperature_1(method: type[SFT | DPO | KTO]):
    assert method.temperature == 1.0


def test_no_second_model_is_loaded_for_a_method_without_a_reference():
    assert not SFT(SFTConfig(model="tiny", train_file="unused")).needs_reference
    assert not Distill(DistillConfig(model="tiny", teacher="tiny", train_file="unused")).needs_reference


@pytest.mark.parametrize("method", ["sft", "dpo", "grpo"])
def test_a_method_loads_neither_torch_nor_anything_that_plays(method: str):
    strangers = "torch transformers bough.engines bough.environments.base bough.worlds bough.rollouts bough.policy"
    code = (
        f"import bough.methods.{method}, sys; "
        f"sys.exit(' '.join(m for m in sys.modules if m.startswith(tuple({strangers.split()}))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
