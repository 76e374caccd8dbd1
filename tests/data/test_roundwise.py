import pytest

from bough.data.reader import detect
from bough.data.sharegpt import read_alpaca
from bough.data.trl import read_kto
from bough.data.trl import read_rounds as read
from bough.errors import RowError
from bough.types import Message
from tests.data.samples import rows

HISTORY = [{"role": "user", "content": "Act: is what the user said"}]


def test_a_row_is_a_history_and_two_next_actions():
    pair = read(rows("roundwise_dpo")[0])
    assert [message.role for message in pair.start] == ["system", "user", "assistant", "user"]
    assert [turn.action for turn in (*pair.chosen, *pair.rejected)] == [
        "take mug 1 from countertop 1",
        "go to countertop 1",
    ]
    assert pair.start[2].content == "THOUGHT: A mug is often on the countertop.\nACTION: go to countertop 1"
    assert pair.reason == "loop_prev_action"
    assert pair.info == {
        "trajectory_index": 17,
        "step_index": 1,
        "metadata": {"task_type": "pick_clean_then_place_in_recep"},
        "trajectory_outcome": "success",
    }


@pytest.mark.parametrize(
    ("said", "normal"),
    [
        ("Act: look", "ACTION: look"),
        ("act : look", "ACTION: look"),
        ("Action: look", "ACTION: look"),
        ("Think: hm\nAct: look", "THOUGHT: hm\nACTION: look"),
        ("Thought: I read 'Act: now'\nAction: look", "THOUGHT: I read 'Act: now'\nACTION: look"),
        ("Actor: look", "Actor: look"),
        (" Act: look", " Act: look"),
    ],
)
def test_a_tag_counts_at_the_start_of_a_line(said: str, normal: str):
    assert read({"messages": HISTORY, "chosen": said, "rejected": "no"}).chosen[0].reply.content == normal


def test_what_the_user_says_is_left_alone_and_an_action_is_the_text_after_its_tag():
    pair = read({"messages": HISTORY, "chosen": "Act: a", "rejected": "look"})
    assert pair.start[0].content == HISTORY[0]["content"]
    assert [turn.action for turn in (*pair.chosen, *pair.rejected)] == ["a", None]


def test_pairs_of_one_trajectory_share_a_task():
    first, second, other = (read(row).task.id for row in rows("roundwise_dpo"))
    assert first == second == "trajectory-17"
    assert other == "trajectory-3"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"chosen": None}, "missing_field"),
        ({"rejected": ["ACTION: look"]}, "wrong_type"),
        ({"rejected": "Act: take mug 1 from countertop 1"}, "same_reply"),
        ({"chosen": ""}, "empty_completion"),
        ({"chosen": {"role": "user", "content": "x"}}, "unbalanced_roles"),
        ({"messages": []}, "unbalanced_roles"),
        ({"messages": rows("roundwise_dpo")[0]["messages"][:3]}, "unbalanced_roles"),
        ({"messages": "x"}, "wrong_type"),
        ({"reason": 5}, "wrong_type"),
    ],
)
def test_a_bad_row_says_why(change: dict, reason: str):
    with pytest.raises(RowError) as error:
        read({**rows("roundwise_dpo")[0], **change})
    assert error.value.reason == reason


def test_alpacas_instruction_and_input_are_one_message_after_system_and_history():
    translate, prime, last = map(read_alpaca, rows("alpaca"))
    assert translate.start == [Message(role="user", content="Translate to French.\n\nGood morning.")]
    assert prime.start == [Message(role="user", content="Name a prime number.")]
    assert [turn.reply.content for turn in translate.turns] == ["Bonjour."]
    assert [message.role for message in last.start] == ["system", "user", "assistant", "user"]
    assert [turn.reply.content for turn in last.turns] == ["11"]
    with pytest.raises(RowError, match=r"history\[0\] must have two texts"):
        read_alpaca({"instruction": "a", "output": "b", "history": [["x", "y", "z"]]})
    assert detect({"instruction": "a", "output": "b", "steps": [{"action": "look"}]}).name == "knowlyr-sft"


def test_a_label_is_the_success_and_a_reward():
    good, bad = map(read_kto, rows("kto"))
    assert (good.success, good.rewards) == (True, {"label": 1.0})
    assert (bad.success, bad.rewards, bad.info) == (False, {"label": 0.0}, {"annotator": "a7"})
    assert good.start == bad.start and good.turns[0].reply.content == "Blue."
    assert [read_kto({"prompt": "a", "completion": "b", "label": one}).success for one in (0, 1.0)] == [False, True]
    assert detect({"prompt": "a", "completion": "b", "label": None}).name == "trl"


@pytest.mark.parametrize("label", [2, -1, "good", 0.5, [True]])
def test_any_other_label_is_an_error(label: object):
    with pytest.raises(RowError, match=r'"label" is .*; it must be .*true or false') as error:
        read_kto({"prompt": "a", "completion": "b", "label": label})
    assert error.value.reason == "wrong_type"
