"""Keep transformers from importing scikit-learn, SciPy and pandas with every model.

Where these are installed (mlflow brings them), transformers imports them together with the first
model or tokenizer: scikit-learn for one function of assisted generation, SciPy for one of the loss
of object detection. That is a quarter of the time in which a command starts, so each of the two
functions is imported when it is called.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple


class Later(NamedTuple):
    """A function of another package, the module of transformers that uses it, and what it asks about the package."""

    function: str
    package: str
    user: str
    asks: str


TOKENIZERS = Later(
    "roc_curve", "sklearn.metrics", "transformers.generation.candidate_generator", "is_sklearn_available"
)
MODELS = Later(
    "linear_sum_assignment", "scipy.optimize", "transformers.loss.loss_for_object_detection", "is_scipy_available"
)


def import_later(*, models: bool = False) -> None:
    """Call this before the first import of a tokenizer, or of a model; later calls change nothing."""
    for later in (TOKENIZERS, MODELS) if models else (TOKENIZERS,):
        if later.user not in sys.modules:
            _replace(later)


def _replace(later: Later) -> None:
    from transformers import utils

    available = getattr(utils, later.asks)
    setattr(utils, later.asks, lambda: False)
    try:
        user = importlib.import_module(later.user)
    except ModuleNotFoundError:  # a version of transformers without it
        return
    finally:
        setattr(utils, later.asks, available)
    setattr(user, later.asks, available)
    setattr(user, later.function, _importing(later))


def _importing(later: Later) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        return getattr(importlib.import_module(later.package), later.function)(*arguments, **options)

    return call
