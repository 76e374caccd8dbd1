"""The wheel, installed where there is no source tree: it has everything that a command needs."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.blocks import ROOT
from tests.warm import Warm

# Runs a command of the package that is in a folder; what it depends on is loaded already.
INSTALLED = """
import sys

for name in [name for name in sys.modules if name.partition(".")[0] == "bough"]:
    del sys.modules[name]
sys.path.insert(0, sys.argv[1])
from bough.cli import main

status = main(sys.argv[2:])
ours = [module for name, module in sys.modules.items() if name.partition(".")[0] == "bough" and module.__file__]
print(all(module.__file__.startswith(sys.argv[1]) for module in ours))
sys.exit(status)
"""
ROW = {"messages": [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel in it. It finds the dependencies in the running one, but not our sources."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    _run([sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder], ROOT)
    (wheel,) = folder.glob("bough-*.whl")
    clean = folder / "clean"
    venv.create(clean)
    (packages,) = clean.glob("lib/python*/site-packages")
    # Folders that a .pth file names are searched for packages, but their own .pth files (an editable install) are not
    # read.
    (packages / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    options = ["--no-compile", "--no-deps", "--no-index"]
    _run([*pip, "--python", clean / "bin" / "python", "install", *options, wheel], folder)
    return clean


def test_commands_run_from_the_wheel(installed: Path, tmp_path: Path):
    place = _run([installed / "bin" / "python", "-c", "import bough; print(bough.__file__)"], tmp_path)
    assert Path(place.strip()).is_relative_to(installed)
    bough = installed / "bin" / "bough"
    assert "Bough turns an open language model into an agent." in _run([bough, "--help"], tmp_path)
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
    options = ["--train-file", "rows.jsonl", "--output-dir", "run", "--max-steps", "1", "--batch-size", "1"]
    (packages,) = installed.glob("lib/python*/site-packages")
    with Warm(None, str(packages), "sft", "--model", "tiny", *options, code=INSTALLED, folder=tmp_path) as program:
        said = program.communicate()
    assert program.wait() == 0 and said.endswith("True\n")
    assert (tmp_path / "run" / "final" / "adapter_model.safetensors").exists()


def test_data_files_and_environments_are_in_the_wheel(installed: Path, tmp_path: Path):
    bough = installed / "bin" / "bough"
    listed = _run([bough, "env", "list"], tmp_path)
    assert all(name in listed for name in ("household", "web", "interpreter"))
    assert "sft" in _run([bough, "run", "demo", "--dry-run"], tmp_path)
    (package,) = installed.glob("lib/python*/site-packages/bough")
    ours = ROOT / "src" / "bough"
    files = {path.relative_to(ours) for path in ours.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert [str(path) for path in sorted(files) if not (package / path).is_file()] == []


def _run(command: list[str | Path], folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=environment | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout
