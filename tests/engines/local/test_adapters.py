"""Episodes of several adapters in one batch, on the paths that use a model's own layers."""

import asyncio
import random
from functools import partial

import pytest
import torch

from bough.config.groups import SamplingConfig
from bough.engines.base import EngineError
from bough.engines.local.engine import AdapterEngine
from bough.engines.local.general import Ways
from bough.errors import InputError
from bough.policy.adapters import AdapterWeights, Lora, LoraPair
from bough.policy.policy import Policy
from tests.engines.local.decoders import decoder
from tests.engines.local.members import LORAS, members, play_as, set_all, with_actor, with_diverged_actor
from tests.engines.local.playing import prompt, run, small_engine
from tests.engines.local.test_engine import answers, scored
from tests.policy.families import make

SAMPLING = SamplingConfig(max_new_tokens=6)
START = prompt("system", 40)
LLAMA = partial(make, "llama")


@pytest.fixture(scope="module")
def policies() -> dict[str, Policy]:
    torch.set_num_threads(1)
    return members(LLAMA)


def engine_of(policies: dict[str, Policy], policy: Policy | None = None, **options):
    engine = small_engine(policy or policies[""], **{"max_tokens": 16_000} | options)
    set_all(engine, policies)
    return engine


@pytest.mark.parametrize("own", [False, True], ids=["base", "own adapter"])
@pytest.mark.parametrize("options", [{}, {"layout": "general"}], ids=str)
def test_log_probabilities_are_those_of_the_episodes_adapter_alone(policies, options, own):
    """Also beside a policy's own adapter, folded or not, which then belongs to episodes without a name."""
    policies = dict(policies)
    if own:
        policies[""] = with_actor(make("llama"), Lora(r=2, targets=("v_proj", "gate_proj")), 9)
        options = options | {"fold": "layout" not in options}
    engine = engine_of(policies, **options)
    names = ["red", *policies]
    played = run(engine, *(play_as(engine, name, f"{i}", 2, SAMPLING, START) for i, name in enumerate(names)))
    assert engine.scheduler.num_shared > 0
    for name, calls in zip(names, played, strict=True):
        assert scored(policies[name], calls) < 1e-4
        assert scored(policies["grey" if name != "grey" else ""], calls) > 1e-2
        assert {drawn.policy for _, drawn in calls} == {f"local+{name}" if name else "local"}


@pytest.mark.bit_exact
@pytest.mark.parametrize("own", [False, True], ids=["base", "own adapter"])
def test_an_answer_has_the_same_bits_whatever_the_others_are_and_whichever_adapters_they_have(policies, own):
    policy = with_actor(make("llama"), Lora(r=2), 9) if own else policies[""]
    episodes = [(name, f"{i}") for i, name in enumerate([*policies, "red", ""])]
    generator = random.Random(own)

    def draw(chosen, known, **options):
        engine = engine_of({name: policies[name] for name in known}, policy, **options)
        played = run(engine, *(play_as(engine, name, each, 2, SAMPLING, START) for name, each in chosen))
        return {each: answers(calls) for (_, each), calls in zip(chosen, played, strict=True)}

    alone = {}
    for name, each in episodes:
        alone |= draw([(name, each)], [name])
    for _ in range(3):
        chosen = generator.sample(episodes, generator.randint(2, len(episodes)))
        known = generator.sample(list(policies), len(policies))
        drawn = draw(chosen, known, max_running=generator.choice([2, 5, 16]))
        assert drawn == {each: alone[each] for _, each in chosen}


def test_models_with_their_own_cache_and_any_kind_of_layer_take_adapters():
    """Mamba layers beside attention: each pass has one adapter."""
    build = partial(decoder, "granitemoehybrid")
    policies = members(build, {"red": Lora(r=4), "blue": Lora(r=2, targets=("in_proj", "q_proj"))})
    engine = engine_of(policies)
    assert engine.path.name == "general"
    names = ["", "red", "blue", "red"]
    played = run(engine, *(play_as(engine, name, f"{i}", 2, SAMPLING, START) for i, name in enumerate(names)))
    for name, calls in zip(names, played, strict=True):
        assert scored(policies[name], calls) < 1e-4


