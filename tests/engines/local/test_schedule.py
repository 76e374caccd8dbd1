import pytest

from bough.config.groups import SamplingConfig
from bough.engines.local.schedule import Request, Scheduler, Store
from bough.models.resolve import load_tokenizer


class Tokens(Store):
    """A store that counts: a resident costs as much as it has tokens."""

    def __init__(self):
        self.copied = []

    def cost(self, tokens):
        return tokens

    def allocate(self, resident, tokens):
        resident.place, resident.capacity = object(), tokens

    def copy(self, source, target, begin, end):
        self.copied.append((begin, end))


def request(episode, ids, new=10):
    sampling = SamplingConfig(max_new_tokens=new)
    return Request(episode, ids, sampling, 0, frozenset(), 1000)


def compute(scheduler):
    """One step, everything in it."""
    scheduler.admit()
    for span in scheduler.spans(10_000):
        span.resident.ids.extend(span.tokens)


def finish(scheduler, episode):
    scheduler.leave(scheduler.residents[episode])


def scheduler_of(budget, max_running=10):
    return Scheduler(Tokens(), budget=budget, max_running=max_running)


def running(scheduler):
    return [name for name, resident in scheduler.residents.items() if resident.request]


def ids_from(start, length):
    return list(range(start, start + length))


def test_calls_wait_for_room_in_the_order_in_which_they_came():
    scheduler = scheduler_of(budget=100)
    scheduler.waiting.extend([request("a", ids_from(0, 50)), request("b", ids_from(100, 50)), request("c", [1, 2])])
    compute(scheduler)
    # a takes 60; b, who would need 60, waits, and c behind it too, though it would fit.
    assert running(scheduler) == ["a"]
    finish(scheduler, "a")
    compute(scheduler)
    assert running(scheduler) == ["b", "c"]


def test_whoever_was_idle_longest_is_dropped_first():
    scheduler = scheduler_of(budget=100)
    for name, start in (("a", 0), ("b", 100), ("c", 200)):
        scheduler.waiting.append(request(name, ids_from(start, 20)))
        compute(scheduler)
    for name in ("b", "a", "c"):
        finish(scheduler, name)
    scheduler.waiting.append(request("d", ids_from(300, 20)))
    compute(scheduler)
    assert list(scheduler.residents) == ["a", "c", "d"]
    assert scheduler.spent == 90 and scheduler.num_dropped == 1


def test_nobody_who_runs_is_dropped():
    scheduler = scheduler_of(budget=100)
    scheduler.waiting.append(request("a", ids_from(0, 60)))
    compute(scheduler)
    scheduler.waiting.append(request("b", ids_from(100, 60)))
    compute(scheduler)
    assert running(scheduler) == ["a"] and scheduler.num_dropped == 0


def test_a_prefix_that_another_has_is_copied():
    scheduler = scheduler_of(budget=1000)
    scheduler.waiting.append(request("a", [*ids_from(0, 80), 500]))
    compute(scheduler)
    scheduler.waiting.append(request("b", [*ids_from(0, 80), 600, 601]))
    scheduler.admit()
    assert scheduler.store.copied == [(0, 80)]
    assert [span.tokens for span in scheduler.spans(1000) if span.request.episode == "b"] == [[600, 601]]


def test_who_shares_a_prefix_that_is_just_being_computed_waits_for_it():
    scheduler = scheduler_of(budget=1000)
    scheduler.waiting.extend(request(name, [*ids_from(0, 80), 500 + i]) for i, name in enumerate("abc"))
    scheduler.admit()
    assert running(scheduler) == ["a"]
    compute(scheduler)
    compute(scheduler)
    assert running(scheduler) == ["a", "b", "c"]
    assert scheduler.num_prefilled == 81 + 1 + 1


def test_the_longest_of_several_prefixes_is_copied():
    scheduler = scheduler_of(budget=1000)
    for name, shared in (("a", 40), ("b", 90), ("c", 60)):
        scheduler.waiting.append(request(name, [*ids_from(0, shared), 500 + shared, 9]))
        compute(scheduler)
        finish(scheduler, name)
    scheduler.store.copied.clear()
    scheduler.waiting.append(request("d", ids_from(0, 100)))
    scheduler.admit()
    assert scheduler.store.copied == [(0, 90)]


