"""One cluster for each file of tests."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.rollouts.ray.real.clusters import TestCluster, started


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    if find_spec("ray") is None:
        pytest.skip("ray is not installed")
    with started() as made:
        yield made


@pytest.fixture
def breakable(cluster: TestCluster) -> Iterator[TestCluster]:
    """The same cluster, for a test that removes or adds nodes."""
    yield cluster
    cluster.refill()
