"""Ray as Bough starts it on this machine."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.cluster

PROGRAM = """
import json, psutil
from bough.rollouts.ray import import_ray, start_here
ray = import_ray()
start_here(ray, log_to_driver=False)
ray.get(ray.remote(lambda: None).remote())  # there is a worker, too
me = psutil.Process()
listening = [
    socket.laddr.ip
    for process in [me, *me.children(recursive=True)]
    for socket in process.net_connections("tcp")
    if socket.status == psutil.CONN_LISTEN
]
ray.shutdown()
print(json.dumps(listening))
"""


def test_ray_listens_on_the_loopback_address_only():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=300)
    listening = json.loads(done.stdout.splitlines()[-1])
    assert len(listening) >= 3
    assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
