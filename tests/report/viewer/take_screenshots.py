"""A program: takes the pictures of docs/viewer.md from a run folder, which it makes first. Takes some minutes.

python -m tests.report.viewer.take_screenshots runs/viewer-demo docs/screenshots

Each page is taken at 1280 pixels in light colours and at 390 pixels, a phone's width, in dark
ones. Colours are reduced to 128, which keeps files small.
"""

import asyncio
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml

from bough.cli import main as bough
from tests.experiments.small import pairs_file
from tests.report.viewer.conftest import serving
from tests.report.viewer.tab import Tab

RECIPE = {
    "name": "household-agent",
    "about": "Demonstrations, SFT at two learning rates, own play, preference pairs, DPO.",
    "model": "tiny",
    "defaults": {"environment": "household", "max_turns": 14, "max_new_tokens": 16},
    "stages": [
        {"collect": {"name": "demonstrations", "model": "expert", "tasks": 24}},
        {"demos": {}},
        {"sft": {"max_steps": 120, "batch_size": 2, "learning_rate": 2e-3}},
        {"sft": {"name": "sft-slower", "max_steps": 120, "batch_size": 2, "learning_rate": 5e-4}},
        {"collect": {"name": "own-play", "tasks": 8, "attempts": 3}},
        {"groups": {"from": ["own-play", "demonstrations"]}},
        {"pairs": {"from": ["own-play", "demonstrations"], "kinds": ["parting", "episode"]}},
        {"dpo": {"max_steps": 40, "batch_size": 2, "learning_rate": 2e-4}},
        {"eval": {"name": "after-dpo", "tasks": 12}},
    ],
}
EVOLVE = [
    *("--model", "tiny", "--metric", "loss", "--test-size", "0.25", "--seed", "4"),
    *("--population-size", "8", "--generations", "6", "--steps", "3", "--set", "batch_size=2", "lora_r=4"),
    *("--mutate", "learning_rate=1e-4..1e-2", "nll_alpha=0..1", "loss_type=sigmoid,ipo"),
]
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
    "calls": Picture("trajectory?at=11-tools%2Ftrajectories.jsonl%3A1", ".call", height=820),
    "tokens": Picture(TURNS, ".tokens .legend", ("details.exact summary",), 820, ".turns .turn"),
    "pair": Picture("pairs", ".sides", ("tbody tr a",), 760),
    "tree": Picture("tree?at=06-groups%2Fgroups.jsonl%3A1", "svg.tree", height=900),
    "evaluation": Picture("evaluation?folder=10-all", ".matrix"),
}


def make(folder: Path) -> None:
    """The run folder that is shown."""
    folder.mkdir(parents=True)
    recipe = folder.parent / f"{folder.name}.yaml"
    recipe.write_text(yaml.safe_dump(RECIPE, sort_keys=False))
    household = ["--environment", "household", "--max-turns", "14"]
    with tempfile.TemporaryDirectory() as place:
        pairs = str(pairs_file(Path(place)))
        for words in (
            ["run", str(recipe), "-o", str(folder), "--report-to", "none"],
            ["eval", *household, "--model", "expert", "random", "--episodes", "24", "--output", f"{folder}/10-all"],
            [
                "collect",
                "--environment",
                "interpreter",
                "--model",
                "expert",
                "--tasks",
                "6",
                "-o",
                f"{folder}/11-tools",
            ],
            ["evolve", *EVOLVE, "--train-file", pairs, "--output-dir", f"{folder}/12-evolution"],
        ):
            assert bough(words) == 0


async def take(run: Path, pictures: Path) -> None:
    from PIL import Image

    with serving(run) as server:
        tab = await Tab.open()
        try:
            for width, scheme, suffix in ((1280, "light", ""), (390, "dark", "-phone")):
                await tab.scheme(scheme)
                for name, picture in PICTURES.items():
                    await tab.size(width, picture.height if width > 390 else 844, mobile=width == 390)
                    await tab.goto(f"{server.address}#/{picture.page}")
                    for selector in picture.clicks:
                        await tab.until(f"!!document.querySelector({selector!r})")
                        await tab.click(selector)
                    await tab.until(f"!!document.querySelector({picture.shown!r})")
                    await tab.settled()
                    await tab.evaluate(f"scrollTo(0, document.querySelector({picture.top!r}).offsetTop - 100)")
                    await asyncio.sleep(0.4)
                    file = pictures / f"{name}{suffix}.png"
                    await tab.picture(file)
                    Image.open(file).convert("RGB").quantize(128).save(file, optimize=True)
                    print(file, file.stat().st_size)
        finally:
            tab.close()


if __name__ == "__main__":
    if not Path(sys.argv[1]).exists():
        make(Path(sys.argv[1]))
    asyncio.run(take(Path(sys.argv[1]), Path(sys.argv[2])))
