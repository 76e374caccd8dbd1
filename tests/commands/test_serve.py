"""`bough serve` on the command line."""

import asyncio
import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import bough
from bough.cli import main
from bough.commands import serve as api
from bough.config.run_folder import MetricsFile
from bough.data.reader import read
from bough.methods.grpo import GRPOConfig, train_grpo
from tests.engines.server.fake import FakeEngine, body, user
from tests.later import Later


def ask(url: str) -> None:
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body(user("Hi"))).encode())
    with urllib.request.urlopen(request) as response:
        assert json.load(response)["choices"][0]["message"]["content"] == "reply 1"


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_told_to_stop(
    stop: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    visits = []

    async def visit() -> None:
        while not (out := capsys.readouterr().out):
            await asyncio.sleep(0.001)
        visits.append(json.loads(out))
        await asyncio.to_thread(ask, visits[0]["base_url"])
        os.kill(os.getpid(), stop)

    async def load(*_: Any) -> FakeEngine:
        visits_task.append(asyncio.create_task(visit()))
        return FakeEngine()

    visits_task: list[Any] = []
    monkeypatch.setattr(api, "load_engine", load)
    before = signal.getsignal(stop)
    assert main(["serve", "--model", "tiny", "--record", str(tmp_path / "r"), "--port", "0", "--json"]) == 0
    assert signal.getsignal(stop) is before
    assert visits[0]["record"] == str(tmp_path / "r")
    assert len(list(read(tmp_path / "r"))) == 1


openai = Later("openai")


def client_of(url: str) -> Any:
    return openai.OpenAI(base_url=url, api_key="none", http_client=openai.DefaultHttpxClient(verify=False))


def tasks(split: str, seed: int) -> Any:
    for number in range(20):
        yield {"opening": f"{split} {seed} {number}"}


def letters(task: bough.Task, base_url: str) -> dict[str, Any]:
    """Two turns; the reward is the share of the letter e."""
    client = client_of(base_url)
    messages: list[Any] = [user(str(task.data["opening"]))]
    found = 0.0
    for _ in range(2):
        message = client.chat.completions.create(model="any", messages=messages).choices[0].message
        found += (message.content or "").count("e") / 2
        messages += [message, user("More.")]
    return {"reward": found, "success": found > 1}


@pytest.fixture(scope="module")
def model() -> bough.LoadedModel:
    return bough.load("tiny")


def post(url: str, content: Any) -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(content).encode())) as response:
        return json.load(response)


def test_what_a_server_records_is_exact_and_every_command_reads_it(model: bough.LoadedModel, tmp_path: Path):
    with bough.serve(model, tmp_path / "recorded", max_new_tokens=6) as server:
        for number in range(2):
            url = server.session(f"s{number}")
            ai = client_of(url)
            messages: list[Any] = [user("Hello")]
            for _ in range(2):
                answer = ai.chat.completions.create(model="any", messages=messages, temperature=0.5)
                messages += [answer.choices[0].message, user("More.")]
            post(f"{url.removesuffix('/v1')}/end", {"success": number == 0, "task": "greet"})
    records = [record for record in bough.read(tmp_path / "recorded") if isinstance(record, bough.Trajectory)]
    assert [turn.prompt for turn in records[0].turns] == [None, None], "what was sent is recognised"
    first, second = records[0].turns[0].call, records[0].turns[1].call
    assert first is not None and second is not None
    whole = first.prompt_ids + first.completion_ids
    assert second.prompt_ids[: len(whole)] == whole, "the next prompt continues with the very tokens of the reply"
    assert first.temperature == 0.5 and len(first.logprobs or []) == len(first.completion_ids) == 6
    assert list(bough.validate(tmp_path / "recorded")) == []
    assert len(bough.groups(records)) == 1 and len(bough.pairs(records)) >= 1
    assert len(model.calls(records[0])[0]) == 2


def test_branches_are_trained_on_their_own_tokens_and_can_be_built_again(model: bough.LoadedModel, tmp_path: Path):
    async def agent(base_url: str) -> float:
        client = openai.AsyncOpenAI(base_url=base_url, api_key="none")
        for question in ("one", "two", "one"):
            await client.chat.completions.create(model="any", messages=[user(question)])
        return 1.0

    async def play() -> bough.Trajectory:
        async with bough.recorded(agent, model, max_new_tokens=4) as trajectory:
            return trajectory

    trajectory = asyncio.run(play())
    [calls] = model.calls(trajectory)
    assert calls == [turn.call for turn in trajectory.turns]
    without = trajectory.model_copy(update={"turns": [t.model_copy(update={"call": None}) for t in trajectory.turns]})
    [built] = model.calls(without)
    assert [call.prompt_ids for call in built] == [call.prompt_ids for call in calls]


def test_a_folder_of_another_model_is_refused_but_not_that_of_a_failed_start(model: bough.LoadedModel, tmp_path: Path):
    with pytest.raises(bough.BoughError, match="cannot be reached"):
        bough.serve("other", tmp_path, engine="openai", base_url="http://127.0.0.1:9/v1")
    bough.serve(model, tmp_path).close()
    with pytest.raises(bough.InputError, match="recorded with different settings"):
        bough.serve("smollm2", tmp_path)


def test_an_agent_is_collected_and_evaluated(model: bough.LoadedModel):
    settings: dict[str, Any] = {"max_new_tokens": 4, "tasks": 2}
    played = bough.collect(model, agent=letters, attempts=2, **settings)
    assert len(played) == 4 and all(len(one.turns) == 2 for one in played)
    again = bough.collect(model, agent=letters, attempts=2, concurrency=1, **settings)
    assert [one.messages for one in again] == [one.messages for one in played], "the same whatever is in flight"
    report = bough.evaluate(model, agent=letters, temperature=1.0, **settings)
    assert isinstance(report, bough.Evaluation) and report.results.environment == "agent:letters"


def test_an_environment_and_an_agent_are_one_too_many(model: bough.LoadedModel):
    with pytest.raises(bough.InputError, match="give either environment or agent"):
        bough.collect(model, "web", agent=letters)


def test_an_agents_run_that_was_cut_short_ends_in_the_same_bits(tmp_path: Path):
    """Episodes, batches and ledgers of agents are on disk like those of any environment."""

    def config(folder: str, **more: Any) -> GRPOConfig:
        values: dict[str, Any] = {
            "model": "tiny", "agent": "tests.commands.test_serve:letters", "output_dir": tmp_path / folder,
            "max_steps": 2, "batch_size": 1, "group_size": 3, "max_new_tokens": 4, "learning_rate": 1e-2,
            "lr_scheduler": "constant", "warmup_ratio": 0.0, "save_steps": 1, "logging_steps": 1, "watch": False,
        }  # fmt: skip
        return GRPOConfig(**{**values, **more})

    whole = train_grpo(config("whole"))
    train_grpo(config("cut", max_steps=1))
    resumed = train_grpo(config("cut", resume=True))
    assert resumed.ledgers == whole.ledgers
    lines = [list(MetricsFile.read(tmp_path / name / "metrics.jsonl"))[-1] for name in ("whole", "cut")]
    assert lines[0]["loss"] == lines[1]["loss"] and lines[0]["reward"] == lines[1]["reward"]
    assert lines[0]["turns"] == 2
