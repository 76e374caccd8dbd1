import asyncio
import json
from typing import Any

import pytest

from bough.worlds.interpreter import exchange
from bough.worlds.interpreter.exchange import Exchange

REQUEST = json.dumps({"do": "call"})
CALL = f"{json.dumps({'limit_s': 5.0})}\n{REQUEST}"
VALUE = {"value": {"value": 3, "heap": []}}


def test_calls_and_answers_take_turns():
    async def play() -> list[Any]:
        box = Exchange()
        program = asyncio.create_task(box.from_program(json.dumps({"ready": None})))
        seen: list[Any] = [await box.ready(5.0)]
        tests = asyncio.create_task(box.from_tests(CALL))
        seen.append(await program)
        program = asyncio.create_task(box.from_program(json.dumps(VALUE)))
        seen.append(json.loads(await tests))
        box.dismiss()
        seen.append(await program)
        await box.from_tests(json.dumps({"marks": [True], "failed": None}))
        return [*seen, box.verdict]

    assert asyncio.run(play()) == [None, REQUEST, VALUE, "null", {"marks": [True], "failed": None}]


def test_an_answer_is_passed_on_unread():
    async def play(text: str) -> str:
        box = Exchange()
        box.answers.put_nowait(text)
        return await box.from_tests(CALL)

    for text in ("", "nonsense", "[" * 100_000, '{"value": {"value": [0], "heap": [["array", "<i8", [9, 9, 9]]]}}'):
        assert asyncio.run(play(text)) == text


def test_a_program_that_has_ended_or_is_late_answers_no_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exchange, "GRACE_S", 0.0)

    async def play() -> list[str]:
        ended, late = Exchange(), Exchange()
        waiting = asyncio.create_task(ended.from_tests(CALL))
        await asyncio.sleep(0)
        ended.end("it left")
        first = [await waiting, await ended.from_tests(CALL)]
        request = CALL.replace("5.0", "0.01")
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


def test_a_program_that_failed_or_said_nothing_is_told():
    async def said(text: str | None) -> str | None:
        box = Exchange()
        if text is not None:
            box.answers.put_nowait(text)
        return await box.ready(0.01)

    texts = ['{"ready": ' + "[" * 100_000, '{"ready": null, "more": "' + "x" * 100_000 + '"}']
    assert {asyncio.run(said(text)) for text in texts} == {"the program's answer is not readable"}
    texts = ['{"ready": "NameError: x"}', '{"ready": null}', "[]", "nonsense", None]
    assert [asyncio.run(said(text)) for text in texts] == [
        "NameError: x", None, "", "the program's answer is not readable", "killed: time",
    ]  # fmt: skip
