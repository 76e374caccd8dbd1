"""Keep transformers from importing scikit-learn, SciPy and pandas with every model.

Where scikit-learn is installed (mlflow brings it), transformers imports it together with the
first model or tokenizer, for one function of assisted generation. That is a fifth of the time
in which a command starts, so the function is imported when it is called.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

USER = "transformers.generation.candidate_generator"


def import_later() -> None:
    """Call this before the first import of a model or tokenizer; later calls change nothing."""
    if USER in sys.modules:
        return
    from transformers import utils

    available = utils.is_sklearn_available
    utils.is_sklearn_available = lambda: False
    try:
        from transformers.generation import candidate_generator
    finally:
        utils.is_sklearn_available = available
    candidate_generator.is_sklearn_available = available
    candidate_generator.roc_curve = _roc_curve


def _roc_curve(*arguments: Any, **options: Any) -> Any:
    return importlib.import_module("sklearn.metrics").roc_curve(*arguments, **options)
