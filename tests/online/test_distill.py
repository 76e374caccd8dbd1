"""Distillation in an environment: from a teacher in this process, and from a server."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bough.chat.template import load_template
from bough.config.run_folder import MetricsFile
from bough.engines.base import EngineError
from bough.errors import InputError
from bough.methods.distill import DistillConfig, TeacherServer, train_distill
from bough.policy.load import save_policy
from bough.policy.policy import Policy
from bough.types import Call
from tests.engines.stand_in import Json, Reply, StandIn, serving

LETTERS = "tests.online.letters:Letters"


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_teacher(tmp_path_factory.mktemp("teacher"))


def save_teacher(folder: Path) -> Path:
    """The tiny model, with another opinion."""
    policy = Policy.load("tiny")
    torch.manual_seed(5)
    with torch.no_grad():
        for weights in policy.parameters():
            weights += 0.3 * weights.std() * torch.randn_like(weights) if weights.dim() > 1 else 0
    save_policy(policy, load_template("tiny").tokenizer, folder)
    return folder


def trained(folder: Path, teacher: str | Path, **more: Any) -> list[dict[str, Any]]:
    values: dict[str, Any] = {
        "model": "tiny", "teacher": str(teacher), "environment": LETTERS, "output_dir": folder, "max_steps": 3,
        "batch_size": 4, "max_new_tokens": 8, "learning_rate": 1e-2, "lr_scheduler": "constant", "warmup_ratio": 0.0,
        "watch": False,
    }  # fmt: skip
    train_distill(DistillConfig(**values | more))
    return list(MetricsFile.read(folder / "metrics.jsonl"))


def test_the_student_comes_nearer_to_its_teacher(tmp_path: Path, teacher: Path):
    lines = trained(tmp_path, teacher, max_steps=5)
    found = [line["divergence"] for line in lines]
    assert found[-1] < 0.8 * found[0] and found[0] > 0.05, found
    assert all(line["loss"] == pytest.approx(line["divergence"], rel=1e-5) for line in lines)
    assert lines[0]["reward"] > 0 and all(line["logprob_gap_max"] < 1e-4 for line in lines)


def test_another_tokenizer_is_refused_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    other = load_template("tiny").tokenizer.__class__.from_pretrained(load_template("tiny").tokenizer.name_or_path)
    other.add_tokens(["zebra"])
    real = load_template("tiny")

    def load(name: str, *more: Any) -> Any:
        return type("Template", (), {"tokenizer": other})() if name == "far" else real

    monkeypatch.setattr("bough.chat.template.load_template", load)
    with pytest.raises(
        InputError, match=r"far has another tokenizer than tiny: the token 'zebra' is \d+ there and missi"
    ):
        trained(tmp_path, "far")


class Serves:
    """Answers as vLLM does: the prompt's tokens with their log-probabilities, and one token more."""

    def __init__(self, teacher: Path) -> None:
        self.policy, self.tokenizer = Policy.load(str(teacher)).eval(), load_template("tiny").tokenizer

    def __call__(self, body: Json) -> Reply:
        ids = body["prompt"]
        assert body["echo"] and body["max_tokens"] == 1
        with torch.no_grad():
            [values] = self.policy.logprobs([Call(prompt_ids=ids[:1], completion_ids=ids[1:])])
        tokens = [self.tokenizer.decode([id]) for id in ids] + ["!"]
        logprobs = {"tokens": tokens, "token_logprobs": [None, *values.tolist(), -1.0]}
        return Reply({"choices": [{"text": "", "logprobs": logprobs}]})


@pytest.fixture
def server(teacher: Path) -> Iterator[StandIn]:
    with serving(Serves(teacher)) as found:
        yield found


