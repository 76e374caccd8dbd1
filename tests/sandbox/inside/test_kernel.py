import os
import subprocess
import sys

from bough.sandbox.inside.kernel import descendants, memory_mb

CODE = "import os\nif os.fork() == 0:\n    data = bytearray(50_000_000)\nprint(os.getpid(), flush=True)\ninput()"


def test_grandchildren_are_found_with_their_memory():
    with subprocess.Popen([sys.executable, "-c", CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        pids = {int(child.stdout.readline()) for _ in range(2)}
        assert pids <= set(descendants(os.getpid()))
        assert descendants(child.pid) == list(pids - {child.pid})
        assert 50 < memory_mb(descendants(child.pid)) < 120
        child.kill()
    assert child.pid not in descendants(os.getpid())


def test_a_process_that_is_gone_holds_nothing():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert memory_mb([child.pid]) == 0 and descendants(child.pid) == []
