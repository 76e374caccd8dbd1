import json

import pytest
import torch
import transformers

from bough.errors import InputError
from bough.models.miniature import miniature
from bough.policy import probe
from bough.policy import probe as findings
from bough.policy.policy import Policy
from bough.policy.probe import CALLS, TOLERANCE, examine
from tests.policy.families import CAPPED, SHAPE, make

INDEXED = SHAPE | {
    "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16,
    "n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1,
    "index_topk": 4, "index_head_dim": 16, "num_key_value_heads": 4,
}  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BOUGH_CACHE", str(tmp_path))
    monkeypatch.setattr(findings, "_known", {})
    return tmp_path / "probes"


def small(model) -> Policy:
    return Policy(miniature(model), attention="sdpa", probe=False)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "gpt_oss"])
def test_every_path_of_a_model_that_can_branch_agrees(family):
    found = examine(small(make(family)))
    assert (found.refusal, found.obstacle, found.together) == (None, None, True)
    assert set(found.errors) == {"plain rows", "rows side by side", "tree"}
    assert all(0 < error < 1e-5 for error in found.errors.values())


@pytest.mark.parametrize("family", ["doge", "llama4_tuned"])
def test_a_model_whose_tree_disagrees_takes_plain_rows_and_says_by_how_much(family, caplog):
    policy = Policy(make(family))
    assert policy.obstacle.startswith("on a tree its log-probabilities would be off by up to ")
    assert policy.together and f"({policy.obstacle}): plain rows" in caplog.text


def test_a_threshold_that_no_probe_of_its_own_length_would_pass_is_cut():
    tuned = make("llama4_tuned", floor_scale=8192, max_position_embeddings=100_000)
    assert "off by up to" in examine(small(tuned)).obstacle
    # One that the model itself can never pass does no harm.
    assert examine(small(make("llama4_tuned", floor_scale=8192, max_position_embeddings=4096))).obstacle is None


@pytest.mark.parametrize("family", ["recurrent_gemma", "inkling"])
def test_log_probabilities_that_no_path_reproduces_are_refused_with_the_error(family):
    name, settings = {**CAPPED, "inkling": ("InklingTextConfig", {})}[family]
    if not hasattr(transformers, name):
        pytest.skip(f"this transformers has no {name}")
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, name)(**settings))
    found = examine(small(model))
    assert found.refusal.startswith("is computed in a way that Bough does not know")
    assert found.errors["plain rows"] > 100 * TOLERANCE


def test_few_index_heads_make_a_selection_that_later_tokens_change():
    """Keys that no index head scores tie, and which of them are taken depends on the length of the row."""
    config = transformers.DeepseekV32Config(**INDEXED, index_n_heads=1)
    with pytest.raises(InputError, match="is not a causal language model"):
        Policy(transformers.AutoModelForCausalLM.from_config(config))


def test_many_index_heads_do_not():
    config = transformers.DeepseekV32Config(**INDEXED, index_n_heads=64)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    found = examine(small(model))
    assert found.refusal is None and found.obstacle is not None


def test_a_model_of_which_no_small_copy_can_be_made_is_computed_call_by_call(monkeypatch, empty_cache, caplog):
    def refuse(model):
        raise probe.BoughError("no small copy")

    monkeypatch.setattr(probe, "miniature", refuse)
    policy = Policy(make("llama", vocab_size=256))
    assert not policy.together and "no small copy" in caplog.text
    assert len(policy.rows(CALLS)) == len(CALLS)


def test_the_same_config_is_probed_once_whatever_its_weights(empty_cache, monkeypatch):
    Policy(make("llama"))
    (file,) = empty_cache.iterdir()
    assert json.loads(file.read_text())["errors"].keys() == {"plain rows", "rows side by side", "tree"}
    monkeypatch.setattr(findings, "_known", {})  # as in another process
    monkeypatch.setattr(probe, "examine", None)
    Policy(make("llama").to(torch.bfloat16))
    with pytest.raises(TypeError, match="not callable"):
        Policy(make("llama", rms_norm_eps=1e-3))


@pytest.mark.parametrize("damage", ["{", '{"colour": 1}'])
def test_damaged_findings_are_made_again(empty_cache, monkeypatch, damage):
    Policy(make("llama"))
    (file,) = empty_cache.iterdir()
    whole = file.read_text()
    file.write_text(damage)
    monkeypatch.setattr(findings, "_known", {})
    Policy(make("llama"))
    assert file.read_text() == whole


def test_flex_attention_is_probed_uncompiled_and_without_a_warning(empty_cache, recwarn):
    assert Policy(make("gpt_oss"), attention="flex").obstacle is None
    assert not [warning for warning in recwarn if "flex_attention" in str(warning.message)]
    (file,) = empty_cache.iterdir()
    assert json.loads(file.read_text())["errors"]["tree"] < 1e-5


def test_the_probe_leaves_the_random_numbers_of_a_run_alone(empty_cache):
    model = make("gemma3")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    Policy(model)
    assert torch.rand(3).equal(expected)
