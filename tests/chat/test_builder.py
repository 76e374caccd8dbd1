from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.chat.template import Built, CallBuilder, ChatTemplate
from bough.types import Call, Message, Turn, conversation
from tests.chat.conftest import END_OF_TURN, FAMILIES, assistant, household, template_of, user

TEMPLATES = {family: template_of(family) for family in FAMILIES}


def test_the_prompt_is_what_apply_chat_template_gives(template: ChatTemplate):
    start, turns = household(4)
    for built in CallBuilder(template).build(start, turns, []):
        assert built.call is not None
        spoken, _ = template.speak(conversation(start, turns[: built.turn]), [])
        expected = template.tokenizer.apply_chat_template(spoken, add_generation_prompt=True, return_dict=False)
        assert built.call.prompt_ids == list(expected)


words = st.lists(
    st.sampled_from(["go", "look", " ", "\n", "é", "☃", "12", "<b>", "ACTION:", "\t"]), min_size=1, max_size=8
)
replies = words.map("".join).filter(str.strip)


@given(st.sampled_from(FAMILIES), st.lists(st.tuples(replies, replies), min_size=1, max_size=4))
@settings(max_examples=150, deadline=None)
def test_no_observation_or_header_token_is_ever_trained(family: str, exchanges: list[tuple[str, str]]):
    template = TEMPLATES[family]
    turns = [Turn(reply=assistant(reply), observation=[user(seen)]) for reply, seen in exchanges]
    for built in CallBuilder(template).build([user("Begin.")], turns, []):
        assert built.call is not None
        decoded = template.tokenizer.decode(built.call.completion_ids)
        assert decoded == turns[built.turn].reply.content + END_OF_TURN[family]


def test_qwen3_shows_later_calls_a_history_without_thoughts():
    template = TEMPLATES["qwen3"]
    turns = [
        Turn(reply=assistant("<think>\nWhere?\n</think>\n\nACTION: look"), observation=[user("You see a lamp.")]),
        Turn(reply=assistant("<think>\nThere.\n</think>\n\nACTION: go to lamp 1")),
    ]
    first, second = CallBuilder(template).build([user("Find a lamp.")], turns, [])
    assert first.call is not None and second.call is not None
    decode = template.tokenizer.decode
    assert decode(first.call.completion_ids) == "<think>\nWhere?\n</think>\n\nACTION: look<|im_end|>"
    assert "Where?" not in decode(second.call.prompt_ids)
    assert "ACTION: look<|im_end|>" in decode(second.call.prompt_ids)


def test_a_reply_marked_as_context_is_shown_but_not_trained():
    start, turns = household(3)
    turns[1] = turns[1].model_copy(update={"trained": False})
    built = list(CallBuilder(TEMPLATES["chatml"]).build(start, turns, []))
    assert [each.turn for each in built] == [0, 2]
    assert built[1].call is not None
    assert "go to shelf 2" in TEMPLATES["chatml"].tokenizer.decode(built[1].call.prompt_ids)


def long_episode(limit: int, stride: float) -> list[Call]:
    start, turns = household(30)
    built = list(CallBuilder(TEMPLATES["chatml"], max_length=limit, stride=stride).build(start, turns, []))
    assert all(each.call for each in built)
    return [each.call for each in built if each.call]


def test_a_long_prompt_keeps_the_start_and_the_latest_whole_steps():
    template = TEMPLATES["chatml"]
    calls = long_episode(limit=400, stride=0.25)
    assert max(len(call.prompt_ids) + len(call.completion_ids) for call in calls) <= 400
    text = template.tokenizer.decode(calls[-1].prompt_ids)
    start, turns = household(30)
    first = next(i for i in range(30) if turns[i].reply.content in text)
    assert text == template.prompt(conversation(start, turns[first:29]), [])
    assert 0 < first < 29


def test_neighbouring_long_calls_still_share_a_prefix():
    continued, cut_every_time = (
        sum(later.prompt_ids[: len(before.prompt_ids)] == before.prompt_ids for before, later in pairwise(calls))
        for calls in (long_episode(limit=400, stride=0.25), long_episode(limit=400, stride=0.0))
    )
    assert continued > cut_every_time


def test_a_turn_that_cannot_fit_is_dropped_with_its_reason_and_the_others_are_not():
    start, turns = household(3)
    turns[1] = Turn(reply=assistant("ACTION: " + "look " * 400), observation=[user("Nothing happens.")])
    built = list(CallBuilder(TEMPLATES["chatml"], max_length=300).build(start, turns, []))
    assert [each.reason for each in built] == [None, "too_long", None]
    assert "max_length is 300" in built[1].message
    # The third prompt had to forget the step that would not fit.
    assert built[2].dropped_steps == 2


def test_a_call_beyond_the_models_context_is_dropped_whole_and_shortened_only_on_request():
    template, (start, turns) = TEMPLATES["chatml"], household(20)
    lengths = [len(b.call.prompt_ids) + len(b.call.completion_ids) for b in _built(template, start, turns) if b.call]
    context = lengths[9]
    dropped = _built(template, start, turns, context=context)
    assert [each.reason for each in dropped] == [None] * 10 + ["too_long"] * 10
    assert f"the call is {lengths[10]} tokens and the model's context {context}" in dropped[10].message
    for max_length in (context, 10 * context):  # never more than the context
        shortened = _built(template, start, turns, context=context, max_length=max_length)
        found = [len(each.call.prompt_ids) + len(each.call.completion_ids) for each in shortened if each.call]
        assert len(found) == 20 and max(found) <= context
        assert shortened[19].dropped_steps > 0


