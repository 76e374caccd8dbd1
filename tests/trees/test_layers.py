import pytest
import torch

from bough.trees.mixers import Sight, branching_obstacle, layer_sights
from tests.policy.families import HYBRIDS, PLAIN, TREES, make


@pytest.mark.parametrize("family", [*TREES, *HYBRIDS])
def test_attention_over_given_positions_and_known_mixers_can_branch(family):
    assert branching_obstacle(make(family).base_model) is None


@pytest.mark.parametrize(
    ("family", "obstacle"),
    [
        ("mamba", "it has layers of kind linear_attention"),
        ("gpt_neo", "it has layers of kind local"),
        ("bloom", "its positions do not come from position ids"),
        ("phi3", "its rotary frequencies depend on the length of the row"),
    ],
)
def test_what_looks_along_the_row_cannot(family, obstacle):
    assert branching_obstacle(make(family).base_model) == obstacle
    assert family in PLAIN


def test_each_kind_of_layer_has_its_own_sight():
    assert layer_sights(make("gemma2").model) == {"full_attention": Sight(), "sliding_attention": Sight(window=3)}
    assert layer_sights(make("mistral").model) == {"sliding_attention": Sight(window=3)}
    assert layer_sights(make("llama4").model) == {"chunked_attention": Sight(chunk=3), "full_attention": Sight()}


def test_layers_with_state_have_no_sight_of_their_own():
    assert layer_sights(make("lfm2").model) == {"full_attention": Sight()}
    assert layer_sights(make("nemotron_h").model) == {"full_attention": Sight()}
    assert layer_sights(make("falcon_h1").model) == {"full_attention": Sight()}  # in each layer, beside a mixer
    assert layer_sights(make("mamba2").backbone) == {}


def test_a_mixer_beside_unknown_state_is_not_enough():
    model = make("lfm2").model
    model.layers[1].self_attn.conv = torch.nn.Conv1d(64, 64, 2)
    assert branching_obstacle(model) == "its layers carry state along the sequence"
    model = make("lfm2").model
    model.layers[0].conv = torch.nn.Linear(64, 64)
    assert branching_obstacle(model) == "it has layers of kind conv"


def test_a_window_that_the_model_never_looks_at_is_none():
    model = make("llama")
    model.config.sliding_window = 2
    assert layer_sights(model.model) == {"full_attention": Sight()}


def test_a_sight_begins_at_a_position():
    positions = torch.arange(5)
    assert Sight(window=3).since(positions).tolist() == [-2, -1, 0, 1, 2]  # the token itself and two before it
    assert Sight(chunk=2).since(positions).tolist() == [0, 0, 2, 2, 4]
    assert Sight().since(positions) is None