def test_models_without_a_cache_take_adapters(policies):
    """All tokens are read again each time, in one pass for the episodes of one adapter."""
    engine = engine_of(policies, layout="general")
    engine.reader.ways = Ways(together=True)
    names = ["blue", "", "red", "blue"]
    played = run(engine, *(play_as(engine, name, f"{i}", 1, SAMPLING, START) for i, name in enumerate(names)))
    for name, calls in zip(names, played, strict=True):
        assert scored(policies[name], calls) < 1e-4


def test_episodes_share_prefixes_with_those_of_the_same_adapter_only(policies):
    def num_shared(*names):
        engine = engine_of(policies)
        run(engine, *(play_as(engine, name, f"{i}", 1, SAMPLING, START) for i, name in enumerate(names)))
        return engine.scheduler.num_shared

    assert num_shared("", "red", "green") == 0
    assert num_shared("red", "green", "red") == len(START)


async def test_episodes_of_one_name_but_different_adapters_are_different_episodes(policies):
    engine = engine_of(policies)
    names = ["red", "blue"]
    played = await asyncio.gather(*(play_as(engine, name, "same", 2, SAMPLING, START) for name in names))
    engine.release("same", adapter="red")
    engine.rest()
    (red, blue), left = played, list(engine.scheduler.residents)
    await engine.close()
    assert scored(policies["red"], red) < 1e-4 and scored(policies["blue"], blue) < 1e-4
    assert engine.scheduler.num_kept > 0
    assert left == [("blue", "same")]


async def test_an_adapter_can_be_replaced_and_removed(policies):
    engine = engine_of({"": policies[""], "it": policies["red"], "other": policies["grey"]})

    async def one(name):
        [(ids, drawn)] = await play_as(engine, name, "e", 1, SAMPLING, START)
        return ids, drawn

    calls = {"red": await one("it"), "grey": await one("other")}
    engine.set_adapter("it", AdapterWeights.of(policies["blue"].model))
    calls["blue"] = await one("it")
    engine.remove_adapter("it")
    with pytest.raises(InputError, match="no adapter 'it'; set are: 'other'"):
        await one("it")
    calls[""] = await one("")
    engine.set_adapter("fresh", AdapterWeights.of(policies["green"].model))
    calls["green"] = await one("fresh")
    for name in ("fresh", "other"):
        engine.remove_adapter(name)
    last = await one("")
    await engine.close()
    for name, call in [*calls.items(), ("", last)]:
        assert scored(policies[name], [call]) < 1e-4
    assert calls[""][1].completion_ids == last[1].completion_ids


def test_a_forward_function_that_a_module_had_stays(policies):
    module = policies[""].base.model.layers[0].self_attn.q_proj
    module.forward = own = module.forward
    try:
        engine = engine_of(policies)
        [calls] = run(engine, play_as(engine, "red", "e", 1, SAMPLING, START))
        assert module.forward is own
        assert [one for one in policies[""].modules() if "forward" in vars(one)] == [module], "no other is left"
        assert scored(policies["red"], calls) < 1e-4
    finally:
        del module.forward


async def test_an_adapter_as_an_engine_of_its_own(policies):
    engine = engine_of(policies)
    red, base = AdapterEngine(engine, "red"), AdapterEngine(engine, "")
    assert (red.policy, base.policy) == ("local+red", "local")
    asked = {"sampling": SAMPLING, "seed": 3, "stop_ids": []}
    drawn = await red.generate("e", START, **asked)
    await red.close()
    again = await engine.generate("e", START, adapter="red", **asked)
    base.release("e")
    engine.rest()
    assert engine.scheduler.residents
    red.release("e")
    engine.rest()
    assert not engine.scheduler.residents
    await engine.close()
    assert drawn == again and drawn.policy == "local+red"


