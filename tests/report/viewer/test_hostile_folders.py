"""The real server, in a process of its own, over folders that are made to end it."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.report.viewer.hostile_folders import HOSTILE, WITHOUT_END
from tests.report.viewer.samples import trajectory, write

# Far more than any answer takes; on the way to a server that hangs it is the end.
ANSWER_S = 120
MEMORY_MB = 60  # of which it takes a third


@dataclass
class Viewer:
    """`bough view`, and what it answers."""

    process: subprocess.Popen[str]
    port: int
    began_with: int

    def get(self, path: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    def memory(self) -> int:
        """The most memory that the server has had so far, in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) // 1024


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    root = tmp_path_factory.mktemp("hostile")
    write(root / "zz-good/a.jsonl", trajectory("good#0", ["look"]), trajectory("good#1", ["go"]))
    for name, fill in HOSTILE.items():
        fill(root / name)
    command = [sys.executable, "-m", "bough", "view", str(root), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = next(line for line in process.stdout if line.startswith("http://"))
            running = Viewer(process, int(address.rstrip().rstrip("/").rpartition(":")[2]), 0)
            running.get("/api/nothing")
            running.began_with = running.memory()
            end = time.monotonic() + 240
            while running.get("/api/overview")[1]["busy"] and time.monotonic() < end:
                time.sleep(0.2)
            yield running
        finally:
            process.kill()


def sentences(viewer: Viewer, folder: str) -> dict[str, str]:
    """What the first page says of the files of a folder."""
    status, found = viewer.get("/api/overview")
    assert status == 200 and not found["busy"]
    said = {one["file"]: one.get("sentence") or " ".join(one["reasons"]) for one in found["problems"]}
    return {name.removeprefix(f"{folder}/"): why for name, why in said.items() if name.startswith(f"{folder}/")}


EXPECTED = {
    "rounds": {"recipe.yaml": "more than 1000 stages"},
    "aliases": {"recipe.yaml": "more than 20000 values"},
    "deep": {"recipe.yaml": "more than 50 levels"},
    "pipes": {
        "recipe.yaml": "not a regular file", "01-sft/a.jsonl": "not a regular file",
        "01-sft/b.jsonl.zst": "not a regular file", "01-sft/c.parquet": "not a regular file",
        "01-sft/metrics.jsonl": "not a regular file", "01-sft/results.json": "not a regular file",
        "02-x/stage.json": "not a regular file", "03-x/results.json": "not a regular file",
    },
    "bombs": {"a.jsonl.zst": "damaged", "tokens.jsonl": "too_large"},
    "templates": {},
    "links": {
        "recipe.yaml": "not a regular file", "a.jsonl": "it cannot be read", "b.jsonl": "it cannot be read",
        "c.jsonl": "it cannot be read", "01-sft/metrics.jsonl": "it cannot be read",
    },
    "numbers": {"recipe.yaml": "its name is '../../../x'", "\N{REPLACEMENT CHARACTER}.jsonl": "its name is not UTF-8"},
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_bad_file_gets_a_sentence_and_its_neighbours_are_shown(viewer: Viewer, name: str):
    said = sentences(viewer, name)
    assert said.keys() == EXPECTED[name].keys()
    for file, words in EXPECTED[name].items():
        assert words in said[file]
    _, found = viewer.get("/api/records?file=zz-good/a.jsonl")
    assert [row["name"] for row in found["rows"]] == ["good#0", "good#1"]


def test_every_page_of_every_folder_is_answered(viewer: Viewer):
    _, overview = viewer.get("/api/overview")
    pages = [f"/api/training?folder={quote(folder)}" for folder in overview["training"]]
    pages += [f"/api/evaluation?folder={quote(folder)}" for folder in overview["evaluations"]]
    rows = viewer.get("/api/records?limit=500")[1]["rows"]
    pages += [f"/api/{page}?at={quote(row['at'])}&turn=0" for row in rows for page in ("record", "tree", "tokens")]
    # It takes all its time, and is the end of the process that renders: the next test asks for it.
    pages.remove(f"/api/tokens?at=templates/{WITHOUT_END}/a.jsonl%3A1&turn=0")
    assert len(pages) > 20
    for page in pages:
        status, answer = viewer.get(page)
        assert status == 200 or answer["error"], page
    assert viewer.process.poll() is None


def test_a_template_without_an_end_costs_its_page_some_seconds_and_the_others_nothing(viewer: Viewer):
    reasons = {"broken": "expected", "greedy": "memory", WITHOUT_END: "it takes too long"}
    for name, why in reasons.items():
        status, found = viewer.get(f"/api/tokens?at=templates/{name}/a.jsonl:1&turn=0")
        assert status == 200
        assert why in found["missing"].lower()


def test_the_server_lives_and_has_kept_its_memory(viewer: Viewer):
    assert viewer.get("/api/overview")[0] == 200 and viewer.process.poll() is None
    assert viewer.memory() - viewer.began_with < MEMORY_MB
