"""A run folder as `bough run` leaves one, small enough to be made anew for every test run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from bough.config.run_folder import MetricsFile
from bough.files import write_json
from bough.models.resolve import resolve
from bough.types import Message, Turn
from tests.report.viewer.samples import call, trajectory, write

# A curve that falls, written by hand.
LOSSES = [0.6931, 0.6921, 0.6504, 0.6102, 0.5877, 0.5904, 0.5410, 0.5233, 0.5101]
# A 1 x 1 picture.
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360f8cf50"
    "0f0003860180d9d1e0f10000000049454e44ae426082"
)


def fill(folder: Path, bough: Callable[[Sequence[str]], int]) -> None:
    """Plays with the scripted agents; the rest is written as training and a model would."""
    world = ["--environment", "household"]
    rollouts, experts = folder / "02-rollouts", folder / "01-demonstrations"
    played = [
        ["collect", *world, "--model", "expert", "--tasks", "3", "--output", str(experts)],
        ["collect", *world, "--model", "random", "--tasks", "3", "--attempts", "3", "--max-turns", "12",
         "--output", str(rollouts)],
        ["pairs", str(rollouts), "--also", str(experts), "--kinds", "parting", "episode",
         "-o", str(folder / "03-pairs/pairs.jsonl")],
        ["groups", str(rollouts), "--also", str(experts), "-o", str(folder / "04-groups/groups.jsonl")],
        ["eval", *world, "--model", "expert", "random", "--episodes", "6", "--output", str(folder / "06-eval")],
    ]  # fmt: skip
    for name in ("03-pairs", "04-groups"):
        (folder / name).mkdir(parents=True)
    for arguments in played:
        assert bough(arguments) == 0
    _trained(folder / "05-dpo", str(folder / "03-pairs/pairs.jsonl"))
    _sampled(folder / "07-sampled")
    _record(folder, "01-demonstrations", "collect", {"model": "expert"}, {"trajectories": "d1"})
    _record(folder, "02-rollouts", "collect", {"model": "random"}, {"trajectories": "d2"})
    _record(folder, "03-pairs", "pairs", {"file": "d2"}, {"pairs": "d3"})
    _record(folder, "04-groups", "groups", {"file": "d2"}, {"groups": "d4"})
    _record(folder, "05-dpo", "dpo", {"train_file": "d3", "model": "smollm2"}, {"model": "d5"})
    _record(folder, "06-eval", "eval", {"model": "d5"}, {"evaluation": "d6"}, note="not significant: kept the old one")
    recipe = {
        "name": "played",
        "about": "a run to look at",
        "model": "smollm2",
        "seed": 0,
        "defaults": {"environment": "household"},
        "stages": [
            {"collect": {"name": "demonstrations"}}, {"collect": {"name": "rollouts"}}, {"pairs": {}}, {"groups": {}},
            {"dpo": {}}, {"eval": {}}, {"collect": {"name": "sampled"}},
        ],
    }  # fmt: skip
    (folder / "recipe.yaml").write_text(json.dumps(recipe))


def _trained(folder: Path, train_file: str) -> None:
    folder.mkdir()
    settings = {"model": "smollm2", "train_file": train_file, "learning_rate": 5e-05}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    metrics = MetricsFile(folder / "metrics.jsonl", 0)
    for step, loss in enumerate(LOSSES, 1):
        metrics.append({"step": step, "epoch": 0, "loss": loss, "margin": 0.01 * step, "margin/loop": 0.02 * step})
    write_json(folder / "report.json", {"step": len(LOSSES), "tokens_trained": 2727})
    (folder / "final").mkdir()


def _sampled(folder: Path) -> None:
    """Two turns with the exact tokens of the tiny model, and a screenshot."""
    (folder / "images").mkdir(parents=True)
    (folder / "images/001.png").write_bytes(PNG)
    (folder / "model").mkdir()
    shutil.copy(Path(resolve("tiny")) / "tokenizer.json", folder / "model/tokenizer.json")
    (folder / "config.yaml").write_text(json.dumps({"model": "07-sampled/model"}))
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "model/tokenizer.json"))

    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    first, second = ids("go to shelf 1"), ids("take mug 1")
    prompt = ids("You are in a room.")
    later = [*prompt, *first, *ids(" On the shelf you see a mug.")]
    turns = [_said("go to shelf 1", prompt, first), _said("take mug 1", later, second)]
    write(folder / "trajectories.jsonl", trajectory("sampled#0", [], turns=turns, info={"images": ["images/001.png"]}))
    # The first reply was scored again: the second of its tokens is off by 0.02.
    trained = [-0.25 * (i + 1) - 0.02 * (i == 1) for i in range(len(first))]
    write_json(folder / "rescored.json", {"sampled#0": {"0": trained}})
    write_json(folder / "report.json", {"logprob_gap_mean": 4.8e-07, "logprob_gap_max": 1.4e-06, "rescored_tokens": 75})


def _said(text: str, prompt: list[int], completion: list[int]) -> Turn:
    logprobs = [-0.25 * (i + 1) for i in range(len(completion))]
    seen = [Message(role="user", content="Done.")]
    return Turn(
        reply=Message(role="assistant", content=text),
        action=text,
        observation=seen,
        call=call(prompt, completion, logprobs),
    )


def _record(
    folder: Path, stage: str, verb: str, inputs: dict[str, Any], outputs: dict[str, Any], note: str = ""
) -> None:
    name = stage.partition("-")[2]
    record = {"verb": verb, "name": name, "round": 1, "fingerprint": "f", "inputs": inputs, "outputs": outputs}
    write_json(folder / stage / "stage.json", record | {"finished": True, "seconds": 12.5, "note": note})