Q_PROJ = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ({"model.layers.7.self_attn.q_proj": (64, 64)}, r"layers.7.self_attn.q_proj, which LlamaForCausalLM does not"),
        ({"lm_head": (64, 200)}, "lm_head; the engine takes adapters on the decoder's linear layers"),
        ({"model.embed_tokens": (200, 64)}, "embed_tokens; the engine takes"),
        ({Q_PROJ: (64, 32)}, r"\[2, 64\] and \[32, 2\] for .*q_proj do not fit: it maps 64 to 64"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(policies, layers, said):
    engine = engine_of(policies)
    pairs = {name: LoraPair(torch.zeros(2, i), torch.zeros(o, 2)) for name, (i, o) in layers.items()}
    with pytest.raises(InputError, match=said):
        engine.set_adapter("new", AdapterWeights(pairs))
    run(engine)


def test_what_else_is_refused(policies):
    engine = engine_of(policies)
    bad = AdapterWeights({Q_PROJ: LoraPair(torch.zeros(2, 64), torch.full((64, 2), float("nan")))})
    with pytest.raises(InputError, match="not all finite"):
        engine.set_adapter("bad", bad)
    with pytest.raises(InputError, match="needs a name"):
        engine.set_adapter("", AdapterWeights({}))
    with pytest.raises(InputError, match=f"no adapter 'bad'; set are: {', '.join(map(repr, sorted(LORAS)))}"):
        engine.remove_adapter("bad")
    run(engine)


def test_a_layer_that_reads_some_of_the_tokens_is_refused_unless_passes_have_one_adapter(policies):
    model = make("llama")
    mlp = model.model.layers[0].mlp
    mlp.experts = torch.nn.ModuleList([torch.nn.Linear(64, 64)])
    name = "model.layers.0.mlp.experts.0"
    weights = AdapterWeights({name: LoraPair(torch.zeros(2, 64), torch.zeros(64, 2))})
    policy = Policy(model, attention="sdpa", probe=False).eval()
    engine = small_engine(policy)
    with pytest.raises(InputError, match=r"experts.0, which reads only some of the tokens; use layout='general'"):
        engine.set_adapter("red", weights)
    run(engine)
    general = small_engine(policy, layout="general")
    general.set_adapter("red", weights)
    run(general)


@pytest.mark.bit_exact
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("options", [{}, {"layout": "general"}], ids=str)
def test_an_adapter_that_has_diverged_fails_alone(policies, options, temperature):
    """Its answers are errors. Those of others are the same beside it, and after it where it was."""
    sampling = SamplingConfig(max_new_tokens=6, temperature=temperature)
    diverged = with_diverged_actor(make("llama"), LORAS["red"])
    drawn = []
    for red in (policies["red"], diverged):
        engine = engine_of({"blue": policies["blue"], "red": red}, policies[""], max_tokens=1024, **options)

        async def both(engine=engine):
            plays = [("red", "0"), ("blue", "1"), ("red", "2"), ("", "3")]
            first = await asyncio.gather(
                *(play_as(engine, *each, 2, sampling, START) for each in plays), return_exceptions=True
            )
            return first, [await play_as(engine, "blue", f"{i}", 1, sampling, START) for i in range(4, 9)]

        ((mine, blue, again, base), later) = run(engine, both())[0]
        drawn.append([answers(calls) for calls in (blue, base, *later)])
    assert all(isinstance(one, EngineError) and "diverged" in str(one) for one in (mine, again))
    if options.get("layout") == "general":  # which rows share a batch depends on time, and there the last bits on that
        before, after = ([[(ids, end) for ids, _, end in calls] for calls in one] for one in drawn)
        logprobs = [[value for calls in one for _, values, _ in calls for value in values] for one in drawn]
        assert before == after and logprobs[1] == pytest.approx(logprobs[0], abs=1e-5)
    else:
        assert drawn[0] == drawn[1]
