from itertools import islice

from bough.worlds.interpreter import arithmetic


def test_answers_are_right():
    for problem in islice(arithmetic.problems(seed=1), 50):
        spoken: list[object] = []
        exec(problem["code"], {"print": spoken.append})
        assert problem["answer"] == str(spoken[0])


def test_a_known_problem_has_a_known_answer():
    first = next(
        problem for problem in arithmetic.problems(seed=0) if problem["problem"].startswith("How many positive")
    )
    number = int(first["problem"].split()[6])
    assert int(first["answer"]) == len([n for n in range(1, number + 1) if number % n == 0])


def test_a_seed_gives_its_problems_and_another_gives_others():
    one, same, other = (list(islice(arithmetic.problems(seed), 20)) for seed in (3, 3, 4))
    assert one == same and one != other and len({problem["problem"] for problem in one}) == 20
