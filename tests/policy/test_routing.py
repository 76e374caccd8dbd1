import pytest
import torch
import transformers
from packaging.version import Version

from bough.errors import InputError
from bough.models.miniature import miniature
from bough.policy.head import Routers, coefficient, routing
from bough.policy.policy import Policy
from bough.policy.probe import CALLS
from bough.trees.build import plain_row
from bough.types import Call
from tests.policy.families import make


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=["MixtralConfig", "Qwen3MoeConfig", "GptOssConfig", "GraniteMoeConfig"])
def mixture(request) -> Policy:
    if request.param == "GraniteMoeConfig" and Version(transformers.__version__) < Version("5.19"):
        pytest.skip("transformers before 5.19 does not return the logits of GraniteMoe's routers")
    with torch.device("meta"):
        outline = transformers.AutoModelForCausalLM.from_config(getattr(transformers, request.param)())
    return Policy(miniature(outline))


def test_of_one_call_the_loss_is_the_models_own(mixture):
    ids = torch.tensor([CALLS[1].prompt_ids + CALLS[1].completion_ids[:-1]])
    with torch.no_grad():
        own = mixture.base(input_ids=ids, use_cache=False, output_router_logits=True).aux_loss
        (plain,) = mixture.answers(mixture.rows(CALLS[1:2], share=False))
        (tree,) = mixture.answers(mixture.rows(CALLS[1:2]))
    assert plain.routing.num_tokens == tree.routing.num_tokens == ids.shape[1]
    torch.testing.assert_close(plain.routing.loss, own)
    torch.testing.assert_close(tree.routing.loss, own)


def test_padding_is_not_routed(mixture):
    with torch.no_grad():
        (together,) = mixture.answers([plain_row(CALLS, [0, 1])])
    assert together.routing.num_tokens == sum(len(c.prompt_ids) + len(c.completion_ids) - 1 for c in CALLS[:2])


def test_a_shared_token_counts_once(mixture):
    (row,) = mixture.rows(CALLS)
    with torch.no_grad():
        (answers,) = mixture.answers([row])
    assert answers.routing.num_tokens == len(row.tree) < row.num_raw
    assert 1 / 4 <= answers.routing.busiest <= 1


def test_the_numbers_of_a_row_by_hand():
    """Two experts, one choice each: of four real inputs three go to the second; the fifth is padding."""
    calls = [Call(prompt_ids=[1, 2], completion_ids=[3, 4]), Call(prompt_ids=[1], completion_ids=[3])]
    row = plain_row(calls, [0, 1])
    first, second = [100.0, 0.0], [0.0, 100.0]
    logits = torch.tensor([second, second, first, second, first, first])
    found = routing([logits], row, top_k=1)
    assert found.num_tokens == 4
    assert found.busiest.item() == pytest.approx(3 / 4)
    assert found.loss.item() == pytest.approx(2 * (3 / 4 * 3 / 4 + 1 / 4 * 1 / 4))


def test_gradient_checkpointing_hears_the_same(mixture):
    mixture.base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    router, _ = mixture.routers.modules[0]
    weight = next(router.parameters()).requires_grad_()
    found = []
    try:
        for training in (False, True):
            mixture.train(training)
            (answers,) = mixture.answers(mixture.rows(CALLS))
            (gradient,) = torch.autograd.grad(answers.routing.loss, weight)
            found.append((answers.routing.loss.detach(), gradient))
    finally:
        mixture.base.gradient_checkpointing_disable()
        weight.requires_grad_(False)
        mixture.eval()
    torch.testing.assert_close(found[0], found[1])
    assert found[0][1].abs().sum() > 0


def test_routers_that_are_plain_linear_layers_are_found_by_their_place():
    with torch.device("meta"):
        outline = transformers.AutoModelForCausalLM.from_config(transformers.JambaConfig())
    routers = Routers.of(outline.model)
    assert {module.weight.shape[0] for module, _ in routers.modules} == {outline.config.num_experts}


def test_a_dense_model_has_no_routers():
    policy = Policy(make("llama"))
    assert policy.routers is None
    assert coefficient(policy.decoder, None) == coefficient(policy.decoder, 0.0) == 0
    with pytest.raises(InputError, match="LlamaModel is not a mixture of experts"):
        coefficient(policy.decoder, 0.1)


def test_the_models_config_decides_unless_the_settings_do(mixture):
    assert coefficient(mixture.decoder, None) == mixture.decoder.config.router_aux_loss_coef > 0
    assert (coefficient(mixture.decoder, 0.0), coefficient(mixture.decoder, 0.5)) == (0.0, 0.5)
