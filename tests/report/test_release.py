import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, create_autospec

import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

from bough.cli import main
from bough.commands.publish import make_release
from bough.errors import InputError
from bough.report.evaluated import Subject, find_subject
from tests.report import folders


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    final = folders.stage(tmp_path / "sft", "sft") / "final"
    (final / "README.md").write_text("# card")
    for stray in ("optimizer.pt", ".hidden.json", "training_args.bin", "notes.txt"):
        (final / stray).write_text("x")
    (final / "checkpoints").mkdir()
    return find_subject(tmp_path / "sft", [])


def test_only_what_loads_the_model_is_handed_over(subject: Subject):
    assert set(make_release(subject, None)) == {
        "README.md", "adapter_config.json", "adapter_model.safetensors", "chat_template.jinja", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip


def test_the_base_is_named_as_others_know_it(subject: Subject, tmp_path: Path):
    release = make_release(subject, None)
    before = json.loads((subject.weights / "adapter_config.json").read_text())
    after = json.loads(str(release["adapter_config.json"]))
    assert after == before | {"base_model_name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct"}
    assert str(Path.home()) in before["base_model_name_or_path"], "the folder itself is left as it is"
    other = json.loads(str(make_release(subject, "org/base")["adapter_config.json"]))
    assert other["base_model_name_or_path"] == "org/base"


def test_what_is_missing_is_said(subject: Subject, tmp_path: Path):
    folders.stage(tmp_path / "other", "sft", model="/models/mine")
    other = find_subject(tmp_path / "other", [])
    with pytest.raises(InputError, match="no model card yet; `bough card"):
        make_release(other, None)
    (other.weights / "README.md").write_text("# card")
    with pytest.raises(InputError, match=r"only known as mine.*--base-model org/name"):
        make_release(other, None)
    (subject.weights / "adapter_model.safetensors").unlink()
    with pytest.raises(InputError, match="no weights"):
        make_release(subject, None)
    (subject.weights / "LICENSE").symlink_to(tmp_path / "other/config.yaml")
    with pytest.raises(InputError, match="LICENSE is a link that leads out of the folder"):
        make_release(subject, None)


def test_a_whole_model_goes_out_as_it_is(subject: Subject):
    (subject.weights / "adapter_config.json").rename(subject.weights / "config.json")
    (subject.weights / "adapter_model.safetensors").rename(subject.weights / "model-00001-of-00001.safetensors")
    release = make_release(subject, None)
    assert "model-00001-of-00001.safetensors" in release
    assert not any(isinstance(content, str) for content in release.values())


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
