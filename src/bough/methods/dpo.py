"""DPO, direct preference optimisation, and related losses on pairs.

A pair has two sides with the same start; a side's log-probability is the sum over its calls' answered tokens.

| loss type         | log-probs | loss of a pair, h = (c − c_ref) − (r − r_ref)      | paper                  |
|-------------------|-----------|----------------------------------------------------|------------------------|
| sigmoid           | sums      | −log σ(βh)                                         | DPO, 2305.18290        |
| hinge             | sums      | max(0, 1 − βh)                                     | SLiC-HF, 2305.10425    |
| ipo               | means     | (h − 1/(2β))²                                      | IPO, 2310.12036        |
| length_normalised | means     | −log σ(βh)                                         | Tülu 3, 2411.15124     |
| simpo             | means     | −log σ(β(c − r) − γ), no reference                 | SimPO, 2405.14734      |
| kto               | sums      | of single replies, not of pairs: `kto.py`          | KTO, 2402.01306        |

c and r are the log-probabilities of the chosen and the rejected side, summed over a side's
tokens or averaged over them ("means"). ε is `label_smoothing`, the share of labels thought
to be wrong: −(1 − ε) log σ(βh) − ε log σ(−βh), conservative DPO. It is defined for the
logistic losses. (It is not robust DPO, 2403.00409, which subtracts the ε term and divides by
1 − 2ε.)

IPO's paper writes sums. Its authors told TRL to average (huggingface/trl#1265), so that
β does not depend on length; we do as they and TRL do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from bough.config.keywords import settings_of
from bough.config.training import OptimizerConfig, TrainingConfig, learning_rate_field
from bough.data.base import Sample
from bough.errors import RowError
from bough.ledger import Mean
from bough.methods.base import train_on_data, trained_model, training_command
from bough.training.method import CallSource, Data, Example, Examples, Loss, float_vectors, head_of, share
from bough.types import Call, Pair, Trajectory, Turn

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from bough.chat.template import CallBuilder
    from bough.commands.models import ModelLike, TrainedModel
    from bough.commands.objects import Source, StrPath
    from bough.training.run import Trained

PairLossType = Literal["sigmoid", "hinge", "ipo", "length_normalised", "simpo"]
LossType = Literal["sigmoid", "hinge", "ipo", "length_normalised", "simpo", "kto"]
AVERAGED = frozenset({"ipo", "length_normalised", "simpo"})
UNSMOOTHED = frozenset({"hinge", "ipo", "kto"})


class DPOOptimizerConfig(OptimizerConfig):
    """Optimizer and number of steps."""

    learning_rate: float = learning_rate_field(lora=5e-5, full=5e-6)
    num_epochs: float = Field(1, gt=0, description="number of passes over the data")


class DPOConfig(TrainingConfig):
    """Direct preference optimisation: given the same history, the chosen reply becomes more likely than the rejected
    one, relative to the model that the stage started from.
    """

    command = "dpo"

    optimizer: DPOOptimizerConfig = DPOOptimizerConfig()
    loss_type: LossType = Field(
        "sigmoid",
        description="the preference loss; simpo needs no reference, kto learns from single good or bad replies",
    )
    beta: float = Field(0.1, gt=0, description="strength of the pull towards the reference")
    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="assumed share of pairs that are the wrong way round")
    nll_alpha: float = Field(0.0, ge=0, description="weight of the chosen side's negative log-likelihood")
    gamma: float = Field(0.0, ge=0, description="SimPO's target margin")
    desirable_weight: float = Field(1.0, ge=0, description="KTO: weight of the good replies")
    undesirable_weight: float = Field(1.0, ge=0, description="KTO: weight of the bad replies")

    @model_validator(mode="after")
    def _settings_of_the_loss(self) -> Self:
        if self.label_smoothing and self.loss_type in UNSMOOTHED:
            raise ValueError(f"`label_smoothing` is not defined for the {self.loss_type} loss; leave it out")
        if self.gamma and self.loss_type != "simpo":
            raise ValueError(f"`gamma` is SimPO's margin; the {self.loss_type} loss has none")
        if self.loss_type == "kto" and self.nll_alpha:
            raise ValueError("`nll_alpha` is not defined for the kto loss; leave it out")
        if self.loss_type != "kto" and (self.desirable_weight, self.undesirable_weight) != (1.0, 1.0):
            raise ValueError(
                "`desirable_weight` and `undesirable_weight` are KTO's; "
                f"the {self.loss_type} loss has none (give `loss_type` kto)"
            )
        if not self.desirable_weight and not self.undesirable_weight:
            raise ValueError("`desirable_weight` and `undesirable_weight` are both 0; nothing would be learnt")
        return self


@dataclass(frozen=True)
class Preference(Example):
    """The calls of the chosen side, `num_chosen` of them, then those of the rejected side."""

    num_chosen: int = 0
    reason: str | None = None
    margin: float | None = None


class DPO:
    """A pair is one part: its loss needs both sides together."""

    temperature = 1.0

    def __init__(self, config: DPOConfig) -> None:
        self.config = config
        self.needs_reference = config.loss_type != "simpo"

    def examples(self, data: Data, builder: CallBuilder) -> Examples[Preference]:
        from bough.methods.examples import examples_from

        return examples_from(data, self.config, builder, _preference, Preference, score="margin")

    def parts(self, example: Preference) -> list[Preference]:
        return [example]

    def amount(self, example: Preference) -> float:  # noqa: ARG002  every pair counts the same
        return 1.0

    def loss(
        self,
        parts: Sequence[Preference],
        logprobs: Sequence[Sequence[Tensor]],
        reference: Sequence[Sequence[Tensor]] | None,
        denominator: float,
    ) -> Loss:
        config = self.config
        assert config.loss_type != "kto", "KTO is a method of its own"
        return dpo_loss(
            _sides(parts, logprobs),
            _sides(parts, reference) if reference is not None else None,
            _lengths(parts, logprobs[0][0].device),
            denominator=denominator,
            loss_type=config.loss_type,
            beta=config.beta,
            label_smoothing=config.label_smoothing,
            gamma=config.gamma,
            nll_alpha=config.nll_alpha,
            reasons=[part.reason for part in parts],
        )


def _preference(sample: Sample, source: CallSource) -> Preference:
    if not isinstance(sample, Pair):
        kind = type(sample).__name__.lower()
        hint = "; bough dpo --loss-type kto learns from single trajectories" if isinstance(sample, Trajectory) else ""
        raise RowError("wrong_kind", f"this is a {kind}; DPO learns from pairs (see bough pairs --help){hint}")
    sides = [(turns, source.calls(sample.start, turns, sample.tools)) for turns in (sample.chosen, sample.rejected)]
    chosen, rejected = (whole(turns, calls) for turns, calls in sides)
    return Preference(
        calls=chosen + rejected,
        cluster=head_of(sample.start),
        num_chosen=len(chosen),
        reason=sample.reason,
        margin=sample.margin,
    )


def whole(turns: list[Turn], calls: dict[int, Call]) -> list[Call]:
    """All calls of one side: half a side would be compared with a whole one."""
    if not calls or len(calls) < sum(turn.trained for turn in turns):
        raise RowError("side_incomplete", "a call of the pair cannot be trained, so its sides cannot be compared")
    return list(calls.values())


def _sides(parts: Sequence[Preference], values: Sequence[Sequence[Tensor]]) -> Sides:
    """Log-probabilities summed over each side, in one operation for all pairs: thousands of small ones take time."""
    import torch

    owner = [
        2 * p + (c >= part.num_chosen)
        for p, (part, of_part) in enumerate(zip(parts, values, strict=True))
        for c, tokens in enumerate(of_part)
        for _ in range(len(tokens))
    ]
    flat_N = torch.cat([tokens for of_part in values for tokens in of_part])
    sums = flat_N.new_zeros(2 * len(parts)).index_add(0, torch.tensor(owner, device=flat_N.device), flat_N)
    return Sides(sums[0::2], sums[1::2])


def _lengths(parts: Sequence[Preference], device: torch.device) -> Sides:
    import torch

    def count(calls: list[Call]) -> float:
        return float(sum(len(call.completion_ids) for call in calls))

    chosen = torch.tensor([count(part.calls[: part.num_chosen]) for part in parts], device=device)
    return Sides(chosen, torch.tensor([count(part.calls[part.num_chosen :]) for part in parts], device=device))


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
    loss_type: PairLossType = "sigmoid",
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
    `accuracy` (chosen reward > rejected reward; a tie does not count), `margin` (the rewards'
    difference), `chosen_reward`, `rejected_reward` (β times what the table calls c − c_ref
    and r − r_ref, without γ), `chosen_logprob`, `rejected_logprob` (sums).
    """
    assert (reference is None) == (loss_type == "simpo"), "every loss but SimPO's has a reference"
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


