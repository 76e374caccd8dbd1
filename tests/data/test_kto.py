import pytest

from bough.data.formats import detect
from bough.data.trl import read_kto as read
from bough.errors import RowError
from tests.data.samples import rows


def test_the_label_is_the_success_and_a_reward():
    good, bad = map(read, rows("kto"))
    assert (good.success, good.rewards) == (True, {"label": 1.0})
    assert (bad.success, bad.rewards, bad.info) == (False, {"label": 0.0}, {"annotator": "a7"})
    assert good.start == bad.start and good.turns[0].reply.content == "Blue."


def test_labels_of_a_table_are_numbers():
    assert read({"prompt": "a", "completion": "b", "label": 0}).success is False
    assert read({"prompt": "a", "completion": "b", "label": 1.0}).success is True


@pytest.mark.parametrize("label", [2, -1, "good", 0.5, [True]])
def test_any_other_label_is_an_error(label: object):
    with pytest.raises(RowError, match=r'"label" is .*; it must be .*true or false') as error:
        read({"prompt": "a", "completion": "b", "label": label})
    assert error.value.reason == "wrong_type"


def test_without_a_label_it_is_a_demonstration():
    assert detect({"prompt": "a", "completion": "b", "label": None}).name == "trl"
    assert detect({"prompt": "a", "completion": "b", "label": False}).name == "kto"
