import math

import pytest
import torch

from bough.chat.template import CallBuilder, load_template
from bough.evaluation.held_out import HeldOut
from bough.policy.adapters import Lora
from bough.policy.policy import Policy
from bough.types import Message, Pair, Task, Trajectory, Turn

HI = [Message(role="user", content="go to shelf 1")]


def turn(text: str) -> Turn:
    return Turn(reply=Message(role="assistant", content=text))


def episode(*texts: str) -> Trajectory:
    turns = [
        turn(text).model_copy(update={"observation": [Message(role="user", content="You see a book.")]})
        for text in texts
    ]
    return Trajectory(id="a", task=Task(id="t"), start=HI, turns=turns)


@pytest.fixture
def held_out() -> HeldOut:
    torch.manual_seed(0)
    policy = Policy.load("tiny", lora=Lora(r=4)).eval()
    return HeldOut(policy, CallBuilder(load_template("tiny")), 4096)


def test_numbers_are_those_of_the_tokens(held_out: HeldOut):
    held_out.add([episode("look", "open drawer 1")])
    calls = [b.call for b in held_out.builder.build(HI, episode("look", "open drawer 1").turns, []) if b.call]
    logprobs = torch.cat([lp.detach() for lp in held_out.policy.logprobs(calls, share=False)])
    found = held_out.to_json()
    assert found["tokens"] == len(logprobs)
    assert found["nll"] == pytest.approx(-float(logprobs.mean()), rel=1e-4)
    assert found["perplexity"] == pytest.approx(math.exp(found["nll"]))
    assert 0 <= found["token_accuracy"] <= 1


def test_a_model_prefers_the_side_it_finds_likelier(held_out: HeldOut):
    short, long = "look", "go to the drawer and open it and then look at the lamp"
    pair = Pair(task=Task(id="t"), start=HI, chosen=[turn(short)], rejected=[turn(long)])
    swapped = Pair(task=Task(id="t"), start=HI, chosen=[turn(long)], rejected=[turn(short)])
    held_out.add([pair, swapped])
    found = held_out.to_json()
    assert (found["pairs"], found["preference_accuracy"]) == (2, 0.5)
    # A fresh adapter is its own reference: neither side has gained.
    assert found["preference_accuracy_over_reference"] == 0


def test_half_a_side_is_not_compared_with_a_whole_one(held_out: HeldOut):
    """As in training, which drops such a pair as `side_incomplete`."""
    seen = Message(role="user", content="You see a book.")
    first = turn("look").model_copy(update={"observation": [seen]})
    long = turn("and then look " * 40)
    held_out.builder.max_length = 100
    held_out.add([Pair(task=Task(id="t"), start=HI, chosen=[first, long], rejected=[turn("open drawer 1")])])
    found = held_out.to_json()
    assert found["pairs_incomplete"] == 1 and "pairs" not in found and "preference_accuracy" not in found
    assert found["calls"]["dropped"] == {"too_long": 1}


def test_only_the_chosen_side_counts_towards_perplexity(held_out: HeldOut):
    held_out.add(
        [Pair(task=Task(id="t"), start=HI, chosen=[turn("look")], rejected=[turn("open drawer 1 and drawer 2")])]
    )
    (call,) = [b.call for b in held_out.builder.build(HI, [turn("look")], []) if b.call]
    assert held_out.to_json()["tokens"] == len(call.completion_ids)


def test_a_reply_that_is_labelled_as_bad_does_not_count_towards_perplexity(held_out: HeldOut):
    held_out.add([episode("look")])
    alone = held_out.to_json()
    bad = episode("open drawer 1").model_copy(update={"success": False, "rewards": {"label": 0.0}})
    held_out.add([bad])
    found = held_out.to_json()
    assert (found["tokens"], found["nll"], found["labelled_bad"]) == (alone["tokens"], alone["nll"], 1)
