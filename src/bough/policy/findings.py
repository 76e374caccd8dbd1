"""What the probe found of a model, kept in the cache: the same config is probed once.

The findings follow from the config and the code alone, so their key is a digest of the
model's class and config, of Bough's own files that compute, and of the versions of
transformers and torch. Weights play no part: a small copy has its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bough.cache import cache_folder
from bough.disk import read_json, write_json

SOURCE = Path(__file__).parents[1]
# Whole packages: which of their files a policy reads changes more often than where they are.
COMPUTING = ("models", "trees", "policy")
# What a config says of files and precision changes nothing in how a model works.
OF_FILES = {"_name_or_path", "dtype", "torch_dtype", "transformers_version", "quantization_config", "architectures"}


@dataclass(frozen=True)
class Findings:
    """How a model may be computed.

    `refusal` says why it cannot be, `obstacle` why not as a tree. Without `together` every
    call gets a row of its own. `errors` are the largest differences in a log-probability,
    in nats, by the name of the path.
    """

    refusal: str | None = None
    obstacle: str | None = None
    together: bool = True
    errors: dict[str, float] = field(default_factory=dict)


_known: dict[str, Findings] = {}


def kept(model: Any, how: str, find: Callable[[], Findings]) -> Findings:
    """The findings of `find`, or those on file of the same model and code; `how` names its attention."""
    key = _key(model, how)
    if key not in _known:
        path = cache_folder() / "probes" / f"{key}.json"
        found = _read(path)
        if found is None:
            found = find()
            with contextlib.suppress(OSError):  # a cache that cannot be written costs a second the next time
                write_json(path, asdict(found))
        _known[key] = found
    return _known[key]


def _read(path: Path) -> Findings | None:
    """None where there is no such file or it is damaged."""
    try:
        return Findings(**read_json(path))
    except (OSError, ValueError, TypeError):
        return None


def _key(model: Any, how: str) -> str:
    config = {name: value for name, value in model.config.to_dict().items() if name not in OF_FILES}
    parts = [type(model).__name__, json.dumps(config, sort_keys=True, default=str), how, _code()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


@cache
def _code() -> str:
    """A digest of what computes: our files and the versions of the libraries under them."""
    hasher = hashlib.sha256(f"{version('transformers')} {version('torch')}".encode())
    for file in sorted(file for package in COMPUTING for file in (SOURCE / package).glob("*.py")):
        hasher.update(file.read_bytes())
    return hasher.hexdigest()
