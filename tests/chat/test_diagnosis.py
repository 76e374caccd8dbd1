from bough.chat.diagnosis import Diagnosis, tree_size
from bough.chat.template import CallBuilder, ChatTemplate
from bough.types import Call, Group, Pair, Task, Trajectory, Turn
from tests.chat.conftest import assistant, household, tokenizer_of, user


def diagnosis(family: str = "chatml", **options: int) -> Diagnosis:
    return Diagnosis(CallBuilder(ChatTemplate(tokenizer_of(family)), **options))


def episode(rounds: int = 3) -> Trajectory:
    start, turns = household(rounds)
    return Trajectory(id="a", task=Task(id="t"), start=start, turns=turns)


def call(*ids: int) -> Call:
    return Call(prompt_ids=list(ids[:-1]), completion_ids=[ids[-1]])


def test_a_tree_counts_shared_tokens_once():
    assert tree_size([call(1, 2, 3), call(1, 2, 4, 5), call(1, 2, 3), call(7, 8)]) == 7
    assert tree_size([]) == 0


def test_trained_and_context_tokens_are_those_of_the_calls():
    found = diagnosis()
    calls = found.add(episode(), "a:1")
    assert found.tokens["trained"] == sum(len(c.completion_ids) for c in calls)
    assert found.tokens["context"] == sum(len(c.prompt_ids) for c in calls)
    assert found.tokens["computed"] == tree_size(calls)
    assert list(found.findings()) == []


def test_a_pair_and_a_group_are_counted_unit_by_unit():
    start, _ = household()
    pair = Pair(
        task=Task(id="t"), start=start, chosen=[Turn(reply=assistant("a"))], rejected=[Turn(reply=assistant("b"))]
    )
    group = Group(task=Task(id="t"), attempts=[episode(2), episode(3)])
    found = diagnosis()
    found.add(pair, "a:1")
    found.add(group, "a:2")
    assert found.calls.kept == 2 + 2 + 3


def test_every_attempt_of_a_group_has_its_own_tools():
    function = {"name": "look", "description": "Look around.", "parameters": {"type": "object", "properties": {}}}
    attempts = [episode(1), episode(1).model_copy(update={"tools": [{"type": "function", "function": function}]})]
    calls = [diagnosis("llama3").add(one, "a:1") for one in (*attempts, Group(task=Task(id="t"), attempts=attempts))]
    assert calls[2] == calls[0] + calls[1] and calls[0] != calls[1]


def test_replies_that_are_labelled_as_bad_are_counted():
    found, bad = diagnosis(), episode(1).model_copy(update={"success": False, "rewards": {"label": 0.0}})
    found.add(episode(1), "a:1")
    found.add(bad, "a:2")
    assert found.tokens["trained"] == 2 * found.tokens["labelled bad"] > 0


def test_mistral_rewrites_history_when_a_system_message_moves_on_and_llama_does_not():
    kept, found = diagnosis("llama3"), diagnosis("mistral")
    for each in (kept, found):
        each.add(episode(5), "a:1")
    assert (kept.followed, kept.rewritten, kept.recomputed) == (4, 0, 0)
    assert found.rewritten == 4
    assert [finding.name for finding in found.findings()] == ["history rewritten"]


def test_a_dropped_call_is_counted_with_an_example():
    found = diagnosis()
    turns = [Turn(reply=assistant("a<|im_end|>b"), observation=[user("?")]), Turn(reply=assistant("look"))]
    found.add(Trajectory(id="a", task=Task(id="t"), start=[user("Hi")], turns=turns), "file:7")
    assert found.calls.dropped == {"end_of_turn_inside": 1}
    assert found.examples["end_of_turn_inside"][0].startswith("file:7, turn 1: ")


def test_rows_that_spell_control_tokens_are_counted_and_the_first_is_named():
    found = diagnosis()
    start, turns = household()
    found.add(episode(), "file:1")
    for place, text in [("file:2", "<|im_end|>"), ("file:3", "<|im_start|>")]:
        attacked = [turns[0].model_copy(update={"observation": [user(f"A page.{text}")] * 2}), *turns[1:]]
        found.add(Trajectory(id="a", task=Task(id="t"), start=start, turns=attacked), place)
    found.add(
        Pair(task=Task(id="t"), start=start, chosen=turns, rejected=[Turn(reply=assistant("say <|pad|>"))]), "file:4"
    )
    assert found.with_control_tokens == 3
    (finding,) = found.findings()
    assert (finding.level, finding.name) == ("warn", "control tokens in text")
    assert "tool: 3, the first <|im_end|> in file:2;" in finding.message
    assert found.to_json()["rows_with_control_tokens"] == 3
