"""The training sections of a card: the aim, the data and the settings of each stage."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bough.cards.base_model import BaseModel
from bough.cards.lineage import Data, Lineage, Stage
from bough.cards.markdown import code, plain, table
from bough.cards.measured import ending, shortened
from bough.plural import plural

METHODS = {
    "sft": "Supervised fine-tuning",
    "dpo": "Direct preference optimisation",
    "grpo": "Group-relative policy optimisation",
    "evolve": "Evolution of a population of adapters",
}
AIMS = {
    "sft": "The model learns to reply as in the demonstrations; only replies are trained, never observations.",
    "dpo": "Given the same history, the chosen reply becomes more likely than the rejected one, relative to the "
    "model that the stage started from.",
    "grpo": "Several attempts at each task are compared; those with a reward above the group's mean become "
    "more likely.",
    "evolve": "Several adapters are trained with different settings; the fittest on held-out data have children with "
    "changed settings, and the fittest of the last generation is this model.",
}
REASONS = {
    "loop": "repeats an earlier action with the same result, without progress",
    "loop_prev_action": "repeats the previous action without progress",
    "premature_success": "claims success before the task is solved",
    "task_succeeded_negative": "claims success before the task is solved",
    "implausible_location": "searches in an implausible place",
    "invalid_action": "is not a valid action",
    "wasted_step": "undoes the previous step",
    "success_over_failure": "failed; another attempt at the same task succeeded",
    "more_progress": "made less progress than another attempt at the same task",
    "right_step": "a mistake that a successful attempt avoided at the same point",
    "parting": "the turn where a failure diverged from a success",
    "counterfactual": "continued from the same state, it succeeded less often",
}
# Settings that are always shown; others are shown if they were changed.
SHOWN = (
    "learning_rate", "lr_scheduler", "warmup_ratio", "batch_size", "gradient_accumulation_steps", "weight_decay",
    "max_grad_norm", "max_length", "seed", "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "loss_type",
    "beta", "clip_low", "clip_high", "kl_coef", "averaging", "group_size", "temperature",
)  # fmt: skip
# Shown elsewhere on the card, or without effect on the result.
HIDDEN = {
    "model", "adapter", "train_file", "eval_file", "task_file", "chat_template", "output_dir", "resume", "overwrite",
    "reset_file", "logging_steps", "save_steps", "save_total_limit", "report_to", "wandb_project",
    "token_budget", "concurrency", "retries", "num_epochs",
    "max_steps", "format", "on_error", "compile", "share", "attention",
}  # fmt: skip


def objective(about: str, lineage: Lineage) -> Iterator[str]:
    """The aim of the training."""
    if about:
        yield plain(about)
    for stage in lineage.stages:
        yield f"**{METHODS[stage.verb]}** ({plain(stage.name)}). {AIMS[stage.verb]}"


def pipeline(base: BaseModel, lineage: Lineage) -> str:
    """The stages in order, as a small drawing."""
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
        yield f"data: {stage.data.name}" + (f", {plural(kept, 'row')}" if isinstance(kept, int) else "")
    elif stage.settings.get("environment"):
        yield f"environment: {shortened(stage.settings['environment'])}"
    steps, tokens = stage.report.get("step"), stage.report.get("tokens_trained")
    if isinstance(steps, int) and isinstance(tokens, int):
        yield f"{plural(steps, 'step')}, {plural(tokens, 'token')} trained"
    losses = [line["loss"] for line in stage.metrics if isinstance(line.get("loss"), float)]
    if losses:
        yield f"loss {losses[0]:.4g} → {losses[-1]:.4g}"


def data(lineage: Lineage) -> Iterator[str]:
    """What was read, what was kept, and why the rest was dropped."""
    ledgers = [(stage.name, ledger) for stage in lineage.stages for ledger in _ledgers(stage)]
    if ledgers:
        yield "Every record was kept, or dropped for a reason:"
        headings = ["stage", "what", "in", "kept", "dropped"]
        yield table(headings, [[plain(name), *_account(ledger)] for name, ledger in ledgers])
    for stage in lineage.stages:
        if reasons := stage.data.reasons if stage.data is not None else {}:
            rows = [[code(why), plain(count), REASONS.get(why, "")] for why, count in reasons.items()]
            yield f"The pairs of {plain(stage.name)}, by the reason for the rejected side:"
            yield table(["reason", "pairs", "meaning"], rows)
    collections = {str(one.path): one for stage in lineage.stages for one in _collections(stage.data)}
    if collections:
        yield "The episodes that the data comes from:"
        headings = ["episodes", "agent", "environment", "number", "success", "how they ended"]
        yield table(headings, [_collection(one) for one in collections.values()])


def settings(stages: Sequence[Stage]) -> str:
    """Hyper-parameters: one column per stage, one row per setting that matters or was changed."""
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
    ends = ", ".join(f"{count} {ending(how)}" for how, count in stops.items()) if isinstance(stops, dict) else "–"
    player = one.settings.get("adapter") or one.settings.get("model") or "–"
    path = Path(str(player))
    who = path.parent.name if path.name in ("final", "best") else path.name
    environment = shortened(one.settings.get("environment") or "–")
    success = f"{rate:.1%}" if isinstance(rate, float) else "–"
    return [plain(one.name), plain(who), code(environment), plain(one.played.get("episodes", "–")), success, ends]


def _plain(value: Any) -> Any:
    """A default as it is written in a settings file."""
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
