"""What each verb takes from the stages before it and gives to those after it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """How a verb is wired into a run.

    `reads` is the kind of data that its setting `file` names, `writes` the kind of what it
    leaves at `artefact` inside its folder. The setting `output` names that folder, or the
    artefact itself where the verb writes a single file. A verb that plays where it has no
    file (`or_plays`) is given the world only then.
    """

    reads: str | None
    writes: str
    artefact: str
    output: str
    file: str = ""
    one_file: bool = False
    resumes: bool = False
    or_plays: bool = False


KINDS: dict[str, Kind] = {
    "collect": Kind(None, "trajectories", "trajectories.jsonl", "output"),
    "demos": Kind("trajectories", "demonstrations", "demonstrations.jsonl", "output", "file", one_file=True),
    "pairs": Kind("trajectories", "pairs", "pairs.jsonl", "output", "file", one_file=True),
    "groups": Kind("trajectories", "groups", "groups.jsonl", "output", "file", one_file=True),
    "sft": Kind("demonstrations", "model", "final", "output_dir", "train_file", resumes=True),
    "dpo": Kind("pairs", "model", "final", "output_dir", "train_file", resumes=True),
    "grpo": Kind("groups", "model", "final", "output_dir", "train_file", resumes=True, or_plays=True),
    "eval": Kind(None, "evaluation", "results.json", "output"),
}
# Settings of a stage that say where and how it runs, not what comes of it.
FREE = {"output", "output_dir", "overwrite", "resume", "concurrency", "retries", "report_to", "wandb_project"}
