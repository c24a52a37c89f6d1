"""Views while a revision changes the tables to which they refer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from alembic import op


@contextmanager
def views_dropped() -> Iterator[None]:
    """Drop all views of a SQLite database, and create them again with the same text.

    SQLite renames no table while a view refers to a missing one, and Alembic changes a table by
    copying, dropping and renaming (``op.batch_alter_table``). PostgreSQL changes tables in place,
    so its views stay, with the grants on them.
    """
    connection = op.get_bind()
    views: list[tuple[str, str]] = []
    if connection.dialect.name == "sqlite":
        statement = "SELECT name, sql FROM sqlite_schema WHERE type = 'view' ORDER BY rowid"
        views = [(row.name, row.sql) for row in connection.exec_driver_sql(statement)]
    quoted = connection.dialect.identifier_preparer.quote
    for name, _ in views:
        connection.exec_driver_sql(f"DROP VIEW {quoted(name)}")
    yield
    for _, text in views:
        connection.exec_driver_sql(text)
