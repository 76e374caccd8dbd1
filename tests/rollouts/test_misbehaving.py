"""No environment, whatever it does, takes other episodes along."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bough.cli import main
from bough.environments import isolated
from bough.environments import isolated as threads
from tests.rollouts import misbehaving
from tests.rollouts.misbehaving import ENVIRONMENTS

GOOD, BAD = 4, 2


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(isolated, "CLOSE_TIMEOUT_S", 0.3)
    monkeypatch.setattr(threads, "GRACE_S", 0.1)
    here = Path.cwd()
    yield
    os.chdir(here)
    misbehaving.UNENDING.set()  # ends the threads that wait for it
    misbehaving.UNENDING.clear()


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_healthy_episodes_finish_beside_a_misbehaving_environment(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    kind, reason = ENVIRONMENTS[name]
    monkeypatch.setattr(misbehaving, "Chosen", kind, raising=False)
    monkeypatch.chdir(tmp_path)
    names = [f"good-{number}" for number in range(GOOD)] + [f"bad-{number}" for number in range(BAD)]
    Path("tasks.jsonl").write_text("".join(f'{{"id": "{name}", "data": {{"goal": 2}}}}\n' for name in names))
    settings = ["--model", "expert", "-o", "out", "--tasks", "9", "--retries", "0", "--task-file", "tasks.jsonl"]
    settings += ["--step-timeout-s", "3" if name == "step spins" else "1"]  # spinning holds up the healthy ones
    code = main(["collect", "--environment", "tests.rollouts.misbehaving:Chosen", *settings])
    said = capfd.readouterr()
    assert code == 0, said.err
    rows = [json.loads(line) for line in (tmp_path / "out/trajectories.jsonl").read_text().splitlines()]
    lost = json.loads((tmp_path / "out/report.json").read_text())["lost"]
    finished = {row["id"]: row for row in rows}
    assert all(finished[f"good-{number}#0"]["success"] for number in range(GOOD))
    bad = {f"bad-{number}#0" for number in range(BAD)}
    assert set(finished) | set(lost) == set(finished) | bad and not set(finished) & set(lost)
    if reason is None:
        assert not lost and all(row["task"]["data"] == {"goal": 2} for row in rows)
    else:
        assert set(lost) == bad and all(re.search(reason, why) for why in lost.values()), lost
        assert "lost bad-0#0" in said.err
