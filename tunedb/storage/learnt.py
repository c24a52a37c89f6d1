"""Writing what is learnt of measurements besides their times: failures, launches of kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from sqlalchemy import Connection

from ..launches import Launch
from ..records import TUNING, Failure, Measurement
from . import statements
from .queries import Query
from .retry import patiently
from .rows import Rows, failure_row_of, launch_row_of

T = TypeVar("T")

#: Digests of program and measurement, a launch of it, and the local number of the source that says
#: so.
Launched = tuple[bytes, bytes, Launch, int]


class Learnt(ABC):
    """The part of :class:`~.store.Store` that writes what is learnt; its guarantees hold."""

    query: Query
    _rows: Rows
    patience: float
    location: str

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Connection]:
        """Yield the writer's connection inside one write transaction."""

    @patiently
    def add_failures(self, failures: Iterable[tuple[Measurement, Failure]]) -> None:
        """Add what this database says of failed measurements that are stored."""
        with self._transaction() as connection:
            rows = [
                failure_row_of(one.program.digest, one.digest, failure, source_id)
                for one, failure, source_id in self._said(connection, failures)
            ]
            statements.insert["failure"].many(connection, rows)

    @patiently
    def add_launches(self, launches: Iterable[tuple[Measurement, Launch]]) -> int:
        """Add what this database says of the launches of measurements; return how many were new.

        Those of a measurement that is not stored (any more) are left out.
        """
        with self._transaction() as connection:
            rows = [
                (one.program.digest, one.digest, launch, source_id)
                for one, launch, source_id in self._said(connection, launches)
            ]
            return self._insert_launches(connection, rows)

    def _said(
        self, connection: Connection, words: Iterable[tuple[Measurement, T]]
    ) -> Iterator[tuple[Measurement, T, int]]:
        """Yield what is said of measurements that are stored, with the source that says it.

        This database speaks for its own records in the name of their sources, and of those of
        others in the name of its tuning runs.
        """
        for measurement, word in words:
            found = statements.source_of(
                connection,
                measurement=measurement.digest,
                program=measurement.program.digest,
            ).one_or_none()
            if found is None:
                continue
            if found.store == self.query.store_key:
                yield measurement, word, found.source_id
            else:
                yield measurement, word, self._rows.source(connection, TUNING)[0]

    def _insert_launches(self, connection: Connection, launches: Sequence[Launched]) -> int:
        """Insert launches with their sets of counters; return how many were new."""
        if not launches:
            return 0
        make = self._rows.counter_set
        sets = {
            one.counter_set.digest: make(connection, one.counter_set)
            for one in {id(one.counter_set): one for _, _, one, _ in launches}.values()
            if one.counter_set is not None
        }
        rows = [
            launch_row_of(
                program,
                measurement,
                one,
                None if one.counter_set is None else sets[one.counter_set.digest],
                source_id,
            )
            for program, measurement, one, source_id in launches
        ]
        return statements.insert["launch"].many(connection, rows)
