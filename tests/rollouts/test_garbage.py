import subprocess
import sys

PROGRAM = """
import gc
from bough.rollouts.garbage import spare_what_is_loaded
spare_what_is_loaded()
frozen = gc.get_freeze_count()
kept = [[] for _ in range(1000)]
spare_what_is_loaded()
print(frozen > 1000, gc.get_freeze_count() == frozen, gc.get_threshold()[0] == 20_000)
"""


def test_what_is_loaded_is_spared_once_and_what_comes_later_is_not():
    # In a process of its own: what is frozen stays so.
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "True"]
