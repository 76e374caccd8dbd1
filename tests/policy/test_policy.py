import copy

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bough.errors import InputError
from bough.policy.adapters import Lora, add_actor
from bough.policy.policy import Policy
from bough.types import Call
from tests.policy.families import CAPPED, DECODERS, PLAIN, TREES, make
from tests.trees.samples import call, call_sets

EPISODE = [
    call([1, 2, 3], [4, 5, 6]),
    call([1, 2, 3, 4, 5, 6, 7, 8], [9, 10]),
    call([1, 2, 3, 4, 5, 6, 7, 8], [9, 11, 12]),  # another next action
    call([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13], [14, 15, 16, 17]),
    call([1, 2, 3, 4, 5, 6, 7, 8], [9, 10]),  # the same again
    call([20, 21], [22]),  # another task
    call([1, 2, 3], [4, 5, 6, 7, 8]),  # what is context elsewhere is an answer here
]
PROPERTY = settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def values_and_gradient(policy: Policy, calls, **how) -> tuple[torch.Tensor, torch.Tensor]:
    policy.zero_grad()
    logprobs = torch.cat(policy.logprobs(calls, **how))
    weights = torch.randn(len(logprobs), generator=torch.Generator().manual_seed(0)).to(logprobs.device)
    (logprobs * weights).sum().backward()
    gradients = [p.grad.float().flatten() for p in policy.parameters() if p.grad is not None]
    return logprobs.detach(), torch.cat(gradients)


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


def assert_sharing_changes_nothing(policy: Policy, calls, budget: int, alone=None) -> None:
    """`alone`: the values and gradient of the calls one by one, where they are known."""
    shared = values_and_gradient(policy, calls, budget=budget)
    alone = alone or values_and_gradient(policy, calls, share=False)
    assert distance(shared[0], alone[0]) < 1e-5
    assert distance(shared[1], alone[1]) < 1e-5


@pytest.fixture(scope="module", params=TREES)
def tree_policy(request) -> Policy:
    return Policy(make(request.param))


@pytest.fixture(scope="module")
def episode_alone(tree_policy) -> tuple[torch.Tensor, torch.Tensor]:
    return values_and_gradient(tree_policy, EPISODE, share=False)


@PROPERTY
@given(calls=call_sets(), budget=st.sampled_from([8, 20, 1000]))
def test_a_tree_equals_its_calls_one_by_one(tree_policy, calls, budget):
    assert tree_policy.obstacle is None
    assert_sharing_changes_nothing(tree_policy, calls, budget)


@pytest.mark.parametrize("budget", [5, 12, 1000])
def test_an_episode_equals_its_calls_one_by_one(tree_policy, episode_alone, budget):
    assert_sharing_changes_nothing(tree_policy, EPISODE, budget, episode_alone)


@pytest.mark.parametrize("family", ["llama", "lfm2"])
def test_the_tree_computes_each_shared_token_once(family):
    (row,) = Policy(make(family)).rows(EPISODE)
    assert (row.tokens.size, row.num_raw) == (17, 56)


@pytest.mark.parametrize("family", PLAIN)
def test_a_model_that_cannot_branch_runs_padded_rows_and_says_so(family, caplog):
    policy = Policy(make(family))
    assert "plain rows" in caplog.text
    assert_sharing_changes_nothing(policy, EPISODE, budget=40)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
@pytest.mark.parametrize("how", ["lora", "checkpointed", "both"])
def test_adapters_and_checkpointing_change_nothing(family, how):
    model = make(family)
    if how != "lora":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if how != "checkpointed":
        model = with_actor(model, Lora(r=4))
    policy = Policy(model).train()
    assert_sharing_changes_nothing(policy, EPISODE, budget=12)
    policy.eval()
    uncheckpointed = values_and_gradient(policy, EPISODE)
    assert distance(values_and_gradient(policy.train(), EPISODE)[1], uncheckpointed[1]) < 1e-5


@pytest.mark.parametrize("targets", [("lm_head",), ("q_proj", "lm_head")])
def test_an_adapter_on_the_head_is_trained_too(targets):
    policy = Policy(with_actor(make("llama"), Lora(r=4, targets=targets)))
    assert_sharing_changes_nothing(policy, EPISODE, budget=12)
    assert policy.base.lm_head.lora_B["actor"].weight.grad.abs().sum() > 0


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "qwen3_5_text", "mamba2"])
def test_in_bfloat16_a_tree_is_no_further_off_than_plain_rows(family):
    exact = make(family)
    policy = Policy(copy.deepcopy(exact).to(torch.bfloat16))
    truth = values_and_gradient(Policy(exact), EPISODE, share=False)
    for shared, plain, true in zip(
        values_and_gradient(policy, EPISODE), values_and_gradient(policy, EPISODE, share=False), truth, strict=True
    ):
        assert shared.dtype == torch.float32
        assert distance(shared, true) < 1.5 * distance(plain, true)


