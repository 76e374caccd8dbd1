"""Two processes for all tests of training."""

from tests.training.pair import two  # noqa: F401  a fixture
