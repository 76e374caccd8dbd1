"""Keep transformers from importing scikit-learn, SciPy and pandas with every model.

Where these are installed (mlflow brings them), transformers imports them together with the first
model or tokenizer: scikit-learn for one function of assisted generation, SciPy for one of the loss
of object detection. That is a quarter of the time in which a command starts, so each of the two
functions is imported when it is called.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

# The module of transformers that uses a function, the function, its package, and what asks whether that is installed.
TOKENIZERS = ("transformers.generation.candidate_generator", "roc_curve", "sklearn.metrics", "is_sklearn_available")
MODELS = (
    "transformers.loss.loss_for_object_detection",
    "linear_sum_assignment",
    "scipy.optimize",
    "is_scipy_available",
)


def import_later(*, models: bool = False) -> None:
    """Call this before the first import of a tokenizer, or of a model; later calls change nothing."""
    for later in (TOKENIZERS, MODELS) if models else (TOKENIZERS,):
        if later[0] not in sys.modules:
            _replace(*later)


def _replace(module: str, function: str, package: str, asks: str) -> None:
    from transformers import utils

    available = getattr(utils, asks)
    setattr(utils, asks, lambda: False)
    try:
        user = importlib.import_module(module)
    except ModuleNotFoundError:  # a version of transformers without it
        return
    finally:
        setattr(utils, asks, available)

    def call(*arguments: Any, **options: Any) -> Any:
        return getattr(importlib.import_module(package), function)(*arguments, **options)

    setattr(user, asks, available)
    setattr(user, function, call)
