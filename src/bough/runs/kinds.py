"""What each command takes from earlier stages and provides to later ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bough.config.cluster import ClusterConfig
from bough.config.parts import leaves


@dataclass(frozen=True)
class Kind:
    """How a command is connected to the other stages of a run.

    `reads` is the kind of data that its setting `file` takes, `writes` the kind of data it
    writes to `artefact` inside its folder. The setting `output` is that folder, or the
    artefact itself if the command writes a single file (`one_file`). A command that plays
    episodes if it has no file (`or_plays`) gets the environment only then. The setting `adds`
    takes all earlier data of the kind that the command writes, to be added to its output; `labels` is
    the setting that names another model to learn from. `reads_by_method` has what it reads with
    each value of its setting `method`, if that is not always `reads`. The setting `instead` names data in place of
    `file`.
    """

    reads: str | None
    writes: str
    artefact: str
    output: str
    file: str = ""
    one_file: bool = False
    resumes: bool = False
    or_plays: bool = False
    adds: str = ""
    labels: str = ""
    reads_by_method: Mapping[str, str | None] = field(default_factory=dict)
    instead: str = ""

    def input(self, settings: Mapping[str, Any]) -> str | None:
        """The kind of data that a stage with these settings reads."""
        if settings.get(self.instead):
            return None
        return self.reads_by_method.get(str(settings.get("method")), self.reads)


KINDS: dict[str, Kind] = {
    "collect": Kind(None, "trajectories", "trajectories.jsonl", "output"),
    "demos": Kind("trajectories", "demonstrations", "demonstrations.jsonl", "output", "file", one_file=True),
    "corrections": Kind(
        "trajectories", "demonstrations", "corrections.jsonl", "output", "file", one_file=True, adds="mix", labels="by"
    ),
    "pairs": Kind("trajectories", "pairs", "pairs.jsonl", "output", "file", one_file=True),
    "groups": Kind("trajectories", "groups", "groups.jsonl", "output", "file", one_file=True),
    "sft": Kind("demonstrations", "model", "final", "output_dir", "train_file", resumes=True),
    "dpo": Kind("pairs", "model", "final", "output_dir", "train_file", resumes=True),
    "grpo": Kind("groups", "model", "final", "output_dir", "train_file", resumes=True, or_plays=True),
    "distill": Kind(
        "groups", "model", "final", "output_dir", "train_file", resumes=True, or_plays=True, labels="teacher"
    ),
    "evolve": Kind(
        "pairs",
        "model",
        "final",
        "output_dir",
        "train_file",
        resumes=True,
        reads_by_method={"sft": "demonstrations", "grpo": None},
        instead="mixture",
    ),
    "eval": Kind(None, "evaluation", "results.json", "output"),
}
# Settings that do not change the result of a stage.
FREE = {
    *("output", "output_dir", "overwrite", "resume", "concurrency", "retries", "report_to", "wandb_project"),
    *leaves(ClusterConfig),
    "learners",
}
