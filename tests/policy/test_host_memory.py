import platform
import subprocess
import sys

import pytest

from bough.policy import processes

# What checkpointed layers do: large blocks that are freed, each followed by a smaller one that stays.
LAYERS = """
import os, runpy, sys
import numpy

def resident_mib():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

if sys.argv[1] == "True":
    # By its file: its package would load torch.
    assert runpy.run_path(sys.argv[2])["return_freed_memory"]()
before, kept = resident_mib(), []
for layer in range(30):
    parts = [numpy.ones((2 + layer % 5 + i) << 18, numpy.float32) for i in range(10)]
    kept.append(numpy.ones(1 << 19, numpy.float32))
    del parts
print(resident_mib() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_is_given_back_between_blocks_that_stay():
    grown = [
        int(
            subprocess.run(
                [sys.executable, "-c", LAYERS, how, processes.__file__], check=True, capture_output=True
            ).stdout
        )
        for how in ("True", "False")
    ]
    assert 60 <= grown[0] <= 90 < grown[1]  # 30 blocks of 2 MiB stay
