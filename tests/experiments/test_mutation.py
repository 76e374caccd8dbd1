import random
from collections import Counter
from typing import Any

from bough.experiments.breeding import Mutation, Mutator
from bough.experiments.evolve_settings import Choices, Span

DRAWS = 4000
RANGES = {"learning_rate": Span(1e-6, 1e-2), "loss_type": Choices(("sigmoid", "ipo", "hinge"))}
START = {"learning_rate": 1e-4, "loss_type": "sigmoid"}


def mutator(**changes: Any) -> Mutator:
    given = {"ranges": RANGES, "weights": {"no_mutation": 1.0}, "shrink": 0.8, "grow": 1.2, "resample": 0.0}
    return Mutator(**(given | {"max_rank": 16, "valid": lambda _: True} | changes))


def test_kinds_come_with_their_relative_probabilities():
    weights = {"no_mutation": 0.1, "hyper_parameter": 0.6, "rank": 0.3, "crossover": 0.0}
    rng, drawing = random.Random(1), mutator(weights=weights)
    found = Counter(drawing.kind(rng) for _ in range(DRAWS))
    assert found.keys() == {"no_mutation", "hyper_parameter", "rank"}
    assert all(abs(found[kind] / DRAWS - weight) < 0.03 for kind, weight in weights.items())
    assert mutator(weights={"rank": 0.0}).kind(rng) == "no_mutation"


def test_a_mutation_changes_one_setting_each_as_often():
    rng, drawing = random.Random(2), mutator()
    found: Counter[str] = Counter()
    for _ in range(DRAWS):
        settings, mutation = drawing.hyper_parameter(START, rng)
        changed = [name for name in START if settings[name] != START[name]]
        assert changed == [mutation.setting]
        assert (mutation.before, mutation.after) == (START[changed[0]], settings[changed[0]])
        found[changed[0]] += 1
    assert abs(found["learning_rate"] / DRAWS - 1 / 2) < 0.03


def test_resampling_has_its_own_probability():
    rng, drawing = random.Random(3), mutator(ranges={"learning_rate": RANGES["learning_rate"]}, resample=0.25)
    values = [drawing.hyper_parameter(START, rng)[0]["learning_rate"] for _ in range(DRAWS)]
    factors = {1e-4 * 0.8, 1e-4 * 1.2}
    assert abs(sum(value not in factors for value in values) / DRAWS - 1 / 4) < 0.03


def test_settings_that_are_not_valid_together_are_drawn_again():
    rng, drawing = random.Random(4), mutator(valid=lambda settings: settings["loss_type"] != "ipo")
    assert {drawing.hyper_parameter(START, rng)[0]["loss_type"] for _ in range(100)} == {"sigmoid", "hinge"}
    never = mutator(valid=lambda _: False)
    assert never.hyper_parameter(START, rng) == (START, Mutation("no_mutation"))
    assert never.sample(START, rng) == START


def test_the_rank_doubles_up_to_its_limit():
    assert mutator().rank(8) == (16, Mutation("rank", "lora_r", 8, 16))
    assert mutator().rank(16) == (16, Mutation("no_mutation"))


def test_first_settings_are_drawn_from_the_whole_ranges():
    rng, drawing = random.Random(5), mutator()
    drawn = [drawing.sample({**START, "other": 1}, rng) for _ in range(200)]
    assert {one["loss_type"] for one in drawn} == {"sigmoid", "ipo", "hinge"}
    assert all(one["other"] == 1 for one in drawn)
    assert min(one["learning_rate"] for one in drawn) < 1e-5 and max(one["learning_rate"] for one in drawn) > 1e-3
