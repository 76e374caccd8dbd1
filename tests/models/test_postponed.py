"""transformers imports scikit-learn and SciPy when it uses them, not together with every model."""

import importlib
import sys
from typing import Any

import pytest
import transformers.utils

from bough.models import tiny


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The modules of transformers that would import scikit-learn and SciPy, imported again by `import_later`."""
    names = [later[0] for later in (tiny.TOKENIZERS, tiny.MODELS)]
    for name in names:
        importlib.import_module(name)
        monkeypatch.delitem(sys.modules, name)
        # The package has it as an attribute as well, where an import would find the module of before.
        monkeypatch.delattr(name)
    tiny.postpone_scikit_learn(models=True)
    return [sys.modules[name] for name in names]


def test_a_function_is_imported_when_it_is_called(users: list[Any]):
    generation, detection = users
    assert {generation.roc_curve.__module__, detection.linear_sum_assignment.__module__} == {tiny.__name__}
    rates = generation.roc_curve([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])
    assert [list(rate) for rate in rates[:2]] == [[0, 0, 0.5, 0.5, 1], [0, 0.5, 0.5, 1, 1]]
    assert [list(chosen) for chosen in detection.linear_sum_assignment([[4, 1], [2, 3]])] == [[0, 1], [1, 0]]


def test_transformers_knows_that_they_are_installed(users: list[Any]):
    generation, detection = users
    assert transformers.utils.is_sklearn_available() and generation.is_sklearn_available()
    assert transformers.utils.is_scipy_available() and detection.is_scipy_available()
