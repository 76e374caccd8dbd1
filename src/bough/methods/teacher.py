"""A teacher on a server: the log-probabilities it gives to the student's tokens.

The server gets each call's tokens as a prompt and echoes them with their log-probabilities, as
vLLM's `/v1/completions` does. It sees ids, so its tokenizer must be the student's.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from bough.chat.template import load_template
from bough.engines.base import EngineError
from bough.engines.http import RequestRefusedError, Server
from bough.errors import InputError, short_repr
from bough.event_loop import BackgroundLoop
from bough.methods.distill import Distill, DistillConfig
from bough.online.source import SharedSource, with_learners
from bough.policy.head import Teacher
from bough.policy.load import base_and_adapter
from bough.policy.policy import Policy
from bough.training.method import Data, Examples
from bough.training.plan import PlannedSource
from bough.training.run import Run, Trained, opened
from bough.trees.pack import PlainRow, TreeRow
from bough.types import Call

PROBE = "THOUGHT: 12 apples, naïve 東京.\nACTION: go to shelf 1"
# What rounding may add to the log-probability of a certain token.
TOLERANCE = 1e-3


class TeacherServer:
    """Stands in for a reference: its log-probabilities are the teacher's."""

    def __init__(self, url: str, model: str, tokenizer: Any, key_variable: str, device: torch.device) -> None:
        self.model, self.tokenizer, self.device = model, tokenizer, device
        self.server = Server(url.rstrip("/"), key_variable=key_variable)
        self._loop = BackgroundLoop()

    def check(self) -> None:
        """InputError unless the server can score the student's tokens."""
        self._loop.run(self._check())

    def of(self, rows: Sequence[TreeRow | PlainRow], calls: Sequence[Call]) -> list[list[Tensor]]:
        """For each row one tensor for each of its calls, in the row's order."""
        return self._loop.run(self._of(rows, calls))

    def close(self) -> None:
        self._loop.run(self.server.close())
        self._loop.close()

    async def _of(self, rows: Sequence[TreeRow | PlainRow], calls: Sequence[Call]) -> list[list[Tensor]]:
        numbers = [c for row in rows for c in row.calls]
        found = dict(zip(numbers, await asyncio.gather(*(self._score(calls[c]) for c in numbers)), strict=True))
        return [[found[c] for c in row.calls] for row in rows]

    async def _score(self, call: Call) -> Tensor:
        _, values = await self._echo([*call.prompt_ids, *call.completion_ids])
        mine = values[len(call.prompt_ids) : len(call.prompt_ids) + len(call.completion_ids)]
        if len(mine) < len(call.completion_ids) or any(value is None for value in mine):
            raise EngineError(f"{self.server.url} gave {len(mine)} log-probabilities for {len(call.completion_ids)}")
        return torch.tensor(mine, device=self.device)

    async def _echo(self, ids: list[int]) -> tuple[list[str], list[float | None]]:
        """The texts of the tokens, and their log-probabilities; the first has none."""
        body = {"model": self.model, "prompt": ids, "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}
        answer = await self.server.post("/completions", body)
        try:
            logprobs = answer["choices"][0]["logprobs"]
            texts, values = list(logprobs["tokens"]), list(logprobs["token_logprobs"])
        except (KeyError, IndexError, TypeError):
            raise EngineError(f"{self.server.url} answered without log-probabilities of the prompt") from None
        if invalid := [text for text in texts if not isinstance(text, str)]:
            raise EngineError(f"{self.server.url} gave {short_repr(invalid[0])} as the text of a token")
        if invalid := [value for value in values[: len(ids)] if value is not None and not _is_logprob(value)]:
            raise EngineError(f"{self.server.url} gave {short_repr(invalid[0])} as the log-probability of a token")
        return texts, values

    async def _check(self) -> None:
        if not self.model:
            try:
                listed = (await self.server.get("/models"))["data"]
                names = [str(one["id"]) for one in listed]
            except (KeyError, TypeError):
                names = []
            if len(names) != 1:
                raise InputError(f"the server at {self.server.url} has {len(names)} models; choose with --server-model")
            self.model = names[0]
        ids = self.tokenizer(PROBE, add_special_tokens=False)["input_ids"]
        refusal = f"the server at {self.server.url} cannot be the teacher: "
        try:
            texts, values = await self._echo(ids)
        except (RequestRefusedError, EngineError) as error:
            raise InputError(f"{refusal}it must echo a prompt of token ids with log-probabilities ({error})") from None
        if len(values) < len(ids) or any(value is None for value in values[1 : len(ids)]):
            raise InputError(f"{refusal}it gives no log-probabilities of the prompt")
        ascii_only = [(self.tokenizer.decode([id]), text) for id, text in zip(ids, texts, strict=False)]
        if different := [pair for pair in ascii_only if pair[0].isascii() and pair[0].strip() != pair[1].strip()]:
            raise InputError(
                f"{refusal}it has another tokenizer (it reads {different[0][1]!r} where the student wrote "
                f"{different[0][0]!r}). bough corrections --by {self.server.url} learns from its replies instead"
            )


def _is_logprob(value: Any) -> bool:
    return type(value) in (int, float) and -math.inf < value <= TOLERANCE


# On-policy distillation: the student samples, the teacher says how it would have continued, the student learns.
# A teacher in this process reads the same token tree as the student, once, and gives whole distributions. A server
# gives the log-probabilities of the sampled tokens.

log = logging.getLogger(__name__)


def distill(config: DistillConfig, data: Data | None = None, held_out: Data | None = None) -> Trained:
    """Trains the student in an environment, on batches that it plays itself, or on recorded episodes."""
    if config.environment.name is None:
        return _train_on_data(config, data, held_out)
    return with_learners(config, distill_online)


def distill_online(config: DistillConfig) -> Trained:
    """In an environment, in this process: one of several learners or the only one."""
    with opened(config) as run:
        run.begin()
        config = run.config
        policy = run.load_policy(reference=True, temperature=config.sampling.temperature)
        method = Distill(config)
        with (
            taught(policy, run) as server,
            SharedSource(run, method, policy) as source,
            run.trainer(policy, method, source, reference=server) as trainer,
        ):
            counters = trainer.train(run.resumed)
            ledgers = source.ledgers(counters.step)
        return run.finish(counters, ledgers)


def _train_on_data(config: DistillConfig, data: Data | None, held_out: Data | None) -> Trained:
    """Episodes that were recorded before: the student's own, as far as it has not changed since."""
    data = config.data.train_file if data is None else data
    held_out = config.data.eval_file if held_out is None else held_out
    assert data is not None  # the settings require a file or an environment
    method = Distill(config)
    with opened(config) as run:
        training = method.examples(data, run.builder)
        evaluation = method.examples(held_out, run.builder) if held_out is not None else Examples[Any]()
        source, measured = PlannedSource(training.examples, run.config), list(evaluation.examples)
        run.begin(training.digest, evaluation.digest, source)
        policy = run.load_policy(reference=False, temperature=method.temperature)
        ledgers = [training.rows, training.calls]
        with (
            taught(policy, run) as server,
            run.trainer(policy, method, source, held_out=measured, ledgers=ledgers, reference=server) as trainer,
        ):
            counters = trainer.train(run.resumed, same_held_out=run.same_held_out)
        return run.finish(counters, [ledger.to_json() for ledger in ledgers])


@contextmanager
def taught(policy: Policy, run: Run[DistillConfig]) -> Iterator[TeacherServer | None]:
    """Gives the policy its teacher, or the server that takes the place of one."""
    config, tokenizer = run.config, run.template.tokenizer
    if config.teacher_is_server:
        log.warning(
            "The teacher is a server: it gives log-probabilities of the sampled tokens only, from which the reverse KL "
            "is estimated. A teacher in this process gives whole distributions, and less noise."
        )
        server = TeacherServer(config.teacher, config.server_model, tokenizer, config.key_variable, policy.device)
        try:
            server.check()
            yield server
        finally:
            server.close()
        return
    check_tokenizer(config.teacher, config.model, tokenizer)
    teacher = Policy.load(config.teacher, attention=config.machine.attention, device=policy.device)
    teacher.eval().requires_grad_(False)
    if teacher.obstacle is not None:
        policy.row_reader.obstacle = policy.obstacle or f"its teacher cannot: {teacher.obstacle}"
    policy.teacher = Teacher(teacher, config.beta)
    try:
        yield None
    finally:
        policy.teacher = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def check_tokenizer(teacher: str, student: str, tokenizer: Any) -> None:
    """InputError unless both models mean the same text by every token id."""
    other = load_template(base_and_adapter(teacher)[0]).tokenizer
    ours, theirs = tokenizer.get_vocab(), other.get_vocab()
    if ours == theirs:
        return
    token = min((t for t in ours.keys() | theirs.keys() if ours.get(t) != theirs.get(t)), key=lambda t: (len(t), t))
    where = [str(vocabulary.get(token, "missing")) for vocabulary in (theirs, ours)]
    raise InputError(
        f"the teacher {teacher} has another tokenizer than {student}: the token {token!r} is {where[0]} there and "
        f"{where[1]} here, so it cannot score the student's tokens. bough corrections --by {teacher} learns from its "
        "replies instead"
    )
