"""A program: runs Bough with the given arguments in two processes, as `torchrun` does.

    python -m tests.stages.two_processes PORT ARGUMENTS…

They are forked from a process that has loaded everything, so two cost little more than one.
"""

import os
import sys

import torch

from bough.calls.template import load_template
from bough.cli import main
from bough.training.policy import Policy


def run(port: str, arguments: list[str]) -> int:
    torch.set_num_threads(1)
    load_template("tiny")
    Policy.load("tiny")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    children = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            os._exit(main(arguments))
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
