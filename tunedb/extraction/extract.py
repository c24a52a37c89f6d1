"""Filling in the rows of features that a database lacks.

Each batch is one transaction, so a run may be killed at any moment; the next one finds what is
still missing. A program without rows that cannot get any is quarantined with the reason, and
passed over from then on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from .. import limits
from ..errors import PluginError, TuneDBError, UsageError
from ..features.base import FeatureSet, NamedSet, StepFeatures
from ..features.blobs import checked
from ..identity import canonical_json, clean_text
from ..records import Program, Quarantined, Source
from ..results import StoredProgram
from ..storage.store import Store

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Outcome = tuple[StoredProgram, NDArray[Any] | Exception]

#: Under which programs without rows are quarantined.
SOURCE = Source("features")

#: Seconds after which what is computed is stored, however little it is: that much a kill takes.
_STORE_EVERY_S = 2.0

#: Longest reason; the whole error stands beside it.
_REASON_CHARS = 300


class Rebuilder(Protocol):
    """Computes the rows of programs whose module must be made first (the plugin's replay)."""

    def rows(self, programs: Iterable[StoredProgram]) -> Generator[Outcome, None, None]:
        """Yield each program with its rows, or with why there are none, in any order.

        It is closed when no more is wanted; programs are taken as they are needed.
        """
        ...


@dataclass
class ExtractReport:
    """What became of the programs that were asked for.

    Parameters
    ----------
    name, version : str, int
        The feature set.
    programs : int
        Programs that were asked for.
    known : int
        Those of them that had rows before that were computed here.
    unable : int
        Those whose module TVM cannot make, or may not get.
    passed : int
        Those that failed in an earlier run and were not tried again.
    done : int
        Those that got rows now.
    failed : int
        Those that failed now.
    reasons : dict
        Reason → number of programs that failed now.
    seconds : float
        How long it took.
    """

    name: str
    version: int
    programs: int = 0
    known: int = 0
    unable: int = 0
    passed: int = 0
    done: int = 0
    failed: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def missing(self) -> int:
        """Programs without rows when the run began, that could have some."""
        return self.programs - self.known - self.unable

    def fail(self, reason: str) -> None:
        """Count a program that failed."""
        self.failed += 1
        if reason not in self.reasons and len(self.reasons) >= limits.MAX_REASONS:
            reason = "other reasons"
        self.reasons[reason] = self.reasons.get(reason, 0) + 1


class RowError(PluginError):
    """Why a program has no rows, in one line, with all that was said about it."""

    def __init__(self, reason: str, text: str = "") -> None:
        super().__init__(reason)
        #: TVM's rendered error, for instance.
        self.text = text or reason


def place_of(feature_set: NamedSet) -> str:
    """Return the name under which programs without rows of a set stand in quarantine."""
    return f"features {feature_set.name} version {feature_set.version}"


def quarantined(feature_set: NamedSet, program: StoredProgram, error: Exception) -> Quarantined:
    """Return what is kept of a program that has no rows: its digest and the whole error."""
    text = error.text if isinstance(error, RowError) else str(error)
    digest = Program(program.workload, program.target, program.trace).digest
    text = clean_text(text[: limits.MAX_MESSAGE_CHARS])
    data = canonical_json({"program": digest.hex(), "error": text})
    return Quarantined(place_of(feature_set), program.id, reason_of(error), data)


def reason_of(error: Exception) -> str:
    """Return an error in one line."""
    text = " ".join(str(error).split())[:_REASON_CHARS] or "no reason given"
    return text if isinstance(error, TuneDBError) else f"{type(error).__name__}: {text}"


def sort_out(
    feature_set: NamedSet, outcomes: Iterable[Outcome]
) -> tuple[list[tuple[int, NDArray[Any]]], list[Quarantined]]:
    """Return what ``store.features.add`` takes, and what belongs in quarantine.

    Rows that cannot be stored count as none.
    """
    good: list[tuple[int, NDArray[Any]]] = []
    bad: list[Quarantined] = []
    for program, rows in outcomes:
        if isinstance(rows, Exception):
            bad.append(quarantined(feature_set, program, rows))
            continue
        try:
            good.append((program.id, checked(feature_set, rows)))
        except TuneDBError as error:
            bad.append(quarantined(feature_set, program, error))
    return good, bad


def rows_of_steps(feature_set: StepFeatures, programs: Sequence[StoredProgram]) -> list[Outcome]:
    """Return each program with its rows, or with why there are none."""
    try:
        found: Sequence[NDArray[Any] | Exception] = feature_set.rows(programs)
        return list(zip(programs, found, strict=True))
    except Exception as error:  # a set of another package may raise anything
        if len(programs) == 1:
            return [(programs[0], error)]
        return [pair for one in programs for pair in rows_of_steps(feature_set, [one])]


def extract(
    store: Store,
    feature_set: FeatureSet,
    *,
    rebuilder: Rebuilder | None = None,
    workload_ids: Sequence[int] | None = None,
    target_ids: Sequence[int] | None = None,
    limit: int | None = None,
    retry: bool = False,
    on_begin: Callable[[ExtractReport], None] | None = None,
    on_program: Callable[[], None] | None = None,
    report: ExtractReport | None = None,
) -> ExtractReport:
    """Compute and store the rows of a feature set for all programs that have none.

    Rows that came with a merge are computed anew and replaced.

    Parameters
    ----------
    store : Store
        The database.
    feature_set : FeatureSet
        What to compute.
    rebuilder : Rebuilder or None
        Makes the modules; needed unless the set is a :class:`~.base.StepFeatures`.
    workload_ids, target_ids : sequence of int or None
        Only programs of these workloads and targets.
    limit : int or None
        How many programs to compute at most.
    retry : bool
        Try those again that failed in an earlier run.
    on_begin : callable or None
        Called once, when it is known how many programs there are.
    on_program : callable or None
        Called for each program that was computed or passed over.
    report : ExtractReport or None
        Filled in as batches are stored, so that it is there when the run is interrupted.

    Returns
    -------
    ExtractReport

    Raises
    ------
    UsageError
        The set needs modules and there is no rebuilder, or its columns changed without its
        version.
    StorageError, BusyError
        The database refuses; batches that were stored stay.
    """
    run = _Run(store, feature_set, rebuilder, report)
    run.choose(workload_ids, target_ids, retry=retry)
    if on_begin is not None:
        on_begin(run.report)
    run.compute(limit, on_program)
    return run.report


class _Run:
    """One feature set, filled in."""

    def __init__(
        self,
        store: Store,
        feature_set: FeatureSet,
        rebuilder: Rebuilder | None,
        report: ExtractReport | None,
    ) -> None:
        if rebuilder is None and not isinstance(feature_set, StepFeatures):
            raise UsageError(f"{feature_set.name} is computed from modules; give a rebuilder")
        self.report = report or ExtractReport(feature_set.name, feature_set.version)
        self._store = store
        self._set = feature_set
        self._rebuilder = rebuilder
        self._where: dict[str, Any] = {}
        #: Programs that failed before → their rows in quarantine.
        self._before: dict[int, list[int]] = {}
        self._passed: set[int] = set()

    def choose(
        self, workload_ids: Sequence[int] | None, target_ids: Sequence[int] | None, *, retry: bool
    ) -> None:
        """Find out which programs are meant."""
        store, report = self._store, self.report
        self._where = {
            "workload_ids": workload_ids,
            "target_ids": target_ids,
            "for_tvm": not isinstance(self._set, StepFeatures),
        }
        found = store.features.coverage(self._set, computed=True, **self._where)
        report.programs, report.known = found.programs, found.known
        report.unable = found.programs - found.able
        self._before = store.batches.quarantined_lines(place_of(self._set))
        if not retry:
            self._passed = set(self._before)

    def compute(self, limit: int | None, on_program: Callable[[], None] | None) -> None:
        """Compute what is missing and store it batch by batch."""
        started = time.monotonic()
        batch: list[Outcome] = []
        stored = started
        step = on_program or _nothing
        computed = self._computed(islice(self._missing(step), limit))
        try:
            with closing(computed):
                for outcome in computed:
                    batch.append(outcome)
                    step()
                    late = time.monotonic() - stored > _STORE_EVERY_S
                    if late or len(batch) >= limits.FEATURE_PROGRAMS:
                        self._keep(batch)
                        batch, stored = [], time.monotonic()
            self._keep(batch)
        finally:
            self.report.seconds = time.monotonic() - started

    def _missing(self, step: Callable[[], None]) -> Iterator[StoredProgram]:
        """Yield the programs without rows, a page at a time."""
        after = 0
        while True:
            page = self._store.programs.without_features(
                self._set, after=after, limit=limits.FEATURE_PROGRAMS, **self._where
            )
            for program in page:
                if program.id in self._passed:
                    self.report.passed += 1
                    step()
                else:
                    yield program
            if len(page) < limits.FEATURE_PROGRAMS:
                return
            after = page[-1].id

    def _computed(self, programs: Iterator[StoredProgram]) -> Generator[Outcome, None, None]:
        """Yield programs with their rows."""
        if not isinstance(self._set, StepFeatures):
            assert self._rebuilder is not None  # noqa: S101 - the constructor has seen to it
            yield from self._rebuilder.rows(programs)
            return
        while page := list(islice(programs, limits.FEATURE_PROGRAMS)):
            yield from rows_of_steps(self._set, page)

    def _keep(self, batch: Sequence[Outcome]) -> None:
        """Store a batch, and quarantine its programs without rows."""
        good, bad = sort_out(self._set, batch)
        self._store.features.add(self._set, good)
        # First: a program that fails as before has the same row, which would go.
        again = [id_ for program, _ in batch for id_ in self._before.get(program.id, ())]
        if again:
            self._store.quarantine.release(again)
        if bad:
            self._store.quarantine.add(bad, SOURCE)
        self.report.done += len(good)
        for row in bad:
            self.report.fail(row.reason)


def _nothing() -> None:
    """Do what is done where nobody wants to know."""
