import math

import pytest
import torch

from bough.config.groups import SamplingConfig
from bough.engines.local.schedule import SamplingParams, cuts, draw, draw_each, uniform

PROBABILITIES = [0.1, 0.4, 0.2, 0.3]  # summed up: 0.1, 0.5, 0.7, 1.0


def drawn(u: float, probabilities: list[float] = PROBABILITIES, **sampling: float) -> tuple[int, float]:
    config = SamplingConfig(**sampling)
    logits = torch.tensor([probabilities]).log()
    token, logprob = draw(logits, SamplingParams.of([(config, u)]), cut=cuts(config))
    return int(token), float(logprob)


@pytest.mark.parametrize(
    ("u", "token"), [(0.0, 0), (0.09, 0), (0.11, 1), (0.49, 1), (0.51, 2), (0.71, 3), (0.999999, 3)]
)
def test_a_number_picks_the_token_where_the_probabilities_pass_it(u, token):
    assert drawn(u)[0] == token


def test_the_logprob_is_the_models_own_whatever_the_cuts():
    for sampling in ({}, {"top_k": 2}, {"top_p": 0.5}, {"temperature": 0}):
        token, logprob = drawn(0.3, **sampling)
        assert logprob == pytest.approx(math.log(PROBABILITIES[token]), abs=1e-6)


def test_the_logprob_is_at_the_temperature_of_the_draw():
    # At 1/2 the probabilities are squared, and 0.30 is their sum, whatever top-k leaves of them.
    for sampling in ({"temperature": 0.5}, {"temperature": 0.5, "top_k": 2}):
        assert drawn(0.3, **sampling) == (1, pytest.approx(math.log(0.16 / 0.30), abs=1e-6))


@pytest.mark.parametrize(
    ("sampling", "draws"),
    [
        ({"temperature": 0}, {0.0: 1, 0.5: 1, 0.99: 1}),
        # The probabilities are squared: 0.01, 0.16, 0.04, 0.09 of 0.30. The first ends at 0.033, the next at 0.567.
        ({"temperature": 0.5}, {0.03: 0, 0.04: 1, 0.56: 1, 0.57: 2}),
        # 0.4 and 0.3 stay: the first ends at 4/7 = 0.571.
        ({"top_k": 2}, {0.0: 1, 0.57: 1, 0.58: 3, 0.99: 3}),
        # 0.4 + 0.3 = 0.7 reach 0.6, 0.4 alone does not; at 0.35 the likeliest is enough.
        ({"top_p": 0.6}, {0.0: 1, 0.57: 1, 0.58: 3, 0.99: 3}),
        ({"top_p": 0.35}, {0.0: 1, 0.99: 1}),
        # Of 0.4 and 0.3, 0.4 holds 0.571: enough for 0.55, but not if all four counted.
        ({"top_k": 2, "top_p": 0.55}, {0.99: 1}),
        ({"top_p": 0.55}, {0.99: 3}),
        # Below 0.6 * 0.4 = 0.24 nothing is drawn.
        ({"min_p": 0.6}, {0.0: 1, 0.57: 1, 0.58: 3, 0.99: 3}),
    ],
    ids=str,
)
def test_a_draw_is_among_what_temperature_and_cuts_leave(sampling, draws):
    assert {u: drawn(u, **sampling)[0] for u in draws} == draws


def test_a_token_without_probability_is_never_drawn():
    probabilities = [0.0, 0.5, 0.0, 0.5, 0.0]
    assert {drawn(u, probabilities)[0] for u in (0.0, 0.25, 0.5, 0.75, 1 - 2**-53)} == {1, 3}


def test_draws_follow_the_distribution_over_a_vocabulary_of_many_blocks():
    torch.manual_seed(0)
    logits = torch.randn(1, 1000) * 2
    n = 20_000
    wishes = SamplingParams.of([(SamplingConfig(), uniform(5, i)) for i in range(n)])
    token, _ = draw(logits.expand(n, -1), wishes, cut=False)
    seen = torch.bincount(token, minlength=1000) / n
    expected = logits.softmax(-1)[0]
    # Each count is off by at most a few standard deviations.
    assert ((seen - expected).abs() <= 5 * (expected / n).sqrt() + 2 / n).all()


def test_a_row_is_drawn_the_same_in_any_company():
    torch.manual_seed(1)
    logits = torch.randn(40, 3001) * 3
    rows = [(SamplingConfig(temperature=0.5 + i / 40, top_p=0.8 if i % 2 else 1.0), uniform(9, i)) for i in range(40)]
    tokens, logprobs = draw(logits, SamplingParams.of(rows), cut=True)
    for i in range(40):
        token, logprob = draw(logits[i : i + 1], SamplingParams.of(rows[i : i + 1]), cut=cuts(rows[i][0]))
        assert (int(token), float(logprob)) == (int(tokens[i]), float(logprobs[i]))


def test_numbers_depend_on_seed_and_place_alone_and_are_spread_evenly():
    assert uniform(1, 2) == uniform(1, 2)
    assert len({uniform(s, p) for s in range(50) for p in range(50)}) == 2500
    mean = sum(uniform(3, p) for p in range(4000)) / 4000
    assert abs(mean - 0.5) < 0.02
    assert 0 <= min(uniform(-1, p) for p in range(100)) < 1


@pytest.mark.parametrize("vocabulary", [5, 300])
@pytest.mark.parametrize("options", [{}, {"top_p": 0.9}, {"temperature": 0.0}], ids=str)
def test_a_row_that_is_not_numbers_leaves_the_others_alone(vocabulary, options):
    logits_BV = torch.randn(3, vocabulary, generator=torch.Generator().manual_seed(2))
    params = [(SamplingConfig(**options), u) for u in (0.2, 0.999, 0.7)]
    alone = draw_each(logits_BV[::2], params[::2])
    logits_BV[1] = float("nan")
    (first, (token, logprob), last) = draw_each(logits_BV, params)
    assert [first, last] == alone and 0 <= token < vocabulary and math.isnan(logprob)