def test_a_server_scores_the_sampled_tokens(tmp_path: Path, server: StandIn, teacher: Path):
    lines = trained(tmp_path / "far", server.url, max_steps=1)
    records = (json.loads(line) for line in (tmp_path / "far/rollouts/00000.jsonl").read_text().splitlines())
    calls = [
        Call(prompt_ids=call["prompt_ids"], completion_ids=call["completion_ids"], logprobs=call["logprobs"])
        for record in records for attempt in record["attempts"] for turn in attempt["turns"] if (call := turn["call"])
    ]  # fmt: skip
    with torch.no_grad():
        theirs = torch.cat(Policy.load(str(teacher)).eval().logprobs(calls))
    own = torch.tensor([value for call in calls for value in call.logprobs or ()])
    assert lines[0]["divergence"] == pytest.approx((own - theirs).mean().item(), abs=1e-4)
    assert len(server.asked) == 1 + len(calls) and lines[0]["grad_norm"] > 0
    assert {body["model"] for body in server.asked} == {"tiny"}, "the only model that the server has"
    on_file = {"environment": None, "train_file": tmp_path / "far/rollouts/00000.jsonl"}
    (again,) = trained(tmp_path / "file", server.url, max_steps=1, **on_file)
    assert again["divergence"] == pytest.approx(lines[0]["divergence"], abs=1e-4)


@pytest.fixture
def scorer(server: StandIn) -> Iterator[TeacherServer]:
    config = DistillConfig(teacher=server.url, train_file=Path("a"), key_variable="NO_KEY")
    found = TeacherServer(config, torch.device("cpu"))
    yield found
    found.close()


def tell(server: StandIn, field: str, change: Any) -> None:
    """The server gives these values in place of its own."""
    answer = server.answer

    def reply(body: Json) -> Reply:
        found = answer(body).body
        logprobs = found["choices"][0]["logprobs"]
        logprobs[field] = change(logprobs[field])
        return Reply(found)

    server.answer = reply


@pytest.mark.parametrize(
    ("field", "change", "said"),
    [
        ("tokens", lambda tokens: [token.upper() for token in tokens], "has another tokenizer .it reads"),
        ("tokens", lambda tokens: [7] * len(tokens), "has another tokenizer .it reads '7'"),
        ("tokens", lambda _: [], "without log-probabilities of the prompt"),
        ("token_logprobs", lambda values: [None] * len(values), "without log-probabilities of the prompt"),
        ("token_logprobs", lambda values: values[:3], "without log-probabilities of the prompt"),
        ("token_logprobs", lambda _: None, "without log-probabilities of the prompt"),
        ("token_logprobs", lambda values: [None, 5.0, *values[2:]], "gave the log-probability 5.0"),
    ],
)
def test_a_server_that_cannot_teach_is_refused(
    server: StandIn, scorer: TeacherServer, field: str, change: Any, said: str
):
    tokenizer = load_template("tiny").tokenizer
    scorer.check(tokenizer)
    server.models = Reply({}, 404)  # it is not asked where the model's name is known
    tell(server, field, change)
    with pytest.raises(InputError, match=f"cannot be the teacher: it .*{said}"):
        scorer.check(tokenizer)


@pytest.mark.parametrize("lie", [5.0, math.nan, -math.inf, "low", True, None])
def test_a_log_probability_that_is_none_is_not_trained_on(server: StandIn, scorer: TeacherServer, lie: Any):
    call, row = Call(prompt_ids=[5, 6], completion_ids=[7, 8]), SimpleNamespace(calls=[0])
    assert scorer.of([row], [call])[0][0].shape == (2,)  # type: ignore[list-item]  # only its calls are read
    tell(server, "token_logprobs", lambda values: [*values[:3], lie, *values[4:]])
    with pytest.raises(EngineError, match=f"gave the log-probability {lie!r}"):
        scorer.of([row], [call])  # type: ignore[list-item]
    with pytest.raises(EngineError, match="cannot score a call without a prompt"):
        scorer.of([row], [Call(prompt_ids=[], completion_ids=[7, 8])])  # type: ignore[list-item]
