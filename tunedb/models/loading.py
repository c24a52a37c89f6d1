"""Examples from a database.

What is read is an order of columns (:class:`tunedb.query.training.TrainingRecords`), and what is
made of it depends on nothing but what was measured: not on local numbers, and not on the order of
insertion, but for the order of trials where times of measurement are unknown, or equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from .. import limits
from ..errors import FormatError, NotFoundError, StorageError, UsageError
from ..features.extract import place_of
from .examples import Examples
from .trials import Trials, trials_of

if TYPE_CHECKING:
    from ..features.base import NamedSet
    from ..query import Query
    from ..query.training import TrainingRecords
    from ..store import Store

#: Called with how many programs' rows have been read, and how many there are.
OnRead = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class DataCounts:
    """What was read for examples, and what of it is in none.

    Parameters
    ----------
    records : int
        Records of those programs that were asked for, run or failed, but for retracted ones.
    infrastructure : int
        Of them, failures that are no fault of the program: in no example.
    timeless : int
        Of them, records that are said to have worked and have no time above 0: in no example.
    programs : int
        Programs of the other records.
    without_features : int
        Of them, programs without rows of the feature set: in no example.
    workloads : int
        Workloads of the examples.
    failed_workloads : int
        Of them, those of which no program worked.
    targets : int
        Targets of the examples.
    """

    records: int
    infrastructure: int
    timeless: int
    programs: int
    without_features: int
    workloads: int
    failed_workloads: int
    targets: int


def load(
    store: Store,
    feature_set: NamedSet,
    *,
    label: str = "median",
    corrected: bool = False,
    workload_ids: Sequence[int] | None = None,
    target_ids: Sequence[int] | None = None,
    source_ids: Sequence[int] | None = None,
    rows: bool = True,
    on_read: OnRead | None = None,
) -> Examples:
    """Return all measured programs that have features, also those that failed.

    Records of foreign sources count, retracted ones and failures of infrastructure do not. The
    records of one program in one group are one example: run times are taken together, a program
    that worked once has not failed, and one that never worked failed as it did last.

    Parameters
    ----------
    store : Store
        The database.
    feature_set : FeatureSet
        Whose rows: those of this version.
    label : str
        Which of a program's run times counts (``tunedb.labels``).
    corrected : bool
        Divide run times by the factors of their sessions, as they are stored.
    workload_ids, target_ids, source_ids : sequence of int or None
        Only records of these.
    rows : bool
        Whether feature rows are read; :func:`with_rows` reads them later.
    on_read : callable or None
        For progress.

    Raises
    ------
    NotFoundError
        Nothing that was asked for is measured, or has rows; or there is no such label.
    UsageError
        The feature set has no fixed columns, or is stored with others.
    FormatError, LimitError, StorageError
        As :func:`with_rows`.
    """
    examples, _ = load_counted(
        store,
        feature_set,
        label=label,
        corrected=corrected,
        workload_ids=workload_ids,
        target_ids=target_ids,
        source_ids=source_ids,
    )
    return with_rows(store, examples, on_read=on_read) if rows else examples


def load_counted(
    store: Store,
    feature_set: NamedSet,
    *,
    label: str = "median",
    corrected: bool = False,
    workload_ids: Sequence[int] | None = None,
    target_ids: Sequence[int] | None = None,
    source_ids: Sequence[int] | None = None,
) -> tuple[Examples, DataCounts]:
    """Return examples without rows, and what was read for them.

    Parameters and errors are those of :func:`load`. The records are one snapshot.
    """
    if not feature_set.columns:
        raise UsageError(
            f"the number of columns of {feature_set.name} depends on the program, and a model "
            "needs the same ones for all; choose another set: tunedb features"
        )
    records = store.query.training_records(
        feature_set, workload_ids=workload_ids, target_ids=target_ids, source_ids=source_ids
    )
    everything = workload_ids is target_ids is source_ids is None
    if not len(records):
        raise NotFoundError(_nothing_measured(store, everything=everything))
    trials = trials_of(store.query, records, label, corrected=corrected)
    _check_features(store, feature_set, records, trials)
    examples = trials.examples(feature_set)
    return examples, _counts(records, trials, examples)


def data_digest(
    store: Store,
    feature_set: NamedSet,
    *,
    label: str = "median",
    corrected: bool = False,
    workload_ids: Sequence[int] | None = None,
    target_ids: Sequence[int] | None = None,
    source_ids: Sequence[int] | None = None,
) -> bytes:
    """Return :attr:`Examples.digest` of what :func:`load` would return, without reading rows.

    Parameters and errors are those of :func:`load`.
    """
    examples, _ = load_counted(
        store,
        feature_set,
        label=label,
        corrected=corrected,
        workload_ids=workload_ids,
        target_ids=target_ids,
        source_ids=source_ids,
    )
    return examples.digest


def with_rows(store: Store, examples: Examples, *, on_read: OnRead | None = None) -> Examples:
    """Return examples with their feature rows, which are read once in the order of their ids.

    Parameters
    ----------
    store : Store
        Where they were loaded from.
    examples : Examples
        Some or all that ``load(…, rows=False)`` returned.
    on_read : callable or None
        For progress.

    Raises
    ------
    FormatError
        A row has NaN or an infinity.
    LimitError, StorageError
        Rows that are damaged, or gone.
    """
    rows = np.empty((int(examples.starts[-1]), len(examples.columns)), np.float32)
    order = np.argsort(examples.program_ids, kind="stable")
    named = _Named(examples.feature_set, examples.version, examples.columns)
    for begin in range(0, len(order), limits.FEATURE_PROGRAMS):
        page = order[begin : begin + limits.FEATURE_PROGRAMS]
        ids = examples.program_ids[page].tolist()
        found = store.query.feature_rows(named, ids)
        firsts, ends = examples.starts[page].tolist(), examples.starts[page + 1].tolist()
        for id_, one, first, end in zip(ids, found, firsts, ends, strict=True):
            if one is None or one.shape != (end - first, rows.shape[1]):
                raise StorageError(
                    f"{store.location}: the {named.name} features of program {id_} changed while "
                    "they were read; try again, or look: tunedb db check"
                )
            rows[first:end] = one
        if on_read is not None:
            on_read(begin + len(page), len(order))
    _check_finite(store, examples, rows)
    return replace(examples, rows=rows)


@dataclass(frozen=True, slots=True)
class _Named:
    """What tells a feature set from others."""

    name: str
    version: int
    columns: tuple[str, ...]


def _counts(records: TrainingRecords, trials: Trials, examples: Examples) -> DataCounts:
    """Return what was read, and what is in no example."""
    has_rows = trials.n_rows >= 0
    groups = np.array([group.workload for group in examples.groups])
    worked = np.zeros(len(examples.workloads), bool)
    worked[groups[examples.group[~examples.failed]]] = True
    return DataCounts(
        records=len(records),
        infrastructure=trials.infrastructure,
        timeless=trials.timeless,
        programs=len(np.unique(trials.program_ids)),
        without_features=len(np.unique(trials.program_ids[~has_rows])),
        workloads=len(worked),
        failed_workloads=int((~worked).sum()),
        targets=len({group.target for group in examples.groups}),
    )


# ---------------------------------------------------------------------- what is refused


def _nothing_measured(store: Store, *, everything: bool) -> str:
    """Return why there is nothing to learn from, in one line."""
    where = store.location
    if not store.query.size():
        return f"{where}: there are no records to learn from; run: tunedb import logs PATH"
    if everything and store.query.has_kernels():
        return (
            f"{where}: no record but those of GPU kernels was measured; "
            "tunedb advise learns from these"
        )
    if everything:
        return f"{where}: none of its records was measured; run: tunedb import logs PATH"
    return (
        f"{where}: nothing was measured of the workloads, targets and sources that were asked for; "
        "see: tunedb workloads"
    )


def _check_features(
    store: Store, feature_set: NamedSet, records: TrainingRecords, trials: Trials
) -> None:
    """Raise where no program has rows, or rows are as long as another version's."""
    where, name, version = store.location, feature_set.name, feature_set.version
    if not len(trials):
        raise NotFoundError(
            f"{where}: {len(records)} records have no run time and no failure that says something "
            "of their programs; measure them again"
        )
    known = trials.n_rows >= 0
    if not known.any():
        others = _other_versions(store.query, feature_set)
        in_vain = set(store.query.quarantined_lines(place_of(feature_set)))
        tried = in_vain.issuperset(trials.program_ids.tolist())
        way_on = (
            "all failed; see: tunedb quarantine" if tried else f"run: tunedb extract --set {name}"
        )
        raise NotFoundError(
            f"{where}: none of {len(trials)} measured programs has features of {name} version "
            f"{version}{others}; {way_on}"
        )
    widths = np.unique(trials.n_columns[known]).tolist()
    if widths != [len(feature_set.columns)]:
        raise UsageError(
            f"{where}: {name} version {version} is stored with {widths[-1]} columns and has "
            f"{len(feature_set.columns)}; raise its version, and run: tunedb extract --set {name}"
        )


def _other_versions(query: Query, feature_set: NamedSet) -> str:
    """Return which versions of a feature set have rows, for a message."""
    found = [
        f"{stored.programs} have those of version {stored.version}"
        for stored in query.stored_features()
        if stored.name == feature_set.name and stored.programs
    ]
    return f" ({', '.join(found)})" if found else ""


def _check_finite(store: Store, examples: Examples, rows: np.ndarray) -> None:
    """Raise FormatError for a row that is not finite."""
    # The sum in double precision is finite exactly where all are, and makes no second matrix.
    if np.isfinite(rows.sum(dtype=np.float64)):
        return
    row, column = np.argwhere(~np.isfinite(rows))[0].tolist()
    number = int(np.searchsorted(examples.starts, row, side="right")) - 1
    name = examples.feature_set
    raise FormatError(
        f"{store.location}: {examples.columns[column]} of program {examples.program_ids[number]} "
        f"is {rows[row, column]} in {name} version {examples.version}; correct the set, raise its "
        f"version, and run: tunedb extract --set {name}"
    )
