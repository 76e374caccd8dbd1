"""The models whose tokens are shown: found without a network, and only their tokenizers are opened.

A name from the user may be any model. A name from a file is not trusted: it may only be
a built-in model that is already in the cache, or a folder inside the one that is shown.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
import time
import weakref
from collections import OrderedDict
from pathlib import Path
from typing import Any

from bough.data.bough import common_prefix
from bough.files import cache_folder
from bough.report.viewer.index import Index
from bough.report.viewer.records import MissingError, find_trajectory, place, stage_settings, trained_with
from bough.report.viewer.runs import read_json
from bough.rollouts.collect import RESCORED
from bough.types import Call, Trajectory

MAX_MODELS = 8
SCRIPTED = ("expert", "random", "")
# The start of a built-in model's folder in the cache, by the model's name.
IN_CACHE = {"smollm2": "smollm2-", "tiny": "tiny-llama-", "tiny-qwen3": "tiny-qwen3-", "tiny-gemma": "tiny-gemma-"}


class Model:
    """A model's tokenizer and chat template. `missing` and `no_template` say why there is none."""

    def __init__(
        self, name: str | None, folder: Path | str | None, missing: str | None, renderer: Renderer | None = None
    ) -> None:
        self.name, self.folder, self.missing = name, folder, missing
        self._renderer = renderer or Renderer()
        self.no_template: str | None = None

    def texts(self, ids: list[int]) -> list[str] | None:
        """Every token's own text; None if there is no tokenizer, or it is another model's."""
        if self.missing is not None or self.folder is None:
            return None
        try:
            found: list[str] | None = self._renderer.ask({"ask": "texts", "folder": str(self.folder), "ids": ids})[
                "texts"
            ]
        except RenderError as error:
            self.missing = f"the tokenizer of {self.name} cannot be read ({error})"
            return None
        return found

    def call(self, record: Trajectory, turn: int) -> Call | None:
        """The call that training would make of a turn, with the model's chat template."""
        if self.folder is None or self.no_template is not None:
            return None
        shown = record.model_dump(mode="json", exclude={"turns": {"__all__": {"call"}}})
        try:
            found = self._renderer.ask({"ask": "call", "folder": str(self.folder), "record": shown, "turn": turn})[
                "call"
            ]
        except RenderError as error:
            # Asked once: a template without an end would take all of its time for every page.
            self.no_template = f"the chat template of {self.name} cannot be used ({error})"
            return None
        return None if found is None else Call.model_validate(found)


class Models:
    """The models of a folder's records."""

    def __init__(self, index: Index, given: str | None) -> None:
        self.index, self.given, self.renderer = index, given, Renderer()
        self._known: OrderedDict[str, Model] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, file: str, record: Trajectory) -> Model:
        """The model whose tokens a record has: from the user, the collection's settings, or the training run's."""
        name = self.given or self._named(file, record)
        if name is None:
            return Model(None, None, "no model is named; start the viewer with --model NAME")
        with self._lock:
            if name not in self._known:
                self._known[name] = self._find(name)
                while len(self._known) > MAX_MODELS:
                    self._known.popitem(last=False)
            return self._known[name]

    def _named(self, file: str, record: Trajectory) -> str | None:
        collected = stage_settings(self.index, str(Path(file).parent)).get("model")
        played = str(record.info.get("agent", "")).partition("+")[0]  # the model without its adapter
        for name in (collected, played, (trained_with(self.index, file)[0] or {}).get("model")):
            if isinstance(name, str) and name not in SCRIPTED:
                return name
        return None

    def _find(self, name: str) -> Model:
        if name == self.given:
            from bough.models.resolve import resolve

            return Model(name, resolve(name), None, self.renderer)
        folder = _cached(name) or self._inside(name)
        missing = None if folder else f"the model {name} is not available here; name one with --model"
        return Model(name, folder, missing, self.renderer)

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


# Asks the process that opens tokenizers and chat templates, `rendering`, and kills it when it takes long.

ANSWER_S = 10.0
# The first answer loads libraries, on a slow disk for long.
START_S = 180.0
MAX_ANSWER = 64 << 20


class RenderError(Exception):
    """There is no answer. The message completes a sentence that says why."""


