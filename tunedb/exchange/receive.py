"""What has come of another database and is not written yet."""

from __future__ import annotations

from abc import ABC, abstractmethod
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
from ..storage.exchanged import (
    COLUMNS,
    Believe,
    Chunk,
    Claim,
    FeatureRows,
    ForeignSource,
    Incoming,
    Launched,
    Learnt,
    Merged,
    Named,
    believes,
    refuses,
)
from ..storage.retractions import Retraction
from ..system.compression import compress_all
from .held_features import HeldFeatures
from .merge_report import MergeReport, SourceTally
from .verify import (
    DIFFERENT,
    Digested,
    FeatureSet,
    Measurements,
    SharedRows,
    failure_of,
    features_of,
    launch_of,
    refuse,
    retraction_of,
    store_key,
    text,
)

if TYPE_CHECKING:
    from ..storage.store import Store

# ---- What follows measurements in an exchange: aliases, failures, launches, features, ------------
# retractions

Row = tuple[Any, ...]
T = TypeVar("T", Failure, Launch)

_GONE = "it refers to a measurement that was rejected or is missing"
_NO_SOURCE = "its source was rejected or is missing"

_MEASURED_HERE = (
    "feature: its program was measured by a source that is trusted here; compute it: tunedb "
    "extract, or give --accept-trusted-names if this really comes from its source"
)

#: Under which name stands what an old database says of a measurement that it gave before.
_UNATTRIBUTED = "unattributed"

#: About what a row takes in memory besides its texts, however short they are.
_OBJECT_BYTES = 200

#: What a row that is not looked at further may raise.
_BAD = (TuneDBError, TypeError, ValueError)


class Taken(NamedTuple):
    """A measurement of the stream that is stored or will be: digests, and its source's number."""

    program: bytes
    measurement: bytes
    source: int


class _Word(NamedTuple):
    """A failure or launch with the digests of its measurement, and the source that says it."""

    digest: bytes
    program: bytes
    measurement: bytes
    said: Any
    source: ForeignSource

    @property
    def key(self) -> tuple[bytes, bytes]:
        """Digests of it and of the source that says it."""
        return self.digest, self.source.digest


class _Features(NamedTuple):
    """Rows of a feature set for the program with a digest, and with whose record they came."""

    program: bytes
    named: FeatureSet
    rows: Any
    source: ForeignSource

    def packed(self, frame: bytes) -> FeatureRows:
        """Return them as they are stored."""
        named, (n_rows, n_columns) = self.named, self.rows.shape
        key = self.program, named.name, named.version, named.columns
        return FeatureRows(*key, n_rows, n_columns, frame, 0)


