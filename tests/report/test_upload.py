"""Uploads go to a stand-in with the signatures of the Hub's own library; nothing that is printed has the token."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, create_autospec

import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

from bough.cli import main
from tests.report import folders

TOKEN = "hf_secret_of_the_test"
Push = Callable[..., tuple[int, str, str]]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The Hub's client; `files` are those that it was given."""
    api = create_autospec(HfApi, instance=True)
    api.repo_info.return_value = SimpleNamespace(private=True)

    def upload(*, repo_id: str, folder_path: str, commit_message: str) -> SimpleNamespace:
        api.files = {path.name: path.read_bytes() for path in Path(folder_path).iterdir()}
        return SimpleNamespace(commit_url=f"https://hub/{repo_id}/commit/abc?{commit_message}")

    api.upload_folder.side_effect = upload
    monkeypatch.setattr("huggingface_hub.HfApi", lambda **given: api if given["token"] == TOKEN else None)
    return api


@pytest.fixture
def push(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Push:
    final = folders.stage(tmp_path / "sft", "sft") / "final"
    (final / "README.md").write_text("---\nlibrary_name: peft\n---\n# org/name")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))

    def call(*words: str) -> tuple[int, str, str]:
        code = main(["push", str(tmp_path / "sft"), "--repo", "org/name", *words])
        captured = capsys.readouterr()
        assert TOKEN not in captured.out + captured.err
        return code, captured.out, captured.err

    return call


def test_files_arrive_as_they_should_in_a_repository_made_for_them(push: Push, hub: Any, tmp_path: Path):
    code, out, err = push("--private", "--message", "First")
    assert code == 0 and "6 files uploaded to https://hub/org/name/commit/abc?First" in out, err
    hub.create_repo.assert_called_once_with("org/name", private=True, exist_ok=True)
    assert hub.files.keys() == {path.name for path in (tmp_path / "sft/final").iterdir()}
    assert hub.files["adapter_model.safetensors"] == b"weights"
    assert b'"HuggingFaceTB/SmolLM2-135M-Instruct"' in hub.files["adapter_config.json"]
    assert str(Path.home()).encode() not in b"".join(hub.files.values())


def test_what_should_be_private_is_not_laid_into_a_public_repository(push: Push, hub: Any):
    hub.repo_info.return_value = SimpleNamespace(private=False)
    code, _, err = push("--private")
    assert code == 2 and "is public" in err and not hub.upload_folder.called
    assert push()[0] == 0
    assert hub.create_repo.call_args.kwargs["private"] is None, "the default of the organisation"


def refusal(status: int) -> HfHubHTTPError:
    response: Any = Mock(status_code=status, headers={})
    return HfHubHTTPError("no", response=response, server_message=f"no, {TOKEN}, not so")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (refusal(401), 1, "not so; log in with `hf auth login`"),
        (refusal(403), 1, "not so; log in with `hf auth login`"),
        (refusal(422), 1, "refused org/name with 422: no, …, not so\n"),
        (HfHubHTTPError.__mro__[1](f"no route for {TOKEN}"), 1, "the Hub cannot be reached: no route for …"),
        (OfflineModeIsEnabled("offline"), 2, "HF_HUB_OFFLINE is set"),
    ],
)
def test_a_failure_is_a_sentence_without_the_token(push: Push, hub: Any, error: Exception, code: int, said: str):
    hub.create_repo.side_effect = error
    found, _, err = push()
    assert found == code and said in err and "unexpected" not in err


def test_without_a_login_nothing_is_tried(push: Push, hub: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("HF_TOKEN")
    code, _, err = push()
    assert code == 2 and "not logged in to the Hub" in err and hub.method_calls == []
