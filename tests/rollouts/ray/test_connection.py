"""How Ray is started and what its errors become. Ray is a stand-in here; tests/rollouts/ray/real has the real one."""

import os
import signal
import socket
import sys
from collections.abc import Collection, Iterator
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from bough.config.groups import ClusterConfig
from bough.errors import BoughError, InputError
from bough.event_loop import REPLACED, Interrupts
from bough.rollouts import ray as connection
from bough.rollouts.ray import check_address, connected, nodes, nodes_by_id

AUTO = ClusterConfig(address="auto")
NAMED = ClusterConfig(address="10.0.0.1:6379")
reach = connection._reach


class AuthenticationError(Exception):
    """Ray's, which is no ConnectionError."""


class Ray(SimpleNamespace):
    """Keeps what it was started with. `found` are the clusters with a process here, `written` that of `ray start`."""

    def __init__(
        self,
        error: Exception | None = None,
        *,
        initialized: bool = False,
        found: Collection[str] = ("10.0.0.5:6379",),
        written: str | None = None,
    ) -> None:
        super().__init__(error=error, initialized=initialized, started=[], options={})
        find = MagicMock(return_value=frozenset(found))
        services = SimpleNamespace(find_gcs_addresses=find, find_bootstrap_address=lambda _: written)
        constants = SimpleNamespace(ENABLE_RAY_CLUSTER=True)
        self._private = SimpleNamespace(ray_constants=constants, services=services)
        self.exceptions = SimpleNamespace(AuthenticationError=AuthenticationError)

    def is_initialized(self) -> bool:
        return self.initialized

    def init(self, address: str, **options) -> None:
        self.started.append(address)
        self.options = options
        by_variable = os.environ.get(connection.CLUSTERS_VARIABLE) == "0"
        self.loopback_only = by_variable and not self._private.ray_constants.ENABLE_RAY_CLUSTER
        assert options["log_to_driver"] is False
        if self.error is not None and address != "local":
            raise self.error
        self.initialized = True

    def get_runtime_context(self) -> SimpleNamespace:
        return SimpleNamespace(gcs_address="10.0.0.1:6379")

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
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setattr(connection, "_reach", lambda *_: None)

    def put(ray: object) -> None:
        monkeypatch.setitem(sys.modules, "ray", ray)

    return put


@pytest.mark.parametrize("config", [AUTO, NAMED])
def test_a_connection_ends_with_the_block(use, config: ClusterConfig):
    use(ray := Ray())
    with connected(config):
        assert ray.initialized
        assert nodes_by_id() == {"a": {"CPU": 2.0}} and nodes() == [{"CPU": 2.0}]
    assert ray.started == [config.address] and not ray.initialized


def test_a_run_in_training_hears_sigterm_though_ray_has_a_handler_for_it(use):
    """Ray's own exits: without a checkpoint, and also after the connection has ended."""

    class Exiting(Ray):
        def init(self, address: str, **options) -> None:
            super().init(address, **options)
            signal.signal(signal.SIGTERM, self.exit)

        def exit(self, *_: object) -> None:
            pytest.fail("Ray's handler was called")

    use(Exiting())
    with connected(NAMED), Interrupts() as interrupts:
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.requested
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert REPLACED[signal.SIGTERM] == [signal.SIG_DFL]


def test_a_connection_that_exists_is_used_and_kept(use):
    use(ray := Ray(initialized=True))
    with connected(NAMED):
        pass
    assert ray.initialized and not ray.started


def test_a_connection_to_another_cluster_than_the_named_one_is_not_used(use):
    use(Ray(initialized=True))
    other, said = ClusterConfig(address="10.0.0.1:6380"), r"to the Ray cluster at 10\.0\.0\.1:6379; call ray\.shutdown"
    with pytest.raises(InputError, match=said), connected(other):
        pytest.fail("it ran on another cluster")
    with connected(AUTO), connected(ClusterConfig(address="head.example.org:6379")):
        pass


def test_auto_is_this_machine_alone_where_there_is_no_cluster(use):
    use(ray := Ray(found=()))
    with connected(AUTO):
        assert ray.started == ["local"]
    ray._private.services.find_gcs_addresses.cache_clear.assert_called()


