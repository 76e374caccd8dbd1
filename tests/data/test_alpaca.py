import pytest

from bough.data.formats import detect
from bough.data.sharegpt import read_alpaca as read
from bough.errors import RowError
from bough.types import Message
from tests.data.samples import rows


def test_instruction_and_input_are_one_message():
    translate, prime, _ = map(read, rows("alpaca"))
    assert translate.start == [Message(role="user", content="Translate to French.\n\nGood morning.")]
    assert prime.start == [Message(role="user", content="Name a prime number.")]
    assert [turn.reply.content for turn in translate.turns] == ["Bonjour."]


def test_system_and_history_stand_before_the_instruction_and_are_not_trained():
    last = read(rows("alpaca")[2])
    assert [message.role for message in last.start] == ["system", "user", "assistant", "user"]
    assert [turn.reply.content for turn in last.turns] == ["11"]


def test_a_round_of_three_texts_is_an_error():
    with pytest.raises(RowError, match=r"history\[0\] has 3 texts; a round has two"):
        read({"instruction": "a", "output": "b", "history": [["x", "y", "z"]]})


def test_an_output_beside_steps_is_still_knowlyrs():
    row = {"instruction": "a", "output": "b", "steps": [{"action": "look"}]}
    assert detect(row).name == "knowlyr-sft"
