"""MLflow's tables, created once for all tests of a run: MLflow takes 1.4 CPU-seconds for each new database."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bough.files import locked

Initialize = Callable[[Any], None]


def create_tables_once(template: Path) -> None:
    """From now on MLflow copies the tables of a new SQLite database from `template`, which the first one makes."""
    if find_spec("mlflow") is not None:
        import_module("mlflow.store.tracking.sqlalchemy_store")
        utils = import_module("mlflow.store.db.utils")
        utils._initialize_tables = _or_copy(utils._initialize_tables, template)


def _or_copy(initialize: Initialize, template: Path) -> Initialize:
    @wraps(initialize)
    def initialize_or_copy(engine: Any) -> None:
        if engine.dialect.name != "sqlite":
            initialize(engine)
            return
        with locked(template.with_suffix(".lock"), wait=True):
            if not template.exists():
                initialize(engine)
                draft = template.with_suffix(".draft")
                _copy(engine.url.database, draft)
                draft.replace(template)
                return
        _copy(template, engine.url.database)

    return initialize_or_copy


def _copy(source: Path | str, target: Path | str) -> None:
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)
