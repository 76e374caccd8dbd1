from bough.data.transcript import coloured
from bough.models.resolve import load_tokenizer
from bough.types import Call


def test_trained_tokens_stand_between_brackets_and_shared_ones_once():
    tokenizer = load_tokenizer("tiny")
    prompt = tokenizer("go to shelf", add_special_tokens=False)["input_ids"]
    answer = tokenizer(" look", add_special_tokens=False)["input_ids"]
    more = tokenizer(" open", add_special_tokens=False)["input_ids"]
    first = Call(prompt_ids=prompt, completion_ids=answer)
    second = Call(prompt_ids=prompt + answer + more, completion_ids=answer)
    texts = [text.plain for text in coloured([first, second], tokenizer)]
    assert texts[0] == "call 1: go to shelf⟦ look⟧"
    assert texts[1] == f"call 2: … {len(prompt + answer)} shared tokens …  open⟦ look⟧"
