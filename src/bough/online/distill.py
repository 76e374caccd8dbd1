"""On-policy distillation: the student samples, the teacher says how it would have continued, the student learns.

A teacher in this process reads the same token tree as the student, once, and gives whole
distributions. A server gives the log-probabilities of the sampled tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from bough.calls.template import load_template
from bough.errors import InputError
from bough.methods.base import Data, Examples
from bough.methods.distill import Distill, DistillConfig
from bough.online.learners import with_learners
from bough.online.shared_source import SharedSource
from bough.online.teacher_server import TeacherServer
from bough.policy.divergence import Teacher
from bough.policy.load import base_and_adapter
from bough.policy.policy import Policy
from bough.training.run import Run, Trained, opened
from bough.training.source import PlannedSource

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
