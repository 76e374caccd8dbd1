"""The code blocks of a page of documentation: found, and run as they stand there, on the tiny model for speed."""

import os
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def blocks(page: str, *languages: str) -> list[tuple[str, str]]:
    """Language and text of every block of these languages, in order."""
    found = re.findall(rf"^```({'|'.join(languages)})\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    return [(language, text.replace("smollm2", "tiny")) for language, text in found]


def lines(text: str) -> list[str]:
    return list(filter(None, map(str.strip, text.splitlines())))


def lay_out(folder: Path) -> Path:
    """The folder as a reader has it who stands in a checkout: the examples are there."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    return folder


def run(command: list[str], folder: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
