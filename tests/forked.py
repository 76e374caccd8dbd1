"""A pytest plugin: processes of pytest-xdist are forked from one that has loaded everything and all tests.

    python -m pytest -p tests.forked -n 4

Loading torch, transformers and the tests takes 13 CPU-seconds, and 21 where no compiled tests
are kept yet; each process would do it. Where there is a GPU, processes start as usual: a
forked process cannot use what the first one has found out about it.

PYTEST_DONT_REWRITE: a forked process has imported this before pytest can rewrite its assertions.
"""

import shlex
import sys
from pathlib import Path

import pytest

from tests import warm

CAN_FORK = sys.platform == "linux" and not Path("/dev/nvidiactl").exists()


def to_collect(config: pytest.Config) -> list[str]:
    """The tests that the warm server should load; none without this plugin."""
    if not CAN_FORK or not config.pluginmanager.has_plugin(__name__) or not config.getoption("numprocesses", None):
        return []
    return [str(config.invocation_params.dir / path) for path in config.args]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: list[object]) -> None:
    if CAN_FORK:
        for spec in specs:
            vars(spec)["python"] = shlex.join([sys.executable, warm.__file__])
