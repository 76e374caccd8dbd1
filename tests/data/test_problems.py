from bough.data.reader import GROUPS_SHOWN, Problem, Problems


def test_repeats_of_one_problem_are_one_line_with_their_number_and_first_places():
    problems = Problems()
    for line in range(1, 9):
        problems.add(Problem("a.jsonl", line, "wrong_type", f"reward is 'x{line}'; it must be a number"))
    problems.add(Problem("b.jsonl", 3, "missing_field", '"chosen" is missing'))
    assert problems.lines() == [
        "a.jsonl:1: reward is 'x1'; it must be a number (8 rows, also a.jsonl:2, a.jsonl:3, a.jsonl:4, a.jsonl:5, …)",
        'b.jsonl:3: "chosen" is missing',
    ]
    assert problems.reasons == {"wrong_type": 8, "missing_field": 1}
    assert problems.to_json()[0]["count"] == 8


def test_two_rows_name_both_places():
    problems = Problems()
    for line in (2, 5):
        problems.add(Problem("a", line, "same_reply", "equal"))
    assert problems.lines() == ["a:2: equal (2 rows, also a:5)"]


def test_a_file_with_many_different_problems_is_bounded_and_counted():
    problems = Problems()
    for number in range(GROUPS_SHOWN + 7):
        problems.add(Problem("a", number, "odd", "x" * number))
    assert len(problems.lines()) == GROUPS_SHOWN + 1
    assert problems.lines()[-1] == "and 7 more rows with other problems"
    assert problems.reasons.total() == GROUPS_SHOWN + 7
