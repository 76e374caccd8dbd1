"""A program: takes the pictures of docs/viewer.md from a run.

python -m tests.viewer.take_screenshots runs/demo docs/screenshots
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.viewer.conftest import serving
from tests.viewer.tab import Tab

# The page, what is clicked there, what is then to be seen, and the window's height.
PICTURES = {
    "runs": ("runs", [], "main h1", 900),
    "training": ("training", [], "main svg", 900),
    "trajectories": ("trajectories", [], "tbody tr[data-row]", 700),
    "tokens": (
        "trajectory?at=06-own-play%2Ftrajectories.jsonl%3A15",
        ["details.exact summary", ".tokens .buttons button:nth-child(3)"],
        ".tokens .legend",
        900,
    ),
    "pair": ("pairs", ["tbody tr a"], ".sides", 700),
    "tree": ("groups", ["tbody tr a"], "svg.tree", 700),
    "evaluation": ("evaluation", [], "main h1", 900),
}


async def take(run: Path, pictures: Path) -> None:
    with tempfile.TemporaryDirectory() as cache, serving(run, Path(cache)) as server:
        tab = await Tab.open()
        try:
            for name, (page, clicks, shown, height) in PICTURES.items():
                await tab.size(1180, height)
                await tab.goto(f"{server.address}#/{page}")
                for selector in clicks:
                    await tab.until(f"!!document.querySelector({selector!r})")
                    await tab.click(selector)
                await tab.until(f"!!document.querySelector({shown!r})")
                await tab.settled()
                await asyncio.sleep(0.5)
                await tab.picture(pictures / f"{name}.png")
                print(pictures / f"{name}.png")
        finally:
            tab.close()


if __name__ == "__main__":
    asyncio.run(take(Path(sys.argv[1]), Path(sys.argv[2])))
