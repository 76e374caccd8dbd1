"""Files of a folder that somebody else has prepared: a pipe must not block, a huge file not fill the memory."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from pydantic_core import to_json

from bough.config.run_folder import RunDir
from bough.engines.vllm import adapter_rank
from bough.environments.rewards import _read_rubric as read_rubric
from bough.errors import InputError
from bough.experiments.cluster import read_files
from bough.methods.examples import FILES, SUMMARY, read_summary
from bough.models.resolve import file_digest
from bough.online.files import BatchFile, Stamp
from bough.online.source import SharedSource
from bough.policy.adapters import check_rank, grow, read_shape
from bough.policy.reference import _read as read_reference
from bough.training.checkpoint import Checkpoint
from bough.training.run import Origin

LIMIT_S = 60  # only for a read that blocks, which never ends
HUGE = 1 << 40


def ledgers(folder: Path) -> Any:
    run = SimpleNamespace(folder=RunDir(folder), resumed=SimpleNamespace(step=1))
    known = SimpleNamespace(_source=object(), _run=run, _processes=SimpleNamespace(first_does=lambda read: read()))
    return SharedSource.ledgers(cast(Any, known), 1)


def stored(folder: Path) -> Any:
    (folder / SUMMARY).write_bytes(to_json({"files": {name: [0, ""] for name in FILES}}))
    return read_summary(folder)


JSON: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "origin": ("origin.json", lambda folder: Origin.read(RunDir(folder))),
    "rubric": ("rubric.md", lambda folder: read_rubric(str(folder / "rubric.md"))),
    "batch": ("00007.json", lambda folder: BatchFile(folder, 7).numbers()),
    "ledger": ("ledger.json", ledgers),
    "checkpoint": ("files.json", lambda folder: Checkpoint(folder / "step-00000001").check()),
    "state": ("state.json", lambda folder: Checkpoint(folder / "step-00000001").restore(cast(Any, None))),
    "shape": ("adapter_config.json", read_shape),
    "grow": ("adapter_config.json", lambda folder: grow(None, folder, cast(Any, None))),
    "vllm": ("adapter_config.json", adapter_rank),
}
OTHERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "member": ("adapter_model.safetensors", read_files),
    "digest": ("file", lambda folder: file_digest(folder / "file")),
    "examples": (FILES[0], stored),
    "weights": ("adapter_model.safetensors", check_rank),
}


def place(folder: Path, name: str) -> Path:
    """Where the file is, in a folder with what else is looked for."""
    step = folder / "step-00000001"
    (step / "weights").mkdir(parents=True)
    if name == "adapter_model.safetensors":
        (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 8}')
    return (step if name in ("files.json", "state.json") else folder) / name


def outcome(read: Callable[[], Any], pipe: Path) -> Any:
    """What `read` returns, or its error. A read that blocks is let go by another process, and fails the test.

    Another process, because safetensors blocks all threads of this one.
    """
    code = f"import sys, time; time.sleep({LIMIT_S}); print('blocked', flush=True); open(sys.argv[1], 'w')"
    with subprocess.Popen([sys.executable, "-S", "-c", code, pipe], stdout=subprocess.PIPE) as release:
        try:
            found = read()
        except Exception as error:
            found = error
        release.kill()
        said = release.communicate()[0]
    assert said == b""
    return found


@pytest.mark.parametrize("reader", [*JSON, *OTHERS])
def test_a_pipe_is_refused(tmp_path: Path, reader: str):
    name, read = (JSON | OTHERS)[reader]
    os.mkfifo(pipe := place(tmp_path, name))
    found = outcome(lambda: read(tmp_path), pipe)
    assert isinstance(found, InputError | OSError) and "\n" not in str(found)
    assert any(words in str(found) for words in ("not a regular file", "missing or damaged"))


@pytest.mark.parametrize("reader", JSON)
def test_a_huge_file_is_not_read_into_memory(tmp_path: Path, reader: str):
    name, read = JSON[reader]
    with place(tmp_path, name).open("wb") as file:
        file.truncate(HUGE)
    with pytest.raises((InputError, OSError)):
        read(tmp_path)


def test_log_probabilities_in_a_pipe_are_none(tmp_path: Path):
    os.mkfifo(known := tmp_path / "00007.safetensors")
    file = BatchFile(tmp_path, 7)
    assert outcome(lambda: file.logprobs(Stamp("a", "b"), torch.tensor([1])), known) is None
    assert outcome(lambda: read_reference(known, 1), known) is None
