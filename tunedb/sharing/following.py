"""What follows measurements in an exchange: aliases, failures, launches, features, retractions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from .. import limits
from ..errors import LimitError, TuneDBError
from ..launches import Launch
from ..records import Alias, Failure
from ..retractions import Retraction
from .incoming import FeatureRows, Launched, Learnt
from .report import MergeReport
from .shared_rows import DIFFERENT, SharedRows, refuse, text
from .verify import failure_of, features_of, launch_of, retraction_of

if TYPE_CHECKING:
    from ..query import Query

Row = tuple[Any, ...]
T = TypeVar("T", Failure, Launch)

_GONE = "it refers to a measurement that was not taken or did not come"

#: About what a row takes in memory besides its texts, however short they are.
_OBJECT_BYTES = 200

#: What a row that is not looked at further may raise.
_BAD = (TuneDBError, TypeError, ValueError)


class Following:
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
        #: Number of a measurement that is stored or will be → digests of its program and its own.
        self._recent: dict[int, tuple[bytes, bytes]] = {}
        self._pending: set[bytes] = set()
        self._aliases: dict[int, list[Alias]] = {}
        self._n_aliases = 0
        #: Characters of those that wait for a record of their workload.
        self._alias_chars = 0
        #: Workloads of the other side with a record that is stored here, or will be.
        self._accepted: set[int] = set()
        self._unknown_workloads: set[bytes] = set()
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
        self._queued: list[tuple[bytes, Alias]] = []
        self._features: list[FeatureRows] = []
        self._retractions: list[Retraction] = []
        self.bytes = 0

    def _accept(self, workload: int) -> None:
        """Note that a record of a workload is stored or will be."""
        self._accepted.add(workload)
        digest = self._shared.digests["workload"][workload]
        if digest is not None and self._query.workload_id(digest) is None:
            self._unknown_workloads.add(digest)
        waiting = self._aliases.pop(workload, [])
        self._alias_chars -= sum(map(_chars, waiting))
        self._queue(workload, waiting)

    def _take_aliases(self, rows: Sequence[Row]) -> None:
        self._n_aliases += len(rows)
        if self._n_aliases > limits.MAX_SHARED_ROWS:
            raise LimitError(f"more than {limits.MAX_SHARED_ROWS:,} aliases in one exchange")
        ready: dict[int, list[Alias]] = {}
        for row in rows:
            try:
                workload, scheme, key = row
                if self._shared.digests["workload"].get(workload) is None:
                    refuse("its workload was not taken or did not come")
                most = limits.MAX_FOREIGN_LABEL_CHARS
                alias = Alias(text(scheme, "its scheme", most), text(key, "its key", most))
            except _BAD as error:
                self._refuse_row("workload_alias", error)
                continue
            if workload in self._accepted:
                ready.setdefault(workload, []).append(alias)
            else:
                self._aliases.setdefault(workload, []).append(alias)
                self._alias_chars += _chars(alias)
        if self._alias_chars > limits.MAX_SHARED_BYTES:
            raise LimitError("too many long aliases in one exchange")
        # Together: what a workload has is asked for once, however many names it is given.
        for workload, aliases in ready.items():
            self._queue(workload, aliases)

    def _queue(self, workload: int, aliases: list[Alias]) -> None:
        """Keep the aliases of a workload that are not stored."""
        digest = self._shared.digests["workload"][workload]
        if not aliases or digest is None:
            return
        id_ = self._query.workload_id(digest)
        known = set() if id_ is None else set(self._query.aliases(id_))
        new = [alias for alias in aliases if alias not in known]
        self._queued += [(digest, alias) for alias in new]
        self.bytes += sum(map(_chars, new)) + _OBJECT_BYTES * len(new)

    def _refuse_row(self, table: str, error: Exception) -> None:
        reason = str(error) if isinstance(error, TuneDBError) else "it has other columns or types"
        self._report.reject(f"{table}: {reason}", table)

    def _take_failures(self, rows: Sequence[Row]) -> None:
        found = self._learnt("failure", rows, failure_of)
        known = self._query.known_failures([digest for digest, *_ in found])
        for digest, program, measurement, failure in found:
            if digest not in known:
                self._failures.append(Learnt(program, measurement, failure))
                self.bytes += len(failure.message) + _OBJECT_BYTES

    def _take_launches(self, rows: Sequence[Row]) -> None:
        digests = self._shared.digests["counter_set"]
        known_sets = self._shared.counter_sets.items()
        sets = {number: one for number, one in known_sets if digests[number] is not None}
        found = self._learnt("launch", rows, lambda row: launch_of(row, sets))
        known = self._query.known_launches([digest for digest, *_ in found])
        for digest, program, measurement, launch in found:
            if digest not in known:
                self._launches.append(Launched(program, measurement, launch))
                self.bytes += len(launch.kernel) + 40 * len(launch.values) + _OBJECT_BYTES

    def _learnt(
        self, table: str, rows: Sequence[Row], make: Callable[[Row], T]
    ) -> list[tuple[bytes, bytes, bytes, T]]:
        """Return what was learnt of measurements that are stored or will be, each once.

        Digests of it, its program and its measurement stand before it.
        """
        found: dict[bytes, tuple[bytes, bytes, bytes, T]] = {}
        later: list[tuple[bytes, bytes]] = []
        for row in rows:
            try:
                _, stated, number, program, measurement, *_ = row
                if number is not None:
                    if number not in self._recent:
                        refuse(_GONE)
                    program, measurement = self._recent[number]
                elif {type(program), type(measurement)} != {bytes}:
                    refuse("it is of no measurement")
                made = make(row)
                digest = made.digest(measurement)
                if stated is not None and stated != digest:
                    refuse(DIFFERENT)
            except _BAD as error:
                self._refuse_row(table, error)
                continue
            found[digest] = digest, program, measurement, made
            if number is None:
                later.append((program, measurement))
        stored, _ = self._query.known_measurements(later)
        absent = {measurement for _, measurement in later} - stored.keys() - self._pending
        return [one for one in found.values() if one[2] not in absent]

    def _take_features(self, rows: Sequence[Row]) -> None:
        from ..features import blobs

        found: dict[tuple[bytes, str, int], FeatureRows] = {}
        for row in rows:
            try:
                number, set_number, *_ = row
                if number not in self._recent:
                    refuse(_GONE)
                named = self._shared.feature_sets.get(set_number)
                if named is None or self._shared.digests["feature_set"].get(set_number) is None:
                    refuse("its feature set was not taken or did not come")
                program = self._recent[number][0]
                array = blobs.checked(named, features_of(row))
            except _BAD as error:
                self._refuse_row("feature", error)
                continue
            key = program, named.name, named.version
            found.setdefault(key, FeatureRows(*key, named.columns, array))
        known = self._query.known_features(list(found))
        for key, one in found.items():
            if key not in known:
                self._features.append(one)
                self.bytes += one.rows.nbytes

    def _take_retractions(self, rows: Sequence[Row]) -> None:
        found: dict[tuple[bytes, str], Retraction] = {}
        for row in rows:
            try:
                one = retraction_of(row)
            except _BAD as error:
                self._refuse_row("retraction", error)
                continue
            found.setdefault((one.digest, one.store), one)
        known = self._query.known_retractions(list(found.values()))
        new = [one for key, one in found.items() if key not in known]
        self._retractions += new
        self.bytes += sum(len(one.reason) + 100 for one in new)


def _chars(alias: Alias) -> int:
    return len(alias.scheme) + len(alias.key)
