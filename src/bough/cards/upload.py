"""Uploads a release through huggingface_hub and explains its errors."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bough.cards.release import Release
from bough.errors import BoughError, InputError

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
        raise BoughError(_refusal(repo, error.response.status_code, error.server_message or "", token)) from None
    except (unreachable, OSError) as error:
        raise BoughError(f"the Hub cannot be reached: {_first_line(error, token)}") from None
    return str(commit.commit_url)


def _refusal(repo: str, status: int, said: str, token: str) -> str:
    what = f"the Hub refused {repo} with {status}{': ' if said else ''}{said.replace(token, '…')}"
    return f"{what}; {LOGIN}" if status in (401, 403) else what


def _first_line(error: Exception, token: str) -> str:
    return (str(error).partition("\n")[0] or type(error).__name__).replace(token, "…")
