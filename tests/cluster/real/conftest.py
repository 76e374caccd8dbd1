"""One cluster for each file of tests."""

from collections.abc import Iterator

import pytest

from bough.cluster.connection import import_ray

pytest.importorskip("ray")
ray = import_ray()

from tests.cluster.real.clusters import TestCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    made = TestCluster()
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
