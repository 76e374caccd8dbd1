"""Weights that change while answers are under way."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
import torch

from bough.config.groups import SamplingConfig
from bough.engines.base import EngineError, Generated
from bough.engines.local.engine import LocalEngine
from bough.engines.local.paths import Layout
from bough.engines.local.schedule import Span
from bough.event_loop import BackgroundLoop
from bough.policy.adapters import Lora
from bough.policy.policy import Policy
from bough.types import Call
from tests.engines.local.playing import prompt, small_engine

LENGTH = 30
LONG = SamplingConfig(max_new_tokens=LENGTH)
PROMPT = prompt("the same for all", 80)


@pytest.fixture
def loop() -> Iterator[BackgroundLoop]:
    found = BackgroundLoop()
    yield found
    found.close()


def engine(fold: bool, layout: Layout | None = None) -> LocalEngine:
    torch.manual_seed(0)
    policy = Policy.load("tiny", device="cpu", lora=Lora(r=4)).train()
    return small_engine(policy, fold=fold, name="before", layout=layout)


def ask(engine: LocalEngine, loop: BackgroundLoop, episode: str) -> Future[Generated]:
    asked = engine.generate(episode, PROMPT, sampling=LONG, seed=7, stop_ids=[])
    return asyncio.run_coroutine_threadsafe(asked, loop.loop)


def ask_and_pause(engine: LocalEngine, loop: BackgroundLoop, episode: str, step: int) -> Future[Generated]:
    """Pauses at this step: the engine's thread waits there until it is asked to, however long that takes."""
    worker = engine
    original = worker._step

    def held(spans: list[Span]) -> None:
        while worker.num_steps == step and not worker._paused:
            time.sleep(0.001)
        original(spans)

    worker._step = held  # type: ignore[method-assign]
    answer = ask(engine, loop, episode)
    while worker.num_steps < step:
        time.sleep(0.001)
    engine.pause()
    worker._step = original  # type: ignore[method-assign]
    return answer


def change(policy: Policy) -> None:
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.5)


@pytest.mark.bit_exact
@pytest.mark.parametrize("fold", [True, False])
def test_an_answer_continues_with_new_weights_and_other_episodes_start_afresh(loop: BackgroundLoop, fold: bool):
    undisturbed = engine(fold)
    before = ask(undisturbed, loop, "e").result(60)
    undisturbed.rest()
    change(undisturbed.reader.policy)
    undisturbed.renew("after")
    after = ask(undisturbed, loop, "e").result(60)

    paused = engine(fold)
    answer = ask_and_pause(paused, loop, "e", step=10)
    num_drawn = len(paused.scheduler.residents["e"].request.completion_ids)  # type: ignore[union-attr]
    assert 0 < num_drawn < LENGTH and paused.reader.policy.training, "the policy is as it was"
    change(paused.reader.policy)
    paused.renew("after", keep=True)
    paused.resume()
    mixed, fresh = answer.result(60), ask(paused, loop, "another").result(60)
    assert mixed.logprobs[:num_drawn] == before.logprobs[:num_drawn], "each token has those it was sampled with"
    assert mixed.logprobs[num_drawn:] != before.logprobs[num_drawn:]
    assert mixed.policy == "before..after" and before.policy == "before"
    assert fresh.logprobs == after.logprobs and fresh.policy == "after", "no prompt is shared across weights"
    for each in (undisturbed, paused):
        loop.run(each.close())


@pytest.mark.parametrize(("fold", "layout"), [(True, None), (False, None), (False, "general")])
@pytest.mark.parametrize("under_way", [True, False], ids=["during a turn", "between turns"])
def test_a_later_turn_is_computed_with_the_weights_that_it_names(
    loop: BackgroundLoop, fold: bool, layout: Layout | None, under_way: bool
):
    """Keys and values of earlier turns must not outlive the weights that computed them."""
    playing = engine(fold, layout)
    policy = playing.reader.policy
    if under_way:
        first = ask_and_pause(playing, loop, "e", step=10)
    else:
        first = ask(playing, loop, "e")
        first.result(60)
        playing.pause()
    change(policy)
    playing.renew("after", keep=True)
    playing.resume()
    said = first.result(60)
    assert said.policy == ("before..after" if under_way else "before"), "the oldest weights of a call come first"
    history = [*PROMPT, *said.completion_ids, *prompt("next turn", 12)]
    asked = playing.generate("e", history, sampling=LONG, seed=8, stop_ids=[])
    second = loop.run(asked)
    loop.run(playing.close())
    assert second.policy == "after"
    call = Call(prompt_ids=history, completion_ids=second.completion_ids)
    with torch.no_grad():
        (named,) = policy.eval().logprobs([call])
    assert second.logprobs == pytest.approx(named.tolist(), abs=1e-4)


def test_nothing_is_computed_during_a_pause_and_nothing_is_lost(loop: BackgroundLoop):
    paused = engine(fold=True)
    paused.pause()
    answers = [ask(paused, loop, name) for name in "ab"]
    time.sleep(0.1)
    assert paused.num_steps == 0
    paused.resume()
    assert [len(answer.result(60).completion_ids) for answer in answers] == [LENGTH, LENGTH]
    loop.run(paused.close())


def test_an_engine_is_closed_also_while_it_is_paused(loop: BackgroundLoop):
    paused = engine(fold=True)
    answer = ask_and_pause(paused, loop, "a", step=3)
    loop.run(paused.close())
    with pytest.raises(EngineError, match="closed"):
        answer.result(60)
