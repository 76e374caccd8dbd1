import asyncio
import json
import os
import re
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import bough
from bough.cli import main
from bough.data.reader import read
from bough.environments.base import Observation
from bough.policy.policy import Policy
from bough.types import Trajectory
from tests.commands.letters import WriteLetter, length
from tests.environments.worlds import Breaking, Counting
from tests.warm import Warm

COUNTING = "tests.environments.worlds:Counting"


def collect(output: Path, *words: str, model: str = "tiny", environment: str = COUNTING) -> int:
    start = ["collect", "--model", model, "--environment", environment, "--output", str(output)]
    return main([*start, "--max-new-tokens", "8", *words])


def episodes(folder: Path) -> list[Trajectory]:
    return [record for record in read(folder / "trajectories.jsonl") if isinstance(record, Trajectory)]


def test_every_call_is_on_file_as_the_tokens_it_was(tmp_path: Path, capsys: Any):
    assert collect(tmp_path, "--tasks", "3", "--attempts", "2", "--max-errors", "2") == 0
    found = episodes(tmp_path)
    assert [record.id for record in found] == [f"train-0-{task}#{attempt}" for task in range(3) for attempt in range(2)]
    calls = [turn.call for record in found for turn in record.turns]
    assert len(calls) >= 12 and all(call is not None and call.logprobs for call in calls)
    with torch.no_grad():
        again = Policy.load("tiny").logprobs([call for call in calls if call is not None])
    for call, logprobs in zip(calls, again, strict=True):
        assert call is not None and torch.allclose(logprobs, torch.tensor(call.logprobs), atol=1e-4)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["episodes"] == 6 and report["logprob_gap_max"] < 1e-4 and report["rescored_tokens"] > 0
    again = json.loads((tmp_path / "rescored.json").read_text())
    assert sum(len(values) for turns in again.values() for values in turns.values()) == report["rescored_tokens"]
    assert "sampled against trained log-probabilities" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_file_whatever_runs_beside_it(tmp_path: Path):
    words = ["--tasks", "4", "--attempts", "2", "--max-turns", "2"]
    for name, concurrency in (("one", "1"), ("five", "5")):
        assert collect(tmp_path / name, *words, "--concurrency", concurrency) == 0
    assert (tmp_path / "one/trajectories.jsonl").read_bytes() == (tmp_path / "five/trajectories.jsonl").read_bytes()
    assert collect(tmp_path / "other", *words, "--seed", "1") == 0
    assert (tmp_path / "one/trajectories.jsonl").read_bytes() != (tmp_path / "other/trajectories.jsonl").read_bytes()


def test_more_tasks_are_added_to_those_on_file(tmp_path: Path, capsys: Any):
    assert collect(tmp_path, "--tasks", "2", model="expert") == 0
    begins = f"▸ playing 2 tasks of {COUNTING} with expert; episodes go to {tmp_path}\n"
    assert capsys.readouterr().err.startswith(begins)
    first = (tmp_path / "trajectories.jsonl").read_text()
    assert collect(tmp_path, "--tasks", "5", model="expert") == 0
    assert (tmp_path / "trajectories.jsonl").read_text().startswith(first) and len(episodes(tmp_path)) == 5
    assert "2 of 5 episodes are recorded; resuming" in capsys.readouterr().err
    assert json.loads((tmp_path / "report.json").read_text())["episodes"] == 5


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--environment", "househould"], "did you mean household?"),
        (["--options", "x=1"], "x is not a setting"),
        (["--options", "x"], "'x' must be written as key=value"),
        (["--base-url", "http://127.0.0.1:1"], "needs --engine openai"),
        (["--task-file", "/nope.jsonl"], "/nope.jsonl: there is no such file"),
        (["--engine", "openai"], "--engine openai needs the server's address"),
    ],
)
def test_bad_input_is_named_before_anything_is_played(words: list[str], complaint: str, tmp_path: Path, capsys: Any):
    assert collect(tmp_path / "out", *words) == 2
    assert complaint in capsys.readouterr().err


