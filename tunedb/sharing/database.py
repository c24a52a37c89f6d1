"""A database as the giving side of an exchange: a file or a server, ours or somebody else's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import compression, limits
from ..engine import Prepared
from ..errors import LimitError, StorageError
from . import choosing
from .cutting import Row, cut, taken
from .opened import OpenedDatabase
from .selection import Selection
from .tables import COMPRESSED
from .wire import COLUMNS, Chunk, Position

#: Where a row of ``measurement`` names a shared row, and of which table.
_REFERENCES = tuple(
    (at, name)
    for name in (
        *("source", "session", "workload", "target", "sketch", "tail", "args_info", "context"),
    )
    for at in (COLUMNS["measurement"].index(name),)
)

#: Numbers asked for at once: the text of them stays short.
_NUMBERS = 500


class DatabasePeer(OpenedDatabase):
    """A database that gives its records (:class:`tunedb.sharing.wire.Peer`).

    What was measured is added to a database and hardly ever taken out, so that
    :meth:`position`, read before anything else, bounds a consistent view of it; each page of
    records with all that it refers to is one snapshot.

    Parameters
    ----------
    url : str, Path or URL
        A path, ``sqlite:///…`` or ``postgresql+psycopg://…``.
    own : bool
        It is ours: a file is opened as always and must have this version's schema.
    check : bool
        Let SQLite look through the whole of a foreign file for damage first.

    Raises
    ------
    NotFoundError, SchemaError, StorageError, UsageError
        It cannot be read (:func:`tunedb.sharing.foreign.open_file`).

    Attributes
    ----------
    location : str
        For messages, without a password.
    store_key : str
        Which database it says that it is.
    total : int
        Measurements that it will give, for a progress bar; exact once :meth:`chunks` has begun
        with a selection.
    revision : str
        Its schema.
    """

    # ------------------------------------------------------------------ what it gives

    def chunks(
        self, selection: Selection, since: Position | None = None, until: Position | None = None
    ) -> Iterator[Chunk]:
        """Yield what is selected, each row after those that it refers to.

        Parameters
        ----------
        selection : Selection
            What to give.
        since, until : Position or None
            Only measurements, failures and launches after and up to there. The best of a workload
            may be others with each record that is added: with ``best`` all of them are given where
            anything was added.

        Yields
        ------
        Chunk
            Of at most :data:`tunedb.limits.BATCH_ROWS` rows, and few more than
            :data:`tunedb.limits.CHUNK_BYTES` bytes.

        Raises
        ------
        NotFoundError
            Nothing has a name of the selection.
        LimitError, StorageError
            It cannot be read on.
        """
        since = since or Position()
        until = until or self.position()
        start = since.measurement_id
        chosen: NDArray[np.int64] | None = None
        if choosing.is_restricted(selection):
            chosen = self._chosen(selection, until.measurement_id)
            if selection.best is not None and start < until.measurement_id:
                start = 0
        first = 0 if chosen is None else int(np.searchsorted(chosen, start, "right"))
        self.total = max(0, until.measurement_id - start) if chosen is None else len(chosen) - first
        given: dict[str, set[Any]] = {name: set() for _, name in _REFERENCES}
        if chosen is None:
            yield from self._range(start, until, selection, given)
        else:
            for at in range(first, len(chosen), limits.BATCH_ROWS):
                ids = chosen[at : at + limits.BATCH_ROWS].tolist()
                yield from self._listed(ids, until, selection, given)
        if start:
            yield from self._later(since, until, start, chosen, given)
        if since.retractions != until.retractions:
            rows = self._rows(self._tables.retractions)
            own = self.store_key
            filled = ((d, own if s is None else s, subject, why) for d, s, subject, why in rows)
            yield from cut("retraction", filled)

    def _chosen(self, selection: Selection, until: int) -> NDArray[np.int64]:
        """Return the numbers of the measurements that are meant."""
        with self._snapshot() as connection:
            try:
                return choosing.chosen_ids(connection.execute, selection, until)
            except StorageError as error:
                raise StorageError(f"{self.location}: {error}") from None

    def _range(
        self, after: int, until: Position, selection: Selection, given: dict[str, set[Any]]
    ) -> Iterator[Chunk]:
        """Yield all measurements after one, with what belongs to them."""
        while after < until.measurement_id:
            with self._snapshot():
                page = self._rows(
                    self._tables.page, after=after, until=until.measurement_id, n=limits.BATCH_ROWS
                )
                rows, more = taken(page, after, self.location)
                if not rows:
                    return
                after = rows[-1][0]
                pick = partial(self._of_range, first=rows[0][0], last=after)
                yield from self._with_learnt(rows, pick, until, selection, given)
            if not more and len(rows) < limits.BATCH_ROWS:
                return

    def _listed(
        self,
        ids: list[int],
        until: Position,
        selection: Selection,
        given: dict[str, set[Any]],
    ) -> Iterator[Chunk]:
        """Yield some measurements, with what belongs to them."""
        after, more = ids[0] - 1, True
        while more:
            with self._snapshot():
                left = [id_ for id_ in ids if id_ > after]
                page = self._among(self._tables.page_of, left)
                rows, more = taken(page, after, self.location)
                if not rows:
                    return
                after = rows[-1][0]
                pick = partial(self._of_listed, [row[0] for row in rows])
                yield from self._with_learnt(rows, pick, until, selection, given)

    def _of_range(self, ranged: Prepared, _: Prepared, **parameters: Any) -> Iterator[Row]:
        return self._rows(ranged, **parameters)

    def _of_listed(
        self, ids: list[int], _: Prepared, listed: Prepared, **parameters: Any
    ) -> Iterator[Row]:
        return self._among(listed, ids, **parameters)

    def _with_learnt(
        self,
        rows: list[Row],
        pick: Callable[..., Iterator[Row]],
        until: Position,
        selection: Selection,
        given: dict[str, set[Any]],
    ) -> Iterator[Chunk]:
        """Yield a page of measurements after what they refer to, and then what belongs to them.

        `pick` runs one of two statements: that for a range of measurements, or that for some.
        """
        tables, launches = self._tables, self._tables.launches
        yield from self._with_shared(rows, given)
        failures = pick(tables.failures, tables.failures_of, newest=until.failure_id)
        yield from self._said("failure", failures, given)
        if launches is not None and until.launch_id:
            newest = until.launch_id
            sets = pick(launches.sets_of_range, launches.sets_of, newest=newest)
            found = pick(launches.of_range, launches.of, newest=newest)
            yield from self._launched(sets, found, given)
        if selection.features:
            yield from self._features(pick(tables.features, tables.features_of), given)

    def _with_shared(self, rows: list[Row], given: dict[str, set[Any]]) -> Iterator[Chunk]:
        """Yield measurements after the shared rows that are needed for the first time."""
        for at, name in _REFERENCES:
            known = given[name]
            needed = {row[at] for row in rows} - known
            needed.discard(None)
            # A value that is no number names nothing; whoever verifies the measurement says so.
            ids = sorted(id_ for id_ in needed if id_.__class__ is int)
            known.update(ids)
            for start in range(0, len(ids), _NUMBERS):
                yield from self._shared(name, ids[start : start + _NUMBERS], given)
        yield Chunk("measurement", rows)

    def _shared(self, name: str, ids: list[int], given: dict[str, set[Any]]) -> Iterator[Chunk]:
        """Yield rows of one table, and the aliases of workloads."""
        statement = self._tables.shared.get(name)
        if statement is None:
            return
        rows = self._among(statement, ids)
        if name in COMPRESSED:
            at = COLUMNS[name].index("body")
            rows = (self._unpacked(row, at) for row in rows)
        yield from cut(name, rows)
        if name == "workload":
            yield from self._said(
                "workload_alias", self._among(self._tables.aliases_of, ids), given
            )

    def _said(self, table: str, rows: Iterator[Row], given: dict[str, set[Any]]) -> Iterator[Chunk]:
        """Yield rows after the sources that say it, where these are needed for the first time."""
        for chunk in cut(table, rows):
            ids = sorted(
                {i for row in chunk.rows if (i := row[-1]).__class__ is int} - given["source"]
            )
            given["source"].update(ids)
            for start in range(0, len(ids), _NUMBERS):
                yield from self._shared("source", ids[start : start + _NUMBERS], given)
            yield chunk

    def _unpacked(self, row: Row, at: int) -> Row:
        """Return a row with its body as it is, or without where that cannot be."""
        limit = limits.MAX_BODY_BYTES if self._foreign is None else limits.MAX_FOREIGN_BYTES
        body: bytes | None
        try:
            body = compression.decompress(row[at], limit)
        except (LimitError, StorageError, TypeError):
            body = None
        return (*row[:at], body, *row[at + 1 :])

    def _features(self, rows: Iterator[Row], given: dict[str, set[Any]]) -> Iterator[Chunk]:
        """Yield features, each once although a program may have several measurements."""
        if "feature_set" not in given:
            given["feature_set"] = set()
            yield from cut("feature_set", self._rows(self._tables.feature_sets))
        seen: set[tuple[Any, Any]] = set()

        def new() -> Iterator[Row]:
            for program, *values in rows:
                if (program, values[1]) not in seen:
                    seen.add((program, values[1]))
                    yield tuple(values)

        yield from cut("feature", new())

    def _launched(
        self, sets: Iterator[Row], launches: Iterator[Row], given: dict[str, set[Any]]
    ) -> Iterator[Chunk]:
        """Yield launches after the sets of counters that are needed for the first time."""
        known = given.setdefault("counter_set", set())
        new = [row for row in sets if row[0] not in known]
        known.update(row[0] for row in new)
        yield from cut("counter_set", new)
        yield from self._said("launch", launches, given)

    def _later(
        self,
        since: Position,
        until: Position,
        last: int,
        chosen: NDArray[np.int64] | None,
        given: dict[str, set[Any]],
    ) -> Iterator[Chunk]:
        """Yield failures and launches that were learnt after their measurements were given."""

        def meant(rows: Iterator[Row]) -> Iterator[Row]:
            for row in rows:
                if chosen is None or choosing.has(chosen, row[0]):
                    yield row[1:]

        if since.failure_id < until.failure_id:
            ends = {"oldest": since.failure_id, "newest": until.failure_id, "last": last}
            yield from self._said("failure", meant(self._rows(self._tables.later, **ends)), given)
        launches = self._tables.launches
        if launches is not None and since.launch_id < until.launch_id:
            ends = {"oldest": since.launch_id, "newest": until.launch_id, "last": last}
            found = meant(self._rows(launches.later, **ends))
            yield from self._launched(self._rows(launches.sets_later, **ends), found, given)
