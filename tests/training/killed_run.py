"""A program: runs a verb in child processes that it kills at random, until one gets to the end.

    python -m tests.training.killed_run KILLS SEED VERB ARGUMENTS…

The children are forked from a process that has loaded everything, so a kill costs no start.
It prints how many were killed.
"""

import os
import random
import signal
import sys
import time

import torch

from bough.calls.template import load_template
from bough.cli import main
from bough.policy.policy import Policy


def run(kills: int, seed: int, arguments: list[str]) -> int:
    torch.set_num_threads(1)
    load_template("tiny")
    Policy.load("tiny")
    rng, killed = random.Random(seed), 0
    while True:
        child = os.fork()
        if child == 0:
            os._exit(main(arguments))
        if killed < kills:
            time.sleep(rng.uniform(0.05, 1.5))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            killed += 1
            continue
        print(killed)
        return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
