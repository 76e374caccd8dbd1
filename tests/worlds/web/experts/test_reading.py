import pytest

from bough.worlds.web.experts import reading
from tests.worlds.web.experts.scenes import advice, lines

FIELD, SUBMIT = ("text", "", {"value": ""}), ("button", "Submit")
TABLE = ["Age | 7", "City | Rome"]


def test_a_value_is_read_from_a_table():
    assert (
        advice(reading.read_table, "Enter the value of City into the text field.", *TABLE, FIELD, SUBMIT)
        == "fill('1', 'Rome')"
    )
    both = [*TABLE, "City:", ("text", "", {"value": "Rome"}), "Age:", FIELD, SUBMIT]
    assert advice(reading.read_table_twice, "Enter the values.", *both) == "fill('2', '7')"


def test_words_are_counted_without_their_stops():
    text = "One, two. Three"
    assert advice(reading.word, "Find the 2nd word in the paragraph.", text, FIELD, SUBMIT) == "fill('1', 'two')"
    area = ("textarea", "", {"value": "One, two. Three."})
    assert advice(reading.last_word, "Find the last word.", area, FIELD, SUBMIT) == "fill('2', 'Three')"


def test_the_right_text_is_copied():
    areas = [("textarea", "", {"value": "a"}), ("textarea", "", {"value": "b"})]
    assert advice(reading.copy, "Copy the text from the 2nd text area.", *areas, FIELD, SUBMIT) == "fill('3', 'b')"


@pytest.mark.parametrize(("end", "share", "done"), [("bottom", "40%", "100%"), ("top", "40%", "0%")])
def test_an_area_is_scrolled_to_its_end(end, share, done):
    goal = f"Scroll the textarea to the {end} of the text hit submit."
    assert advice(reading.scroll, goal, ("textarea", "", {"scrolled": share}), SUBMIT) == f"scroll('{end}', '1')"
    assert advice(reading.scroll, goal, ("textarea", "", {"scrolled": done}), SUBMIT) == "click('2')"


@pytest.mark.parametrize(("problem", "answer"), [("3 + 4 =", 7), ("3 - 4 =", -1), ("3 x 4 =", 12), ("-3 + 4 =", 1)])
def test_sums_are_worked_out(problem, answer):
    assert advice(reading.arithmetic, "Solve the math problem.", problem, FIELD, SUBMIT) == f"fill('1', '{answer}')"


@pytest.mark.parametrize(
    ("problem", "answer"),
    [("x + 3 = 10", 7), ("x - 3 = 10", 13), ("3 + x = 10", 7), ("3 - x = 10", -7), ("-3 + x = 1", 4)],
)
def test_equations_are_solved(problem, answer):
    assert advice(reading.algebra, "Solve for x.", problem, FIELD, SUBMIT) == f"fill('1', '{answer}')"


def test_a_number_is_guessed_by_halving_what_is_left():
    goal, guessed = "Guess the number between 0-9 and press Submit.", ("number", "", {"value": "4"})
    assert advice(reading.guess, goal, ("number", "", {"value": ""}), SUBMIT) == "fill('1', '4')"
    assert advice(reading.guess, goal, guessed, SUBMIT) == "click('2')"
    assert advice(reading.guess, goal, "The number is higher than 4.", guessed, SUBMIT) == "fill('1', '7')"
    before = lines("The number is higher than 4.", guessed, SUBMIT)
    now = ["The number is lower than 7.", ("number", "", {"value": "7"}), SUBMIT]
    assert advice(reading.guess, goal, *now, did=("click('2')",), seen=[before]) == "fill('1', '5')"


def test_results_are_three_a_page():
    goal = 'Use the textbox to enter "Ann" and press "Search", then find and click the 5th search result.'
    box, pages = ("text", "", {"value": "Ann"}), [("link", name) for name in ("1", "2", "3", ">")]
    results = [box, ("button", "Search"), ("link", "a"), ("link", "b"), ("link", "c"), *pages]
    assert advice(reading.search, goal, FIELD, ("button", "Search")) == "fill('1', 'Ann')"
    assert advice(reading.search, goal, box, ("button", "Search")) == "click('2')"
    assert advice(reading.search, goal, *results, did=("click('2')",)) == "click('7')"
    assert advice(reading.search, goal, *results, did=("click('2')", "click('7')")) == "click('4')"
    assert advice(reading.search, goal, *results, did=("click('2')", "click('7')", "click('8')")) == "click('7')"
    assert advice(reading.search, goal, *results, did=("click('2')", "fill('1', 'Ann')")) == "click('2')"
    third = goal.replace("5th", "3rd")
    assert advice(reading.search, third, *results, did=("click('2')",)) == "click('5')"
    assert advice(reading.search, third, *results, did=("click('2')", "click('9')")) == "click('6')"


def test_files_are_listed_and_the_right_one_removed():
    goal = "Use the terminal below to delete a file ending with the extension .py"
    assert advice(reading.terminal, goal, ("div", "Welcome! user$", {"id": "terminal"})) == "type('ls\\n')"
    screen = ("div", "user$ ls a.txt b.py user$", {"id": "terminal"})
    assert advice(reading.terminal, goal, screen) == "type('rm b.py\\n')"
    written = ("div", "user$ ls a.txt b.py user$ something", {"id": "terminal"})
    assert advice(reading.terminal, goal, written) == "press('Enter')"
    bare = ("div", "user$ ls a.txt b user$", {"id": "terminal"})
    goal = "Use the terminal below to delete a file that has no file extension."
    assert advice(reading.terminal, goal, bare) == "type('rm b\\n')"


def test_what_is_copied_is_what_the_area_had_at_first():
    before = lines(("textarea", "", {"value": "a b"}), FIELD, SUBMIT)
    now = [("textarea", "", {"value": "x"}), FIELD, SUBMIT]
    goal = "Copy the text in the textarea below, paste it into the textbox and press Submit."
    assert advice(reading.copy, goal, *now, did=("fill('1', 'x')",), seen=[before]) == "fill('2', 'a b')"
