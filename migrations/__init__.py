"""Alembic revisions, which create and upgrade every schema, also that of a new file."""

from __future__ import annotations

import threading
from importlib import import_module
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

# Alembic's ``context`` and ``op`` are proxies of the process: two threads that use them at once run
# each other's migration on one connection (seen as a segmentation fault of SQLite).
_lock = threading.Lock()


def config(connection: Connection | None = None) -> Config:
    """Return Alembic's configuration for this folder, working on `connection`."""
    value = Config()
    # configparser reads % as interpolation.
    value.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    value.attributes["connection"] = connection
    return value


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Bring the schema to `revision` inside the connection's transaction."""
    with _lock:
        command.upgrade(config(connection), revision)


def restore_guards(connection: Connection) -> None:
    """Restore the guards of a server: triggers may have been dropped or disabled."""
    script = import_module(".versions.0007_server_guards", __name__)
    script.make_guards(connection)


def downgrade(connection: Connection, revision: str) -> None:
    """Take the schema back to `revision` inside the connection's transaction."""
    with _lock:
        command.downgrade(config(connection), revision)
