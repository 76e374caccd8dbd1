"""The training in words and tables: what each stage was for, what it learnt from, and how it was set."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bough.cards.base_model import BaseModel
from bough.cards.lineage import Data, Lineage, Stage
from bough.cards.markdown import code, plain, table
from bough.cards.measured import shortened

METHODS = {
    "sft": "Supervised fine-tuning",
    "dpo": "Direct preference optimisation",
    "grpo": "Group-relative policy optimisation",
}
AIMS = {
    "sft": "The model learns to answer as the demonstrations did; only replies are trained, never observations.",
    "dpo": "From the same history, the chosen reply becomes likelier than the rejected one, measured against the "
    "model that the stage began with.",
    "grpo": "Several attempts at each task are compared with each other; what did better than the group's mean "
    "becomes likelier.",
}
REASONS = {
    "loop": "does again what was just done, sees the same and gets no further",
    "loop_prev_action": "repeats the action before without progress",
    "premature_success": "says that the task is done when it is not",
    "task_succeeded_negative": "says that the task is done when it is not",
    "implausible_location": "searches where such a thing is hardly ever found",
    "invalid_action": "could not be acted on",
    "wasted_step": "undoes the step before",
    "success_over_failure": "failed where another attempt at the same task succeeded",
    "more_progress": "got less far than another attempt at the same task",
    "right_step": "a mistake that a success did not make there",
    "parting": "where a failure left the way to success",
    "counterfactual": "played on from the same state, it led to success less often",
}
# Settings that are always shown; others where somebody changed them.
SHOWN = (
    "learning_rate", "lr_scheduler", "warmup_ratio", "batch_size", "gradient_accumulation_steps", "weight_decay",
    "max_grad_norm", "max_length", "seed", "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "loss_type",
    "beta", "clip_low", "clip_high", "kl_coef", "averaging", "group_size", "temperature",
)  # fmt: skip
# What is said elsewhere, or says where and how it ran, not what came of it.
HIDDEN = {
    "model", "adapter", "train_file", "eval_file", "task_file", "chat_template", "output_dir", "resume", "overwrite",
    "logging_steps", "save_steps", "save_total_limit", "report_to", "wandb_project", "agent_format",
    "mask_observations", "chunk_long_trajectories", "token_budget", "concurrency", "retries", "num_epochs",
    "max_steps", "format", "on_error", "compile", "share", "attention",
}  # fmt: skip


def objective(about: str, lineage: Lineage) -> Iterator[str]:
    """What it was trained for."""
    if about:
        yield plain(about)
    for stage in lineage.stages:
        yield f"**{METHODS[stage.verb]}** ({plain(stage.name)}). {AIMS[stage.verb]}"


def pipeline(base: BaseModel, lineage: Lineage) -> str:
    """The stages, one upon the other, as a small drawing."""
    lines = [base.shown]
    if lineage.start:
        lines.append(f"│   start adapter: {lineage.start}")
    for number, stage in enumerate(lineage.stages, 1):
        last = stage is lineage.last
        bar = " " if last else "│"
        lines += ["│", f"{'└' if last else '├'}── {number}. {stage.name}: {METHODS[stage.verb]}"]
        lines[-1] += " (this model)" if last else ""
        lines += [f"{bar}      {fact}" for fact in _facts(stage)]
    return "\n".join(lines)


def _facts(stage: Stage) -> Iterator[str]:
    if stage.data is not None:
        kept = next((ledger["kept"] for ledger in stage.ledgers if ledger.get("item") == "rows"), None)
        yield f"data: {stage.data.name}" + (f", {kept:,} rows" if isinstance(kept, int) else "")
    elif stage.settings.get("environment"):
        yield f"played in: {shortened(stage.settings['environment'])}"
    steps, tokens = stage.report.get("step"), stage.report.get("tokens_trained")
    if isinstance(steps, int) and isinstance(tokens, int):
        yield f"{steps:,} steps, {tokens:,} tokens trained"
    losses = [line["loss"] for line in stage.metrics if isinstance(line.get("loss"), float)]
    if losses:
        yield f"loss {losses[0]:.4g} → {losses[-1]:.4g}"


def data(lineage: Lineage) -> Iterator[str]:
    """What came in, what was kept, and why the rest was not."""
    ledgers = [(stage.name, ledger) for stage in lineage.stages for ledger in _ledgers(stage)]
    if ledgers:
        yield "Everything that came in was kept, or dropped for a reason:"
        headings = ["stage", "what", "in", "kept", "dropped"]
        yield table(headings, [[plain(name), *_account(ledger)] for name, ledger in ledgers])
    for stage in lineage.stages:
        if reasons := stage.data.reasons if stage.data is not None else {}:
            rows = [[code(why), plain(count), REASONS.get(why, "")] for why, count in reasons.items()]
            yield f"The pairs of {plain(stage.name)}, by what is wrong with the rejected side:"
            yield table(["reason", "pairs", "meaning"], rows)
    collections = {str(one.path): one for stage in lineage.stages for one in _collections(stage.data)}
    if collections:
        yield "The episodes behind it:"
        headings = ["episodes", "played by", "world", "number", "success", "how they ended"]
        yield table(headings, [_collection(one) for one in collections.values()])


def settings(stages: Sequence[Stage]) -> str:
    """Hyper-parameters: one column a stage, one row for all that matters or was changed."""
    keys = [key for key in SHOWN if any(key in stage.settings for stage in stages)]
    for stage in stages:
        changed = [key for key, value in stage.settings.items() if value != _plain(stage.defaults.get(key))]
        keys += [key for key in changed if key not in keys and key not in HIDDEN]
    rows = [[code(key), *(_value(stage.settings.get(key)) for stage in stages)] for key in keys]
    rows.insert(0, ["steps", *(f"{stage.report.get('step', '–')}" for stage in stages)])
    return table(["setting", *(plain(stage.name) for stage in stages)], rows)


def _ledgers(stage: Stage) -> Iterator[dict[str, Any]]:
    made = stage.data.made.get("ledgers") if stage.data is not None else None
    for ledger in [*(made if isinstance(made, list) else []), *stage.ledgers]:
        if isinstance(ledger, dict) and {"item", "in", "kept", "dropped"} <= ledger.keys():
            yield ledger


def _account(ledger: dict[str, Any]) -> list[str]:
    dropped = ledger["dropped"].items() if isinstance(ledger["dropped"], dict) else []
    reasons = ", ".join(f"{count} {code(reason)}" for reason, count in dropped) or "0"
    return [plain(ledger["item"]), plain(ledger["in"]), plain(ledger["kept"]), reasons]


def _collections(found: Data | None) -> Iterator[Data]:
    if found is None:
        return
    if found.played:
        yield found
    for source in found.sources:
        yield from _collections(source)


def _collection(one: Data) -> list[str]:
    rate = one.played.get("success_rate")
    stops = one.played.get("stops")
    ends = ", ".join(f"{count} {code(how)}" for how, count in stops.items()) if isinstance(stops, dict) else "–"
    player = one.settings.get("adapter") or one.settings.get("model") or "–"
    path = Path(str(player))
    who = path.parent.name if path.name in ("final", "best") else path.name
    world = shortened(one.settings.get("environment") or "–")
    success = f"{rate:.1%}" if isinstance(rate, float) else "–"
    return [plain(one.name), plain(who), code(world), plain(one.played.get("episodes", "–")), success, ends]


def _plain(value: Any) -> Any:
    """A default as a settings file has it."""
    return str(value) if isinstance(value, Path) else value


def _value(value: Any) -> str:
    if value is None or value in ([], {}):
        return "–"
    if isinstance(value, list):
        return ", ".join(plain(shortened(one)) for one in value)
    if isinstance(value, dict):
        return code(json.dumps({key: shortened(one) for key, one in value.items()}))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return plain(f"{value:g}" if isinstance(value, float) else shortened(value))
