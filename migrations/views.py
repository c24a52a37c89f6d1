"""Views that a revision replaces, or whose tables it changes."""

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


def replace_views(statements: dict[str, str]) -> None:
    """Replace views by what statements create; on PostgreSQL they keep their grants."""
    connection = op.get_bind()
    is_file = connection.dialect.name == "sqlite"
    for name, statement in statements.items():
        if is_file:
            op.execute(f"DROP VIEW {name}")
        # Without parameters neither driver reads a percent sign as one.
        connection.exec_driver_sql(
            statement if is_file else statement.replace("CREATE", "CREATE OR REPLACE", 1)
        )
