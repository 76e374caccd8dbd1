"""Every block of every page in docs/ runs as it stands there, and what the pages name is there."""

import io
import re
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from bough.cli import main
from bough.config.base import Config, flag, other_names
from bough.verbs import VERBS, resolve
from tests.blocks import ROOT, blocks, lay_out, lines, run

# The one was written by a command, and its code is run where it is written; the other tells of runs that take hours.
NOT_RUN = {"example-card.md", "results.md"}
PAGES = {path.name: path.read_text() for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in NOT_RUN}
# A model made for tests is not on the Hub; the push needs a name for it there.
ADDED = {"push": ["--base-model", "org/base"]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # nobody sits at the terminal
    return lay_out(tmp_path)


@pytest.mark.parametrize("name", PAGES)
def test_every_block_runs(name: str, folder: Path):
    for language, text in blocks(PAGES[name], "sh", "python", "yaml"):
        if language == "python":
            exec(compile(text, name, "exec"), {"__name__": name})
        elif language == "yaml":
            _save(text, folder)
        else:
            for line in lines(text):
                _run_line(line, folder)


def _save(text: str, folder: Path) -> None:
    """A file that the page shows, where its first line says how it is called."""
    if (called := re.match(r"# ([\w-]+\.yaml)\n", text)) is not None:
        (folder / called[1]).write_text(text)


def _run_line(line: str, folder: Path) -> None:
    words = shlex.split(line)
    if words[0] != "bough":
        run(["bash", "-c", line], folder)
    elif words[1] == "view" and "--export" not in words:
        _look_at(words, folder)
    else:
        assert main([*words[1:], *ADDED.get(words[1], [])]) == 0, line


def _look_at(words: list[str], folder: Path) -> None:
    """A server answers until it is stopped: its page is asked for once."""
    command = [sys.executable, "-m", *words, "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = next((line for line in server.stdout if line.startswith("http://127.0.0.1:")), None)
            assert address is not None, f"{' '.join(words)} does not say where it is"
            with urlopen(address.strip()) as page:
                assert page.status == 200
        finally:
            server.terminate()


@pytest.mark.parametrize("name", PAGES)
def test_every_flag_command_and_page_that_is_named_is_there(name: str):
    page = PAGES[name]
    for verb in re.findall(r"`bough (\w+)", page):
        assert any(known.split()[0] == verb for known in VERBS), verb
    for target in re.findall(r"\]\(([^)#:]+)\)", page):
        assert (ROOT / "docs" / target).exists(), target
    known = {word for verb in VERBS.values() for word in _flags(resolve(verb.config))}
    spoken = " ".join(re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)))
    others = {"--enable-lora", "--lora-modules", "--max-loras", "--num_processes"}  # of vLLM and accelerate
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", spoken)) <= known | others


def _flags(config: type[Config]) -> set[str]:
    names = {name for key, info in config.model_fields.items() for name in (key, *other_names(info))}
    return {flag(name) for name in names} | {flag(f"no_{name}") for name in names} | {"--config", "--debug", "--help"}
