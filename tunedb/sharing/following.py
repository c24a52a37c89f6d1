"""What follows measurements in an exchange: aliases, failures, launches, features, retractions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from .. import limits
from ..compression import compress_all
from ..errors import LimitError, TuneDBError
from ..launches import Launch
from ..records import Alias, Failure, SourceKind
from ..retractions import Retraction
from .held_features import HeldFeatures
from .incoming import FeatureRows, ForeignSource, Launched, Learnt, Named
from .report import MergeReport
from .shared_rows import DIFFERENT, FeatureSet, SharedRows, refuse, store_key, text
from .verify import failure_of, features_of, launch_of, retraction_of
from .wire import COLUMNS

if TYPE_CHECKING:
    from ..query import Query

Row = tuple[Any, ...]
T = TypeVar("T", Failure, Launch)

_GONE = "it refers to a measurement that was not taken or did not come"
_NO_SOURCE = "its source was not taken or did not come"

_MEASURED_HERE = (
    "feature: its program was measured by a source that is trusted here; compute it: tunedb "
    "extract, or give --believe if this really comes from its source"
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
    query : Query
        Of the database that is written to.
    report : MergeReport
        Where rows that are not taken are counted.

    Attributes
    ----------
    bytes : int
        What waits for the next transaction.
    """

    def __init__(self, query: Query, report: MergeReport) -> None:
        self._query = query
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
        self._features = HeldFeatures(query.store_key)
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
        if digest is not None and self._query.workload_id(digest) is None:
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
                    refuse("its workload was not taken or did not come")
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
        id_ = self._query.workload_id(digest)
        known = set() if id_ is None else self._query.known_aliases(id_)
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
        known = self._query.known_failures([word.key for word in found])
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
        known = self._query.known_launches([word.key for word in found])
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
                    refuse("it is of no measurement")
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
        stored, _ = self._query.known_measurements(later)
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
                    refuse("its feature set was not taken or did not come")
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
        known = self._query.known_features(list(found))
        new = [one for key, one in found.items() if key not in known]
        ours = self._query.trusted_programs([one.program for one in new])
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
        known = self._query.known_retractions(list(found.values()))
        new = [one for key, one in found.items() if key not in known]
        self._retractions += new
        self.bytes += sum(len(one.reason) + 100 for one in new)


def _chars(alias: Alias) -> int:
    return len(alias.scheme) + len(alias.key)