@pytest.mark.parametrize(
    "family", ["llama", "gemma2", "gemma3", "mistral", "llama4", "gpt_oss", "qwen3_5_text", "bamba"]
)
@torch.no_grad()
def test_flex_attention_gives_the_same(family):
    model = make(family)
    expected = torch.cat(Policy(model).logprobs(EPISODE))
    with torch.compiler.set_stance("force_eager"):
        found = torch.cat(Policy(model, attention="flex").logprobs(EPISODE))
        alone = torch.cat(Policy(model, attention="flex").logprobs(EPISODE, share=False))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(alone, expected)


@pytest.mark.parametrize("family", TREES)
def test_log_probabilities_are_those_of_the_model_itself(family):
    model = make(family)
    model.set_attn_implementation("eager")  # the one that leaves nothing out
    one = EPISODE[3]
    logits = model(torch.tensor([one.prompt_ids + one.completion_ids])).logits[0]
    expected = logits.log_softmax(-1)[len(one.prompt_ids) - 1 : -1].gather(1, torch.tensor([one.completion_ids]).T)
    torch.testing.assert_close(Policy(model).logprobs(EPISODE)[3], expected[:, 0])


def test_log_probabilities_and_entropies_are_at_the_policys_temperature():
    policy = Policy.load("tiny", device="cpu").eval()
    policy.temperature = 0.7
    call = Call(prompt_ids=[5, 6, 7], completion_ids=[8, 9])
    with torch.no_grad():
        logits = policy.base(input_ids=torch.tensor([[5, 6, 7, 8, 9]])).logits[0, 2:4]
        [answers] = policy.answers(policy.rows([call]))
    expected = (logits / 0.7).log_softmax(-1)
    torch.testing.assert_close(answers.logprobs[0], expected[[0, 1], [8, 9]])
    torch.testing.assert_close(answers.entropies[0], -(expected.exp() * expected).sum(-1))


def test_calls_that_answered_nothing_have_no_log_probabilities():
    policy = Policy(make("llama"))
    found = policy.logprobs([call([1, 2], []), call([1], [2])])
    assert [len(lp) for lp in found] == [0, 1]
    assert policy.logprobs([]) == []


def test_a_frozen_reference_adapter_is_used_where_there_is_one():
    policy = Policy(with_actor(make("llama"), Lora(r=4)))
    as_it_was = torch.cat(policy.logprobs(EPISODE)).detach()
    policy.model.add_adapter("reference", policy.model.peft_config["actor"])
    state = policy.state_dict()
    policy.load_state_dict({k: state[k.replace(".reference.", ".actor.")] for k in state})
    trained = {name for name, p in policy.named_parameters() if p.requires_grad}
    for name, parameter in policy.named_parameters():
        if ".actor." in name:
            parameter.data.mul_(2)
    with policy.reference():
        torch.testing.assert_close(torch.cat(policy.logprobs(EPISODE)), as_it_was)
    assert {name for name, p in policy.named_parameters() if p.requires_grad} == trained
    assert distance(torch.cat(policy.logprobs(EPISODE)), as_it_was) > 1e-3


def test_a_policy_trained_in_full_has_no_reference():
    with pytest.raises(InputError, match="contains no reference"), Policy(make("llama")).reference():
        pass


def test_ids_outside_the_vocabulary_are_refused():
    with pytest.raises(InputError, match="0 to 199"):
        Policy(make("llama")).logprobs([call([1], [200])])


def test_a_head_that_does_more_than_it_says_is_refused():
    model = make("granite")
    model.forward = lambda *args, **kwargs: type("Output", (), {"logits": torch.randn(2, 4, 200)})()
    with pytest.raises(InputError, match="in a way that Bough does not know"):
        Policy(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", CAPPED)
def test_a_cap_that_small_logits_hardly_feel_is_found(family, dtype):
    with pytest.raises(InputError, match=rf"\({family}\) computes its logits in a way .* --engine vllm"):
        Policy(make(family).to(dtype))


@pytest.mark.parametrize("family", DECODERS)
def test_trees_of_more_decoders_give_what_plain_rows_give(family):
    policy = Policy(make(family))
    shared, alone = (torch.cat(policy.logprobs(EPISODE, share=share)) for share in (True, False))
    assert distance(shared, alone) < 1e-5


@pytest.mark.parametrize("name", ["BertGenerationConfig", "CpmAntConfig", "XLNetConfig"])
def test_a_model_whose_tokens_see_those_after_them_is_refused(name):
    shape = {"vocab_size": 200, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1}
    if not hasattr(transformers, name):
        pytest.skip(f"this transformers has no {name}")
    torch.manual_seed(0)
    config = getattr(transformers, name)(**shape)
    with pytest.raises(InputError, match="is not a causal language model"):
        Policy(transformers.AutoModelForCausalLM.from_config(config))


def test_flex_attention_is_refused_where_the_model_has_none():
    with pytest.raises(InputError, match="attention='sdpa'"):
        Policy(make("gpt2"), attention="flex")


def with_actor(model, lora: Lora):
    """A model whose new adapter is not zero, as after some training."""
    model = add_actor(model, lora)
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.1)
    return model
