"""The hub: whether it can be reached, asked before a download is tried for most of a minute."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from bough.errors import InputError

PATIENCE_S = 5.0
# One of them is in the cache if the model is.
FILES = ("config.json", "tokenizer_config.json", "tokenizer.json", "adapter_config.json")


def check_hub(source: Path | str) -> None:
    """InputError where a model is neither a folder nor in the local hub cache, and the hub cannot be reached."""
    from huggingface_hub import constants, try_to_load_from_cache

    if isinstance(source, Path) or constants.HF_HUB_OFFLINE:
        return
    if any(isinstance(try_to_load_from_cache(source, file), str) for file in FILES):
        return
    if not _is_reachable(constants.ENDPOINT):
        raise InputError(
            f"the model {source} cannot be loaded: there is no such folder here, it is not in the local hub cache "
            f"and the hub ({constants.ENDPOINT}) cannot be reached; download it where there is a network, "
            "or name a local folder"
        )


@cache
def _is_reachable(endpoint: str) -> bool:
    from huggingface_hub import get_session

    try:
        get_session().head(endpoint, timeout=PATIENCE_S)
    except Exception:  # of whichever HTTP library the hub's package uses
        return False
    return True
