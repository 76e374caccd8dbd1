"""Kills Chromium again and again under `bough collect`: no episode may be lost, and none may end otherwise for it.

    python benchmarks/web_kills.py [--episodes 500] [--kills 20] [--output FILE]

The expert plays; each time a further share of the episodes is on file, the browser and all
its processes are killed with SIGKILL. The same collection is then made undisturbed, and the
two are compared episode by episode: everything but the count of retries must be the same.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil

PAGES = (
    "click-button", "click-checkboxes", "click-dialog", "click-tab-2", "choose-date", "choose-list",
    "email-inbox-reply", "enter-password", "enter-text", "form-sequence", "login-user", "read-table",
    "social-media-some", "use-autocomplete",
)  # fmt: skip


class Collected(NamedTuple):
    episodes: dict[str, dict[str, Any]]
    report: dict[str, Any]
    kills: int
    seconds: float


def collect(folder: Path, episodes: int, kills: int, concurrency: int) -> Collected:
    """Runs the collection in a process of its own and kills its browser `kills` times on the way."""
    command = [
        sys.executable, "-m", "bough", "collect", "--model", "expert", "--environment", "web",
        "--options", f"pages=[{', '.join(PAGES)}]", "--tasks", str(episodes), "--concurrency", str(concurrency),
        "--output", str(folder),
    ]  # fmt: skip
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    killed = 0
    while process.poll() is None:
        if killed < kills and on_file(folder) >= (killed + 1) * episodes // (kills + 1):
            killed += kill_browser(process.pid)
        time.sleep(0.01)
    if process.returncode != 0:
        raise SystemExit(f"the collection ended with exit code {process.returncode}")
    lines = (folder / "trajectories.jsonl").read_text().splitlines()
    found = {record["id"]: record for record in map(json.loads, lines)}
    report = json.loads((folder / "report.json").read_text())
    return Collected(found, report, killed, time.perf_counter() - begin)


def on_file(folder: Path) -> int:
    file = folder / "trajectories.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def kill_browser(pid: int) -> bool:
    """Kills the process's browser with all its children; False if there is none just now."""
    try:
        children = psutil.Process(pid).children()
        browsers = [child for child in children if "chrom" in child.name() and child.status() != psutil.STATUS_ZOMBIE]
    except psutil.Error:
        return False
    for browser in browsers:
        os.killpg(browser.pid, signal.SIGKILL)
    return bool(browsers)


def retries(episode: dict[str, Any]) -> int:
    return int(episode.get("info", {}).get("retries", 0))


def bare(episode: dict[str, Any]) -> dict[str, Any]:
    """An episode without the count of its retries."""
    info = {key: value for key, value in episode.get("info", {}).items() if key != "retries"}
    return {**episode, "info": info}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        disturbed = collect(Path(folder) / "killed", options.episodes, options.kills, options.concurrency)
        quiet = collect(Path(folder) / "quiet", options.episodes, 0, options.concurrency)
    others = [
        name
        for name, episode in quiet.episodes.items()
        if name not in disturbed.episodes or bare(disturbed.episodes[name]) != bare(episode)
    ]
    again = [retries(episode) for episode in disturbed.episodes.values() if retries(episode)]
    rows = {
        "browsers killed": (disturbed.kills, quiet.kills),
        "episodes asked for": (options.episodes, options.episodes),
        "episodes on file": (len(disturbed.episodes), len(quiet.episodes)),
        "episodes lost": (len(disturbed.report["lost"]), len(quiet.report["lost"])),
        "faults, all of the environment": (
            disturbed.report["faults"].get("environment", 0),
            quiet.report["faults"].get("environment", 0),
        ),
        "episodes that were played again": (len(again), 0),
        "most retries of one episode": (max(again, default=0), 0),
        "successes": (disturbed.report["successes"], quiet.report["successes"]),
        "seconds": (f"{disturbed.seconds:.0f}", f"{quiet.seconds:.0f}"),
    }
    text = "\n".join([
        f"`bough collect --model expert --environment web`, {len(PAGES)} pages in turn, {options.concurrency} episodes "
        f"at a time; SIGKILL to the browser and its children",
        f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores, load average "
        f"{os.getloadavg()[0]:.0f}, {time.strftime('%F')}",
        "", "| | killed | undisturbed |", "|---|---|---|",
        *(f"| {name} | {left} | {right} |" for name, (left, right) in rows.items()), "",
        f"Episodes that are not the same in both, to the letter, retries aside: {len(others)}.",
    ])  # fmt: skip
    print(text, *others)
    if options.output:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