class Following(ABC):
    """Looks at the rows that belong to workloads and measurements, and keeps those to be written.

    Parameters
    ----------
    store : Store
        Of the database that is written to.
    report : MergeReport
        Where rows that are not taken are counted.

    Attributes
    ----------
    bytes : int
        What waits for the next transaction.
    """

    def __init__(self, store: Store, report: MergeReport) -> None:
        self._store = store
        self._report = report
        self._shared = SharedRows(report.reject)
        #: By the number of the measurement.
        self._recent: dict[int, Taken] = {}
        self._pending: set[bytes] = set()
        #: Those that wait for a record of their workload, with the number of their source.
        self._aliases: dict[int, list[tuple[Alias, int | None]]] = {}
        self._n_aliases = 0
        #: Characters of those that wait for a record of their workload.
        self._alias_chars = 0
        #: Workloads of the other side with a record that is stored here, or will be.
        self._accepted: dict[int, int] = {}
        self._unknown_workloads: set[bytes] = set()
        self._features = HeldFeatures(store.key)
        self._takers: dict[str, Callable[[Sequence[Row]], None]] = {
            "workload_alias": self._take_aliases,
            "failure": self._take_failures,
            "launch": self._take_launches,
            "feature": self._take_features,
            "retraction": self._take_retractions,
        }
        self._forget_following()

    def _forget_following(self) -> None:
        """Begin a batch."""
        self._failures: list[Learnt] = []
        self._launches: list[Launched] = []
        self._queued: list[Named] = []
        self._retractions: list[Retraction] = []
        self.bytes = 0

    @abstractmethod
    def _position(self, source: ForeignSource) -> int:
        """Return where a source stands among those of the batch."""

    @abstractmethod
    def _refusal(self, source: ForeignSource) -> str | None:
        """Return why nothing of a source is taken, None where it is."""

    @abstractmethod
    def _believes(self, source: ForeignSource) -> bool:
        """Tell whether the user accepts what comes in the name of a source."""

    def _source(self, number: int) -> ForeignSource:
        """Return a source that was taken, or raise FormatError."""
        if self._shared.digests["source"].get(number) is None:
            refuse(_NO_SOURCE)
        return self._shared.sources[number]

    def _accept(self, workload: int, source: int) -> None:
        """Note that a record of a workload is stored or will be, and of which source it is.

        Names that an old database did not attribute are that source's.
        """
        self._accepted[workload] = source
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
                    refuse("its workload was rejected or is missing")
                most = limits.MAX_FOREIGN_LABEL_CHARS
                alias = Alias(text(scheme, "its scheme", most), text(key, "its key", most))
                if source is not None:
                    self._source(source)
            except _BAD as error:
                self._refuse_row("workload_alias", error)
                continue
            if workload in self._accepted:
                ready.setdefault(workload, []).append((alias, source))
            else:
                self._aliases.setdefault(workload, []).append((alias, source))
                self._alias_chars += _chars(alias)
        if self._alias_chars > limits.MAX_SHARED_BYTES:
            raise LimitError("too many long aliases in one exchange")
        # Together: what a workload has is asked for once, however many names it is given.
        for workload, aliases in ready.items():
            self._queue(workload, aliases)

    def _queue(self, workload: int, aliases: list[tuple[Alias, int | None]]) -> None:
        """Keep the aliases of a workload that are not stored."""
        digest = self._shared.digests["workload"][workload]
        if not aliases or digest is None:
            return
        id_ = self._store.workloads.id_of(digest)
        known = set() if id_ is None else self._store.exchange.known_aliases(id_)
        for alias, number in aliases:
            source = self._source(self._accepted[workload] if number is None else number)
            if (alias, source.digest) not in known:
                known.add((alias, source.digest))
                self._queued.append(Named(digest, alias, self._position(source)))
                self.bytes += _chars(alias) + _OBJECT_BYTES

    def _refuse_row(self, table: str, error: Exception) -> None:
        reason = str(error) if isinstance(error, TuneDBError) else "it has other columns or types"
        self._report.reject(f"{table}: {reason}", table)

    def _take_failures(self, rows: Sequence[Row]) -> None:
        found = self._learnt("failure", rows, failure_of)
        known = self._store.exchange.known_failures([word.key for word in found])
        for word in found:
            if word.key not in known:
                position = self._position(word.source)
                self._failures.append(Learnt(word.program, word.measurement, word.said, position))
                self.bytes += len(word.said.message) + _OBJECT_BYTES

    def _take_launches(self, rows: Sequence[Row]) -> None:
        digests = self._shared.digests["counter_set"]
        known_sets = self._shared.counter_sets.items()
        sets = {number: one for number, one in known_sets if digests[number] is not None}
        found = self._learnt("launch", rows, lambda row: launch_of(row, sets))
        known = self._store.exchange.known_launches([word.key for word in found])
        for word in found:
            if word.key not in known:
                launch, position = word.said, self._position(word.source)
                self._launches.append(Launched(word.program, word.measurement, launch, position))
                self.bytes += len(launch.kernel) + 40 * len(launch.values) + _OBJECT_BYTES

    def _learnt(self, table: str, rows: Sequence[Row], make: Callable[[Row], T]) -> list[_Word]:
        """Return what was learnt of measurements that are stored or will be, each once."""
        found: dict[tuple[bytes, bytes], _Word] = {}
        later: list[tuple[bytes, bytes]] = []
        for row in rows:
            try:
                if len(row) != len(COLUMNS[table]):
                    refuse("it has other columns or types")
                _, stated, number, program, measurement, *_ = row
                said_by = row[-1]
                if number is not None:
                    if number not in self._recent:
                        refuse(_GONE)
                    program, measurement, own = self._recent[number]
                    said_by = own if said_by is None else said_by
                elif {type(program), type(measurement)} != {bytes}:
                    refuse("it belongs to no measurement")
                source = self._unattributed() if said_by is None else self._source(said_by)
                made = make(row)
                digest = made.digest(measurement)
                if stated is not None and stated != digest:
                    refuse(DIFFERENT)
            except _BAD as error:
                self._refuse_row(table, error)
                continue
            word = _Word(digest, program, measurement, made, source)
            found[word.key] = word
            if number is None:
                later.append((program, measurement))
        stored, _ = self._store.exchange.known_measurements(later)
        absent = {measurement for _, measurement in later} - stored.keys() - self._pending
        return [word for word in found.values() if word.measurement not in absent]

    def _unattributed(self) -> ForeignSource:
        """Return the source of what an old database says without saying whose word it is."""
        return ForeignSource(_UNATTRIBUTED, SourceKind.API, store_key(self._report.store_key))

    def _take_features(self, rows: Sequence[Row]) -> None:
        from ..features import blobs

        found: dict[tuple[bytes, str, int], _Features] = {}
        for row in rows:
            try:
                number, set_number, *_ = row
                if number not in self._recent:
                    refuse(_GONE)
                named = self._shared.feature_sets.get(set_number)
                if named is None or self._shared.digests["feature_set"].get(set_number) is None:
                    refuse("its feature set was rejected or is missing")
                taken = self._recent[number]
                source = self._source(taken.source)
                if (reason := self._refusal(source)) is not None:
                    refuse(reason)
                array = blobs.checked(named, features_of(row))
            except _BAD as error:
                self._refuse_row("feature", error)
                continue
            key = taken.program, named.name, named.version
            found.setdefault(key, _Features(taken.program, named, array, source))
        known = self._store.exchange.known_features(list(found))
        new = [one for key, one in found.items() if key not in known]
        ours = self._store.exchange.trusted_programs([one.program for one in new])
        kept: list[_Features] = []
        for one in new:
            if one.program in ours and not self._believes(one.source):
                example = f"{one.named.name} of program {one.program.hex()}"
                self._report.reject(_MEASURED_HERE, example)
            else:
                kept.append(one)
        frames = compress_all(one.rows.tobytes() for one in kept)
        for one, frame in zip(kept, frames, strict=True):
            self._features.add(one.packed(frame), one.source)

    def _take_retractions(self, rows: Sequence[Row]) -> None:
        found: dict[tuple[bytes, str, str], Retraction] = {}
        for row in rows:
            try:
                one = retraction_of(row)
            except _BAD as error:
                self._refuse_row("retraction", error)
                continue
            found.setdefault((one.digest, one.store, one.subject), one)
        known = self._store.exchange.known_retractions(list(found.values()))
        new = [one for key, one in found.items() if key not in known]
        self._retractions += new
        self.bytes += sum(len(one.reason) + 100 for one in new)