class Interrupting(Counting):
    """Interrupts its own process when the task begins that the environment variable names."""

    async def start(self) -> Observation:
        if self.task.id == os.environ.get("INTERRUPT_AT"):
            os.kill(os.getpid(), int(os.environ["INTERRUPT_WITH"]))
        return await super().start()


@pytest.mark.bit_exact
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_collection_keeps_what_is_finished_and_resumes(number: signal.Signals, tmp_path: Path):
    words = ["--tasks", "6", "--concurrency", "2", "--rescore", "0"]
    world = f"{__name__}:{Interrupting.__name__}"
    command = ["collect", "--model", "tiny", "--environment", world, *words]
    command += ["--max-new-tokens", "8", "--output", str(tmp_path / "out")]
    environment = {**os.environ, "INTERRUPT_AT": "train-0-3", "INTERRUPT_WITH": str(int(number))}
    with (tmp_path / "errors").open("wb") as errors:
        interrupted = Warm("bough", *command, environment=environment, errors=errors)
        interrupted.communicate()
    assert interrupted.wait() == 130
    said = (tmp_path / "errors").read_text()
    assert "Interrupted. The same command resumes." in said and "Traceback" not in said, said
    # Two run at a time, so at most one of the three before it was not finished when the fourth began.
    assert 2 <= len(episodes(tmp_path / "out")) <= 3
    for name in ("out", "uninterrupted"):
        assert collect(tmp_path / name, *words, environment=world) == 0
    whole = (tmp_path / "uninterrupted" / "trajectories.jsonl").read_bytes()
    assert (tmp_path / "out" / "trajectories.jsonl").read_bytes() == whole and len(episodes(tmp_path / "out")) == 6


def test_a_finished_collection_keeps_its_report(tmp_path: Path, capsys: Any):
    assert collect(tmp_path, "--tasks", "2", "--max-errors", "2") == 0
    report, said = (tmp_path / "report.json").read_bytes(), capsys.readouterr()
    assert collect(tmp_path, "--tasks", "2", "--max-errors", "2") == 0
    again = capsys.readouterr()
    assert (tmp_path / "report.json").read_bytes() == report and b"logprob_gap_max" in report
    assert "2 of 2 episodes are recorded; nothing to play" in again.err and again.out == said.out
    (tmp_path / "report.json").unlink()
    assert collect(tmp_path, "--tasks", "2", "--max-errors", "2") == 0
    assert json.loads((tmp_path / "report.json").read_text())["episodes"] == 2, "killed before it was written"


def test_a_collection_of_which_everything_is_lost_has_failed(tmp_path: Path, capsys: Any, monkeypatch: Any):
    monkeypatch.setattr(Breaking, "broken", {"train-0-0": 99, "train-0-1": 99})
    words = ["--retries", "0"]
    world = "tests.environments.worlds:Breaking"
    assert collect(tmp_path, *words, "--tasks", "2", model="expert", environment=world) == 1
    shown = capsys.readouterr().err
    assert re.search("Error: all 2 episodes failed; train-0-[01]#0: the browser died", shown)
    assert "lost train-0-0#0, train-0-1#0: the browser died" in shown
    assert collect(tmp_path, *words, "--tasks", "3", model="expert", environment=world) == 0, "one was played"


def test_tasks_without_advice_are_counted_and_an_error_only_where_there_are_no_others(tmp_path: Path, capsys: Any):
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"id": "x", "goal": 3}\n{"id": "y", "goal": 4}\n{"id": "z", "goal": 2}\n')
    how = {"model": "expert", "environment": "tests.environments.worlds:Unsure"}
    words = ["--task-file", str(file), "--tasks"]
    for _ in range(2):  # an error also where nothing is left to play
        assert collect(tmp_path / "run", *words, "2", **how) == 1
        assert "Error: 2 episodes end with no_expert: the environment's expert" in capsys.readouterr().err
    assert collect(tmp_path / "run", *words, "3", **how) == 0
    assert "3 episodes, success 33.3%\nstopped: 2 no_expert, 1 done" in capsys.readouterr().out
    assert [record.stop for record in episodes(tmp_path / "run")] == ["no_expert", "no_expert", "done"]


