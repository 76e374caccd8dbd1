"""The code blocks of a page of documentation, run as they stand, with the tiny model and one record per step.

| language | in a test |
|---|---|
| `sh` | each line is run; of a `make` line only the target is looked up |
| `python` | run, or saved where its first line is a comment with a file name |
| `yaml` | saved where its first line is a comment with a file name |
| `bash` | needs hours or a GPU: the settings of each `bough` line are read, nothing is run |
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

from bough.cli import main
from bough.commands import table
from bough.config import flags

ROOT = Path(__file__).parents[1]
ADDED = {
    # A model made for tests is not on the Hub; the push needs a name for it there.
    "push": ["--base-model", "org/base"],
    # Long episodes are most of what a page computes.
    "sft": ["--batch-size", "1"],
    "dpo": ["--batch-size", "1"],
}


def blocks(page: str, *languages: str) -> list[tuple[str, str]]:
    """Language and text of every block of these languages, in order."""
    found = re.findall(rf"^```({'|'.join(languages)})\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    return [(language, text.replace("smollm2", "tiny")) for language, text in found]


def lines(text: str) -> list[str]:
    """The commands of a block; a line that ends in a backslash continues on the next."""
    return list(filter(None, map(str.strip, text.replace("\\\n", " ").splitlines())))


def run_page(page: str, folder: Path) -> int:
    """Runs every block of a page in `folder`, the working directory, which has the examples; returns their number."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    for file in (folder / "examples").glob("household*.jsonl"):
        shorten(file)
    found = blocks(page, "sh", "bash", "python", "yaml")
    for language, text in found:
        if saved(text, folder):
            continue
        if language == "python":
            exec(compile(text, "page", "exec"), {"__name__": "page"})
        elif language in ("sh", "bash"):
            for line in lines(text):
                run_line(line, folder) if language == "sh" else check_line(line)
    return len(found)


def check_page(page: str, folder: Path) -> None:
    """Runs nothing: compiles Python and reads the settings of every command, in `folder`, the working directory."""
    (folder / "examples").symlink_to(ROOT / "examples")
    for language, text in blocks(page, "sh", "bash", "python", "yaml"):
        if language == "python":
            compile(text, "page", "exec")
        if not saved(text, folder) and language in ("sh", "bash"):
            for line in lines(text):
                check_line(line)


def saved(text: str, folder: Path) -> bool:
    """Saves a block whose first line is a comment with a file name; whether it is one."""
    called = re.match(r"# ([\w-]+\.(?:py|yaml))\n", text)
    if called is not None:
        (folder / called[1]).write_text(text)
    return called is not None


def shorten(file: Path, records: int = 2) -> None:
    """Leaves the shortest records of each reason, so that a page's training steps take no time."""
    kept: dict[str | None, list[str]] = {}
    for line in sorted(file.read_text().splitlines(), key=len):
        kept.setdefault(json.loads(line).get("reason"), []).append(line)
    file.write_text("".join(line + "\n" for lines in kept.values() for line in lines[:records]))


def run_line(line: str, folder: Path) -> None:
    """Runs one line of a shell block; `bough` commands run in this process, which has torch loaded already."""
    words = shlex.split(line, comments=True)
    if words[0] == "make":
        assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text(), line
    elif words[0] != "bough":
        subprocess.run(["bash", "-c", line], cwd=folder, check=True)
    elif words[1] == "view" and "--export" not in words:
        look_at(words, folder)
    else:
        assert main([*words[1:], *ADDED.get(words[1], [])]) == 0, line


def check_line(line: str) -> None:
    """Reads the settings of a `bough` command, whichever program launches it."""
    found = re.search(r"(?:^|-m )bough (.+)", line)
    if found is None:
        return
    words = shlex.split(found[1], comments=True)
    name = words[0] if words[0] in table.TABLE else " ".join(words[:2])
    config = table.command(name).config
    flags.parse(config, flags.build(config, f"bough {name}"), words[len(name.split()) :])


def look_at(words: list[str], folder: Path) -> None:
    """A server answers until it is stopped: its page is requested once."""
    command = [sys.executable, "-m", *words, "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = next((line for line in server.stdout if line.startswith("http://127.0.0.1:")), None)
            assert address is not None, f"{' '.join(words)} does not print its address"
            with urlopen(address.strip()) as page:
                assert page.status == 200
        finally:
            server.terminate()