class Renderer:
    """One process, started when it is needed and again after it was killed. One question at a time."""

    def __init__(self, answer_s: float = ANSWER_S) -> None:
        self.answer_s = answer_s
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[Any, Any] | None = None
        self._lock = threading.Lock()

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer. Raises RenderError."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()
            if question["ask"] == "call":
                self._exchange({"ask": "prepare"}, START_S)
            answer = self._exchange(question, self.answer_s)
        if "missing" in answer:
            raise RenderError(str(answer["missing"]))
        return answer

    def close(self) -> None:
        """Ends the process; another question starts another one."""
        with self._lock:
            self._kill()

    def _start(self) -> None:
        self._kill()
        self._process = subprocess.Popen(
            # -P: no module is imported from the current folder.
            [sys.executable, "-P", "-m", "bough.report.viewer.rendering"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._end = weakref.finalize(self, _end, self._process)
        self._exchange({"ask": "nothing"}, START_S)

    def _exchange(self, question: dict[str, Any], limit_s: float) -> dict[str, Any]:
        assert self._process is not None and self._process.stdin is not None
        deadline = time.monotonic() + limit_s
        try:
            # The process reads a whole question before it does anything with it.
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
            found: dict[str, Any] = json.loads(self._line(deadline))
        except RenderError:
            self._kill()
            raise
        except (OSError, ValueError):
            self._kill()
            raise RenderError("the process that opens it died; it may take too much memory") from None
        return found

    def _line(self, deadline: float) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        answer = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not answer.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise RenderError("it takes too long")
                piece = os.read(self._process.stdout.fileno(), 1 << 16)
                if not piece:
                    raise OSError("the process has ended")
                answer += piece
                if len(answer) > MAX_ANSWER:
                    raise RenderError("its answer is too long")
        return bytes(answer)

    def _kill(self) -> None:
        if self._end is not None:
            self._end()
        self._process = self._end = None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):  # what was not yet written cannot be any more
                stream.close()


# The exact tokens of a turn's call: as recorded, or rendered from the messages with a model's chat template.

# A prompt may be very long; its beginning is rarely of interest.
MAX_PROMPT = 6000


def tokens(index: Index, models: Models, at: str, turn: int, attempt: int | None = None) -> dict[str, Any]:
    """The tokens of one turn."""
    record = find_trajectory(index, at, attempt)
    if not 0 <= turn < len(record.turns):
        raise MissingError("the trajectory has no such turn")
    model = models.of(place(at)[0], record)
    # A corrected turn trains on its correction, not on the recorded reply.
    call, source = None if record.turns[turn].correction else record.turns[turn].call, "recorded"
    if call is None:
        call, source = model.call(record, turn), f"rendered with the template of {model.name}"
    if call is None:
        why = model.no_template or model.missing or "this reply is not trained"
        return {"turn": turn, "missing": f"No tokens were recorded, and none can be rendered: {why}."}
    before = record.turns[turn - 1].call if turn else None
    shown = _shown(call, model, before)
    if source == "recorded":
        shown["completion"]["trained_logprobs"] = _trained(index, at, record.id, turn, len(call.completion_ids))
    return shown | {"turn": turn, "source": source, "model": model.name}


def _trained(index: Index, at: str, episode: str, turn: int, length: int) -> list[float] | None:
    """The trainer's log-probabilities of the same tokens, if `bough collect` rescored them."""
    found = read_json(index, str(Path(place(at)[0]).parent / RESCORED))
    for key in (episode, str(turn)):
        found = found.get(key) if isinstance(found, dict) else None
    values: Any = found
    sound = isinstance(values, list) and len(values) == length and all(isinstance(value, float) for value in values)
    return values if sound else None


def _shown(call: Call, model: Model, before: Call | None) -> dict[str, Any]:
    prompt = call.prompt_ids
    earlier = [*before.prompt_ids, *before.completion_ids] if before is not None else []
    shared = common_prefix(earlier, prompt)
    cut = max(0, len(prompt) - MAX_PROMPT)
    return {
        "prompt": {"ids": prompt[cut:], "texts": model.texts(prompt[cut:]), "left_out": cut},
        "shared": max(0, shared - cut),
        "completion": {
            "ids": call.completion_ids,
            "texts": model.texts(call.completion_ids),
            "logprobs": call.logprobs,
        },
        "why_no_text": model.missing,
    }
