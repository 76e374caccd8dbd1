"""The probe: what a model computes decides how it is trained, not its name.

On loading, each way to compute log-probabilities is compared with the model's own forward
pass: plain rows, rows of several calls side by side, and the tree. A path that disagrees is
not used; a model without a path that agrees is refused.

The model itself may be large, quantized or in bfloat16, where a wrong mask cannot be told
from rounding, and its windows may be thousands of tokens long. So a miniature of it is
probed (`models/miniature.py`): the same classes and settings, in float32, with layers of
each kind and windows of eight tokens. That takes a fraction of a second, whatever the
model's size, and shows the same mistakes. It is computed on the CPU, FlexAttention
uncompiled: kernels that only a GPU has are not part of the probe.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bough.errors import BoughError
from bough.files import cache_folder, read_json, write_json
from bough.models.miniature import miniature
from bough.policy.head import NOT_CAUSAL
from bough.trees.build import PlainRow, TreeRow, input_ids, plain_rows, tree_rows
from bough.trees.mixers import length_matters
from bough.types import Call

if TYPE_CHECKING:
    from bough.policy.policy import Policy

TOLERANCE = 1e-4  # nats; float32 rounds at 1e-6, and a path that is wrong is off by a hundredth or more
BUDGET = 1024
TAIL = 5
UNKNOWN = (
    "is computed in a way that Bough does not know: its log-probabilities would be off by up to {:.2g} nats, so it can "
    "be neither trained nor sampled with the local engine; use --engine vllm or openai to sample from it"
)
# Two tasks: one episode that forks inside and at the end of its replies, and one call of another.
IDS = [3 + (7 * i * i + 31 * i) % 241 for i in range(100)]
CALLS = [
    Call(prompt_ids=IDS[:12], completion_ids=IDS[12:20]),
    Call(prompt_ids=IDS[:20] + IDS[53:57], completion_ids=IDS[20:30]),
    Call(prompt_ids=IDS[:20] + IDS[53:57], completion_ids=IDS[30:39]),
    Call(prompt_ids=IDS[:15] + IDS[39:45], completion_ids=IDS[45:53]),
    Call(prompt_ids=IDS[60:70], completion_ids=IDS[70:82]),
]


def probe(model: Any, how: str, small_policy: Callable[[Any], Policy]) -> Findings:
    """What was found of a transformers model; its paths are those of `small_policy`, made from a small model.

    `how` names what else the paths depend on. A model of which no small copy can be made is
    computed as it would compute itself, one call at a time.
    """
    key = _key(model, how)
    path = cache_folder() / "probes" / f"{key}.json"
    if key not in _known:
        with contextlib.suppress(OSError, ValueError, TypeError):  # not there, or damaged
            _known[key] = Findings(**read_json(path))
    if key not in _known:
        try:
            _known[key] = examine(small_policy(miniature(model)))
        except BoughError as error:
            _known[key] = Findings(obstacle=str(error), together=False)
        with contextlib.suppress(OSError):  # a cache that cannot be written costs a second the next time
            write_json(path, asdict(_known[key]))
    return _known[key]


@torch.no_grad()
def examine(policy: Policy) -> Findings:
    """Compares all paths of a small policy in float32 with its model's own forward pass."""
    attention = policy.base.config._attn_implementation
    policy.base.set_attn_implementation("eager")  # the one implementation that leaves nothing out
    try:
        own = [_own_logits(policy.base, input_ids(call).tolist()) for call in CALLS]
        causal = _causal(policy.base, own)
    except Exception as error:  # its sizes do not fit together, each model fails in its own way
        raise BoughError(f"its small copy cannot be computed ({_said(error)})") from error
    policy.base.set_attn_implementation(attention)
    if not causal:
        return Findings(refusal=NOT_CAUSAL)
    replies = [torch.tensor(call.completion_ids) for call in CALLS]
    logprobs = [
        logits_LV[-len(reply) :].log_softmax(-1).gather(1, reply[:, None])[:, 0]
        for logits_LV, reply in zip(own, replies, strict=True)
    ]
    try:
        errors = {"plain rows": _error(policy.logprobs(CALLS, share=False), logprobs)}
    except Exception as error:  # the model without its head may want what the whole model gives it
        return Findings(refusal=f"cannot be computed without its head ({_said(error)}); choose another model")
    if errors["plain rows"] > TOLERANCE:
        return Findings(refusal=UNKNOWN.format(errors["plain rows"]), errors=errors)
    errors["rows side by side"] = _error_of_rows(policy, plain_rows(CALLS, BUDGET), logprobs)
    obstacle = policy.obstacle
    if not obstacle:
        try:
            errors["tree"] = _error_of_rows(policy, tree_rows(CALLS, BUDGET), logprobs)
        except Exception as error:  # a model that was not written for trees may fail anywhere
            obstacle = f"it fails on a tree ({_said(error)})"
        else:
            if errors["tree"] > TOLERANCE:
                obstacle = f"on a tree its log-probabilities would be off by up to {errors['tree']:.2g} nats"
    return Findings(None, obstacle, errors["rows side by side"] <= TOLERANCE, errors)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _causal(model: Any, own: list[Tensor]) -> bool:
    """Whether the logits stay the same when later tokens change, or are not there yet, as in sampling."""
    length_dependent = length_matters(model.config.get_text_config(decoder=True))
    for call, logits_LV in list(zip(CALLS, own, strict=True))[:2]:
        ids = input_ids(call).tolist()
        start = ids[:-TAIL]
        others = [[*start, *(token % 200 + 17 for token in ids[-TAIL:])], *([] if length_dependent else [start])]
        for other in others:
            if not _error([_own_logits(model, other)[: len(start)]], [logits_LV[: len(start)]]) <= TOLERANCE:
                return False
    return True


