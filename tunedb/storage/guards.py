"""The guards of a server: triggers by which it derives and refuses what writers must not say.

Revision 0007 makes them (``migrations/versions/0007_server_guards.py``); here is what they are
called, so that a writer who opens a server can see whether they are there.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from ..errors import SchemaError

#: Tables with a trigger ``tunedb_guard``.
TABLES = (
    *("measurement", "source", "workload_alias", "failure", "launch"),
    *("retraction", "account", "workload", "model", "feature", "foreign_feature"),
)

#: Functions that triggers and writers call.
FUNCTIONS = (
    *("tunedb_is_owner", "tunedb_is_retracted", "tunedb_may_speak", "tunedb_mean"),
    "tunedb_stop_serving",
)

#: Triggers that are off in this session are as good as gone.
_LOOK = """
    SELECT pg_has_role(session_user, c.relowner, 'MEMBER'),
        ARRAY(SELECT t.relname::text FROM pg_trigger g JOIN pg_class t ON t.oid = g.tgrelid
            WHERE g.tgname = 'tunedb_guard' AND t.relnamespace = c.relnamespace
                AND g.tgenabled IN ('O', 'A')),
        ARRAY(SELECT p.proname::text FROM pg_proc p WHERE p.pronamespace = c.relnamespace)
    FROM pg_class c WHERE c.oid = 'measurement'::regclass"""


@dataclass(frozen=True, slots=True)
class Guards:
    """What a server's guards are for a session.

    Parameters
    ----------
    is_owner : bool
        Whether the session may change the tables, and is refused nothing. So is everybody who
        may write to a file.
    missing : tuple of str
        Triggers and functions that were dropped or disabled.
    """

    is_owner: bool
    missing: tuple[str, ...] = ()


def look(connection: Connection) -> Guards:
    """Return the guards of a database, in one statement; a file has none and needs none."""
    if connection.dialect.name == "sqlite":
        return Guards(is_owner=True)
    is_owner, tables, functions = connection.exec_driver_sql(_LOOK).one()
    missing = [f"trigger tunedb_guard of {name}" for name in TABLES if name not in tables]
    missing += [f"function {name}" for name in FUNCTIONS if name not in functions]
    return Guards(bool(is_owner), tuple(missing))


def advice(missing: tuple[str, ...], where: str) -> str:
    """Return in one line what is missing, and what brings it back."""
    return (
        f"{where}: the server lacks its {', '.join(missing)}, without which records are not safe; "
        f"its owner runs: tunedb db upgrade {where}"
    )


def require(connection: Connection, where: str) -> Guards:
    """Return the guards of a database that is opened for writing.

    Raises
    ------
    SchemaError
        One is missing.
    """
    guards = look(connection)
    if guards.missing:
        raise SchemaError(advice(guards.missing, where))
    return guards
