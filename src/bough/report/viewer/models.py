"""The models whose tokens are shown: found without a network, and only their tokenizers are opened.

A name from the user may be any model. A name from a file is not trusted: it may only be
a built-in model that is already in the cache, or a folder inside the one that is shown.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

from bough.data.base import common_prefix
from bough.files import cache_folder
from bough.report.viewer.index import Index
from bough.report.viewer.records import MissingError, find_trajectory, place
from bough.report.viewer.runs import read_json, stage_settings
from bough.rollouts.collect import RESCORED
from bough.types import Call, Trajectory

SCRIPTED = ("expert", "random", "")
# The start of a built-in model's folder in the cache, by the model's name.
IN_CACHE = {"smollm2": "smollm2-", "tiny": "tiny-llama-", "tiny-qwen3": "tiny-qwen3-", "tiny-gemma": "tiny-gemma-"}
# A prompt may be very long; its beginning is rarely of interest.
MAX_PROMPT = 6000
MAX_ANSWER = 64 << 20
MAX_WAIT_S = 180.0


class Models:
    """The models of a folder's records. `given` is the user's own choice."""

    def __init__(self, index: Index, given: str | None) -> None:
        self.index, self.given, self.renderer = index, given, Renderer()

    def of(self, file: str, record: Trajectory) -> tuple[str | None, Path | None]:
        """The model whose tokens a record has, from the user or the collection's settings, and its folder."""
        if self.given:
            from bough.models.resolve import resolve

            return self.given, Path(resolve(self.given))
        collected = stage_settings(self.index, str(Path(file).parent)).get("model")
        played = str(record.info.get("agent", "")).partition("+")[0]  # the model without its adapter
        for name in (collected, played):
            if isinstance(name, str) and name not in SCRIPTED:
                return name, _cached(name) or self._inside(name)
        return None, None

    def _inside(self, name: str) -> Path | None:
        """A model folder inside the folder that is shown, even if that was somewhere else when the run was made."""
        root, parts = self.index.root.path, Path(name).parts
        for start in range(len(parts)):
            file = self.index.root.inside(root.joinpath(*parts[start:]) / "tokenizer.json")
            if file is not None:
                return file.parent
        return None


def _cached(name: str) -> Path | None:
    start = IN_CACHE.get(name)
    found = sorted((cache_folder() / "models").glob(f"{start}*/tokenizer.json")) if start else []
    return max(found, key=lambda file: file.stat().st_mtime).parent if found else None


class Renderer:
    """Asks the process that opens tokenizers and chat templates, `rendering`: one question at a time.

    The process is started when it is needed, and again after it died of its own limits. What
    it died of, a folder's tokenizer or template, is not asked again: each time would take as long.
    """

    def __init__(self) -> None:
        self._end: weakref.finalize[Any, Any] | None = None
        self._lock = threading.Lock()
        self._failed: dict[tuple[Path, bool], dict[str, Any]] = {}

    def ask(self, folder: Path, **question: Any) -> dict[str, Any]:
        """The answer; its `missing` says why there is none."""
        asked = (folder, "ids" in question)
        with self._lock:
            if asked in self._failed:
                return self._failed[asked]
            if self._end is None:
                self._process = subprocess.Popen(
                    # -P: no module is imported from the current folder.
                    [sys.executable, "-P", "-m", "bough.report.viewer.rendering"],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
                )  # fmt: skip
                self._end = weakref.finalize(self, _end, self._process)
            assert self._process.stdin is not None and self._process.stdout is not None
            try:
                self._process.stdin.write(json.dumps({"folder": str(folder), **question}).encode() + b"\n")
                self._process.stdin.flush()
                if not select.select([self._process.stdout], [], [], MAX_WAIT_S)[0]:
                    raise TimeoutError
                found: dict[str, Any] = json.loads(self._process.stdout.readline(MAX_ANSWER))
            except (OSError, ValueError):
                self._end()
                self._end = None
                self._failed[asked] = found = {"missing": "it takes too long or too much memory"}
        return found

    def close(self) -> None:
        """Ends the process."""
        if self._end is not None:
            self._end()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):  # what was not yet written cannot be any more
            assert stream is not None
            stream.close()


def tokens(index: Index, models: Models, at: str, turn: int, attempt: int | None = None) -> dict[str, Any]:
    """The exact tokens of a turn's call: as recorded, or rendered from the messages with a model's chat template."""
    record = find_trajectory(index, at, attempt)
    if not 0 <= turn < len(record.turns):
        raise MissingError("the trajectory has no such turn")
    name, folder = models.of(place(at)[0], record)
    why = f"the model {name} is not available here; name one" if name else "no model is named; start the viewer"
    why = f"{why} with --model NAME"
    # A corrected turn trains on its correction, not on the recorded reply.
    call, source = None if record.turns[turn].correction else record.turns[turn].call, "recorded"
    if call is None and folder is not None:
        shown = record.model_dump(mode="json", exclude={"turns": {"__all__": {"call"}}})
        answer = models.renderer.ask(folder, record=shown, turn=turn)
        call = Call.model_validate(answer["call"]) if answer.get("call") else None
        source = f"rendered with the template of {name}"
        why = answer.get("missing", "this reply is not trained")
    if call is None:
        return {"turn": turn, "missing": f"No tokens were recorded, and none can be rendered: {why}."}
    before = record.turns[turn - 1].call if turn else None
    shared = common_prefix([*before.prompt_ids, *before.completion_ids] if before else [], call.prompt_ids)
    cut = max(0, len(call.prompt_ids) - MAX_PROMPT)
    prompt, completion = call.prompt_ids[cut:], call.completion_ids
    found = models.renderer.ask(folder, ids=[*prompt, *completion]) if folder is not None else {"missing": why}
    texts = found.get("texts")
    return {
        "prompt": {"ids": prompt, "texts": texts and texts[: len(prompt)], "left_out": cut},
        "shared": max(0, shared - cut),
        "completion": {
            "ids": completion,
            "texts": texts and texts[len(prompt) :],
            "logprobs": call.logprobs,
            "trained_logprobs": _trained(index, at, record.id, turn, len(completion)) if source == "recorded" else None,
        },
        "why_no_text": found.get("missing"),
        "turn": turn,
        "source": source,
        "model": name,
    }


def _trained(index: Index, at: str, episode: str, turn: int, length: int) -> list[float] | None:
    """The trainer's log-probabilities of the same tokens, if `bough collect` rescored them."""
    found: Any = read_json(index, str(Path(place(at)[0]).parent / RESCORED)).get(episode)
    values = found.get(str(turn)) if isinstance(found, dict) else None
    sound = isinstance(values, list) and len(values) == length and all(isinstance(value, float) for value in values)
    return values if sound else None
