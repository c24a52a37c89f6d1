"""Writing what is learnt of measurements besides their times: failures, launches of kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

from sqlalchemy import Connection

from . import statements
from .launches import Launch
from .patience import patiently
from .records import Failure, Measurement
from .rows import Rows, failure_row, launch_row_of

#: Digests of program and measurement, and a launch of it.
Launched = tuple[bytes, bytes, Launch]


class Learnt(ABC):
    """The part of :class:`tunedb.store.Store` that writes what is learnt; its guarantees hold."""

    _rows: Rows
    patience: float
    location: str

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Connection]:
        """Yield the writer's connection inside one write transaction."""

    @patiently
    def add_failures(self, failures: Iterable[tuple[Measurement, Failure]]) -> None:
        """Add what was learnt later about measurements that are stored."""
        rows = [failure_row(measurement, failure) for measurement, failure in failures]
        with self._transaction() as connection:
            statements.insert["failure"].many(connection, rows)

    @patiently
    def add_launches(self, launches: Iterable[tuple[Measurement, Launch]]) -> int:
        """Add launches of measurements that are stored; return how many were new.

        Those of a measurement that is not stored (any more) are left out.
        """
        rows = [(one.program.digest, one.digest, launch) for one, launch in launches]
        with self._transaction() as connection:
            return self._insert_launches(connection, rows)

    def _insert_launches(self, connection: Connection, launches: Sequence[Launched]) -> int:
        """Insert launches with their sets of counters; return how many were new."""
        if not launches:
            return 0
        make = self._rows.counter_set
        sets = {
            one.counter_set.digest: make(connection, one.counter_set)
            for one in {id(one.counter_set): one for _, _, one in launches}.values()
            if one.counter_set is not None
        }
        rows = [
            launch_row_of(
                program,
                measurement,
                one,
                None if one.counter_set is None else sets[one.counter_set.digest],
            )
            for program, measurement, one in launches
        ]
        return statements.insert["launch"].many(connection, rows)
