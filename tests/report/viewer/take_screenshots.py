"""A program: takes the pictures of docs/viewer.md from the folder that demo_folder.py makes.

python -m tests.report.viewer.take_screenshots runs/viewer-demo docs/screenshots
python -m tests.report.viewer.take_screenshots runs/viewer-demo /tmp/all --all

Each page is taken at 1280 pixels in light colours and at 390 pixels, a phone's width, in
dark ones; --all takes both widths in both. Colours are reduced to 128, which keeps files small.
"""

import asyncio
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.report.viewer.conftest import serving
from tests.report.viewer.tab import Tab

GROUPS = "12-tool-groups%2Fgroups.jsonl"
TURNS = "trajectory?at=05-own-play%2Ftrajectories.jsonl%3A1"


@dataclass(frozen=True)
class Picture:
    """A page, what must be on it, what is clicked there, and the window's height."""

    page: str
    shown: str
    clicks: tuple[str, ...] = ()
    height: int = 900
    top: str = "header"  # what stands at the top of the picture


PICTURES = {
    "runs": Picture("runs", ".ladder"),
    "training": Picture("training?folder=03-sft&also=04-sft-slower", ".plot path"),
    "settings": Picture("training?folder=03-sft&also=04-sft-slower", ".compared table", height=460, top=".compared"),
    "evolution": Picture("evolution", "svg.family", height=1400),
    "trajectories": Picture("trajectories", "tbody tr[data-row]", height=760),
    "calls": Picture(f"trajectory?at={GROUPS}%3A1&attempt=1", ".call", height=820),
    "tokens": Picture(TURNS, ".tokens .legend", ("details.exact summary",), 820, ".turns .turn"),
    "pair": Picture("pairs", ".sides", ("tbody tr a",), 760),
    "tree": Picture(f"tree?at={GROUPS}%3A1", "svg.tree", height=900),
    "evaluation": Picture("evaluation?folder=10-all", ".matrix"),
}


async def take(run: Path, pictures: Path, *, everything: bool) -> None:
    from PIL import Image

    views = [(1280, "light", ""), (390, "dark", "-phone")]
    if everything:
        views = [(width, scheme, f"-{width}-{scheme}") for width in (1280, 390) for scheme in ("light", "dark")]
    with tempfile.TemporaryDirectory() as cache, serving(run, Path(cache)) as server:
        tab = await Tab.open()
        try:
            for width, scheme, suffix in views:
                await tab.scheme(scheme)
                for name, picture in PICTURES.items():
                    await tab.size(width, picture.height if width > 390 else 844, mobile=width == 390)
                    await _show(tab, f"{server.address}#/{picture.page}", picture)
                    file = pictures / f"{name}{suffix}.png"
                    await tab.picture(file)
                    Image.open(file).convert("RGB").quantize(128).save(file, optimize=True)
                    print(file, file.stat().st_size)
        finally:
            tab.close()


async def _show(tab: Tab, address: str, picture: Picture) -> None:
    await tab.goto(address)
    for selector in picture.clicks:
        await tab.until(f"!!document.querySelector({selector!r})")
        await tab.click(selector)
    await tab.until(f"!!document.querySelector({picture.shown!r})")
    await tab.settled()
    await tab.evaluate(f"scrollTo(0, document.querySelector({picture.top!r}).offsetTop - 100)")
    await asyncio.sleep(0.4)


if __name__ == "__main__":
    asyncio.run(take(Path(sys.argv[1]), Path(sys.argv[2]), everything="--all" in sys.argv[3:]))
