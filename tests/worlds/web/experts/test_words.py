import pytest

from bough.worlds.web.experts import words
from tests.worlds.web.experts.scenes import advice, lines

SUBMIT = ("button", "Submit")
INBOX = [
    ("div", "Ann Hi. Lorem.."), ("span", "", {"class": "trash"}), ("span", "", {"class": "star"}),
    ("div", "Bob Re. Ipsum.."), ("span", "", {"class": "trash"}), ("span", "", {"class": "star"}),
]  # fmt: skip


def test_words_of_one_meaning_are_ticked():
    boxes = [("checkbox", "tiny", {"checked": False}), ("checkbox", "water", {"checked": False}), SUBMIT]
    assert advice(words.similar, "Select words similar to big, water and click Submit.", *boxes) == "click('2')"
    assert advice(words.similar, "Select words similar to little and click Submit.", *boxes) == "click('1')"


@pytest.mark.parametrize(
    ("goal", "did"),
    [
        ("Please delete Bob's emails.", "click('5')"),
        ("Get rid of the mail by Ann", "click('2')"),
        ("Mark the email from Bob as important.", "click('6')"),
        ('Tell Bob "Ann is here."', "click('4')"),
        ("Forward Bob the email from Ann.", "click('1')"),
        ("Forward Ann's email to Bob.", "click('1')"),
        ("Send to Ann what Bob sent.", "click('4')"),
        ("Forward the email from Ann to Zoe.", "click('1')"),
        ("please forward Bobs last email to Ann", "click('4')"),
    ],
)
def test_whose_mail_it_is_and_what_becomes_of_it(goal, did):
    assert advice(words.letter, goal, *INBOX) == did


def test_the_receiver_is_the_other_one():
    for goal in ("Forward Bob the email from Ann.", "Forward Ann's email to Bob.", "Give Ann's mail to Bob"):
        form = [("span", "", {"id": "send-forward"}), ("text", "", {"value": ""})]
        assert advice(words.letter, goal, *form, did=("click('1')",), seen=[lines(*INBOX)]) == "fill('2', 'Bob')"


def dish(name, kinds, quantity=""):
    return [name, kinds, ("span", "-"), *([quantity] if quantity else []), ("span", "+")]


def test_dishes_are_ordered_by_name_or_by_kind():
    order = ("button", "Order!")
    menu = ["Entrees", *dish("Pie", "(meat)"), *dish("Tart", "(dairy) (vegan)", "1"), order]
    assert advice(words.order_food, "Order one of each item: Tart, Pie", *menu) == "click('2')"
    assert advice(words.order_food, "Order one of each item: Tart", *menu) == "click('5')"
    assert advice(words.order_food, "Order 3 items that are vegan", *menu) == "click('4')"
    too_many = ["Entrees", *dish("Pie", "(meat)", "4"), order]
    assert advice(words.order_food, "Order 3 items that are meat", *too_many) == "click('1')"
    done = ["Entrees", *dish("Pie", "(meat)", "3"), order]
    assert advice(words.order_food, "Order 3 items that are meat", *done) == "click('3')"


def half_hours():
    return [("div", "", {"id": f"hh-{n}", "y": 100 + 20 * n, "size": "109x20"}) for n in range(48)]


@pytest.mark.parametrize(
    ("length", "window", "drag"),
    [
        ("30 mins", "8AM and 12PM", "drag('17', '17')"),
        ("1 hour", "12PM and 4PM", "drag('25', '26')"),
        ("90 mins", "4PM and 8PM", "drag('33', '35')"),
        ("0.5 hours", "4PM and 8PM", "drag('33', '33')"),
    ],
)
def test_an_event_takes_its_half_hours(length, window, drag):
    goal = f'Create a {length} event named "Gym", between {window}.'
    assert advice(words.appointment, goal, *half_hours()) == drag


def test_an_event_is_named_and_created():
    goal = 'Create a 1 hour event named "Gym", between 8AM and 12PM.'
    rest = ["8:30am to 9:30am", ("button", "Cancel"), ("button", "Create")]
    assert advice(words.appointment, goal, ("text", "", {"value": ""}), *rest) == "fill('1', 'Gym')"
    assert advice(words.appointment, goal, ("text", "", {"value": "Gym"}), *rest) == "click('3')"


@pytest.mark.parametrize("shown", ["8am to 8:30am", "7:30am to 8:30am", "11:30am to 12:30pm", "8pm to 9pm"])
def test_an_event_at_the_wrong_time_is_cancelled(shown):
    goal = 'Create a 1 hour event named "Gym", between 8AM and 12PM.'
    dialog = [("text", "", {"value": "Gym"}), shown, ("button", "Cancel"), ("button", "Create")]
    assert advice(words.appointment, goal, *dialog) == "click('2')"


def test_another_time_is_tried_where_a_drag_had_no_effect():
    goal = 'Create a 90 mins event named "Gym", between 12PM and 4PM.'
    drags = [f"drag('{first}', '{first + 2}')" for first in range(25, 31)]
    for number, drag in enumerate(drags):
        assert advice(words.appointment, goal, *half_hours(), did=tuple(drags[:number])) == drag
    assert advice(words.appointment, goal, *half_hours(), did=tuple(drags)) == drags[0], "all times were tried"