def test_a_record_names_the_adapter_that_played_and_no_absolute_path(tmp_path: Path, capsys: Any):
    from bough.models.resolve import folder_digest
    from bough.policy.adapters import Lora
    from bough.policy.policy import Policy

    adapter = tmp_path / "sft/final"
    Policy.load("tiny", lora=Lora(r=2)).model.save_pretrained(adapter)
    adapter = next(file.parent for file in adapter.rglob("adapter_config.json"))
    words = ["--model", "tiny", "--adapter", str(adapter), "--max-new-tokens", "4", "--max-turns", "1", "--tasks", "1"]
    folder = tmp_path / "played"
    assert main(["collect", "--environment", "tests.environments.worlds:Counting", *words, "-o", str(folder)]) == 0
    [record] = [json.loads(line) for line in (folder / "trajectories.jsonl").read_text().splitlines()]
    assert record["info"]["agent"].startswith("tiny+") and folder_digest(adapter)[:8] in record["info"]["agent"]
    assert record["turns"][0]["call"]["policy"] == record["info"]["agent"]
    for file in (file for file in folder.rglob("*") if file.is_file()):
        assert str(tmp_path) not in file.read_text(), file


FEW = {"tasks": 3, "attempts": 2, "max_new_tokens": 6}


def test_a_class_is_played_and_every_trajectory_returned_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    played = bough.collect("tiny", WriteLetter, **FEW)
    assert [trajectory.id for trajectory in played] == [f"train-0-{task}#{n}" for task in range(3) for n in range(2)]
    assert all(turn.call and turn.call.logprobs for trajectory in played for turn in trajectory.turns)
    assert played.report["episodes"] == 6 and "6 episodes, success" in repr(played) and played.path is None
    assert list(tmp_path.glob("bough-*")) == []  # no output, nothing left


def test_it_works_inside_a_running_event_loop():
    async def notebook() -> list[bough.Trajectory]:
        return bough.collect("tiny", WriteLetter, **FEW)

    assert asyncio.run(notebook()) == list(bough.collect("tiny", WriteLetter, **FEW))


def test_rewards_are_functions_and_end_up_on_disk_too(tmp_path: Path):
    played = bough.collect("expert", WriteLetter, tasks=2, rewards={length: 0.5, "outcome": 1}, output=tmp_path / "x")
    assert [trajectory.rewards for trajectory in played] == [{"outcome": 1.0, "length": 1.0, "total": 1.5}] * 2
    assert list(bough.read(tmp_path / "x" / "trajectories.jsonl")) == list(played)
    again = bough.collect("expert", WriteLetter, tasks=3, rewards=[length], output=tmp_path / "x")
    assert len(again) == 3 and again.report["episodes_this_run"] == 1


def test_a_reward_that_hangs_is_an_error_and_the_episodes_are_kept(tmp_path: Path):
    def slow(trajectory: bough.Trajectory) -> float:
        time.sleep(60)
        return 1.0

    settings = {"tasks": 2, "output": tmp_path / "x", "step_timeout_s": 5.0}
    with pytest.raises(bough.BoughError, match=r"the reward slow took longer than 5 s \(.*test_collect\.py:\d+"):
        bough.collect("expert", WriteLetter, rewards=[slow], **settings)
    again = bough.collect("expert", WriteLetter, rewards=[length], **settings)
    assert len(again) == 2 and again[0].rewards["length"] == 1.0 and again.report["episodes"] == 2


def test_a_loaded_model_plays_with_the_weights_of_the_moment():
    model = bough.load("tiny", lora=bough.Lora(r=4))
    before = bough.collect(model, WriteLetter, **FEW)
    assert [one.turns for one in before] != []
    for name, weights in model.policy.named_parameters():
        if "lora_B" in name:
            weights.data.normal_(std=0.5)
    after = bough.collect(model, WriteLetter, **FEW)
    replies = [[turn.reply.content for one in played for turn in one.turns] for played in (before, after)]
    assert replies[0] != replies[1]
    sampled = [turn.call for one in after for turn in one.turns if turn.call]
    for call, logprobs in zip(sampled, model.policy.logprobs(sampled), strict=True):
        assert call.logprobs == pytest.approx(logprobs.tolist(), abs=1e-4)
