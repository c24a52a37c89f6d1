"""Receiver: verifies chunks of another database and collects the rows to be written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from .. import limits
from ..errors import LimitError, TuneDBError
from ..launches import Launch
from ..records import Alias, Failure, Measurement, SourceKind, Trust
from ..storage.columns import AT
from ..storage.exchange_types import (
    COLUMNS,
    AcceptedNames,
    Chunk,
    Claim,
    ForeignAlias,
    ForeignFailure,
    ForeignFeatures,
    ForeignLaunch,
    ForeignSource,
    MergeBatch,
    MergeResult,
    accepts,
    is_rejected,
)
from ..storage.retractions import Retraction
from ..system.compression import compress_all
from .held_features import HeldFeatures
from .merge_report import MergeReport, SourceTally
from .verify import (
    DIFFERENT,
    DigestedRow,
    MeasurementVerifier,
    SentFeatureSet,
    SharedRows,
    fail,
    failure_from_row,
    features_from_row,
    launch_from_row,
    retraction_from_row,
    store_key,
    text,
)

if TYPE_CHECKING:
    from ..storage.store import Store

Row = tuple[Any, ...]
T = TypeVar("T", Failure, Launch)

_NO_MEASUREMENT = "it refers to a measurement that was rejected or is missing"
_NO_SOURCE = "its source was rejected or is missing"

_MEASURED_HERE = (
    "feature: its program was measured by a source that is trusted here; compute it: tunedb "
    "extract, or give --accept-trusted-names if this really comes from its source"
)

#: Name of the source of statements from revisions without attribution.
_UNATTRIBUTED = "unattributed"

#: Approximate memory of a row besides its texts.
_OBJECT_BYTES = 200

#: Errors raised by a malformed row.
_ROW_ERRORS = (TuneDBError, TypeError, ValueError)


class _Received(NamedTuple):
    """A measurement of the stream that is or will be stored: digests, and id of its source."""

    program: bytes
    measurement: bytes
    source: int


class _Statement(NamedTuple):
    """A failure or launch with the digests of its measurement, and the source that states it."""

    digest: bytes
    program: bytes
    measurement: bytes
    content: Any
    source: ForeignSource

    @property
    def key(self) -> tuple[bytes, bytes]:
        """Its digest and that of its source."""
        return self.digest, self.source.digest


class _Features(NamedTuple):
    """Rows of a feature set for the program with this digest, and the source of its record."""

    program: bytes
    named: SentFeatureSet
    rows: Any
    source: ForeignSource

    def packed(self, frame: bytes) -> ForeignFeatures:
        """Return the rows in their stored form."""
        named, (n_rows, n_columns) = self.named, self.rows.shape
        key = self.program, named.name, named.version, named.columns
        return ForeignFeatures(*key, n_rows, n_columns, frame, 0)


_WORKLOAD, _SOURCE = AT["workload"], AT["source"]
_LONG = itemgetter(AT["decisions"], AT["run_secs"])

#: MeasurementVerifier whose numbers are remembered for the failures and features that follow them.
_RECENT = limits.IMPORT_ROWS


class Receiver:
    """Verifies chunks, compares them with the database, and collects the rows to be written.

    Parameters
    ----------
    store : Store
        Database to be written.
    report : MergeReport
        Counts all rows.
    accept_trusted_names : bool or set of str
        See :func:`tunedb.storage.exchange_types.is_rejected`.

    Attributes
    ----------
    rows, bytes : int
        Measurements read since the last transaction, and bytes collected for the next.
    last : tuple of int and bytes, or None
        Id and digest of the last measurement.
    """

    def __init__(
        self, store: Store, report: MergeReport, accept_trusted_names: AcceptedNames
    ) -> None:
        self._store = store
        self._report = report
        self._shared = SharedRows(report.reject)
        #: Received measurements by id.
        self._recent: dict[int, _Received] = {}
        self._pending: set[bytes] = set()
        #: Aliases of workloads without a record so far, with the id of their source.
        self._aliases: dict[int, list[tuple[Alias, int | None]]] = {}
        self._n_aliases = 0
        #: Characters of these aliases.
        self._alias_chars = 0
        #: Source of the first stored record of each workload, by the other side's ids.
        self._stored_workloads: dict[int, int] = {}
        self._unknown_workloads: set[bytes] = set()
        self._features = HeldFeatures(store.key)
        self._handlers: dict[str, Callable[[Sequence[Row]], None]] = {
            "workload_alias": self._take_aliases,
            "failure": self._take_failures,
            "launch": self._take_launches,
            "feature": self._take_features,
            "retraction": self._take_retractions,
        }
        self._accepted_names = accept_trusted_names
        self._verifier = MeasurementVerifier(self._shared)
        self.last: tuple[int, bytes | None] | None = None
        #: Programs counted since the last lookup, or by a dry run.
        self._counted: set[bytes] = set()
        self._clear()

    def close(self) -> None:
        """Release memory and files."""
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
        self._failures: list[ForeignFailure] = []
        self._launches: list[ForeignLaunch] = []
        self._new_aliases: list[ForeignAlias] = []
        self._retractions: list[Retraction] = []
        self.bytes: int = 0
        self.rows: int = 0
        self._known_sources = self._store.exchange.sources()
        self._sources_by_id = {source.id: source for source in self._known_sources.values()}
        self._verifier.forget()

    # ------------------------------------------------------------------ receiving

    def take(self, chunk: Chunk) -> None:
        """Verify rows of any table except ``measurement``."""
        table, rows = chunk.table, chunk.rows
        if self._shared.takes(table):
            self._report.bytes += self._shared.take(table, rows)
            return
        handler = self._handlers.get(table)
        if handler is None:
            self._report.reject(f"table {table[:40]!r} is unknown", "its first row", len(rows))
        else:
            handler(rows)

    def measurements(self, rows: Sequence[Row]) -> Iterator[None]:
        """Verify measurements; yields after each, because a batch may end there."""
        if not self._report.dry_run:
            self._counted.clear()
        items = list(self._verifier.digested(rows))
        keys = [(item.program, item.measurement) for item in _digested(items)]
        known, programs = self._store.exchange.known_measurements(keys)
        self._report.read += len(rows)
        for item in items:
            if isinstance(item, DigestedRow):
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
        self._report.bytes += sum(
            len(value) for row, *_ in _digested(items) for value in _LONG(row) if value is not None
        )
        if len(self._recent) > 2 * _RECENT:
            for number in list(islice(self._recent, _RECENT)):
                del self._recent[number]

    def _tally(self, row: Row) -> SourceTally:
        """Return the counts of a record's source."""
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

    def _known(self, item: DigestedRow, holder_id: int | None) -> None:
        """Count a record that is or will be stored; it may be assigned to another source."""
        row = item.row
        self._note(item)
        number = row[_SOURCE]
        source = self._shared.sources[number]
        self._report.tally(source.digest, source.name, source.store).known += 1
        known_source = self._known_sources.get(source.digest)
        trust = Trust.FOREIGN if known_source is None else known_source.trust
        # Also None if the record is in this batch, or another process has added its source
        # meanwhile: the transaction decides then.
        holder = None if holder_id is None else self._sources_by_id.get(holder_id)
        if holder is not None:
            if holder.digest == source.digest:
                return
            if (-trust, source.digest) >= (-holder.trust, holder.digest):
                is_untrusted = holder.trust < Trust.VERIFIED
                if known_source is None and is_untrusted and not self._is_rejected(source):
                    # Inserted, so that the user can trust it: the holder may be a thief.
                    self._position(source)
                return
        if self._is_rejected(source) or (trust >= Trust.VERIFIED and not self._is_allowed(item)):
            return
        claim = Claim(item.program, item.measurement, 0, self._verifier.is_valid(row))
        self._claims.append(claim._replace(source=self._position(source)))
        self.bytes += 100

    def _is_allowed(self, item: DigestedRow) -> bool:
        """Return true if a known record may be served: an older tunedb stored any trace."""
        try:
            self._verifier.trace(item.row)
        except TuneDBError as error:
            name = self._shared.sources[item.row[_SOURCE]].name
            self._report.reject(f"it stays where it is: {error}", f"record {item.row[0]} of {name}")
            return False
        return True

    def _new(self, item: DigestedRow, *, is_new_program: bool) -> None:
        """Collect a record that is not stored."""
        try:
            measurement, size = self._verifier.measurement(item)
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

    def _note(self, item: DigestedRow) -> None:
        """Remember that a record is or will be stored."""
        row = item.row
        self._recent[row[0]] = _Received(item.program, item.measurement, row[_SOURCE])
        if row[_WORKLOAD] not in self._stored_workloads:
            self._add_workload(row[_WORKLOAD], row[_SOURCE])

    def _position(self, source: ForeignSource) -> int:
        """Return the position of a source in the batch."""
        position = len(self._sources), source
        return self._sources.setdefault(source.digest, position)[0]

    def _is_rejected(self, source: ForeignSource) -> bool:
        known = self._known_sources.get(source.digest)
        return is_rejected(source, known, self._store.key, self._accepted_names)

    def _rejection(self, source: ForeignSource) -> str | None:
        return _trusted_message(source) if self._is_rejected(source) else None

    def _accepts(self, source: ForeignSource) -> bool:
        return accepts(self._accepted_names, source.store)

    # ------------------------------------------------------------------ rows of other tables

    def _source(self, number: int) -> ForeignSource:
        """Return a verified source, or raise FormatError."""
        if self._shared.digests["source"].get(number) is None:
            fail(_NO_SOURCE)
        return self._shared.sources[number]

    def _add_workload(self, workload: int, source: int) -> None:
        """Remember that a workload has a record, and collect its waiting aliases."""
        # Aliases from revisions without attribution are those of this source.
        self._stored_workloads[workload] = source
        digest = self._shared.digests["workload"][workload]
        if digest is not None and self._store.workloads.id_of(digest) is None:
            self._unknown_workloads.add(digest)
        waiting = self._aliases.pop(workload, [])
        self._alias_chars -= sum(_chars(alias) for alias, _ in waiting)
        self._queue(workload, waiting)

    def _take_aliases(self, rows: Sequence[Row]) -> None:
        self._n_aliases += len(rows)
        if self._n_aliases > limits.MAX_SHARED_ROWS:
            raise LimitError(f"more than {limits.MAX_SHARED_ROWS:,} aliases in one exchange")
        ready: dict[int, list[tuple[Alias, int | None]]] = {}
        for row in rows:
            try:
                workload, scheme, key, source = row
                if self._shared.digests["workload"].get(workload) is None:
                    fail("its workload was rejected or is missing")
                limit = limits.MAX_FOREIGN_LABEL_CHARS
                alias = Alias(text(scheme, "its scheme", limit), text(key, "its key", limit))
                if source is not None:
                    self._source(source)
            except _ROW_ERRORS as error:
                self._reject_row("workload_alias", error)
                continue
            if workload in self._stored_workloads:
                ready.setdefault(workload, []).append((alias, source))
            else:
                self._aliases.setdefault(workload, []).append((alias, source))
                self._alias_chars += _chars(alias)
        if self._alias_chars > limits.MAX_SHARED_BYTES:
            raise LimitError("too many long aliases in one exchange")
        # Grouped by workload, so that its stored aliases are read once.
        for workload, aliases in ready.items():
            self._queue(workload, aliases)

    def _queue(self, workload: int, aliases: list[tuple[Alias, int | None]]) -> None:
        """Collect the aliases of a workload that are not stored."""
        digest = self._shared.digests["workload"][workload]
        if not aliases or digest is None:
            return
        id_ = self._store.workloads.id_of(digest)
        known = set() if id_ is None else self._store.exchange.known_aliases(id_)
        for alias, number in aliases:
            source = self._source(self._stored_workloads[workload] if number is None else number)
            if (alias, source.digest) not in known:
                known.add((alias, source.digest))
                self._new_aliases.append(ForeignAlias(digest, alias, self._position(source)))
                self.bytes += _chars(alias) + _OBJECT_BYTES

    def _reject_row(self, table: str, error: Exception) -> None:
        reason = str(error) if isinstance(error, TuneDBError) else "it has other columns or types"
        self._report.reject(f"{table}: {reason}", table)

    def _take_failures(self, rows: Sequence[Row]) -> None:
        failures = self._statements("failure", rows, failure_from_row)
        known = self._store.exchange.known_failures([failure.key for failure in failures])
        for _, program, measurement, content, source in (f for f in failures if f.key not in known):
            position = self._position(source)
            self._failures.append(ForeignFailure(program, measurement, content, position))
            self.bytes += len(content.message) + _OBJECT_BYTES

    def _take_launches(self, rows: Sequence[Row]) -> None:
        digests = self._shared.digests["counter_set"]
        counter_sets = {
            number: counter_set
            for number, counter_set in self._shared.counter_sets.items()
            if digests[number] is not None
        }
        launches = self._statements("launch", rows, lambda row: launch_from_row(row, counter_sets))
        known = self._store.exchange.known_launches([launch.key for launch in launches])
        for _, program, measurement, content, source in (x for x in launches if x.key not in known):
            position = self._position(source)
            self._launches.append(ForeignLaunch(program, measurement, content, position))
            self.bytes += len(content.kernel) + 40 * len(content.values) + _OBJECT_BYTES

    def _statements(
        self, table: str, rows: Sequence[Row], make: Callable[[Row], T]
    ) -> list[_Statement]:
        """Return the distinct failures or launches of measurements that are or will be stored."""
        statements: dict[tuple[bytes, bytes], _Statement] = {}
        by_digest: list[tuple[bytes, bytes]] = []
        for row in rows:
            try:
                if len(row) != len(COLUMNS[table]):
                    fail("it has other columns or types")
                _, stated, number, program, measurement, *_ = row
                source_id = row[-1]
                if number is not None:
                    if number not in self._recent:
                        fail(_NO_MEASUREMENT)
                    program, measurement, own = self._recent[number]
                    source_id = own if source_id is None else source_id
                elif {type(program), type(measurement)} != {bytes}:
                    fail("it belongs to no measurement")
                source = self._unattributed() if source_id is None else self._source(source_id)
                content = make(row)
                digest = content.digest(measurement)
                if stated is not None and stated != digest:
                    fail(DIFFERENT)
            except _ROW_ERRORS as error:
                self._reject_row(table, error)
                continue
            statement = _Statement(digest, program, measurement, content, source)
            statements[statement.key] = statement
            if number is None:
                by_digest.append((program, measurement))
        stored, _ = self._store.exchange.known_measurements(by_digest)
        absent = {measurement for _, measurement in by_digest} - stored.keys() - self._pending
        return [s for s in statements.values() if s.measurement not in absent]

    def _unattributed(self) -> ForeignSource:
        """Return the source of statements from revisions without attribution."""
        return ForeignSource(_UNATTRIBUTED, SourceKind.API, store_key(self._report.store_key))

    def _take_features(self, rows: Sequence[Row]) -> None:
        from ..features import blobs

        features: dict[tuple[bytes, str, int], _Features] = {}
        for row in rows:
            try:
                number, set_number, *_ = row
                if number not in self._recent:
                    fail(_NO_MEASUREMENT)
                named = self._shared.feature_sets.get(set_number)
                if named is None or self._shared.digests["feature_set"].get(set_number) is None:
                    fail("its feature set was rejected or is missing")
                program, _, source_id = self._recent[number]
                source = self._source(source_id)
                if (reason := self._rejection(source)) is not None:
                    fail(reason)
                array = blobs.checked(named, features_from_row(row))
            except _ROW_ERRORS as error:
                self._reject_row("feature", error)
                continue
            key = program, named.name, named.version
            features.setdefault(key, _Features(program, named, array, source))
        known = self._store.exchange.known_features(list(features))
        new = [item for key, item in features.items() if key not in known]
        trusted = self._store.exchange.trusted_programs([item.program for item in new])
        accepted: list[_Features] = []
        for item in new:
            if item.program in trusted and not self._accepts(item.source):
                example = f"{item.named.name} of program {item.program.hex()}"
                self._report.reject(_MEASURED_HERE, example)
            else:
                accepted.append(item)
        frames = compress_all(item.rows.tobytes() for item in accepted)
        for item, frame in zip(accepted, frames, strict=True):
            self._features.add(item.packed(frame), item.source)

    def _take_retractions(self, rows: Sequence[Row]) -> None:
        retractions: dict[tuple[bytes, str, str], Retraction] = {}
        for row in rows:
            try:
                retraction = retraction_from_row(row)
            except _ROW_ERRORS as error:
                self._reject_row("retraction", error)
                continue
            key = retraction.digest, retraction.store, retraction.subject
            retractions.setdefault(key, retraction)
        known = self._store.exchange.known_retractions(list(retractions.values()))
        new = [retraction for key, retraction in retractions.items() if key not in known]
        self._retractions += new
        self.bytes += sum(len(retraction.reason) + 100 for retraction in new)

    # ------------------------------------------------------------------ batches

    def batch(self) -> MergeBatch:
        """Return the collected rows except features (:meth:`features`)."""
        return MergeBatch(
            sources=[source for _, source in self._sources.values()],
            measurements=self._measurements,
            source_of=self._source_of,
            claims=self._claims,
            failures=self._failures,
            aliases=self._new_aliases,
            retractions=self._retractions,
            launches=self._launches,
            accept_trusted_names=self._accepted_names,
        )

    def features(self) -> Iterator[MergeBatch]:
        """Yield the accepted features, after all records were written."""
        for reason, count in self._features.check(self._store):
            self._report.reject(reason, reason, count)
        sources = self._features.sources
        for rows in self._features.batches():
            yield MergeBatch(
                sources=sources, features=rows, accept_trusted_names=self._accepted_names
            )

    def expected_result(self, batch: MergeBatch) -> MergeResult:
        """Return the result of writing a batch; includes failures of rejected records."""
        rejected = [self._is_rejected(source) for source in batch.sources]
        counts = Counter(batch.source_of)
        accepted_retractions, rejected_retractions = batch.split_retractions(
            self._store.exchange.trusted_stores()
        )
        return MergeResult(
            new={source: n for source, n in counts.items() if not rejected[source]},
            rejected={source: n for source, n in counts.items() if rejected[source]},
            rejected_statements=Counter(
                (table, row.source)
                for table, rows in batch.statements.items()
                for row in rows
                if rejected[row.source]
            ),
            moved=len(batch.claims),
            failures=sum(not rejected[row.source] for row in batch.failures),
            aliases=Counter(row.source for row in batch.aliases if not rejected[row.source]),
            features=sum(not rejected[row.source] for row in batch.features),
            retractions=len(accepted_retractions),
            launches=sum(not rejected[row.source] for row in batch.launches),
            rejected_retractions=rejected_retractions,
        )

    def record_result(self, batch: MergeBatch, result: MergeResult) -> None:
        """Count the rows of a transaction, and begin the next batch."""
        report = self._report
        for position, count in Counter(batch.source_of).items():
            source = batch.sources[position]
            tally = report.tally(source.digest, source.name, source.store)
            new, rejected = result.new.get(position, 0), result.rejected.get(position, 0)
            tally.new += new
            tally.rejected += rejected
            tally.known += count - new - rejected
            if rejected:
                report.reject(_trusted_message(source), f"record of {source.name}", rejected)
        for position, count in result.aliases.items():
            source = batch.sources[position]
            report.tally(source.digest, source.name, source.store).aliases += count
        for (table, position), count in result.rejected_statements.items():
            source = batch.sources[position]
            reason = f"{table}: {_trusted_message(source)}"
            report.reject(reason, f"{table} of {source.name}", count)
        self._count_programs(batch, result)
        for row in result.rejected_retractions:
            reason = f"retraction: database {row.store!r} is trusted here; {_VOUCH}"
            report.reject(reason, f"{row.subject} {row.digest.hex()}")
        for row in result.relayed_retractions:
            reason = "retraction: the server takes it only from the database's own account"
            report.reject(reason, f"{row.subject} {row.digest.hex()}")
        for name, count in result.rejected_sets.items():
            report.reject(f"feature: {name} has other columns here", name, count)
        for name in ("moved", "failures", "launches", "features", "retractions"):
            setattr(report, name, getattr(report, name) + getattr(result, name))
        self._clear()

    def _count_programs(self, batch: MergeBatch, result: MergeResult) -> None:
        """Count new programs and workloads."""
        programs = [
            measurement.program
            for measurement, source in zip(batch.measurements, batch.source_of, strict=True)
            if source not in result.rejected
        ]
        new = self._new_programs & {program.digest for program in programs}
        new -= self._counted
        self._counted |= new
        self._report.programs += len(new)
        workloads = {program.workload.digest for program in programs} & self._unknown_workloads
        self._report.workloads += len(workloads)
        self._unknown_workloads -= workloads


def _chars(alias: Alias) -> int:
    return len(alias.scheme) + len(alias.key)


_VOUCH = "give --accept-trusted-names if this really comes from it"


def _trusted_message(source: ForeignSource) -> str:
    return f"source {source.name!r} is trusted here; {_VOUCH}"


def _digested(items: Sequence[DigestedRow | tuple[Row, str]]) -> Iterator[DigestedRow]:
    return (item for item in items if isinstance(item, DigestedRow))