def _preference_loss(h_P: Tensor, loss_type: PairLossType, beta: float, label_smoothing: float, gamma: float) -> Tensor:
    from torch.nn.functional import logsigmoid

    if loss_type == "ipo":
        return (h_P - 1 / (2 * beta)).square()
    if loss_type == "hinge":
        return (1 - beta * h_P).relu()
    logits_P = beta * h_P - gamma
    return -(1 - label_smoothing) * logsigmoid(logits_P) - label_smoothing * logsigmoid(-logits_P)


def _per_reason(values: dict[str, Tensor], reasons: Sequence[str | None] | None) -> dict[str, Mean]:
    import torch

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


# The command: `bough dpo`, `bough.dpo`.


def train_dpo(config: DPOConfig, data: Data | None = None, held_out: Data | None = None) -> Trained:
    """Preference optimisation on pairs, or with KTO on single trajectories: of the settings' files, or given here."""
    return train_on_data(_method, config, data, held_out)


def _method(config: DPOConfig) -> Any:
    if config.loss_type != "kto":
        return DPO(config)
    from bough.methods.kto import KTO

    return KTO(config)


@settings_of(DPOConfig, "train_file")
def dpo(
    model: ModelLike,
    records: Source,
    *,
    eval_file: Source | None = None,
    output_dir: StrPath | None = None,
    **settings: Any,
) -> TrainedModel:
    """Train a model to prefer the chosen side of pairs to the rejected one.

    `records` are pairs, in memory or on file; the other arguments are those of `bough.sft`.
    """
    return trained_model(DPOConfig, train_dpo, model, records, eval_file, output_dir, settings)


COMMANDS = {
    "dpo": training_command(
        DPOConfig,
        train=train_dpo,
        essential=("loss_type", "beta", "label_smoothing", "nll_alpha", "gamma", "eval_steps"),
        reads="pairs",
        examples="  bough dpo --train-file pairs.jsonl --model runs/sft/final --beta 0.1 --output-dir runs/dpo",
    )
}