def test_a_recorded_call_beyond_the_models_context_is_dropped():
    template = TEMPLATES["chatml"]
    answer = template.tokenizer("look", add_special_tokens=False)["input_ids"]
    call = Call(prompt_ids=[5] * 50, completion_ids=answer, text="look")
    for context, kept in ((50 + len(answer), call), (49 + len(answer), None)):
        (built,) = _built(template, [user("Hi")], [Turn(reply=assistant("look"), call=call)], context=context)
        assert built.call == kept and built.reason == (None if kept else "too_long")


def _built(template: ChatTemplate, start: list[Message], turns: list[Turn], **limits: int) -> list[Built]:
    return list(CallBuilder(template, **limits).build(start, turns, []))


def test_history_inside_the_start_of_a_pair_can_be_forgotten_too():
    template = TEMPLATES["chatml"]
    start, turns = household(20)
    history = conversation(start, turns)
    (built,) = CallBuilder(template, max_length=300).build(history, [Turn(reply=assistant("ACTION: look"))], [])
    assert built.call is not None and built.turn == 0
    text = template.tokenizer.decode(built.call.prompt_ids)
    assert "Your task is to: find an apple." in text
    assert "go to shelf 20" in text and "go to shelf 1\n" not in text


def test_recorded_tokens_are_kept_as_they_are_and_those_of_another_tokenizer_are_built_again():
    template = TEMPLATES["chatml"]
    ids = template.tokenizer("look", add_special_tokens=False)["input_ids"]
    recorded = Call(
        prompt_ids=[5, 6, 7],
        completion_ids=[*ids, template.end_of_turn_id],
        logprobs=[-0.5] * (len(ids) + 1),
        text="look",
    )
    (built,) = CallBuilder(template).build([user("Hi")], [Turn(reply=assistant("look"), call=recorded)], [])
    assert built.call is recorded
    foreign = Call(prompt_ids=[5, 6, 900000], completion_ids=[8, 9], text="look")
    (built,) = CallBuilder(template).build([user("Hi")], [Turn(reply=assistant("look"), call=foreign)], [])
    assert built.call is not None and template.tokenizer.decode(built.call.completion_ids) == "look<|im_end|>"


@pytest.mark.parametrize(
    ("reply", "reason"), [("", "empty_completion"), (" \n", "empty_completion"), ("a<|im_end|>b", "end_of_turn_inside")]
)
def test_a_reply_that_cannot_be_trained_carries_its_reason(reply: str, reason: str):
    turns = [Turn(reply=assistant(reply), observation=[user("?")]), Turn(reply=assistant("look"))]
    bad, good = CallBuilder(TEMPLATES["chatml"]).build([Message(role="user", content="Hi")], turns, [])
    assert bad.reason == reason and bad.call is None
    assert good.call is not None


def test_a_correction_is_trained_and_the_reply_stays_the_history(family: str, template: ChatTemplate):
    start, turns = household(3)
    turns[1] = turns[1].model_copy(update={"correction": assistant("THOUGHT: Better.\nACTION: look")})
    built = list(CallBuilder(template).build(start, turns, []))
    plain = list(CallBuilder(template).build(*household(3), []))
    assert built[1].call is not None and plain[1].call is not None
    text = template.tokenizer.decode(built[1].call.completion_ids)
    assert text == "THOUGHT: Better.\nACTION: look" + END_OF_TURN[family]
    assert built[1].call.prompt_ids == plain[1].call.prompt_ids and built[2] == plain[2]


def test_a_correction_is_answered_to_the_very_tokens_that_the_agent_saw():
    template = TEMPLATES[FAMILIES[0]]
    start, turns = household(1)
    [own] = CallBuilder(template).build(start, turns, [])
    assert own.call is not None
    seen = Call(prompt_ids=[5, 6, 7], completion_ids=own.call.completion_ids, text=own.call.text, finish="stop")
    turns[0] = turns[0].model_copy(update={"call": seen, "correction": assistant("ACTION: look")})
    [built] = CallBuilder(template).build(start, turns, [])
    assert built.call is not None and built.call.prompt_ids == [5, 6, 7]
    assert built.call.completion_ids == template.encode_answer("ACTION: look")
    assert built.call.logprobs is None


def test_a_turn_with_a_prompt_of_its_own_answers_that_and_no_other_turn_sees_it():
    template = TEMPLATES["qwen3"]
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    asked = [user("One."), assistant("Well."), user("And?")]
    start, plain = household(3)
    aside = Turn(reply=assistant("A side remark."), prompt=asked, tools=[tool])
    builder = CallBuilder(template)
    alone = list(builder.build(start, plain, []))
    found = list(builder.build(start, [plain[0], aside, *plain[1:]], []))
    assert [built.turn for built in found] == [0, 1, 2, 3]
    assert [built.call for built in [found[0], *found[2:]]] == [built.call for built in alone]
    assert found[1].call is not None
    assert found[1].call.prompt_ids == template.encode_prompt(template.prompt(asked, [tool]))
    assert found[1].call.text == "A side remark."
