"""Whatever a server answers costs the episode that asked, and no other."""

import asyncio
import gzip
import json
from typing import Any

import pytest

from bough.config.groups import LimitsConfig
from bough.engines import http
from bough.engines.http import ServerLimits
from bough.engines.openai import OpenAIEngine
from bough.rollouts.collect import LocalRunner, attempts, collect
from bough.rollouts.episode import ModelAgent
from bough.types import Task, Trajectory
from tests.engines.stand_in import Reply, said, serving
from tests.environments.worlds import Counting

TASKS = [Task(id=name, data={"goal": goal}) for name, goal in (("good-0", 1), ("bad", 2), ("good-1", 1))]


def choice(**values: Any) -> Reply:
    message = {"message": {"role": "assistant", "content": "1"}, "finish_reason": "stop"}
    tokens = {"token_ids": [4, 5], "prompt_token_ids": [1, 2], **values}
    return Reply({"model": "tiny", "choices": [{**message, **tokens}]})


def spoken(**values: Any) -> Reply:
    return Reply({"choices": [{"message": {"role": "assistant", "content": "1", **values}}]})


def logprob(value: Any) -> Reply:
    return choice(logprobs={"content": [{"token": "a", "logprob": value}] * 2})


DEEP = b"[" * 100_000
ANSWERS: dict[str, Reply] = {
    "half a surrogate pair in the text": Reply(b'{"choices": [{"message": {"content": "\\ud800"}}]}'),
    "half a surrogate pair in the reasoning": Reply(b'{"choices": [{"message": {"reasoning": "\\udfff"}}]}'),
    "half a surrogate pair in the tokens": Reply(
        b'{"prompt_token_ids": [1], "choices": [{"token_ids": [2], "message": {"content": "\\ud800"}}]}'
    ),
    "half a surrogate pair in a call's id": spoken(
        tool_calls=[{"id": "\ud800", "function": {"name": "f", "arguments": "{}"}}]
    ),
    "half a surrogate pair in an error": Reply(b'{"error": {"message": "\\ud800 no"}}', 404),
    "a positive log-probability": logprob(0.5),
    "a negative id": choice(token_ids=[4, -5]),
    "an odd prompt": choice(prompt_token_ids=[1, None]),
    "null": Reply(None),
    "a message that is text": Reply({"choices": [{"message": "1"}]}),
    "parts that are numbers": spoken(content=[{"text": 3}]),
    "a tool call whose id is a number": spoken(tool_calls=[{"id": 3, "function": {"name": "f", "arguments": "{}"}}]),
    "an empty answer": Reply(b""),
    "HTML": Reply(b"<html>busy</html>", headers={"content-type": "text/html"}),
    "bytes": Reply(bytes(range(256))),
    "deep JSON": Reply(DEEP),
    "a number too long for Python": Reply(b'{"choices": ' + b"1" * 10_000 + b"}"),
    "packed": Reply(gzip.compress(said("1").data), headers={"content-encoding": "gzip"}),
    "an endless body": Reply(b" " * (5 << 20)),
    "a body that is cut off": Reply(b"{", length=1000),
    "endless headers": Reply({}, headers={"x-long": "a" * 1_000_000}),
    "a redirect": Reply({}, 302, headers={"location": "http://127.0.0.1:1/elsewhere"}),
    "a redirect to nowhere": Reply({}, 302),
    "an odd status": Reply({}, 799),
    "a date that is none": Reply({}, 429, headers={"retry-after": "Mon, 99 Foo 99999999 99:99:99"}),
    "an error without a message": Reply({"error": {"message": None, "code": "x", "type": "y"}}, 404),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_hostile_answer_costs_its_own_episode_only(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http, "MAX_BODY", 4 << 20)
    kept: dict[str, Trajectory] = {}

    def answer(body: dict[str, Any]) -> Reply:
        return ANSWERS[name] if "To 2." in str(body["messages"]) else said("1")

    async def play(url: str) -> Any:
        agent = ModelAgent(OpenAIEngine(url, "tiny", limits=ServerLimits(retries=1, backoff_s=0.001, timeout_s=20)))
        try:
            return await collect(
                LocalRunner.of(Counting, agent, LimitsConfig()), attempts(TASKS, 1, 0),
                lambda record, _: kept.update({record.id: record}), retries=0,
            )  # fmt: skip
        finally:
            await agent.close()

    with serving(answer) as server:
        tally = asyncio.run(play(server.url))
    assert {id for id in kept if kept[id].success} == {"good-0#0", "good-1#0"}
    assert set(tally.lost) == {"bad#0"} and tally.faults == {"engine": 1}, kept
    assert tally.lost["bad#0"] and json.dumps(tally.to_json(), ensure_ascii=False).encode()
