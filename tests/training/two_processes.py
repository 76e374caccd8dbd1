"""A program: runs Bough in two processes, as `torchrun` does, once for every line that it is sent.

    Warm("tests.training.two_processes")

A line is JSON: the command line's `arguments`, a free `port`, the `log` that both processes
write to, the number of steps after which they wait to be killed, or null, whether to `wait` for
both where one fails, which one is `interrupted` in which step, which one's loss is `spoiled`
from which step on, and which one is out of memory once, in its first pass with (`true`) or
without a gradient, or null. It answers with their ids, then with an exit code. The processes are
forked from a warm one, so that a run costs what it computes.
"""

import json
import math
import os
import signal
import sys
import time
from typing import Any

import torch

from bough.cli import main
from bough.errors import BoughError
from bough.policy.policy import Policy
from bough.training.loop import Trainer
from bough.training.step import BatchGradients

PATIENCE_S = 240  # processes that wait for one another in vain wait for ever


def start(
    rank: int,
    arguments: list[str],
    port: int,
    log: str,
    wait_after: int | None,
    interrupted: list[int] | None,
    spoiled: list[int] | None,
    short: list[int] | None,
) -> int:
    child = os.fork()
    if child:
        return child
    if interrupted and interrupted[0] == rank:
        _interrupt_in(interrupted[1])
    if spoiled:
        _spoil_from(spoiled[1], own=spoiled[0] == rank)
    if short and short[0] == rank:
        _run_short(with_gradient=bool(short[1]))
    if wait_after is not None:
        _wait_after(wait_after)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    code = main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _wait_after(steps: int) -> None:
    """The next step never begins, so that a kill comes after this one however busy the machine is."""
    take_step = Trainer._step

    def take_or_wait(trainer: Trainer, batch: Any) -> Any:
        while trainer.counters.step >= steps:
            signal.pause()
        return take_step(trainer, batch)

    Trainer._step = take_or_wait  # type: ignore[method-assign]


def _interrupt_in(step: int) -> None:
    """A SIGINT arrives while this step is computed."""
    take_step = Trainer._step

    def take(trainer: Trainer, batch: Any) -> Any:
        if trainer.counters.step + 1 == step:
            os.kill(os.getpid(), signal.SIGINT)
        return take_step(trainer, batch)

    Trainer._step = take  # type: ignore[method-assign]


def _spoil_from(step: int, *, own: bool) -> None:
    """From this step on the loss of one process is infinite while all gradients are finite.

    The optimizer is that of a GPU, which begins before the loss is read. A step that fails says what the weights are.
    """
    adamw = torch.optim.AdamW
    torch.optim.AdamW = lambda groups, lr, fused: adamw(groups, lr=lr, fused=True)  # type: ignore[assignment,misc]
    take_step, backward = Trainer._step, BatchGradients.backward

    def spoil(gradients: BatchGradients, examples: Any, counters: Any, *given: Any, **more: Any) -> Any:
        found = backward(gradients, examples, counters, *given, **more)
        if own and counters.step + 1 >= step:
            found.device_loss += math.inf
        return found

    def take(trainer: Trainer, batch: Any) -> Any:
        before = [weight.detach().clone() for weight in trainer.policy.parameters()]
        try:
            return take_step(trainer, batch)
        except BoughError:
            same = all(map(torch.equal, trainer.policy.parameters(), before))
            print(f"The weights are {'what they were' if same else 'changed'}.", flush=True)
            raise

    Trainer._step, BatchGradients.backward = take, spoil  # type: ignore[method-assign]


def _run_short(*, with_gradient: bool) -> None:
    """The first pass with, or without, a gradient runs out of memory."""
    forward, left = Policy.forward, [1]

    def run(policy: Policy, row: Any) -> Any:
        if left[0] and torch.is_grad_enabled() == with_gradient:
            left[0] -= 1
            raise torch.cuda.OutOfMemoryError("no memory")
        return forward(policy, row)

    Policy.forward = run  # type: ignore[method-assign]


def finish(children: list[int], *, wait: bool) -> int:
    """Waits for all; where time runs out, or one fails and the others are not waited for, the others are killed."""
    deadline, code = time.monotonic() + PATIENCE_S, 0
    while children:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            children.remove(child)
            code = code or os.waitstatus_to_exitcode(status)
        if (code and not wait) or time.monotonic() > deadline:
            code = code or 124
            for other in children:
                os.kill(other, signal.SIGKILL)
                os.waitpid(other, 0)
            return code
        time.sleep(0.01)
    return code


def serve() -> None:
    for line in sys.stdin:
        wanted: dict[str, Any] = json.loads(line)
        wait = wanted.pop("wait")
        children = [start(rank, **wanted) for rank in range(2)]
        print(*children, flush=True)
        print(finish(children, wait=wait), flush=True)


if __name__ == "__main__":
    serve()
