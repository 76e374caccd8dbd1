"""Uploads go to a stand-in for the Hub; the first in a process of its own, as a user would have it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import constants

from bough.cli import main
from tests.report import folders
from tests.report.hub import TOKEN, Hub, stand_in

Push = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    final = folders.stage(tmp_path / "sft", "sft") / "final"
    (final / "README.md").write_text("---\nlibrary_name: peft\n---\n# org/name")
    return tmp_path / "sft"


@pytest.fixture
def push(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Push:
    """Pushes `run`; what is printed never holds the token."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(run / "no-token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)

    def call(address: str, *words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(constants, "ENDPOINT", address)
        code = main(["push", str(run), "--repo", "org/name", *words])
        captured = capsys.readouterr()
        assert TOKEN not in captured.out + captured.err
        return code, captured.out, captured.err

    return call


def test_files_arrive_as_they_should_in_a_repository_made_for_them(run: Path):
    with stand_in() as hub:
        # The stand-in speaks git LFS; the Hub's own protocol for large files (Xet) is its library's affair.
        values = {"HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
        words = ["push", str(run), "--repo", "org/name", "--private", "--message", "First try"]
        command = [sys.executable, "-m", "bough", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | values)
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout + done.stderr
    assert f"6 files uploaded to {hub.address}/org/name/commit/abc" in done.stdout
    [created] = hub.created
    assert (created["name"], created["organization"]) == ("name", "org")
    assert created.get("visibility") == "private" or created.get("private") is True
    assert hub.messages == ["First try"]
    assert hub.files.keys() == {path.name for path in (run / "final").iterdir()}
    assert hub.files["adapter_model.safetensors"] == b"weights" and len(hub.blobs) == 1
    assert b'"HuggingFaceTB/SmolLM2-135M-Instruct"' in hub.files["adapter_config.json"]
    assert str(Path.home()).encode() not in b"".join(hub.files.values())
    assert all(TOKEN in request for request in hub.requests if "/api/models" in request)


def test_what_should_be_private_is_not_laid_into_a_public_repository(push: Push):
    with stand_in() as hub:
        hub.private = False
        code, _, err = push(hub.address, "--private")
        assert code == 2 and "is public" in err and hub.files == {}
        assert push(hub.address)[0] == 0
    assert "private" not in hub.created[1].values() and not hub.created[1].get("private")


def test_a_dry_run_lists_the_files_and_asks_nobody(push: Push, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("HF_TOKEN")
    with stand_in() as hub:
        code, out, _ = push(hub.address, "--dry-run")
    assert code == 0 and hub.requests == []
    assert "7 bytes  adapter_model.safetensors" in out
    assert "6 files would be uploaded to org/name; nothing was uploaded" in out


@pytest.mark.parametrize(
    ("status", "said"), [(401, "hf auth login"), (403, "hf auth login"), (422, "refused org/name with 422")]
)
def test_a_refusal_is_a_sentence_without_the_token(push: Push, status: int, said: str):
    with stand_in() as hub:
        hub.refuses = status
        code, _, err = push(hub.address)
    assert code == 1 and said in err and "not so" in err and "unexpected" not in err
    assert ("hf auth login" in err) == (status != 422)


def test_without_a_login_nothing_is_tried(push: Push, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("HF_TOKEN")
    with stand_in() as hub:
        code, _, err = push(hub.address)
    assert code == 2 and "not logged in to the Hub" in err and hub.requests == []


def test_a_hub_that_is_not_there_is_an_error_that_says_so(push: Push, monkeypatch: pytest.MonkeyPatch):
    code, _, err = push("http://127.0.0.1:9")
    assert code == 1 and "the Hub cannot be reached" in err and "unexpected" not in err
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    code, _, err = push("http://127.0.0.1:9")
    assert code == 2 and "HF_HUB_OFFLINE is set" in err


def test_the_stand_in_refuses_what_it_does_not_know():
    assert Hub().answer("GET", "/nowhere", b"")[0] == 404
