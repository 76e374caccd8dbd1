import pytest

from bough.chat.template import CallBuilder, load_template
from bough.errors import RowError
from bough.ledger import Ledger
from bough.methods.sft import SFT, SFTConfig
from bough.training.method import CallSource
from bough.types import Message, Task, Trajectory, Turn

START = [Message(role="user", content="Go.")]


def said(text: str) -> Message:
    return Message(role="assistant", content=text)


TURNS = [
    Turn(reply=said("wrong"), correction=said("right"), reward=0.0, observation=[Message(role="user", content="No.")]),
    Turn(reply=said("good"), reward=1.0),
    Turn(reply=said("bad"), reward=0.5, trained=False),
]


def test_corrections_are_for_sft_alone():
    source = CallSource(CallBuilder(load_template("tiny")), Ledger("calls"))
    with pytest.raises(RowError, match="only SFT learns from them"):
        source.calls(START, TURNS, [])
    found = source.calls(START, TURNS, [], corrections=True)
    assert [call.text for call in found.values()] == ["right", "good"]


def test_sft_trains_the_correction_and_gives_it_no_reward_of_the_reply():
    record = Trajectory(id="a", task=Task(id="t"), start=START, turns=TURNS)
    builder = CallBuilder(load_template("tiny"))
    for weighted, weights in [(False, (1.0, 1.0)), (True, (1.0, 1.0 / 0.75))]:
        method = SFT(SFTConfig(model="tiny", train_file="x", output_dir="y", step_weighted_loss=weighted))
        [example] = method.examples([record], builder).examples
        assert [call.text for call in example.calls] == ["right", "good"]
        assert example.weights == pytest.approx(weights)
