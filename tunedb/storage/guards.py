"""Guards of a server: triggers that derive columns and reject what writers must not set.

Revision 0007 creates them (``migrations/versions/0007_server_guards.py``). This module has their
names, so that a writer can check them when it opens a server.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from ..errors import SchemaError

#: Tables that have a trigger ``tunedb_guard``.
TABLES = (
    *("measurement", "source", "workload_alias", "failure", "launch"),
    *("retraction", "account", "workload", "model", "feature", "foreign_feature"),
)

#: Functions called by triggers and writers.
FUNCTIONS = (
    *("tunedb_is_owner", "tunedb_is_retracted", "tunedb_may_speak", "tunedb_mean"),
    "tunedb_stop_serving",
)

#: Ignores triggers that are disabled in this session.
_STATE = """
    SELECT pg_has_role(session_user, c.relowner, 'MEMBER'),
        ARRAY(SELECT t.relname::text FROM pg_trigger g JOIN pg_class t ON t.oid = g.tgrelid
            WHERE g.tgname = 'tunedb_guard' AND t.relnamespace = c.relnamespace
                AND g.tgenabled IN ('O', 'A')),
        ARRAY(SELECT p.proname::text FROM pg_proc p WHERE p.pronamespace = c.relnamespace)
    FROM pg_class c WHERE c.oid = 'measurement'::regclass"""


@dataclass(frozen=True, slots=True)
class Guards:
    """Guards of a server as one session sees them.

    Parameters
    ----------
    is_owner : bool
        True if the session may change the tables and is never rejected; always true for a file.
    missing : tuple of str
        Triggers and functions that were dropped or disabled.
    """

    is_owner: bool
    missing: tuple[str, ...] = ()


def inspect(connection: Connection) -> Guards:
    """Return the guards of a database, in one statement; a file has none and needs none."""
    if connection.dialect.name == "sqlite":
        return Guards(is_owner=True)
    is_owner, tables, functions = connection.exec_driver_sql(_STATE).one()
    missing = [f"trigger tunedb_guard of {name}" for name in TABLES if name not in tables]
    missing += [f"function {name}" for name in FUNCTIONS if name not in functions]
    return Guards(bool(is_owner), tuple(missing))


def advice(missing: tuple[str, ...], where: str) -> str:
    """Return a one-line message about missing guards and how to restore them."""
    return (
        f"{where}: the server lacks its {', '.join(missing)}, without which records are not safe; "
        f"its owner runs: tunedb db upgrade {where}"
    )


def require(connection: Connection, where: str) -> Guards:
    """Return the guards of a database opened for writing.

    Raises
    ------
    SchemaError
        A guard is missing.
    """
    guards = inspect(connection)
    if guards.missing:
        raise SchemaError(advice(guards.missing, where))
    return guards
