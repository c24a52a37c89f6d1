"""Deadlines of connections to PostgreSQL.

The server itself cancels a statement that runs too long or waits too long for a lock. A silent
server (a stopped process, a network that drops packets) is given up on this side, because psycopg
would wait for ever. The clock is monotonic, so that changing the time of day moves no deadline.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from math import ceil
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection, Engine, event

from .. import limits
from ..errors import UsageError

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")

#: Environment variable with the time limit of a statement, in seconds.
VARIABLE = "TUNEDB_TIMEOUT"

#: Factor on the statement limit: the server cancels a statement itself, and its reply takes time.
_SILENCE = 1.5


def statement_seconds() -> float:
    """Return the time limit of a statement in seconds: ``TUNEDB_TIMEOUT``, or the default.

    Raises
    ------
    UsageError
        The variable is not a number within bounds.
    """
    text = os.environ.get(VARIABLE)
    if not text:
        return limits.STATEMENT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not 0.001 <= seconds <= limits.LONG_STATEMENT_S:
        raise UsageError(
            f"{VARIABLE}: expected seconds from 0.001 to {limits.LONG_STATEMENT_S}, "
            f"found {text[:40]!r}; unset it for {limits.STATEMENT_S}"
        )
    return seconds


def connect_parameters(seconds: float, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return libpq parameters that set the deadlines.

    Parameters
    ----------
    seconds : float
        Time limit of a statement.
    named : mapping
        Parameters of the URL, which override ours.
    """
    # A shorter limit for locks lets the server tell the two cases apart.
    timeouts = {"statement_timeout": seconds, "lock_timeout": min(seconds / 2, limits.LOCK_S)}
    options = [f"-c {name}={_milliseconds(value)}" for name, value in timeouts.items()]
    # The user's options come last, because the last of two values wins.
    options.append(named.get("options", os.environ.get("PGOPTIONS", "")))
    return {
        "connect_timeout": named.get("connect_timeout", ceil(min(seconds, limits.CONNECT_S))),
        "options": " ".join(options).strip(),
    }


def enforce(engine: Engine, seconds: float) -> None:
    """Close an engine's connections if the server stays silent for too long."""

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, arguments: Any, parameters: Any) -> Any:
        connection: Any = _watched_connection().connect(*arguments, **parameters)
        connection.seconds = seconds
        return connection


@contextmanager
def long_statements(connection: Connection) -> Iterator[None]:
    """Raise the statement limit of a server to :data:`tunedb.limits.LONG_STATEMENT_S`.

    For statements that read or change all of a large database. The lock limit stays the same.
    """
    if connection.dialect.name == "sqlite":
        yield
        return
    driver: Any = connection.connection.driver_connection
    usual, driver.seconds = driver.seconds, limits.LONG_STATEMENT_S
    _set_statement_timeout(connection, limits.LONG_STATEMENT_S)
    try:
        yield
    finally:
        driver.seconds = usual
        # A failed or rolled back transaction has already reset the setting.
        usable = "IDLE" if driver.autocommit else "INTRANS"
        if driver.info.transaction_status.name == usable:
            _set_statement_timeout(connection, usual)


def _set_statement_timeout(connection: Connection, seconds: float) -> None:
    connection.exec_driver_sql(
        "SELECT set_config('statement_timeout', %(value)s, false)",
        {"value": str(_milliseconds(seconds))},
    )


def _milliseconds(seconds: float) -> int:
    return ceil(seconds * 1000)


@cache
def _watched_connection() -> type[psycopg.Connection[Any]]:
    """Return the connection class with deadlines; psycopg is imported only here."""
    import psycopg

    class WatchedConnection(psycopg.Connection[Any]):
        """A connection that closes itself if the server is silent for too long."""

        #: Time limit of a statement.
        seconds: float = limits.STATEMENT_S

        def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
            """Run a generator of psycopg, with a deadline."""
            return super().wait(self._until_silent(gen), *args, **kwargs)

        def _until_silent(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
            """Forward the waits of `gen`; close the connection once the deadline has passed."""
            allowed = self.seconds * _SILENCE
            deadline = time.monotonic() + allowed
            try:
                wanted = next(gen)
                while True:
                    ready = yield wanted
                    # A pipeline waits once for many statements.
                    if ready and self._pipeline is not None:
                        deadline = time.monotonic() + allowed
                    elif time.monotonic() > deadline:
                        self.pgconn.finish()
                        raise psycopg.OperationalError(
                            f"the server did not answer for {allowed:g} s; "
                            f"{VARIABLE} sets the time limit"
                        )
                    wanted = gen.send(ready)
            except StopIteration as end:
                value: T = end.value
                return value

    return WatchedConnection
