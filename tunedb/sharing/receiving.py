"""What has come of another database and is not written yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from .. import limits
from ..errors import TuneDBError
from ..records import Measurement, Trust
from .following import Following, Taken
from .incoming import Believe, Claim, ForeignSource, Incoming, Merged, believes, refuses
from .report import MergeReport, SourceTally
from .verify import Digested, Measurements
from .wire import COLUMNS, Chunk

if TYPE_CHECKING:
    from ..query import Query

Row = tuple[Any, ...]

_WORKLOAD, _SOURCE = (COLUMNS["measurement"].index(name) for name in ("workload", "source"))

#: Measurements whose numbers are remembered for the failures and features that follow them.
_RECENT = limits.IMPORT_ROWS


class Receiver(Following):
    """Looks at chunks, compares them with the database, and keeps what is to be written.

    Parameters
    ----------
    query : Query
        Of the database that is written to.
    report : MergeReport
        Where everything is counted.
    believe : bool or set of str
        See :func:`tunedb.sharing.incoming.refuses`.

    Attributes
    ----------
    rows, bytes : int
        Measurements that were looked at since the last transaction, and what waits for the next.
    last : tuple of int and bytes, or None
        Number and digest of the last measurement that was looked at.
    """

    def __init__(self, query: Query, report: MergeReport, believe: Believe) -> None:
        super().__init__(query, report)
        self._believe = believe
        self._look = Measurements(self._shared)
        self.last: tuple[int, bytes | None] | None = None
        #: Programs that were counted: since the last look at the database, or by a dry run.
        self._counted: set[bytes] = set()
        self._clear()

    def close(self) -> None:
        """Give back the memory."""
        self._shared.close()
        self._features.close()

    def _clear(self) -> None:
        """Begin a batch."""
        self._sources: dict[bytes, tuple[int, ForeignSource]] = {}
        self._measurements: list[Measurement] = []
        self._source_of: list[int] = []
        self._pending.clear()
        self._new_programs: set[bytes] = set()
        self._claims: list[Claim] = []
        self._forget_following()
        self.rows = 0
        self._standings = self._query.standings()
        self._by_id = {standing.id: standing for standing in self._standings.values()}
        self._look.forget()

    # ------------------------------------------------------------------ what comes

    def take(self, chunk: Chunk) -> None:
        """Look at rows of any table but ``measurement``."""
        table, rows = chunk.table, chunk.rows
        if self._shared.takes(table):
            self._report.bytes += self._shared.take(table, rows)
            return
        taker = self._takers.get(table)
        if taker is None:
            self._report.reject(f"table {table[:40]!r} is unknown", "its first row", len(rows))
        else:
            taker(rows)

    def measurements(self, rows: Sequence[Row]) -> Iterator[None]:
        """Look at measurements, and yield after each; it may be the last of a batch."""
        if not self._report.dry_run:
            self._counted.clear()
        found = list(self._look.digested(rows))
        keys = [(item.program, item.measurement) for item in found if isinstance(item, Digested)]
        known, programs = self._query.known_measurements(keys)
        self._report.read += len(rows)
        for item in found:
            if isinstance(item, Digested):
                row, source = item.row, known.get(item.measurement)
                if source is not None or item.measurement in self._pending:
                    self._known(item, source)
                else:
                    self._new(item, is_new_program=item.program not in programs)
                self.last = row[0], item.measurement
            else:
                row, reason = item
                self._reject(row, reason)
                if len(row) > 1 and type(row[0]) is int:
                    self.last = row[0], row[1] if type(row[1]) is bytes else None
            self.rows += 1
            yield
        self._report.bytes += sum(len(row[7]) + len(row[9] or b"") for row, *_ in _whole(found))
        if len(self._recent) > 2 * _RECENT:
            for number in list(islice(self._recent, _RECENT)):
                del self._recent[number]

    def _tally(self, row: Row) -> SourceTally:
        """Return the numbers of a record's source."""
        number = row[_SOURCE] if len(row) > _SOURCE else None
        source = self._shared.sources.get(number) if isinstance(number, int) else None
        if source is None or self._shared.digests["source"].get(number or 0) is None:
            return self._report.tally(b"", "", "")
        return self._report.tally(source.digest, source.name, source.store)

    def _reject(self, row: Row, reason: str) -> None:
        tally = self._tally(row)
        tally.rejected += 1
        number = row[0] if row else None
        self._report.reject(reason, f"record {number} of {tally.name or 'no known source'}")

    def _known(self, item: Digested, held_by: int | None) -> None:
        """Count a record that is stored, or will be; another source may have it from now on."""
        row = item.row
        self._note(item)
        number = row[_SOURCE]
        source = self._shared.sources[number]
        self._report.tally(source.digest, source.name, source.store).known += 1
        standing = self._standings.get(source.digest)
        trust = Trust.FOREIGN if standing is None else standing.trust
        # None too where it waits in this batch, or another process has added its source meanwhile:
        # the transaction decides then.
        holder = None if held_by is None else self._by_id.get(held_by)
        if holder is not None:
            if holder.digest == source.digest:
                return
            if (-trust, source.digest) >= (-holder.trust, holder.digest):
                if standing is None and holder.trust < Trust.VERIFIED and not self._refuses(source):
                    # Its row is made, so that it can be trusted: the other may be a thief.
                    self._position(source)
                return
        if self._refuses(source) or (trust >= Trust.VERIFIED and not self._is_allowed(item)):
            return
        claim = Claim(item.program, item.measurement, 0, self._look.is_valid(row))
        self._claims.append(claim._replace(source=self._position(source)))
        self.bytes += 100

    def _is_allowed(self, item: Digested) -> bool:
        """Tell whether a known record may be served: an older tunedb may have stored any trace."""
        try:
            self._look.trace(item.row)
        except TuneDBError as error:
            name = self._shared.sources[item.row[_SOURCE]].name
            self._report.reject(f"it stays where it is: {error}", f"record {item.row[0]} of {name}")
            return False
        return True

    def _new(self, item: Digested, *, is_new_program: bool) -> None:
        """Keep a record that is not stored."""
        try:
            measurement, size = self._look.made(item)
        except TuneDBError as error:
            self._reject(item.row, str(error))
            return
        self._note(item)
        self.bytes += size
        self._measurements.append(measurement)
        self._source_of.append(self._position(self._shared.sources[item.row[_SOURCE]]))
        self._pending.add(item.measurement)
        if is_new_program:
            self._new_programs.add(item.program)

    def _note(self, item: Digested) -> None:
        """Remember that a record is stored or will be."""
        row = item.row
        self._recent[row[0]] = Taken(item.program, item.measurement, row[_SOURCE])
        if row[_WORKLOAD] not in self._accepted:
            self._accept(row[_WORKLOAD], row[_SOURCE])

    def _position(self, source: ForeignSource) -> int:
        """Return where a source stands among those of the batch."""
        position = len(self._sources), source
        return self._sources.setdefault(source.digest, position)[0]

    def _refuses(self, source: ForeignSource) -> bool:
        standing = self._standings.get(source.digest)
        return refuses(source, standing, self._query.store_key, self._believe)

    def _refusal(self, source: ForeignSource) -> str | None:
        return _trusted(source) if self._refuses(source) else None

    def _believes(self, source: ForeignSource) -> bool:
        return believes(self._believe, source.store)

    # ------------------------------------------------------------------ what is written

    def incoming(self) -> Incoming:
        """Return what waits; features do until the end (:meth:`features`)."""
        return Incoming(
            sources=[source for _, source in self._sources.values()],
            measurements=self._measurements,
            source_of=self._source_of,
            claims=self._claims,
            failures=self._failures,
            aliases=self._queued,
            retractions=self._retractions,
            launches=self._launches,
            believe=self._believe,
        )

    def features(self) -> Iterator[Incoming]:
        """Yield the features that are taken, after all records were written."""
        for reason, count in self._features.check(self._query):
            self._report.reject(reason, reason, count)
        sources = self._features.sources
        for batch in self._features.batches():
            yield Incoming(sources=sources, features=batch, believe=self._believe)

    def foreseen(self, incoming: Incoming) -> Merged:
        """Return what a transaction would come to; failures of refused records count too."""
        sides = [self._refuses(source) for source in incoming.sources]
        counts = Counter(incoming.source_of)
        believed, others = incoming.sorted_out(self._query.trusted_stores())
        return Merged(
            new={source: n for source, n in counts.items() if not sides[source]},
            refused={source: n for source, n in counts.items() if sides[source]},
            refused_words=Counter(
                (table, one.source)
                for table, words in incoming.words.items()
                for one in words
                if sides[one.source]
            ),
            moved=len(incoming.claims),
            failures=sum(not sides[one.source] for one in incoming.failures),
            aliases=Counter(one.source for one in incoming.aliases if not sides[one.source]),
            features=sum(not sides[one.source] for one in incoming.features),
            retractions=len(believed),
            launches=sum(not sides[one.source] for one in incoming.launches),
            refused_retractions=others,
        )

    def written(self, incoming: Incoming, merged: Merged) -> None:
        """Count what a transaction came to, and begin the next batch."""
        report = self._report
        for position, count in Counter(incoming.source_of).items():
            source = incoming.sources[position]
            tally = report.tally(source.digest, source.name, source.store)
            new, refused = merged.new.get(position, 0), merged.refused.get(position, 0)
            tally.new += new
            tally.rejected += refused
            tally.known += count - new - refused
            if refused:
                report.reject(_trusted(source), f"record of {source.name}", refused)
        for position, count in merged.aliases.items():
            source = incoming.sources[position]
            report.tally(source.digest, source.name, source.store).aliases += count
        for (table, position), count in merged.refused_words.items():
            source = incoming.sources[position]
            report.reject(f"{table}: {_trusted(source)}", f"{table} of {source.name}", count)
        self._count_programs(incoming, merged)
        for one in merged.refused_retractions:
            reason = f"retraction: database {one.store!r} is trusted here; {_BELIEVE}"
            report.reject(reason, f"{one.subject} {one.digest.hex()}")
        for one in merged.relayed_retractions:
            reason = "retraction: the server takes it only from the database's own account"
            report.reject(reason, f"{one.subject} {one.digest.hex()}")
        for name, count in merged.refused_sets.items():
            report.reject(f"feature: {name} has other columns here", name, count)
        for name in ("moved", "failures", "launches", "features", "retractions"):
            setattr(report, name, getattr(report, name) + getattr(merged, name))
        self._clear()

    def _count_programs(self, incoming: Incoming, merged: Merged) -> None:
        """Count programs and workloads that were not known."""
        taken = [
            measurement.program
            for measurement, source in zip(incoming.measurements, incoming.source_of, strict=True)
            if source not in merged.refused
        ]
        new = self._new_programs & {program.digest for program in taken}
        new -= self._counted
        self._counted |= new
        self._report.programs += len(new)
        workloads = {program.workload.digest for program in taken} & self._unknown_workloads
        self._report.workloads += len(workloads)
        self._unknown_workloads -= workloads


_BELIEVE = "give --believe if this really comes from it"


def _trusted(source: ForeignSource) -> str:
    return f"source {source.name!r} is trusted here; {_BELIEVE}"


def _whole(found: Sequence[Digested | tuple[Row, str]]) -> Iterator[Digested]:
    return (item for item in found if isinstance(item, Digested))
