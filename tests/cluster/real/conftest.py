"""One cluster for each file of tests."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from bough.cluster.connection import import_ray
from tests.cluster.real.clusters import TestCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    if find_spec("ray") is None:
        pytest.skip("ray is not installed")
    made = TestCluster()
    try:
        yield made
    finally:
        import_ray().shutdown()
        made.shutdown()