def _own_logits(model: Any, ids: list[int]) -> Tensor:
    logits_LV: Tensor = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return logits_LV.float()


def _error_of_rows(policy: Policy, rows: Sequence[TreeRow | PlainRow], own: list[Tensor]) -> float:
    found: dict[int, Tensor] = {}
    for row, answers in zip(rows, policy.answers(rows), strict=True):
        found |= dict(zip(row.calls, answers.logprobs, strict=True))
    return _error([found[c] for c in range(len(own))], own)


def _error(found: Sequence[Tensor], own: Sequence[Tensor]) -> float:
    """The largest difference; infinite where something is not a number."""
    largest = float((torch.cat(list(found)) - torch.cat(list(own))).abs().max())
    return largest if math.isfinite(largest) else math.inf


# What the probe found of a model, kept in the cache: the same config is probed once.
# The findings follow from the config and the code alone, so their key is a digest of the model's class and config, of
# Bough's own files that compute, and of the versions of transformers and torch. Weights play no part: a small copy
# has its own.

SOURCE = Path(__file__).parents[1]
# Whole packages: which of their files a policy reads changes more often than where they are.
COMPUTING = ("models", "trees", "policy")
# What a config says of files and precision changes nothing in how a model works.
OF_FILES = {"_name_or_path", "dtype", "torch_dtype", "transformers_version", "quantization_config", "architectures"}


@dataclass(frozen=True)
class Findings:
    """How a model may be computed.

    `refusal` says why it cannot be, `obstacle` why not as a tree. Without `together` every
    call gets a row of its own. `errors` are the largest differences in a log-probability,
    in nats, by the name of the path.
    """

    refusal: str | None = None
    obstacle: str | None = None
    together: bool = True
    errors: dict[str, float] = field(default_factory=dict)


_known: dict[str, Findings] = {}


def _key(model: Any, how: str) -> str:
    config = {name: value for name, value in model.config.to_dict().items() if name not in OF_FILES}
    parts = [type(model).__name__, json.dumps(config, sort_keys=True, default=str), how, _code()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


@cache
def _code() -> str:
    """A digest of what computes: our files and the versions of the libraries under them."""
    hasher = hashlib.sha256(f"{version('transformers')} {version('torch')}".encode())
    for file in sorted(file for package in COMPUTING for file in (SOURCE / package).glob("*.py")):
        hasher.update(file.read_bytes())
    return hasher.hexdigest()
