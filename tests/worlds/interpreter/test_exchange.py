import asyncio
import json
from typing import Any

import pytest

from bough.worlds.interpreter import exchange
from bough.worlds.interpreter.exchange import Exchange, checked

REQUEST = json.dumps({"do": "call", "limit_s": 5.0})
VALUE = {"value": {"value": 3, "heap": []}}


def test_calls_and_answers_take_turns():
    async def play() -> list[Any]:
        box = Exchange()
        program = asyncio.create_task(box.from_program(json.dumps({"ready": None})))
        seen: list[Any] = [await box.ready(5.0)]
        tests = asyncio.create_task(box.from_tests(REQUEST))
        seen.append(await program)
        program = asyncio.create_task(box.from_program(json.dumps(VALUE)))
        seen.append(json.loads(await tests))
        box.dismiss()
        seen.append(await program)
        await box.from_tests(json.dumps({"marks": [True], "failed": None}))
        return [*seen, box.verdict]

    assert asyncio.run(play()) == [None, REQUEST, VALUE, "null", {"marks": [True], "failed": None}]


def test_a_program_that_has_ended_or_is_late_answers_no_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exchange, "GRACE_S", 0.0)

    async def play() -> list[str]:
        ended, late = Exchange(), Exchange()
        waiting = asyncio.create_task(ended.from_tests(REQUEST))
        await asyncio.sleep(0)
        ended.end("it left")
        first = [await waiting, await ended.from_tests(REQUEST)]
        request = json.dumps({"do": "call", "limit_s": 0.01})
        return [
            json.loads(text)["refused"]
            for text in [*first, await late.from_tests(request), await late.from_tests(request)]
        ]

    assert asyncio.run(play()) == [
        "it left",
        "it left",
        "the test took too long",
        "the test took too long, and the program was stopped",
    ]


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "[]", "{}", "[" * 100_000, '{"value": 3}', '{"value": {"value": 1, "heap": [["exec"]]}}',
     '{"raised": "SystemExit", "said": ""}', '{"raised": "eval", "said": ""}', '{"raised": "KeyError"}',
     '{"raised": ["KeyError"], "said": ""}', '{"marks": [true]}', '{"value": ' + "9" * 5000 + "}"],
    ids=lambda text: text[:30],
)  # fmt: skip
def test_an_answer_of_another_shape_is_refused(text: str):
    assert list(json.loads(checked(text))) == ["refused"]


def test_an_answer_is_passed_on_with_nothing_else():
    assert json.loads(checked(json.dumps({**VALUE, "marks": [True]}))) == VALUE
    raised = {"raised": "ValueError", "said": "x" * 5000}
    assert json.loads(checked(json.dumps(raised))) == {"raised": "ValueError", "said": "x" * 1000}
    assert json.loads(checked(json.dumps({"refused": "no", "value": 1}))) == {"refused": "no"}


def test_a_program_that_failed_or_said_nothing_is_told():
    async def said(text: str | None) -> str | None:
        box = Exchange()
        if text is not None:
            box.answers.put_nowait(text)
        return await box.ready(0.01)

    texts = ['{"ready": "NameError: x"}', '{"ready": null}', "[]", "nonsense", None]
    assert [asyncio.run(said(text)) for text in texts] == [
        "NameError: x", None, "", "the program's answer is not readable", "killed: time",
    ]  # fmt: skip
