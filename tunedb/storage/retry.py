"""Retries of calls to a server that is away; only idempotent calls are retried."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from .. import limits
from ..errors import UnreachableError

if TYPE_CHECKING:
    from .database import Database

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("tunedb")


class _StorePart(Protocol):
    """A part of a store, whose database has the retry timeout."""

    _db: Database


S = TypeVar("S", bound=_StorePart)


def retry(call: Callable[[], T], error: UnreachableError, timeout: float) -> T:
    """Repeat a failed call, with growing waits, until it succeeds or `timeout` has passed.

    Parameters
    ----------
    call : callable
        The failed call; it must be idempotent.
    error : UnreachableError
        Its first error.
    timeout : float
        Seconds from now; 0 raises `error` at once.

    Raises
    ------
    UnreachableError
        The server is still away; the error of the last attempt.
    """
    deadline = time.monotonic() + timeout
    wait = limits.FIRST_WAIT_S
    if timeout:
        _log.warning("%s; waiting up to %d s for it", error, timeout)
    while time.monotonic() + wait <= deadline:
        time.sleep(wait)
        wait = min(2 * wait, limits.LONGEST_WAIT_S)
        try:
            return call()
        except UnreachableError as later_error:
            error = later_error
    raise error


def retried(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Retry a method of a store's part for the database's retry timeout.

    The method must be idempotent: its transaction may have committed although the reply was lost.
    """

    @wraps(method)
    def with_retries(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, *args, **kwargs)
        except UnreachableError as error:
            if not self._db.retry_timeout:
                raise
            return retry(lambda: method(self, *args, **kwargs), error, self._db.retry_timeout)

    return with_retries
