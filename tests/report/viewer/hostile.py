"""A folder whose every text tries to become a script."""

from __future__ import annotations

import json
from pathlib import Path

from bough.evaluation.results import Lost, ModelResult, Outcome, Results
from bough.files import write_json
from bough.types import Call, Group, Message, Pair, Task, ToolCall, Trajectory, Turn
from tests.report.viewer.samples import write

EVIL = "</script><script>window.pwned=1</script><img src=x onerror='window.pwned=1'>\"'><svg onload=window.pwned=1>"
LINK = "javascript:window.pwned=1"


def message(role: str) -> Message:
    return Message.model_validate(
        {"role": role, "content": EVIL, "hint": EVIL, "reasoning": EVIL, "name": EVIL, "tool_call_id": EVIL}
        | (
            {"tool_calls": [ToolCall(name=EVIL, arguments={EVIL: EVIL, "href": LINK}, id=EVIL)]}
            if role == "assistant"
            else {}
        )
    )


def turn(more: str = "") -> Turn:
    reply = message("assistant")
    return Turn(
        reply=reply.model_copy(update={"content": reply.content + more}),
        call=Call(prompt_ids=[1, 2], completion_ids=[3], logprobs=[-1.0], text=EVIL, policy=EVIL),
        action=EVIL + more,
        observation=[message("user"), message("tool")],
        reward=1.0,
        error=EVIL,
    )


def record(name: str, more: str = "", success: bool = False) -> Trajectory:
    return Trajectory(
        id=f"{name}{EVIL}",
        task=Task(id=EVIL, environment=EVIL, data={"type": EVIL}),
        start=[message("system"), message("user")],
        turns=[turn(more), turn()],
        rewards={EVIL: 1.0, "outcome": 0.5},
        success=success,
        stop=EVIL,
        info={EVIL: EVIL, "agent": EVIL, "images": [f"{LINK}", "../x.png"], "reason": EVIL},
    )


def fill_hostile(folder: Path) -> None:
    attempts = [record("a#0"), record("a#1", "x", True)]
    write(folder / "t.jsonl", *attempts)
    write(folder / "g.jsonl", Group(task=attempts[0].task, attempts=attempts, info={EVIL: EVIL}))
    write(
        folder / "p.jsonl",
        Pair(
            task=attempts[0].task,
            start=[message("user")],
            chosen=[turn("x")],
            rejected=[turn()],
            reason=EVIL,
            info={EVIL: EVIL},
        ),
    )
    stage = folder / "01-<img src=x onerror=window.pwned=1>"
    write(stage / "t.jsonl", *attempts)
    write_json(
        stage / "stage.json",
        {"verb": EVIL, "name": EVIL, "inputs": {EVIL: EVIL}, "outputs": {EVIL: EVIL}, "note": EVIL, "seconds": 1},
    )
    write_json(stage / "report.json", {EVIL: 1.0, "logprob_gap_mean": 1, "logprob_gap_max": 1, "rescored_tokens": 2})
    recipe = {"name": EVIL, "about": EVIL, "model": EVIL, "defaults": {"environment": EVIL}}
    (folder / "recipe.yaml").write_text(json.dumps(recipe | {"stages": [{EVIL: {"name": EVIL}}]}))
    training = folder / "train"
    training.mkdir()
    (training / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": n, EVIL: n, f"{EVIL}/{EVIL}": n, "loss": n}) + "\n" for n in range(1, 4))
    )
    (training / "config.yaml").write_text(json.dumps({"model": EVIL, "train_file": EVIL, EVIL: EVIL}))
    _evolved(training)
    evaluation = folder / "evaluation"
    evaluation.mkdir()
    outcomes = [Outcome(task=EVIL, digest="d", type=EVIL, success=False, stop=EVIL, errors={EVIL: 2})]
    models = [
        ModelResult(name=EVIL + end, outcomes=outcomes, lost=[Lost(task=EVIL, type=EVIL, why=EVIL)])
        for end in ("1", "2")
    ]
    Results(environment=EVIL, options={EVIL: EVIL}, split=EVIL, seed=0, models=models).write(
        evaluation / "results.json"
    )
    (folder / "<img src=x onerror=window.pwned=1>.jsonl").write_text("nonsense\n")


def _evolved(folder: Path) -> None:
    """Two generations whose every name and setting is hostile, and lines that are no members."""
    settings = {EVIL: EVIL, "learning_rate": 1e-300, "beta": 1.7e308}
    mutation = {"kind": EVIL, "setting": EVIL, "before": EVIL, "after": EVIL, "other_parent": EVIL}
    mother = {"generation": 0, "name": EVIL, "born": 0, "settings": settings, "place": 1, "lives": True}
    mother |= {"fitness": -1.7e308, "interval": [-1.7e308, 1.7e308]}
    child = mother | {"generation": 1, "name": LINK, "born": 1, "parent": EVIL, "mutation": mutation, "place": 2}
    child |= {"settings": {**settings, "beta": -1.7e308}, "fitness": 1.7e308}
    far = mother | {"generation": 99_999, "place": 10**9}
    lines = [json.dumps(one) for one in (mother, child, far, {"generation": EVIL})]
    (folder / "lineage.jsonl").write_text("\n".join([*lines, EVIL, "[" * 5000]))
    report = {"winner": {"name": EVIL}, "metric": EVIL, "selected": {"fitness": 1e308, "interval": EVIL}}
    write_json(folder / "report.json", report | {"shrinkage": EVIL, "updates": EVIL})
