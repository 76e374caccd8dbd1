"""The first SQLite database that MLflow makes is the template of those that follow."""

import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.mlflow_database import _or_copy


def engine(path: Path, dialect: str = "sqlite") -> Any:
    return SimpleNamespace(dialect=SimpleNamespace(name=dialect), url=SimpleNamespace(database=str(path)))


def test_tables_are_created_once_and_what_is_added_later_is_not_copied(tmp_path: Path):
    created: list[str] = []

    def initialize(engine: Any) -> None:
        created.append(engine.url.database)
        with closing(sqlite3.connect(engine.url.database)) as database, database:
            database.execute("create table runs (name)")

    initialize_or_copy = _or_copy(initialize, tmp_path / "template.db")
    first, second = tmp_path / "first.db", tmp_path / "second.db"
    initialize_or_copy(engine(first))
    with closing(sqlite3.connect(first)) as database, database:
        database.execute("insert into runs values ('a run')")
    initialize_or_copy(engine(second))
    assert created == [str(first)]
    with closing(sqlite3.connect(second)) as database:
        assert database.execute("select * from runs").fetchall() == []


def test_a_database_on_a_server_is_created_as_ever(tmp_path: Path):
    created: list[Any] = []
    remote = engine(tmp_path / "name", dialect="postgresql")
    _or_copy(created.append, tmp_path / "template.db")(remote)
    assert created == [remote] and list(tmp_path.iterdir()) == []
