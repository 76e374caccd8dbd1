"""A release: the files needed to load the weights, without the paths of this machine."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bough.errors import BoughError, InputError
from bough.report.evaluated import Subject
from bough.report.lineage import base_model, read_json

# No checkpoints, no pickles, no hidden files.
WANTED = (
    "README.md", "LICENSE*", "adapter_config.json", "adapter_model*.safetensors", "config.json",
    "generation_config.json", "model*.safetensors", "model.safetensors.index.json", "tokenizer*.json",
    "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "chat_template.jinja",
)  # fmt: skip


@dataclass(frozen=True)
class Release:
    """Files by their names in the repository. `changed` has the new text of those that are not sent unchanged."""

    files: dict[str, Path]
    changed: dict[str, str]

    def size(self, name: str) -> int:
        return len(self.changed[name].encode()) if name in self.changed else self.files[name].stat().st_size

    def fill(self, folder: Path) -> None:
        """Writes everything into an empty folder; weights are linked, not copied."""
        for name, path in self.files.items():
            if name in self.changed:
                (folder / name).write_text(self.changed[name], encoding="utf-8")
            else:
                (folder / name).symlink_to(path.resolve())


def make_release(subject: Subject, hub_id: str | None) -> Release:
    """The release of the subject's weights. Raises InputError where card, weights or the base's name are missing."""
    folder = subject.weights
    files = {path.name: path for pattern in WANTED for path in sorted(folder.glob(pattern)) if path.is_file()}
    if "README.md" not in files:
        raise InputError(f"{folder} has no model card yet; `bough card {subject.run}` writes one to look at first")
    if not any(name.endswith(".safetensors") for name in files):
        raise InputError(f"{folder}: it has no weights (*.safetensors)")
    changed = {}
    if subject.is_adapter:
        base = base_model(subject.lineage.base, hub_id)
        if base.hub_id is None:
            raise InputError(
                f"{folder}: the base model is only known as {base.name}, which others cannot load; "
                "give its name on the Hub with --base-model org/name"
            )
        settings = read_json(folder / "adapter_config.json", {})
        settings["base_model_name_or_path"] = base.hub_id
        changed["adapter_config.json"] = json.dumps(settings, indent=2, sort_keys=True) + "\n"
    return Release(dict(sorted(files.items())), changed)


# Uploads a release through huggingface_hub and explains its errors.

LOGIN = "log in with `hf auth login`, or set HF_TOKEN to a token that may write"


def upload(release: Release, repo: str, *, private: bool, message: str) -> str:
    """Creates the repository if it does not exist, commits the files, and returns the commit's address."""
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    # The HTTP library's own error class; huggingface_hub decides which library that is.
    unreachable = HfHubHTTPError.__mro__[1]
    assert issubclass(unreachable, Exception)
    token = get_token()
    if token is None:
        raise InputError(f"not logged in to the Hub; {LOGIN}")
    api = HfApi(token=token, library_name="bough")
    try:
        # None: the default of the organisation.
        api.create_repo(repo, private=private or None, exist_ok=True)
        if private and not api.repo_info(repo).private:
            raise InputError(f"{repo} exists on the Hub and is public; make it private there, or omit --private")
        with tempfile.TemporaryDirectory(prefix="bough-push-") as folder:
            release.fill(Path(folder))
            commit = api.upload_folder(repo_id=repo, folder_path=folder, commit_message=message)
    except OfflineModeIsEnabled:
        raise InputError("HF_HUB_OFFLINE is set, so nothing can be uploaded; unset it") from None
    except HfHubHTTPError as error:
        status, said = error.response.status_code, (error.server_message or "").replace(token, "…")
        hint = f"; {LOGIN}" if status in (401, 403) else ""
        raise BoughError(f"the Hub refused {repo} with {status}{': ' if said else ''}{said}{hint}") from None
    except (unreachable, OSError) as error:
        why = (str(error).partition("\n")[0] or type(error).__name__).replace(token, "…")
        raise BoughError(f"the Hub cannot be reached: {why}") from None
    return str(commit.commit_url)