def test_a_call_that_fails_to_enter_is_still_there_and_nothing_is_counted_twice(monkeypatch):
    scheduler = scheduler_of(budget=1000)
    scheduler.waiting.append(request("a", ids_from(0, 50)))
    compute(scheduler)
    finish(scheduler, "a")
    scheduler.waiting.extend([request("a", ids_from(0, 80)), request("b", [1])])
    monkeypatch.setattr(scheduler.store, "allocate", None)
    with pytest.raises(TypeError):
        scheduler.admit()
    assert [one.episode for one in scheduler.requests()] == ["a", "b"] and scheduler.spent == 60


def test_a_likeness_further_on_is_no_prefix():
    scheduler = scheduler_of(budget=1000)
    for name, ids in (("a", ids_from(0, 50)), ("b", [999, *ids_from(1, 79)])):
        scheduler.waiting.append(request(name, ids))
        compute(scheduler)
    scheduler.waiting.append(request("c", ids_from(0, 80)))
    scheduler.admit()
    assert scheduler.store.copied == [(0, 50)]


def test_the_same_prompt_again_reads_its_last_token_again():
    scheduler = scheduler_of(budget=1000)
    for _ in range(2):
        scheduler.waiting.append(request("a", ids_from(0, 50)))
        scheduler.admit()
        (span,) = scheduler.spans(1000)
        span.resident.ids.extend(span.tokens)
        finish(scheduler, "a")
    assert (span.tokens, span.draws) == ([49], True)


def test_two_calls_of_one_episode_run_one_after_the_other():
    scheduler = scheduler_of(budget=1000)
    scheduler.waiting.extend([request("a", [1, 2, 3]), request("a", [1, 2, 4]), request("b", [7])])
    compute(scheduler)
    assert running(scheduler) == ["a", "b"] and len(scheduler.waiting) == 1


def test_long_prompts_are_read_in_pieces_beside_those_who_draw():
    scheduler = scheduler_of(budget=1000)
    scheduler.waiting.append(request("a", [7]))
    compute(scheduler)
    scheduler.residents["a"].request.take([(8, -1.0)])
    scheduler.waiting.append(request("b", ids_from(100, 50)))
    scheduler.admit()
    spans = scheduler.spans(30)
    assert [(len(span.tokens), span.draws) for span in spans] == [(1, True), (30, False)]
    for span in spans:
        span.resident.ids.extend(span.tokens)
    scheduler.residents["a"].request.take([(9, -1.0)])
    assert [(len(span.tokens), span.draws) for span in scheduler.spans(30)] == [(1, True), (20, True)]


def test_prompts_share_what_a_step_may_read():
    scheduler = scheduler_of(budget=1000)
    scheduler.waiting.extend(request(name, ids_from(start, 20)) for name, start in (("a", 0), ("b", 100), ("c", 200)))
    scheduler.admit()
    assert [(len(span.tokens), span.draws) for span in scheduler.spans(30)] == [(20, True), (10, False)]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("tiny")


def first_stop(texts, text, tokenizer):
    """The text up to the token after which the answer ends, or None."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    sampling = SamplingConfig(stop=texts, max_new_tokens=len(ids) + 1)
    answer = Request("e", [1], sampling, 0, frozenset(), 10_000, tokenizer).take([(token, 0.0) for token in ids])
    return None if answer is None else tokenizer.decode(answer.completion_ids)


END = "the end of this answer, which is long: ⟦über⟧"


@pytest.mark.parametrize(
    ("texts", "text", "kept", "left_out"),
    [
        (["ACTION:"], "THOUGHT: I look.\nACTION: go to shelf 1\nACTION: look", "THOUGHT: I look.\nACTION:", "go to"),
        (["shelf", "look"], "I look at the shelf", "look", "shelf"),
        ([END], "word " * 300 + END + " and more", END, "more"),
        (["日本"], "a 日本語 b", "a 日本", "b"),
    ],
)
def test_an_answer_ends_with_the_token_that_completes_a_text(texts, text, kept, left_out, tokenizer):
    found = first_stop(texts, text, tokenizer)
    assert kept in found and left_out not in found


@pytest.mark.parametrize("texts", [["xyz"], [], [""]])
def test_without_its_text_an_answer_goes_on(texts, tokenizer):
    assert first_stop(texts, "THOUGHT: I look.\nACTION: go", tokenizer) is None