def _chars(alias: Alias) -> int:
    return len(alias.scheme) + len(alias.key)


# ---- Measurements --------------------------------------------------------------------------------


_WORKLOAD, _SOURCE = AT["workload"], AT["source"]
_LONG = itemgetter(AT["decisions"], AT["run_secs"])

#: Measurements whose numbers are remembered for the failures and features that follow them.
_RECENT = limits.IMPORT_ROWS


class Receiver(Following):
    """Looks at chunks, compares them with the database, and keeps what is to be written.

    Parameters
    ----------
    store : Store
        Of the database that is written to.
    report : MergeReport
        Where everything is counted.
    believe : bool or set of str
        See :func:`tunedb.storage.exchanged.refuses`.

    Attributes
    ----------
    rows, bytes : int
        Measurements that were looked at since the last transaction, and what waits for the next.
    last : tuple of int and bytes, or None
        Number and digest of the last measurement that was looked at.
    """

    def __init__(self, store: Store, report: MergeReport, believe: Believe) -> None:
        super().__init__(store, report)
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
        self._standings = self._store.exchange.standings()
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
        known, programs = self._store.exchange.known_measurements(keys)
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
        self._report.bytes += sum(
            len(value) for row, *_ in _whole(found) for value in _LONG(row) if value is not None
        )
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
        return refuses(source, standing, self._store.key, self._believe)

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
        for reason, count in self._features.check(self._store):
            self._report.reject(reason, reason, count)
        sources = self._features.sources
        for batch in self._features.batches():
            yield Incoming(sources=sources, features=batch, believe=self._believe)

    def foreseen(self, incoming: Incoming) -> Merged:
        """Return what a transaction would come to; failures of refused records count too."""
        sides = [self._refuses(source) for source in incoming.sources]
        counts = Counter(incoming.source_of)
        believed, others = incoming.sorted_out(self._store.exchange.trusted_stores())
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


_BELIEVE = "give --accept-trusted-names if this really comes from it"


def _trusted(source: ForeignSource) -> str:
    return f"source {source.name!r} is trusted here; {_BELIEVE}"


def _whole(found: Sequence[Digested | tuple[Row, str]]) -> Iterator[Digested]:
    return (item for item in found if isinstance(item, Digested))
