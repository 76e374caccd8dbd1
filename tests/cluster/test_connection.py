"""How Ray is started and what its errors become. Ray is a stand-in here; tests/cluster/real has the real one."""

import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from bough.cluster import connection
from bough.cluster.connection import connected, nodes, nodes_by_id
from bough.config.cluster import ClusterConfig
from bough.errors import BoughError, InputError

AUTO = ClusterConfig(address="auto")
NAMED = ClusterConfig(address="10.0.0.1:6379")


class Ray(SimpleNamespace):
    """Belongs to a cluster unless told; keeps what it was started with."""

    def __init__(self, error: Exception | None = None, *, initialized: bool = False, alone: bool = False) -> None:
        super().__init__(error=error, initialized=initialized, alone=alone, started=[])

    def is_initialized(self) -> bool:
        return self.initialized

    def init(self, address: str | None = None, **options) -> None:
        assert options["log_to_driver"] is False
        starts = address == "local" or (address is None and self.alone)
        if not starts and "num_cpus" in options:
            raise ValueError("When connecting to an existing cluster, num_cpus and num_gpus must not be provided.")
        self.started.append("local" if starts else address or "found")
        if self.error is not None and not starts:
            raise self.error
        self.initialized = True

    def shutdown(self) -> None:
        self.initialized = False

    def nodes(self) -> list[dict]:
        return [
            {"NodeID": "a", "Alive": True, "Resources": {"CPU": 2.0}},
            {"NodeID": "b", "Alive": False, "Resources": {"CPU": 4.0}},
        ]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(connection, "_check_answers", lambda _: None)

    def put(ray: object) -> None:
        monkeypatch.setitem(sys.modules, "ray", ray)

    return put


@pytest.mark.parametrize(("config", "started"), [(AUTO, "found"), (NAMED, "10.0.0.1:6379")])
def test_a_connection_ends_with_the_block(use, config: ClusterConfig, started: str, capsys: pytest.CaptureFixture[str]):
    use(ray := Ray())
    with connected(config):
        assert ray.initialized
        assert nodes_by_id() == {"a": {"CPU": 2.0}} and nodes() == [{"CPU": 2.0}]
    assert ray.started == [started] and not ray.initialized
    assert "connecting to Ray" in capsys.readouterr().err


def test_a_connection_that_exists_is_used_and_kept(use):
    use(ray := Ray(initialized=True))
    with connected(NAMED):
        pass
    assert ray.initialized and not ray.started


def test_auto_is_this_machine_alone_where_there_is_no_cluster(use):
    use(ray := Ray(alone=True))
    with connected(AUTO):
        assert ray.started == ["local"]


def test_auto_is_this_machine_alone_where_the_last_cluster_is_gone(use):
    use(ray := Ray(ConnectionError("ray failed")))
    with connected(AUTO):
        assert ray.started == ["found", "local"]


def test_auto_does_not_hide_that_the_cluster_of_ray_address_is_gone(use, monkeypatch: pytest.MonkeyPatch):
    use(ray := Ray(ConnectionError("no")))
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.9:6379")
    with pytest.raises(BoughError, match=r"the Ray cluster at 10\.0\.0\.9:6379 does not answer"), connected(AUTO):
        pass
    assert ray.started == ["found"]


@pytest.mark.parametrize(
    ("error", "said", "exit_code"),
    [
        (ConnectionError("ray failed"), r"--cluster 10\.0\.0\.1:6379: the Ray cluster .* does not answer", 1),
        (
            RuntimeError("Version mismatch: The cluster was started with:\n  Ray: 2.5"),
            "install the same ones on all",
            2,
        ),
        (RuntimeError("no disk"), r"Ray did not start \(no disk\)", 1),
    ],
)
def test_what_goes_wrong_is_a_sentence(use, error: Exception, said: str, exit_code: int):
    use(Ray(error))
    with pytest.raises(BoughError, match=said) as raised, connected(NAMED):
        pass
    assert raised.value.exit_code == exit_code


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "[::1]")])
def test_an_address_without_a_listener_is_an_error_before_ray_tries_it(
    monkeypatch: pytest.MonkeyPatch, family: socket.AddressFamily, host: str
):
    monkeypatch.setitem(sys.modules, "ray", ray := Ray())
    with socket.socket(family) as unused:
        try:
            unused.bind((host.strip("[]"), 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
        named = ClusterConfig(address=f"{host}:{unused.getsockname()[1]}")
        with pytest.raises(BoughError, match=r"does not answer; check that `ray status` works"), connected(named):
            pass
        assert ray.started == []
        unused.listen()
        with connected(named):
            assert ray.started == [named.address]


def test_a_missing_extra_is_named(use):
    use(None)
    with pytest.raises(InputError, match=r"--cluster needs Ray: pip install 'bough\[ray\]'"), connected(AUTO):
        pass


def test_nothing_of_ray_is_imported_without_a_cluster():
    program = (
        "import sys, bough, bough.commands.collect, bough.commands.evaluate, bough.methods.distill, bough.api.collect\n"
        "import bough.cluster.connection, bough.cluster.runner\n"
        "print([name for name in sys.modules if name.split('.')[0] == 'ray'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
