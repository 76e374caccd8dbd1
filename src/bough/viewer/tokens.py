"""The exact tokens of a turn's call: as recorded, or rendered from the messages with a model's chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bough.formats.bough import common_prefix
from bough.rollouts.collection import RESCORED
from bough.types import Call
from bough.viewer.index import Index
from bough.viewer.models import Model, Models
from bough.viewer.records import MissingError, find_trajectory, place
from bough.viewer.runs import read_json

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
