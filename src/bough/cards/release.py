"""A release: the files needed to load the weights, without the paths of this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bough.cards.base_model import base_model
from bough.cards.lineage import read_json
from bough.cards.subject import Subject
from bough.errors import InputError

# No checkpoints, no pickles, no hidden files.
WANTED = (
    "README.md", "LICENSE*", "adapter_config.json", "adapter_model*.safetensors", "config.json",
    "generation_config.json", "model*.safetensors", "model.safetensors.index.json", "tokenizer*.json",
    "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "chat_template.jinja",
)  # fmt: skip
TEXT = {".json", ".md", ".jinja", ".txt", ""}


@dataclass(frozen=True)
class Release:
    """Files by their names in the repository. `changed` has the new text of those that are not sent unchanged."""

    files: dict[str, Path]
    changed: dict[str, str]

    def size(self, name: str) -> int:
        return len(self.changed[name].encode()) if name in self.changed else self.files[name].stat().st_size

    def fill(self, folder: Path) -> None:
        """Writes everything into an empty folder; weights are linked, not copied."""
        for name, path in self.files.items():
            if name in self.changed:
                (folder / name).write_text(self.changed[name], encoding="utf-8")
            else:
                (folder / name).symlink_to(path.resolve())

    def naming(self, places: list[Path]) -> Iterator[str]:
        """The names of text files that contain the name of one of this machine's folders."""
        for name, path in self.files.items():
            # A tokenizer's vocabulary is long and contains no paths.
            if path.suffix in TEXT and name != "tokenizer.json":
                text = self.changed.get(name) or path.read_text(encoding="utf-8", errors="replace")
                if any(str(place) in text for place in places if len(place.parts) > 2):
                    yield name


def make_release(subject: Subject, hub_id: str | None) -> Release:
    """The release of the subject's weights. Raises InputError where card, weights or the base's name are missing."""
    folder = subject.weights
    files = {path.name: path for pattern in WANTED for path in sorted(folder.glob(pattern)) if path.is_file()}
    if "README.md" not in files:
        raise InputError(f"{folder} has no model card yet; `bough card {subject.run}` writes one to look at first")
    if not any(name.endswith(".safetensors") for name in files):
        raise InputError(f"{folder}: it has no weights (*.safetensors)")
    changed = {}
    if subject.is_adapter:
        base = base_model(subject.lineage.base, hub_id)
        if base.hub_id is None:
            raise InputError(
                f"{folder}: the base model is only known as {base.name}, which others cannot load; "
                "give its name on the Hub with --base-model org/name"
            )
        settings = read_json(folder / "adapter_config.json", {})
        settings["base_model_name_or_path"] = base.hub_id
        changed["adapter_config.json"] = json.dumps(settings, indent=2, sort_keys=True) + "\n"
    return Release(dict(sorted(files.items())), changed)
