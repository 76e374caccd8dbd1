"""Preference losses on pairs: DPO and its kin.

| loss type         | log-probs | loss of a pair, h = (c − c_ref) − (r − r_ref)      | paper                  |
|-------------------|-----------|----------------------------------------------------|------------------------|
| sigmoid           | sums      | −log σ(βh)                                         | DPO, 2305.18290        |
| cdpo              | sums      | −(1 − ε) log σ(βh) − ε log σ(−βh)                  | ericmitchell.ai/cdpo   |
| hinge             | sums      | max(0, 1 − βh)                                     | SLiC-HF, 2305.10425    |
| ipo               | means     | (h − 1/(2β))²                                      | IPO, 2310.12036        |
| length_normalised | means     | −log σ(βh)                                         | Tülu 3, 2411.15124     |
| simpo             | means     | −log σ(β(c − r) − γ), no reference                 | SimPO, 2405.14734      |

c and r are the log-probabilities of the chosen and the rejected side, summed over a side's
tokens or averaged over them ("means"). ε is `label_smoothing`, the share of labels thought
to be wrong.

- cDPO *is* the sigmoid loss with label smoothing: "cdpo" and "sigmoid" with the same ε > 0
  are one function. "cdpo" only insists that ε be given. (It is not robust DPO, 2403.00409,
  which subtracts the ε term and divides by 1 − 2ε.)
- Smoothing is defined for the logistic losses. Asked of hinge or IPO it is an error, not
  ignored in silence.
- IPO's paper writes sums. Its authors told TRL to average (huggingface/trl#1265), so that
  β does not depend on length; we do as they and TRL do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from bough.errors import did_you_mean
from bough.metrics import Mean
from bough.objectives.base import Loss, float_vectors, share

LossType = Literal["sigmoid", "cdpo", "hinge", "ipo", "length_normalised", "simpo"]
AVERAGED = frozenset({"ipo", "length_normalised", "simpo"})
UNSMOOTHED = frozenset({"hinge", "ipo"})


class Sides(NamedTuple):
    """One number per pair for each side; shapes [P]."""

    chosen: Tensor
    rejected: Tensor


def dpo_loss(
    policy: Sides,
    reference: Sides | None,
    num_tokens: Sides,
    *,
    denominator: float,
    loss_type: LossType = "sigmoid",
    beta: float = 0.1,
    label_smoothing: float = 0.0,
    gamma: float = 0.0,
    nll_alpha: float = 0.0,
    reasons: Sequence[str | None] | None = None,
) -> Loss:
    """Σ over the micro-batch's P pairs of (preference loss + `nll_alpha` · NLL) / `denominator`.

    `policy` and `reference` are log-probabilities *summed* over the trained tokens of each
    side, `num_tokens` counts those tokens. `reference` is None for "simpo" and only there.
    `denominator` is the number of pairs of the whole optimizer step, over all micro-batches
    and ranks.

    NLL is −c / |c|, the chosen side's mean per token, averaged over pairs (iterative RPO,
    2404.19733), whatever the loss type. `gamma` is SimPO's target margin (the paper: 0.3 to
    1.6, with β 2 to 2.5).

    Metrics, each over pairs and again per reason as `name/reason`: `preference_loss`, `nll`,
    `accuracy` (chosen reward > rejected reward; a tie is no win), `margin` (the rewards'
    difference), `chosen_reward`, `rejected_reward` (β times what the table calls c − c_ref
    and r − r_ref, without γ), `chosen_logprob`, `rejected_logprob` (sums).
    """
    _check_settings(loss_type, beta, label_smoothing, gamma, has_reference=reference is not None)
    chosen_P, rejected_P, chosen_len_P, rejected_len_P = float_vectors(*policy, *num_tokens)
    # An empty side has the log-probability 0; divided by 1 it stays 0.
    chosen_len_P, rejected_len_P = chosen_len_P.clamp(min=1), rejected_len_P.clamp(min=1)

    chosen_score_P, rejected_score_P = chosen_P, rejected_P
    if reference is not None:
        _, reference_chosen_P, reference_rejected_P = float_vectors(chosen_P, *reference)
        chosen_score_P = chosen_P - reference_chosen_P.detach()
        rejected_score_P = rejected_P - reference_rejected_P.detach()
    if loss_type in AVERAGED:
        chosen_score_P, rejected_score_P = chosen_score_P / chosen_len_P, rejected_score_P / rejected_len_P
    h_P = chosen_score_P - rejected_score_P

    preference_P = _preference_loss(h_P, loss_type, beta, label_smoothing, gamma)
    nll_P = -chosen_P / chosen_len_P
    values = {
        "preference_loss": preference_P,
        "nll": nll_P,
        "accuracy": (h_P > 0).float(),
        "margin": beta * h_P,
        "chosen_reward": beta * chosen_score_P,
        "rejected_reward": beta * rejected_score_P,
        "chosen_logprob": chosen_P,
        "rejected_logprob": rejected_P,
    }
    return Loss(share((preference_P + nll_alpha * nll_P).sum(), denominator), _per_reason(values, reasons))


def _preference_loss(h_P: Tensor, loss_type: LossType, beta: float, label_smoothing: float, gamma: float) -> Tensor:
    if loss_type == "ipo":
        return (h_P - 1 / (2 * beta)).square()
    if loss_type == "hinge":
        return (1 - beta * h_P).relu()
    logits_P = beta * h_P - gamma
    return -(1 - label_smoothing) * logsigmoid(logits_P) - label_smoothing * logsigmoid(-logits_P)


def _per_reason(values: dict[str, Tensor], reasons: Sequence[str | None] | None) -> dict[str, Mean]:
    like_P = next(iter(values.values()))
    masks = {"": torch.ones_like(like_P, dtype=torch.bool)}
    if reasons is not None:
        assert len(reasons) == len(like_P), (len(reasons), len(like_P))
        for reason in sorted({reason for reason in reasons if reason is not None}):
            masks[f"/{reason}"] = torch.tensor([r == reason for r in reasons], device=like_P.device)
    return {
        name + suffix: Mean.over(value_P, mask_P)
        for suffix, mask_P in masks.items()
        for name, value_P in values.items()
    }


def _check_settings(loss_type: str, beta: float, label_smoothing: float, gamma: float, *, has_reference: bool) -> None:
    allowed = get_args(LossType)
    if loss_type not in allowed:
        raise ValueError(f"{loss_type!r} is not a preference loss{did_you_mean(loss_type, allowed)}")
    if beta <= 0:
        raise ValueError(f"beta is {beta}; it must be positive")
    if not 0 <= label_smoothing < 0.5:
        raise ValueError(f"label_smoothing is {label_smoothing}; a share of wrong labels lies in [0, 0.5)")
    if label_smoothing and loss_type in UNSMOOTHED:
        raise ValueError(f"label_smoothing is not defined for the {loss_type} loss; set it to 0")
    if loss_type == "cdpo" and not label_smoothing:
        raise ValueError("cdpo is DPO with label smoothing; set label_smoothing above 0, or use sigmoid")
    if gamma and loss_type != "simpo":
        raise ValueError(f"gamma is SimPO's margin; the {loss_type} loss has none")
    if has_reference == (loss_type == "simpo"):
        raise ValueError("simpo has no reference" if has_reference else f"the {loss_type} loss needs a reference")
