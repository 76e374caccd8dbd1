"""`bough env check` for agents that play by themselves."""

from pathlib import Path
from typing import Any

import pytest

import bough
from bough.cli import main

AGENT = """
import json, urllib.request

def tasks():
    yield {"word": "yes"}

def ask(task, base_url):
    body = json.dumps({"messages": [{"role": "user", "content": task.data["word"]}]}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{base_url}/chat/completions", body)) as response:
        return json.load(response)["choices"][0]["message"]["content"] or ""

def good(task, base_url):
    return ask(task, base_url) == "yes"

def generous(task, base_url):
    return len(ask(task, base_url)) > 1000

def fragile(task, base_url):
    return ask(task, base_url)[0] == "y"

def silent(task, base_url):
    return True
"""


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    path = tmp_path / "checked_agents.py"
    path.write_text(AGENT)
    return path


def test_an_agent_that_copes_with_any_reply_keeps_the_contract(agents: Path, capsys: Any):
    assert main(["env", "check", f"agent:{agents}:good"]) == 0
    assert "keeps the contract in 1 task: bad input, episodes at the same time" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("generous", "the reply 'aaaaaaaaaaaaaaaa"),
        ("fragile", "raised IndexError: string index out of range"),
        ("silent", "made no request to its base_url"),
    ],
)
def test_each_breach_is_found(agents: Path, function: str, problem: str):
    report = bough.check(f"agent:{agents}:{function}")
    assert len(report.problems) == 1 and problem in report.problems[0]
