"""Extraction of the features that a database lacks.

Each batch is one transaction, so a run may be killed at any time, and the next run continues. A
program whose extraction fails is quarantined with the reason; later runs skip it.
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

#: Source of quarantined programs.
SOURCE = Source("features")

#: Seconds after which a partial batch is stored: a kill loses at most so much work.
_STORE_EVERY_S = 2.0

#: Longest reason; quarantine holds the whole error beside it.
_REASON_CHARS = 300


class Rebuilder(Protocol):
    """Extractor of features that need a program's module (the plugin replays traces)."""

    def rows(self, programs: Iterable[StoredProgram]) -> Generator[Outcome, None, None]:
        """Yield each program with its rows, or with the error, in any order.

        Consumes `programs` lazily; the caller closes the generator early to stop.
        """
        ...


@dataclass
class ExtractReport:
    """Result of an extraction.

    Parameters
    ----------
    name, version : str, int
        The feature set.
    programs : int
        Selected programs.
    known : int
        Programs with rows from an earlier run on this database.
    unable : int
        Programs whose module TVM cannot build, or may not get.
    passed : int
        Skipped programs, which failed in an earlier run.
    done : int
        Programs with new rows.
    failed : int
        Programs that failed in this run.
    reasons : dict
        Reason → number of programs that failed in this run.
    seconds : float
        Duration of the run.
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
        """Programs without rows at the start of the run that could have some."""
        return self.programs - self.known - self.unable

    def fail(self, reason: str) -> None:
        """Count a program that failed."""
        self.failed += 1
        if reason not in self.reasons and len(self.reasons) >= limits.MAX_REASONS:
            reason = "other reasons"
        self.reasons[reason] = self.reasons.get(reason, 0) + 1


class RowError(PluginError):
    """A failed extraction: a reason in one line, and the whole error text."""

    def __init__(self, reason: str, text: str = "") -> None:
        super().__init__(reason)
        #: The whole error, for example as TVM renders it.
        self.text: str = text or reason


def quarantine_name(feature_set: NamedSet) -> str:
    """Return the file name of a set's failed programs in quarantine."""
    return f"features {feature_set.name} version {feature_set.version}"


def quarantined(feature_set: NamedSet, program: StoredProgram, error: Exception) -> Quarantined:
    """Return the quarantine row of a failed program: its digest and the whole error."""
    text = error.text if isinstance(error, RowError) else str(error)
    digest = Program(program.workload, program.target, program.trace).digest
    text = clean_text(text[: limits.MAX_MESSAGE_CHARS])
    data = canonical_json({"program": digest.hex(), "error": text})
    return Quarantined(quarantine_name(feature_set), program.id, reason_of(error), data)


def reason_of(error: Exception) -> str:
    """Return an error in one line."""
    text = " ".join(str(error).split())[:_REASON_CHARS] or "no reason given"
    return text if isinstance(error, TuneDBError) else f"{type(error).__name__}: {text}"


def split_outcomes(
    feature_set: NamedSet, outcomes: Iterable[Outcome]
) -> tuple[list[tuple[int, NDArray[Any]]], list[Quarantined]]:
    """Return rows for ``store.features.add``, and quarantine rows of errors and invalid rows."""
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
    """Return each program with its rows, or with the error."""
    try:
        rows: Sequence[NDArray[Any] | Exception] = feature_set.rows(programs)
        return list(zip(programs, rows, strict=True))
    except Exception as error:  # a set of another package may raise anything
        if len(programs) == 1:
            return [(programs[0], error)]
        return [pair for program in programs for pair in rows_of_steps(feature_set, [program])]


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

    Rows from a merge are computed again and replaced.

    Parameters
    ----------
    store : Store
        The database.
    feature_set : FeatureSet
        The feature set.
    rebuilder : Rebuilder or None
        Extractor for sets that need modules; None for a :class:`~.base.StepFeatures`.
    workload_ids, target_ids : sequence of int or None
        Restrict the extraction to these workloads and targets.
    limit : int or None
        Maximum number of programs to compute.
    retry : bool
        Retry programs that failed in an earlier run.
    on_begin : callable or None
        Called once, after the programs have been counted.
    on_program : callable or None
        Called for each computed or skipped program.
    report : ExtractReport or None
        Report to fill in as batches are stored, for callers that may be interrupted.

    Returns
    -------
    ExtractReport

    Raises
    ------
    UsageError
        The set needs modules and there is no rebuilder, or its columns changed without its
        version.
    StorageError, BusyError
        A write failed; stored batches stay.
    """
    run = _ExtractionRun(store, feature_set, rebuilder, report)
    run.choose(workload_ids, target_ids, retry=retry)
    if on_begin is not None:
        on_begin(run.report)
    run.compute(limit, on_program)
    return run.report


class _ExtractionRun:
    """One extraction of one feature set."""

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
        #: Programs that failed in earlier runs → their rows in quarantine.
        self._quarantined: dict[int, list[int]] = {}
        self._passed: set[int] = set()

    def choose(
        self, workload_ids: Sequence[int] | None, target_ids: Sequence[int] | None, *, retry: bool
    ) -> None:
        """Count the programs and select those to skip."""
        store, report = self._store, self.report
        self._where = {
            "workload_ids": workload_ids,
            "target_ids": target_ids,
            "for_tvm": not isinstance(self._set, StepFeatures),
        }
        coverage = store.features.coverage(self._set, computed=True, **self._where)
        report.programs, report.known = coverage.programs, coverage.known
        report.unable = coverage.programs - coverage.able
        self._quarantined = store.batches.quarantined_lines(quarantine_name(self._set))
        if not retry:
            self._passed = set(self._quarantined)

    def compute(self, limit: int | None, on_program: Callable[[], None] | None) -> None:
        """Compute missing rows and store them batch by batch."""
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
                    is_late = time.monotonic() - stored > _STORE_EVERY_S
                    if is_late or len(batch) >= limits.FEATURE_PROGRAMS:
                        self._store_batch(batch)
                        batch, stored = [], time.monotonic()
            self._store_batch(batch)
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
            assert self._rebuilder is not None  # noqa: S101 - the constructor checked it
            yield from self._rebuilder.rows(programs)
            return
        while page := list(islice(programs, limits.FEATURE_PROGRAMS)):
            yield from rows_of_steps(self._set, page)

    def _store_batch(self, batch: Sequence[Outcome]) -> None:
        """Store the rows of a batch, and quarantine its failed programs."""
        good, bad = split_outcomes(self._set, batch)
        self._store.features.add(self._set, good)
        # Before the new rows are added: an equal failure has the same quarantine row.
        retried = [id_ for program, _ in batch for id_ in self._quarantined.get(program.id, ())]
        if retried:
            self._store.quarantine.release(retried)
        if bad:
            self._store.quarantine.add(bad, SOURCE)
        self.report.done += len(good)
        for row in bad:
            self.report.fail(row.reason)


def _nothing() -> None:
    """No-op callback."""
