"""Waiting for a server that is away: calls that may be made again are, for a while."""

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


class _HasDatabase(Protocol):
    """A part of a store; its database knows for how long a call is made again."""

    _db: Database


S = TypeVar("S", bound=_HasDatabase)


def again(call: Callable[[], T], error: UnreachableError, patience: float) -> T:
    """Return what a call returns that has failed once, made again while patience lasts.

    Parameters
    ----------
    call : callable
        What failed; nothing may come of it twice.
    error : UnreachableError
        How it failed.
    patience : float
        Seconds from now for which it is made again.

    Raises
    ------
    UnreachableError
        The server is still away.
    """
    deadline = time.monotonic() + patience
    wait = limits.FIRST_WAIT_S
    if patience:
        _log.warning("%s; waiting up to %d s for it", error, patience)
    while time.monotonic() + wait <= deadline:
        time.sleep(wait)
        wait = min(2 * wait, limits.LONGEST_WAIT_S)
        try:
            return call()
        except UnreachableError as other:
            error = other
    raise error


def patiently(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Let a method of a part be called again where the server went away, while patience lasts.

    The method must be one that may be called twice: its transaction may have been committed
    although nobody heard so.
    """

    @wraps(method)
    def patient(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, *args, **kwargs)
        except UnreachableError as error:
            if not self._db.patience:
                raise
            return again(lambda: method(self, *args, **kwargs), error, self._db.patience)

    return patient
