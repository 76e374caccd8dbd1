"""What holds for all tests: Bough is imported before anything loads torch, as on the command line."""

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache

import pytest

from bough import bit_exact

ALONE = f"""
import os
os.environ[{bit_exact.VARIABLE!r}] = {bit_exact.STRICT!r}
from bough.bit_exact import batches_differ
print(len(batches_differ()))
"""


@pytest.fixture(autouse=True)
def _bit_exact(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that is marked so runs on the CPU, and only where its matrix products can be bit-exact at all."""
    if request.node.get_closest_marker("bit_exact") is None:
        yield
        return
    if bit_exact.batches_differ() and _nothing_helps():
        pytest.skip("matrix products on this CPU round differently with the number of rows, whatever is set")
    import torch
    from accelerate import PartialState

    PartialState._reset_state()  # it remembers which device other tests found
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        for module in (torch.cuda, torch.accelerator):
            patch.setattr(module, "is_available", lambda: False)
        yield
    PartialState._reset_state()


@cache
def _nothing_helps() -> bool:
    """Whether a fresh process that sets everything in time fares no better; if it does, the fault is ours."""
    done = subprocess.run([sys.executable, "-c", ALONE], env=os.environ, capture_output=True, text=True, check=True)
    return int(done.stdout) > 0
