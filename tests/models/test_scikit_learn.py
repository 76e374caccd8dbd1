"""transformers imports scikit-learn when it uses it, not together with every model."""

import importlib
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers.utils

from bough.models import scikit_learn
from bough.models.resolve import load_tokenizer
from bough.policy.load import load_model, load_outline


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of transformers that would import scikit-learn, imported again by `import_later`."""
    importlib.import_module(scikit_learn.USER)
    monkeypatch.delitem(sys.modules, scikit_learn.USER)
    # The package has it as an attribute as well, where an import would find the module of before.
    monkeypatch.delattr("transformers.generation.candidate_generator")
    scikit_learn.import_later()
    return sys.modules[scikit_learn.USER]


def test_its_function_is_imported_when_it_is_called(user: Any):
    assert user.roc_curve is scikit_learn._roc_curve
    rates = user.roc_curve([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])
    assert [list(rate) for rate in rates[:2]] == [[0, 0, 0.5, 0.5, 1], [0, 0.5, 0.5, 1, 1]]


def test_transformers_knows_that_it_is_installed(user: Any):
    assert transformers.utils.is_sklearn_available() and user.is_sklearn_available()


def test_what_transformers_imported_before_stays_as_it_is(user: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(user, "roc_curve", None)
    scikit_learn.import_later()
    assert user.roc_curve is None


@pytest.mark.parametrize(
    "load",
    [
        load_tokenizer,
        load_outline,
        lambda name: load_model(name, dtype=None, device=torch.device("cpu"), quantize=False),
    ],
    ids=["tokenizer", "outline", "model"],
)
def test_whatever_loads_a_model_imports_it_later(load: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch):
    calls: list[None] = []
    monkeypatch.setattr(scikit_learn, "import_later", lambda: calls.append(None))
    load("tiny")
    assert calls
