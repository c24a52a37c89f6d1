"""New SQLite databases get what one migration made: Alembic takes 20 times as long."""

from tunedb import migrations
from tunedb.storage import schema

#: Files whose subject is how a schema comes to be.
LEFT_OUT = {"test_migrations.py", "test_backups.py", "test_versions.py", "test_engine.py"}

_STATEMENTS = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid"
_migrate = migrations.upgrade
_made = []


def _upgrade(connection, revision="head"):
    is_new = (
        connection.dialect.name == "sqlite" and not connection.exec_driver_sql(_STATEMENTS).all()
    )
    if not is_new or revision != "head":
        _migrate(connection, revision)
    elif not _made:
        _migrate(connection)
        _made.extend(connection.exec_driver_sql(_STATEMENTS).scalars())
        _made.append(f"INSERT INTO alembic_version VALUES ('{schema.HEAD}')")
    else:
        for statement in _made:
            connection.exec_driver_sql(statement)


def use(path):
    """Let the tests of a file make databases quickly, unless they are about that."""
    migrations.upgrade = _migrate if path.name in LEFT_OUT else _upgrade