@pytest.mark.parametrize(
    ("found", "written", "chosen"),
    [
        (["127.0.0.1:4000"], None, "local"),  # that of another command
        ([], "10.0.0.1:6379", "local"),  # `ray stop` did not run
        (["10.0.0.1:6379", "127.0.0.1:4000"], None, "10.0.0.1:6379"),
        (["10.0.0.1:6379", "10.0.0.2:6379"], "10.0.0.2:6379", "10.0.0.2:6379"),
        (["10.0.0.1:6379", "10.0.0.2:6379"], "10.0.0.9:6379", "10.0.0.1:6379"),
        (["127.0.0.1:6379"], "127.0.0.1:6379", "auto"),
        (["10.0.0.1:6379"], "10.0.0.1:6379", "auto"),
    ],
)
def test_auto_is_a_cluster_that_this_machine_shares(use, found: list[str], written: str | None, chosen: str):
    use(ray := Ray(found=found, written=written))
    with connected(AUTO):
        assert ray.started == [chosen]


def test_a_cluster_that_was_found_and_does_not_answer_is_an_error(use):
    use(ray := Ray(ConnectionError("no")))
    with pytest.raises(BoughError, match="the Ray cluster at auto does not answer"), connected(AUTO):
        pass
    assert ray.started == ["auto"]


def test_ray_on_this_machine_alone_sends_no_statistics_and_other_starts_are_as_before(use):
    use(ray := Ray(found=()))
    with connected(AUTO):
        assert ray.options["include_dashboard"] is False
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
        assert ray.loopback_only and connection.CLUSTERS_VARIABLE not in os.environ
        assert ray._private.ray_constants.ENABLE_RAY_CLUSTER


@pytest.mark.parametrize("by_variable", [False, True])
def test_an_address_where_nothing_listens_is_refused_before_ray_waits_for_it(
    use, monkeypatch: pytest.MonkeyPatch, by_variable: bool
):
    use(ray := Ray())
    monkeypatch.setattr(connection, "_reach", reach)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # not listening
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        if by_variable:
            monkeypatch.setenv("RAY_ADDRESS", address)
        config = AUTO if by_variable else ClusterConfig(address=address)
        with pytest.raises(BoughError, match=rf"{address} does not answer.*nothing listens there"), connected(config):
            pass
    assert not ray.started


@pytest.mark.parametrize("address", ["[::1]:99999", "no-such-host.invalid:6379"])
def test_an_address_that_cannot_be_is_a_sentence(use, monkeypatch: pytest.MonkeyPatch, address: str):
    use(Ray())
    monkeypatch.setattr(connection, "_reach", reach)
    with pytest.raises(BoughError, match="nothing listens there"), connected(ClusterConfig(address=address)):
        pass


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(connection, "_reach", reach)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_an_address_that_answers_is_left_to_ray(use, listening: str):
    use(ray := Ray())
    check_address(listening)
    with connected(ClusterConfig(address=listening)):
        assert ray.started == [listening]


def test_auto_does_not_hide_that_the_cluster_of_ray_address_is_gone(use, monkeypatch: pytest.MonkeyPatch):
    use(ray := Ray(ConnectionError("no")))
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.9:6379")
    with pytest.raises(BoughError, match=r"the Ray cluster at 10\.0\.0\.9:6379 does not answer"), connected(AUTO):
        pass
    assert ray.started == ["auto"]


@pytest.mark.parametrize(
    ("error", "said", "exit_code"),
    [
        (ConnectionError("ray failed"), r"--cluster 10\.0\.0\.1:6379: the Ray cluster .* does not answer", 1),
        (
            RuntimeError("Version mismatch: The cluster was started with:\n  Ray: 2.5"),
            "install the same ones on all",
            2,
        ),
        (AuthenticationError("Token is missing"), "set RAY_AUTH_MODE=token, and copy", 2),
        (ConnectionError("ray failed"), "if the cluster asks for a token", 1),
        (RuntimeError("no disk"), r"Ray did not start \(no disk\)", 1),
    ],
)
def test_what_goes_wrong_is_a_sentence(use, error: Exception, said: str, exit_code: int):
    use(Ray(error))
    with pytest.raises(BoughError, match=said) as raised, connected(NAMED):
        pass
    assert raised.value.exit_code == exit_code


def test_a_missing_extra_is_named(use):
    use(None)
    with pytest.raises(InputError, match=r"--cluster needs Ray: pip install 'bough\[ray\]'"), connected(AUTO):
        pass
