import platform
import subprocess
import sys

import pytest

# What checkpointed layers do: large blocks that are freed, each followed by a smaller one that stays.
LAYERS = """
import sys, torch
from bough.policy.host_memory import return_freed_memory

def resident_mib():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20

if sys.argv[1] == "True":
    assert return_freed_memory()
before, kept = resident_mib(), []
for layer in range(30):
    parts = [torch.ones((2 + layer % 5 + i) << 18) for i in range(20)]
    kept.append(torch.ones(1 << 19))
    del parts
print(resident_mib() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_is_given_back_between_blocks_that_stay():
    grown = [
        int(subprocess.run([sys.executable, "-c", LAYERS, how], check=True, capture_output=True).stdout)
        for how in ("True", "False")
    ]
    assert 60 <= grown[0] <= 90 < grown[1]  # 30 blocks of 2 MiB stay
