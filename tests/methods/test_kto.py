"""KTO's loss by hand and against TRL's; its units, mismatched calls and one z for a whole step."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from bough.chat.template import CallBuilder, load_template
from bough.cli import main
from bough.config.run_folder import MetricsFile
from bough.errors import InputError, RowError
from bough.methods.dpo import DPOConfig
from bough.methods.kto import KTO, Judged, Mismatched, _judged, _sums, divergence, kto_loss, mismatched, partners
from bough.policy.adapters import Lora
from bough.policy.policy import Policy
from bough.policy.reference import Reference
from bough.training.step import Step
from bough.types import Call, Group, Message, Pair, Task, Trajectory, Turn

FILE = Path("a.jsonl")
# The batch of benchmarks/kto.py, and what TRL 1.16's KTOTrainer made of it (β 0.2, weights 1.5 and 0.75).
ROWS = [
    ([10, 11, 12, 13], [50, 51, 2], True),
    ([20, 21, 22], [60, 61, 62, 63, 2], False),
    ([30, 31, 32, 33, 34], [70, 2], True),
    ([40, 41], [80, 81, 82, 2], False),
]
TRL = {
    "loss": 0.585127,
    "kl": 0.195656,
    "chosen_reward": -0.077681,
    "rejected_reward": 0.047142,
    "chosen_logprob": -17.762655,
    "rejected_logprob": -30.659143,
    "gradient": 1.828666,
}


def method(**settings: Any) -> KTO:
    return KTO(DPOConfig(train_file=FILE, loss_type="kto", **settings))


def judged(prompt: list[int], answer: list[int], good: bool, cluster: str = "") -> Judged:
    call = Call(prompt_ids=prompt, completion_ids=answer)
    return Judged([call], cluster=cluster, num_chosen=int(good), num_rejected=int(not good))


def batch() -> list[Judged]:
    return list(Mismatched([judged(*row, cluster=str(i)) for i, row in enumerate(ROWS)], None))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_the_loss_of_two_units_by_hand():
    policy = torch.tensor([-3.0, -4.0], requires_grad=True)
    loss, metrics = kto_loss(
        policy,
        torch.tensor([-5.0, -5.0]),
        torch.tensor([True, False]),
        kl=torch.tensor(0.5),
        denominator=2,
        beta=0.5,
        desirable_weight=2.0,
        undesirable_weight=3.0,
    )
    loss.backward()
    good, bad = sigmoid(0.5 * (2.0 - 0.5)), sigmoid(0.5 * (0.5 - 1.0))
    assert loss.item() == pytest.approx((2 * (1 - good) + 3 * (1 - bad)) / 2)
    assert policy.grad.tolist() == pytest.approx([-2 * 0.5 * good * (1 - good) / 2, 3 * 0.5 * bad * (1 - bad) / 2])
    assert metrics["chosen_reward"].value == pytest.approx(1.0) and metrics["rejected_reward"].value == 0.5
    assert metrics["accuracy"].value == 0.5  # the bad one gained more than z
    assert metrics["kl"].value == 0.5


def test_a_unit_is_right_if_it_is_beyond_z_on_its_own_side():
    gains, good = torch.tensor([0.75, 0.5, -0.25, -0.25]), torch.tensor([True, True, True, False])
    metrics = kto_loss(gains, torch.zeros(4), good, kl=torch.tensor(0.5), denominator=4).metrics
    assert metrics["accuracy"].value == 0.5  # the first and the last; at z is not beyond it


def test_z_is_the_mean_gain_of_mismatched_units_at_least_0_and_has_no_gradient():
    other = torch.tensor([-2.0, -4.0], requires_grad=True)
    assert divergence(mismatched(other, torch.tensor([-3.0, -4.0]))).item() == 0.5
    assert not divergence(mismatched(other, torch.tensor([-3.0, -4.0]))).requires_grad
    assert divergence(mismatched(other, torch.tensor([-1.0, -4.0]))).item() == 0.0
    assert divergence(mismatched(other[:1], torch.tensor([-3.0]))).item() == 1.0
    assert divergence(mismatched(torch.zeros(0), torch.zeros(0))).item() == 0.0


@pytest.mark.parametrize("budget", [4096, 12])
def test_loss_and_gradient_are_trls_however_the_units_fall_into_rows(budget: int):
    reference, policy = Policy.load("tiny"), Policy.load("tiny")
    generator = torch.Generator().manual_seed(1)
    for _, weight in sorted(policy.model.named_parameters()):
        if weight.dim() > 1:
            weight.data += (torch.rand(weight.shape, generator=generator) - 0.5) * 0.02
    kto = method(beta=0.2, desirable_weight=1.5, undesirable_weight=0.75)
    parts = [part for example in batch() for part in kto.parts(example)]
    calls = [call for part in parts for call in part.calls]
    known = Reference(policy)
    with torch.no_grad():
        known._known = {id(call): one for call, one in zip(calls, reference.logprobs(calls, budget=4096), strict=True)}
    step = Step(policy, kto, parts, budget=budget)
    assert (len(step.rows) > 1) == (budget == 12)
    found = step.run(4.0, known, backward=True)
    norm = torch.stack([p.grad.norm() for p in policy.parameters() if p.grad is not None]).norm()
    ours = {name: found.metrics[name].value for name in TRL if name in found.metrics}
    assert ours | {"loss": found.loss, "gradient": float(norm)} == pytest.approx(TRL, rel=1e-5, abs=1e-5)


def test_a_mismatched_call_is_a_prompt_with_the_answer_of_the_record_before():
    examples = batch()
    answers = [example.calls[1].completion_ids for example in examples]
    assert answers == [ROWS[i - 1][1] for i in range(4)]
    assert [example.calls[1].prompt_ids for example in examples] == [row[0] for row in ROWS]


@pytest.mark.parametrize("budget", [4096, 8])
def test_metrics_of_tokens_are_those_of_own_calls(budget: int):
    kto, policy = method(), Policy.load("tiny", lora=Lora(r=2))
    parts = [part for example in batch() for part in kto.parts(example)]
    metrics = Step(policy, kto, parts, budget=budget).run(4.0, Reference(policy), backward=False).metrics
    replies = [Call(prompt_ids=prompt, completion_ids=answer) for prompt, answer, _ in ROWS]
    answers = policy.answers(policy.rows(replies))
    for name, values in (("token_entropy", "entropies"), ("token_accuracy", "greedy")):
        alone = torch.cat([value for one in answers for value in getattr(one, values)]).float()
        assert metrics[name].count == 14 and metrics[name].value == pytest.approx(alone.mean().item(), rel=1e-4)


def test_attempts_at_one_task_are_not_each_others_partners():
    assert partners(["a", "a", "b", "b", "b", "c"]) == [5, 5, 1, 1, 1, 4]
    assert partners(["a", "b", "a"]) == [1, 0, 1]
    assert partners(["a", "a", "a"]) == [2, 0, 1]  # there is no other prompt


def test_a_mismatched_answer_is_cut_to_the_context():
    examples = Mismatched([judged([1, 2, 3], [4], True, "a"), judged([5], [6, 7, 8, 9], False, "b")], 5)
    assert examples[0].calls[1].completion_ids == [6, 7]
    assert [one.calls[1].completion_ids for one in examples[0:2]] == [[6, 7], [4]]
    full = Mismatched([judged([1, 2, 3, 4, 5], [6], True, "a"), judged([5], [7, 8, 9], False, "b")], 5)
    assert full[0].calls[1].completion_ids == [7]  # one token at least: a call without an answer has no value


def test_a_pair_is_two_units():
    pair = Judged([Call(prompt_ids=[1], completion_ids=[i]) for i in (2, 3, 4)], num_chosen=1, num_rejected=2)
    other = judged([7], [8], True, "b")
    kto = method()
    example = Mismatched([pair, other], None)[0]
    good, bad = kto.parts(example)
    assert [call.completion_ids for call in good.calls] == [[2], [8]]
    assert [call.completion_ids for call in bad.calls] == [[3], [4], [8], [8]]
    assert (kto.amount(example), kto.amount(other), kto.amount(judged([7], [8], False))) == (2.0, 1.0, 1.0)
    assert all(part.calls[0] in example.calls for part in (good, bad))


def test_a_process_without_units_has_a_loss_of_0():
    loss = method().loss([], [], None, 4.0)
    assert loss.value.item() == 0.0 and math.isnan(loss.metrics["accuracy"].value)
    assert len(_sums([], [], own=False)) == 0  # it adds no unit to the mean over all processes


def test_two_records_are_enough_and_mismatched_calls_are_as_long_as_the_others_may_be():
    def said(question: str, answer: str, success: bool) -> Trajectory:
        turn, start = Turn(reply=Message(role="assistant", content=answer)), Message(role="user", content=question)
        return Trajectory(id=question, task=Task(id="t"), start=[start], turns=[turn], success=success)

    records = [said("one two three four five six", "a", True), said("one", "one two three four five six", False)]
    kto = method()
    whole = kto.examples(records, CallBuilder(load_template("tiny"))).examples
    lengths = [len(call.prompt_ids) + len(call.completion_ids) for one in whole for call in one.calls]
    longest = max(lengths[0], lengths[2])
    assert lengths[1] > longest  # the long question with the long answer
    cut = kto.examples(records, CallBuilder(load_template("tiny"), max_length=longest, context=1000)).examples
    lengths[1] = longest
    assert [len(call.prompt_ids) + len(call.completion_ids) for one in cut for call in one.calls] == lengths
    assert kto.temperature == 1.0  # replies of others were sampled at none that is known


class NoCalls:
    def calls(self, start: Any, turns: list[Turn], tools: Any) -> dict[int, Call]:
        return {i: Call(prompt_ids=[1], completion_ids=[2]) for i, _ in enumerate(turns)}


def trajectory(success: bool | None) -> Trajectory:
    turn = Turn(reply=Message(role="assistant", content="a"))
    return Trajectory(
        id="a", task=Task(id="t"), start=[Message(role="user", content="q")], turns=[turn], success=success
    )


def test_success_says_which_side_a_trajectory_is_on():
    source: Any = NoCalls()
    good, bad = _judged(trajectory(True), source), _judged(trajectory(False), source)
    assert (good.num_chosen, good.num_rejected, bad.num_chosen, bad.num_rejected) == (1, 0, 0, 1)
    with pytest.raises(RowError, match=r"needs a label or a success, and the row has neither$") as error:
        _judged(trajectory(None), source)
    assert error.value.reason == "no_label"
    with pytest.raises(RowError, match="KTO learns from trajectories"):
        _judged(Group(task=Task(id="t"), attempts=[trajectory(True)]), source)
    replies = [Turn(reply=Message(role="assistant", content=text)) for text in "ab"]
    pair = Pair(task=Task(id="t"), start=good_start(), chosen=replies[:1], rejected=replies[1:])
    assert _judged(pair, source).num_rejected == 1


def good_start() -> list[Message]:
    return [Message(role="user", content="q")]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"loss_type": "kto", "label_smoothing": 0.1}, "label_smoothing is not defined for the kto loss"),
        ({"loss_type": "kto", "nll_alpha": 1.0}, "nll_alpha is not defined for the kto loss"),
        ({"loss_type": "kto", "desirable_weight": 0, "undesirable_weight": 0}, "both 0"),
        ({"desirable_weight": 1.5}, "are KTO's; the sigmoid loss has none"),
    ],
)
def test_settings_that_do_not_belong_together_are_refused(settings: dict[str, Any], said: str):
    with pytest.raises(InputError, match=said):
        DPOConfig(train_file=FILE, **settings)


def test_thumbs_are_learnt_from_a_csv_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    data = tmp_path / "thumbs.csv"
    data.write_text("prompt,completion,label\nHi,Hello there,1\nWhat is 2 + 2?,Five,0\nBye,See you,1\n")
    arguments = ["--train-file", str(data), "--model", "tiny", "--output-dir", str(tmp_path / "run")]
    more = ["--loss-type", "kto", "--learning-rate", "1e-2", "--max-steps", "8", "--batch-size", "3"]
    assert main(["dpo", *arguments, *more, "--no-use-lora"]) == 0, capsys.readouterr().err
    lines = MetricsFile.read(tmp_path / "run" / "metrics.jsonl")
    first, last = lines[0], lines[-1]
    assert first["preference_loss"] == pytest.approx(0.5)
    assert last["chosen_reward"] > 0 > last["rejected_reward"]
    assert last["preference_loss"] < first["preference_loss"]
