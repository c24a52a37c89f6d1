"""How long a server may take: the deadlines of each connection to PostgreSQL.

The server itself ends a statement that runs for too long or waits too long for a lock. A server
that says nothing at all (a stopped process, a network that swallows packets) is given up on this
side: psycopg would wait for ever. The clock is monotonic, so that setting the time of day moves no
deadline.
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

#: Names the seconds that a statement may take on a server.
VARIABLE = "TUNEDB_TIMEOUT"

#: The server ends a statement itself and says so; its word needs some time to arrive.
_SILENCE = 1.5


def statement_seconds() -> float:
    """Return how long a statement may take: ``TUNEDB_TIMEOUT``, or the default.

    Raises
    ------
    UsageError
        The variable holds no such number.
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
    """Return what libpq is told of deadlines.

    Parameters
    ----------
    seconds : float
        How long a statement may take.
    named : mapping
        Parameters of the URL, which count before ours.
    """
    # Less for locks: the server says which of the two it was.
    waits = {"statement_timeout": seconds, "lock_timeout": min(seconds / 2, limits.LOCK_S)}
    ours = [f"-c {name}={_milliseconds(value)}" for name, value in waits.items()]
    # The last of two values counts.
    theirs = named.get("options", os.environ.get("PGOPTIONS", ""))
    return {
        "connect_timeout": named.get("connect_timeout", ceil(min(seconds, limits.CONNECT_S))),
        "options": " ".join([*ours, theirs]).strip(),
    }


def watch(engine: Engine, seconds: float) -> None:
    """Let an engine's connections be closed where the server is silent for too long."""

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, arguments: Any, parameters: Any) -> Any:
        connection: Any = _watched_connection().connect(*arguments, **parameters)
        connection.seconds = seconds
        return connection


@contextmanager
def unhurried(connection: Connection) -> Iterator[None]:
    """Give statements of a server :data:`tunedb.limits.LONG_STATEMENT_S`.

    For those that look at, or change, all of a large database. A lock is not waited for any longer.
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
        # A transaction that failed or was rolled back has taken the setting back itself.
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
    """Return the class of connections whose waits end; psycopg is imported here alone."""
    import psycopg

    class WatchedConnection(psycopg.Connection[Any]):
        """A connection that is closed where the server is silent for too long."""

        #: How long a statement may take.
        seconds: float = limits.STATEMENT_S

        def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
            """Consume a generator that works on the connection, as psycopg does."""
            return super().wait(self._until_silent(gen), *args, **kwargs)

        def _until_silent(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
            """Yield what `gen` waits for; close the connection where that does not come."""
            allowed = self.seconds * _SILENCE
            deadline = time.monotonic() + allowed
            try:
                wanted = next(gen)
                while True:
                    ready = yield wanted
                    # A pipeline is many statements in one wait.
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
