"""Datasets for training: measured programs with their features, read from a database.

Records are read as columns (:class:`tunedb.storage.training.TrainingRecords`). The dataset depends
only on the measurements: not on local numbers, and on the order of insertion only for the order of
trials whose times of measurement are unknown or equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .. import identity, limits
from ..errors import FormatError, NotFoundError, PluginError, StorageError, UsageError
from ..extraction.extract import quarantine_name
from ..records import FailureKind, Origin, Signature
from ..run_times import NO_TIME
from ..system.host import threads_of
from .base import Floats, LabelPolicy, recipe_part
from .scope import EVERYTHING, Scope

if TYPE_CHECKING:
    from ..features.base import FeatureSet, NamedSet, StepFeatures
    from ..storage.store import Store
    from ..storage.training import TrainingRecords

# ---- Datasets ------------------------------------------------------------------------------------

#: Meanings of the numbers in :attr:`Dataset.failures` and :attr:`Dataset.origins`.
FAILURES: tuple[FailureKind | None, ...] = (None, *FailureKind)
ORIGINS: tuple[Origin, ...] = tuple(Origin)


@dataclass(frozen=True, slots=True)
class ExampleWorkload:
    """The features of a workload by which splits and baselines compare it.

    Parameters
    ----------
    id : int
        Local number; 0 if not stored.
    digest : bytes
        Digest of the workload.
    name : str
        Name of the workload.
    family : str or None
        Operator family (:mod:`tunedb.programs.workload_info.families`).
    shapes : tuple of tuple of int
        Shapes of the arguments, outputs last; empty where unknown.
    flops : float or None
        Operations of one run.
    """

    id: int
    digest: bytes
    name: str
    family: str | None
    shapes: tuple[tuple[int, ...], ...]
    flops: float | None

    @classmethod
    def from_signature(
        cls, id_: int, digest: bytes, name: str, signature: Signature
    ) -> ExampleWorkload:
        """Return a workload with the family, shapes and operations of its signature."""
        shapes = tuple(shape for _, shape in signature.arguments or ())
        return cls(id_, digest, name, signature.family, shapes, signature.flops)


@dataclass(frozen=True, slots=True)
class Group:
    """A set of programs with comparable times: one workload, one target, one machine.

    Parameters
    ----------
    workload : int
        Index into :attr:`Dataset.workloads`.
    target_id : int
        Local number of the target.
    target : bytes
        Digest of the target.
    machine : str
        Number of the machine among those of the target; empty if all sessions of the target are
        one machine (:mod:`tunedb.models.sessions`).
    """

    workload: int
    target_id: int
    target: bytes
    machine: str


@dataclass(frozen=True, eq=False)
class Dataset:
    """Measured programs with their features.

    Programs are ordered by the digests of workload and target, then machine, then the digest of
    the program. A program measured several times in a group is one example.

    Parameters
    ----------
    feature_set, version : str, int
        Feature set of the rows.
    columns : tuple of str
        Names of the columns.
    rows : ndarray of float32, shape (m, columns)
        Rows of all programs, concatenated, all finite. Empty if not read yet (:func:`with_rows`)
        or streamed (:mod:`tunedb.models.external`).
    starts : ndarray of int64, shape (n + 1,)
        The rows of program i are ``rows[starts[i]:starts[i + 1]]``.
    program_ids : ndarray of int64, shape (n,)
        Local numbers of the programs; 0 for a program that is not stored.
    group : ndarray of int32, shape (n,)
        Index into `groups`.
    seconds : ndarray of float64, shape (n,)
        Run time by the label policy; NaN for failed programs.
    throughput : ndarray of float64, shape (n,)
        Best run time of the group / run time, in (0, 1]; 0 for failed programs.
    failures : ndarray of int8, shape (n,)
        0, or the failure as an index into :data:`FAILURES`.
    trials : ndarray of int32, shape (n,)
        Number of the trial in its group, from 0, in the order of measurement.
    origins : ndarray of int8, shape (n,)
        Index into :data:`ORIGINS`.
    costs : ndarray of float64, shape (n,)
        Seconds of the whole trial; NaN if unknown.
    cut_short : ndarray of bool, shape (n,)
        True for programs whose measurements were all cut short: they are slow, and their time is
        that of fewer repeats. They are never the best of a group.
    groups : tuple of Group
        All groups, including those without a program in a subset.
    workloads : tuple of ExampleWorkload
        All workloads.
    label : str
        Name of the label policy.
    digest : bytes
        Digest of programs, labels, failures, trials, origins and feature set.
    """

    feature_set: str
    version: int
    columns: tuple[str, ...]
    rows: NDArray[np.float32]
    starts: NDArray[np.int64]
    program_ids: NDArray[np.int64]
    group: NDArray[np.int32]
    seconds: NDArray[np.float64]
    throughput: NDArray[np.float64]
    failures: NDArray[np.int8]
    trials: NDArray[np.int32]
    origins: NDArray[np.int8]
    costs: NDArray[np.float64]
    cut_short: NDArray[np.bool_]
    groups: tuple[Group, ...]
    workloads: tuple[ExampleWorkload, ...]
    label: str
    digest: bytes

    def __post_init__(self) -> None:
        """Raise FormatError for a feature that is NaN or infinite."""
        # The sum in double precision is finite exactly if all values are, and needs no array.
        if np.isfinite(self.rows.sum(dtype=np.float64)):
            return
        row, column = np.argwhere(~np.isfinite(self.rows))[0].tolist()
        number = int(np.searchsorted(self.starts, row, side="right")) - 1
        name, version = self.feature_set, self.version
        raise FormatError(
            f"{self.columns[column]} of program {self.program_ids[number]} is "
            f"{self.rows[row, column]} in {name} version {version}; correct the set, raise its "
            f"version, and run: tunedb extract --set {name}"
        )

    def derived(self, **changes: Any) -> Dataset:
        """Return a copy with other values of some fields, without a check of its rows.

        Parameters
        ----------
        **changes : Any
            New values by field. Rows must come from checked datasets.
        """
        dataset = object.__new__(Dataset)
        for field in fields(Dataset):
            value = changes[field.name] if field.name in changes else getattr(self, field.name)
            object.__setattr__(dataset, field.name, value)
        return dataset

    def __len__(self) -> int:
        return len(self.program_ids)

    @cached_property
    def workload(self) -> NDArray[np.int32]:
        """Index into :attr:`workloads` of each program, shape (n,)."""
        workload_of_group = np.array([group.workload for group in self.groups], np.int32)
        workload: NDArray[np.int32] = workload_of_group[self.group]
        return workload

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of rows of each program, shape (n,)."""
        return np.diff(self.starts)

    @property
    def failed(self) -> NDArray[np.bool_]:
        """True for each program that failed, shape (n,)."""
        failed: NDArray[np.bool_] = self.failures != 0
        return failed

    def take(self, chosen: NDArray[np.int64] | NDArray[np.bool_] | Sequence[int]) -> Dataset:
        """Return a subset of the programs, in the order of their numbers; groups stay.

        Parameters
        ----------
        chosen : array of int or of bool
            Numbers of programs, each at most once, or a mask of shape (n,).
        """
        index = np.asarray(chosen)
        index = np.flatnonzero(index) if index.dtype == bool else np.sort(index.astype(np.int64))
        sizes = self.sizes[index]
        starts = np.concatenate(([0], np.cumsum(sizes)))
        if len(self.rows):
            # Row numbers of all chosen programs, vectorised.
            shift = np.repeat(self.starts[:-1][index] - starts[:-1], sizes)
            rows = self.rows[np.arange(starts[-1]) + shift]
        else:
            rows = self.rows
        names = ("program_ids", "group", "seconds", "throughput", "failures", "trials", "origins")
        taken = {name: getattr(self, name)[index] for name in (*names, "costs", "cut_short")}
        return self.derived(rows=rows, starts=starts, **taken)


# ---- Examples from records -----------------------------------------------------------------------

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_INFRASTRUCTURE = FAILURES.index(FailureKind.INFRASTRUCTURE)
_UNKNOWN = FAILURES.index(FailureKind.UNKNOWN)


def dataset_of(
    store: Store, feature_set: NamedSet, records: TrainingRecords, label: str, *, corrected: bool
) -> tuple[Dataset, DataCounts]:
    """Return the examples of records, without rows, and the counts of records in no example.

    A record succeeded if it has a time above 0 that is not TVM's sentinel, and no failure. A
    program succeeded if one of its records did, and pools the times of all these, without records
    that were cut short if others are there; otherwise it has the failure of its last record.
    Programs that were cut short are left out of a group without a whole measurement, and so are
    infrastructure failures and successes without a time. Trial numbers include programs without
    features, so that a trial has the same number for every feature set.

    Parameters
    ----------
    store : Store
        Source of workloads, targets and session factors.
    feature_set : FeatureSet
        Feature set whose rows the records count.
    records : TrainingRecords
        Records of all programs.
    label : str
        Label policy (``tunedb.labels``).
    corrected : bool
        Divide run times by the factors of their sessions.

    Raises
    ------
    NotFoundError, PluginError
        The label policy is unknown or does not work; or no program has features and a whole
        measurement of its group.
    UsageError
        The feature set is stored with other columns.
    """
    policy: LabelPolicy = recipe_part("label", label)[0]
    times = _Times.from_records(records)
    failed = records.failed & (records.failures != _INFRASTRUCTURE)
    counted = np.flatnonzero(times.worked | failed)
    machines, factors, several = _sessions(store, records)
    workloads, groups, numbers, group = _groups(store, records, counted, machines, several)

    # From here on the records of each program in a group are contiguous, in the order of time. Of
    # ten million records each array has 80 MB, so those of no further use are deleted.
    record, group, turn = _ordered(records, counted, group)
    del machines, counted
    changes = (np.diff(group) != 0) | (np.diff(records.program_ids[record]) != 0)
    starts = np.flatnonzero(np.concatenate((np.ones(min(len(record), 1), bool), changes)))
    sizes = np.diff(np.append(starts, len(record)))
    owner = np.repeat(np.arange(len(starts)), sizes)
    first, last = record[starts], record[starts + sizes - 1]
    all_groups = group[starts]
    trials = _ranks(turn[starts], all_groups).astype(np.int32)
    del turn, group, sizes

    ran = times.worked[record]
    is_whole = ran & ~records.cut_short[record]
    whole = np.bincount(owner[is_whole], minlength=len(starts)) > 0
    ran = np.where(whole[owner], is_whole, ran)
    success = np.bincount(owner[ran], minlength=len(starts)) > 0
    seconds = np.full(len(starts), np.nan)
    seconds[success] = times.labelled(
        policy, record[ran], owner[ran], factors if corrected else None
    )
    timeless = int((~records.failed & ~times.worked).sum())
    del times, factors
    failures = np.where(records.failures[last] == 0, _UNKNOWN, records.failures[last])
    # True for each record with the outcome of its program.
    agrees = ran == success[owner]

    _check_features(store, feature_set, records, first)
    cut_short = success & ~whole
    has_rows = records.n_rows[first] >= 0
    measured = np.bincount(all_groups[has_rows & whole], minlength=len(groups)) > 0
    kept = has_rows & (~cut_short | measured[all_groups])
    if not kept.any():
        raise NotFoundError(f"{store.location}: every measurement was cut short; tune it longer")
    columns: dict[str, NDArray[Any]] = {
        "program_ids": records.program_ids[first][kept],
        "seconds": seconds[kept],
        "failures": np.where(success, 0, failures).astype(np.int8)[kept],
        "trials": trials[kept],
        "origins": records.origins[first][kept],
        "costs": _means(records.costs[record[agrees]], owner[agrees], len(starts))[kept],
        "cut_short": cut_short[kept],
    }
    all_groups = all_groups[kept]
    used, group = np.unique(all_groups, return_inverse=True)
    groups, workloads = _used([groups[number] for number in used.tolist()], workloads)
    dataset = Dataset(
        feature_set=feature_set.name,
        version=feature_set.version,
        columns=feature_set.columns,
        rows=np.zeros((0, len(feature_set.columns)), np.float32),
        starts=np.concatenate(([0], np.cumsum(records.n_rows[first][kept]))),
        group=group.astype(np.int32),
        throughput=throughput_of(columns["seconds"], group, cut_short=columns["cut_short"]),
        groups=groups,
        workloads=workloads,
        label=label,
        digest=identity.digest(
            "examples",
            feature_set.name.encode(),
            identity.pack_int(feature_set.version),
            label.encode(),
            records.digests[first][kept].astype(">u8").tobytes(),
            numbers[all_groups].astype("<i4").tobytes(),
            columns["seconds"].astype("<f8").tobytes(),
            columns["failures"].tobytes(),
            columns["trials"].astype("<i4").tobytes(),
            columns["origins"].tobytes(),
            *digested(columns["cut_short"]),
        ),
        **columns,
    )
    workload_of_group = np.array([group.workload for group in groups])
    counts = DataCounts(
        records=len(records),
        infrastructure=int(records.failed.sum() - failed.sum()),
        timeless=timeless,
        programs=len(np.unique(records.program_ids[first])),
        without_features=len(np.unique(records.program_ids[first][~has_rows])),
        workloads=len(workloads),
        failed_workloads=len(workloads) - len(np.unique(workload_of_group[group[~dataset.failed]])),
        targets=len({group.target for group in groups}),
    )
    return dataset, counts


def _used(
    groups: list[Group], workloads: tuple[ExampleWorkload, ...]
) -> tuple[tuple[Group, ...], tuple[ExampleWorkload, ...]]:
    """Return groups with renumbered workloads, and the workloads that they use."""
    used = sorted({group.workload for group in groups})
    new_index = {workload: index for index, workload in enumerate(used)}
    renumbered = tuple(replace(group, workload=new_index[group.workload]) for group in groups)
    return renumbered, tuple(workloads[workload] for workload in used)


@dataclass(frozen=True, slots=True, eq=False)
class _Times:
    """The valid run times of records."""

    #: All times, shape (m,), and which of them are valid.
    seconds: Floats
    is_valid: Bools
    #: Index of the record of each time, ascending, shape (m,).
    record: NDArray[np.int32]
    #: True for each record with a valid time and without a failure, shape (records,).
    worked: Bools

    @classmethod
    def from_records(cls, records: TrainingRecords) -> _Times:
        """Return the run times of records."""
        record = np.repeat(np.arange(len(records), dtype=np.int32), records.n_times)
        # A store has finite times only; a time of 0 or less is invalid.
        is_valid = (records.times > 0) & (records.times != NO_TIME)
        is_valid &= ~records.failed[record]
        worked = np.zeros(len(records), bool)
        worked[record[is_valid]] = True
        return cls(records.times, is_valid, record, worked)

    def labelled(
        self, policy: LabelPolicy, records: Ints, owner: Ints, factors: Floats | None
    ) -> Floats:
        """Return the time of each program; `owner` has the program of each record that counts."""
        owner_of = np.full(len(self.worked), -1, np.int32)
        owner_of[records] = owner
        program = owner_of[self.record]
        program[~self.is_valid] = -1
        labels = [np.zeros(0)]
        for first in range(0, int(owner.max(initial=-1)) + 1, _PROGRAMS):
            chosen = np.flatnonzero((program >= first) & (program < first + _PROGRAMS))
            seconds = self.seconds[chosen]
            if factors is not None:
                seconds /= factors[self.record[chosen]]
            labels.append(_labels(policy, program[chosen] - first, seconds))
        return np.concatenate(labels)


#: Programs that are labelled at a time: sorting takes several times the memory of their times.
_PROGRAMS = 1 << 18


def _labels(policy: LabelPolicy, program: NDArray[np.int32], seconds: Floats) -> Floats:
    """Return the time of each program that has times."""
    # Sorted by value too, so that sums do not depend on the order of insertion.
    order = np.lexsort((seconds, program))
    sizes = np.bincount(program)
    starts = np.concatenate(([0], np.cumsum(sizes[sizes > 0])))
    labels: Floats = np.asarray(policy.seconds(seconds[order], starts), np.float64)
    if labels.shape != (len(starts) - 1,) or not (labels > 0).all():
        raise PluginError(
            f"label {policy.name!r} gave no time above 0 for some program; correct or "
            "reinstall it: tunedb plugins"
        )
    return labels


#: Encodes a machine and its threads in one number: machine · _THREADS + threads.
_THREADS = 1 << 12


def _sessions(store: Store, records: TrainingRecords) -> tuple[NDArray[np.int32], Floats, set[int]]:
    """Return machine and factor of each record, and the targets with several machines.

    Sessions with different TVM_NUM_THREADS count as different machines.
    """
    # A session without an estimate has machine 0 and factor 1.
    machines = np.zeros(len(records), np.int32)
    factors = np.ones(len(records))
    several = set()
    for target_id in np.unique(records.target_ids).tolist():
        estimates = {
            each.subject_id if each.subject == "session" else -each.subject_id: each
            for each in store.runs.factors(target_id)
        }
        of_target = np.flatnonzero(records.target_ids == target_id)
        subjects, inverse = np.unique(records.subjects[of_target], return_inverse=True)
        threads = _threads(store, target_id, subjects.tolist())
        if len({estimate.machine for estimate in estimates.values()}) > 1 or len(set(threads)) > 1:
            several.add(target_id)
        of_subjects = [estimates.get(subject) for subject in subjects.tolist()]
        numbers = [e.machine if e else 0 for e in of_subjects]
        machines[of_target] = (np.array(numbers) * _THREADS + threads)[inverse]
        factors[of_target] = np.array([e.factor if e else 1.0 for e in of_subjects])[inverse]
    return machines, factors, several


def _threads(store: Store, target_id: int, subjects: Sequence[int]) -> list[int]:
    """Return the threads of each session of a CPU; 0 if unknown, and on GPUs."""
    if not store.targets.get(target_id).is_cpu:
        return [0] * len(subjects)
    sessions = (store.sessions.get(subject) if subject > 0 else None for subject in subjects)
    return [min(threads_of(session) or 0, _THREADS - 1) for session in sessions]


def _machine_name(number: int) -> str:
    """Return the name of a machine, with its threads if known."""
    machine, threads = divmod(number, _THREADS)
    return f"{machine}, TVM_NUM_THREADS={threads}" if threads else str(machine)


def _groups(
    store: Store,
    records: TrainingRecords,
    counted: Ints,
    machines: NDArray[np.int32],
    several: set[int],
) -> tuple[tuple[ExampleWorkload, ...], tuple[Group, ...], NDArray[np.int32], Ints]:
    """Return workloads, groups, the machine of each group, and the group of each counted record."""
    workload_ids, workload = np.unique(records.workload_ids[counted], return_inverse=True)
    workloads = tuple(
        ExampleWorkload.from_signature(*row)
        for row in store.training.workloads(workload_ids.tolist())
    )
    index_of = {each.id: index for index, each in enumerate(workloads)}
    workload = np.array([index_of[id_] for id_ in workload_ids.tolist()], np.int64)[workload]

    target_ids, target = np.unique(records.target_ids[counted], return_inverse=True)
    digests = store.training.target_digests()
    by_digest = sorted(target_ids.tolist(), key=digests.__getitem__)
    target = np.array([by_digest.index(id_) for id_ in target_ids.tolist()], np.int64)[target]

    # One sort key for workload, target and machine; untrusted machines have numbers below 0.
    first = int(machines.min(initial=0))
    spans = (
        *(max(len(workloads), 1), max(len(by_digest), 1)),
        int(machines.max(initial=0)) - first + 1,
    )
    key = np.ravel_multi_index((workload, target, machines[counted] - first), spans)
    used, group = np.unique(key, return_inverse=True)
    keys = np.stack(np.unravel_index(used, spans)) + np.array([[0], [0], [first]])
    groups = tuple(
        Group(
            w,
            by_digest[t],
            digests[by_digest[t]],
            _machine_name(m) if by_digest[t] in several else "",
        )
        for w, t, m in keys.T.tolist()
    )
    return workloads, groups, keys[2].astype(np.int32), group


def _ordered(records: TrainingRecords, counted: Ints, group: Ints) -> tuple[Ints, Ints, Ints]:
    """Return records, their groups and turns, ordered by group, program and turn."""
    turn = _turns(records, counted, group)
    high, low = records.digests[counted].T
    order = np.lexsort((turn, low, high, group))
    return counted[order], group[order], turn[order]


def _turns(records: TrainingRecords, counted: Ints, group: Ints) -> Ints:
    """Return the rank of each record by group and time of measurement; without times by id."""
    measured_at = records.measured_at[counted]
    unknown = np.bincount(group[measured_at <= 0], minlength=group.max(initial=0) + 1) > 0
    time = np.where(unknown[group], 0, measured_at)
    turns = np.empty(len(counted), np.int64)
    turns[np.lexsort((records.ids[counted], time, group))] = np.arange(len(counted))
    return turns


def _ranks(turns: Ints, group: Ints) -> Ints:
    """Return the rank of each entry in its group, from 0; `group` ascends, and turns by group."""
    ranks = np.empty(len(turns), np.int64)
    ranks[np.argsort(turns)] = np.arange(len(turns))
    return ranks - np.searchsorted(group, group)


def _means(values: Floats, owner: Ints, size: int) -> Floats:
    """Return the mean of the finite values of each owner, or NaN, shape (size,)."""
    known = np.isfinite(values)
    number = np.bincount(owner[known], minlength=size)
    total = np.bincount(owner[known], values[known], minlength=size)
    means: Floats = np.full(size, np.nan)
    return np.divide(total, number, out=means, where=number > 0)


def digested(cut_short: Bools) -> tuple[bytes, ...]:
    """Return what the mask adds to a digest: nothing if no program was cut short."""
    return (cut_short.tobytes(),) if cut_short.any() else ()


def throughput_of(
    seconds: Floats,
    group: NDArray[np.integer],
    bests: Floats | None = None,
    *,
    cut_short: Bools | None = None,
) -> Floats:
    """Return the throughput of each program: best time of the group / time of the program.

    Parameters
    ----------
    seconds : ndarray of float64, shape (n,)
        Run times; NaN for programs that failed.
    group : ndarray of int, shape (n,)
        Group of each program.
    bests : ndarray of float64, shape (n,), optional
        Best known time of each program's group; by default the program's own time.
    cut_short : ndarray of bool, shape (n,), optional
        Programs that are not the best of a group, whatever their time.

    Returns
    -------
    ndarray of float64, shape (n,)
        In (0, 1]; 0 for programs that failed, and where no time of the group counts.
    """
    worked = np.isfinite(seconds)
    counts = worked if cut_short is None else worked & ~cut_short
    best = np.full(group.max(initial=-1) + 1, np.inf)
    np.minimum.at(best, group[counts], (seconds if bests is None else bests)[counts])
    throughput: Floats = np.zeros(len(seconds))
    np.divide(best[group], seconds, out=throughput, where=worked & np.isfinite(best[group]))
    return throughput.clip(max=1)


# ---- From a database -----------------------------------------------------------------------------

#: Progress callback; takes the number of programs whose rows were read, and of all.
OnRead = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class DataCounts:
    """Counts of the records that were read, and of records in no example.

    Parameters
    ----------
    records : int
        Measured records of the scope, successes and failures, without retracted ones.
    infrastructure : int
        Infrastructure failures; they are in no example.
    timeless : int
        Successes without a time above 0; they are in no example.
    programs : int
        Programs of the other records.
    without_features : int
        Programs without rows of the feature set; they are in no example.
    workloads : int
        Workloads of the examples.
    failed_workloads : int
        Workloads without a program that succeeded.
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
    scope: Scope = EVERYTHING,
    rows: bool = True,
    on_read: OnRead | None = None,
) -> Dataset:
    """Return all measured programs with features, including failed ones.

    Records of foreign sources are included; retracted records and infrastructure failures are not.
    The records of a program in a group are one example: their run times are pooled, and a program
    counts as failed only if all of its records failed, with the failure of the last one.

    Parameters
    ----------
    store : Store
        Store of the database.
    feature_set : FeatureSet
        Feature set, in this version.
    label : str
        Label policy: the run time of a program from its repeats (``tunedb.labels``).
    corrected : bool
        Divide run times by the stored factors of their sessions.
    scope : Scope
        Scope of the records.
    rows : bool
        Read the feature rows too; :func:`with_rows` reads them later.
    on_read : callable or None
        Progress callback.

    Returns
    -------
    Dataset

    Raises
    ------
    NotFoundError
        The scope has no measured record, or none has rows; or the label policy is unknown.
    UsageError
        The feature set has no fixed columns, or is stored with others.
    FormatError, LimitError, StorageError
        As :func:`with_rows`.
    """
    examples, _ = load_counted(store, feature_set, label=label, corrected=corrected, scope=scope)
    return with_rows(store, examples, on_read=on_read) if rows else examples


def load_counted(
    store: Store,
    feature_set: NamedSet,
    *,
    label: str = "median",
    corrected: bool = False,
    scope: Scope = EVERYTHING,
) -> tuple[Dataset, DataCounts]:
    """Return examples without rows, and counts of the records, from one snapshot.

    Parameters and errors are those of :func:`load`.
    """
    if not feature_set.columns:
        raise UsageError(
            f"the number of columns of {feature_set.name} depends on the program, and a model "
            "needs the same ones for all; choose another set: tunedb features"
        )
    records = store.training.records(feature_set, **scope.ids())
    if not len(records):
        raise NotFoundError(_nothing_measured(store, everything=scope == EVERYTHING))
    return dataset_of(store, feature_set, records, label, corrected=corrected)


def load_computed(
    store: Store,
    feature_set: NamedSet,
    *,
    label: str = "median",
    corrected: bool = False,
    scope: Scope = EVERYTHING,
) -> Dataset:
    """Return all measured programs, without rows, for a feature set that needs steps alone.

    No row need be stored; :func:`compute_rows` computes those of the programs that it gets.
    Parameters and errors are those of :func:`load`.
    """
    records = store.training.records(feature_set, **scope.ids())
    if not len(records):
        raise NotFoundError(_nothing_measured(store, everything=scope == EVERYTHING))
    records = replace(
        records,
        n_rows=np.ones_like(records.n_rows),
        n_columns=np.full_like(records.n_columns, len(feature_set.columns)),
    )
    return dataset_of(store, feature_set, records, label, corrected=corrected)[0]


def compute_rows(store: Store, feature_set: StepFeatures, examples: Dataset) -> Dataset:
    """Return examples with rows that are computed from the stored steps.

    Programs whose steps are damaged are left out.
    """
    rows = feature_set.rows(store.programs.get(examples.program_ids.tolist()))
    good = np.array([not isinstance(one, Exception) for one in rows], bool)
    kept = [one for one in rows if not isinstance(one, Exception)]
    empty = np.zeros((0, len(feature_set.columns)), np.float32)
    starts = np.concatenate(([0], np.cumsum([len(one) for one in kept], dtype=np.int64)))
    return replace(examples.take(good), rows=np.concatenate([empty, *kept]), starts=starts)


def load_or_compute(
    store: Store, feature_set: FeatureSet, *, on_read: OnRead | None = None, **options: Any
) -> Dataset:
    """Return all measured programs with rows; those of a set that needs steps alone are computed.

    Steps are stored with each program, so no row need be. Parameters and errors are those of
    :func:`load`.
    """
    from ..features.base import StepFeatures

    if isinstance(feature_set, StepFeatures):
        return compute_rows(store, feature_set, load_computed(store, feature_set, **options))
    return load(store, feature_set, on_read=on_read, **options)


def with_rows(store: Store, examples: Dataset, *, on_read: OnRead | None = None) -> Dataset:
    """Return examples with their feature rows, read once in the order of program ids.

    Parameters
    ----------
    store : Store
        Store that the examples were loaded from.
    examples : Dataset
        All or some programs of ``load(…, rows=False)``.
    on_read : callable or None
        Progress callback.

    Returns
    -------
    Dataset

    Raises
    ------
    FormatError
        A row has NaN or an infinity.
    LimitError, StorageError
        Rows are damaged or missing.
    """
    rows = np.empty((int(examples.starts[-1]), len(examples.columns)), np.float32)
    order = np.argsort(examples.program_ids, kind="stable")
    named = _FeatureSetName(examples.feature_set, examples.version, examples.columns)
    for begin in range(0, len(order), limits.FEATURE_PROGRAMS):
        page = order[begin : begin + limits.FEATURE_PROGRAMS]
        ids = examples.program_ids[page].tolist()
        stored = store.features.rows(named, ids)
        firsts, ends = examples.starts[page].tolist(), examples.starts[page + 1].tolist()
        for id_, own_rows, first, end in zip(ids, stored, firsts, ends, strict=True):
            if own_rows is None or own_rows.shape != (end - first, rows.shape[1]):
                raise StorageError(
                    f"{store.location}: the {named.name} features of program {id_} changed during "
                    "the read; try again, or run: tunedb db check"
                )
            rows[first:end] = own_rows
        if on_read is not None:
            on_read(begin + len(page), len(order))
    try:
        return replace(examples, rows=rows)
    except FormatError as error:
        raise FormatError(f"{store.location}: {error}") from None


@dataclass(frozen=True, slots=True)
class _FeatureSetName:
    name: str
    version: int
    columns: tuple[str, ...]


# ---------------------------------------------------------------------- errors


def _nothing_measured(store: Store, *, everything: bool) -> str:
    """Return the message for a scope without training data."""
    where = store.location
    if not store.records.count():
        return f"{where}: there are no records to train on; run: tunedb import logs PATH"
    if everything and store.programs.has_kernels():
        return (
            f"{where}: only records of GPU kernels were measured; "
            "train on these with: tunedb advise train"
        )
    if everything:
        return f"{where}: none of its records was measured; run: tunedb import logs PATH"
    return (
        f"{where}: no program of these workloads, targets and sources was measured; "
        "see: tunedb workloads"
    )


def _check_features(
    store: Store, feature_set: NamedSet, records: TrainingRecords, first: Ints
) -> None:
    """Raise if no program has rows of this version; `first` has one record of each program."""
    where, name, version = store.location, feature_set.name, feature_set.version
    if not len(first):
        raise NotFoundError(
            f"{where}: {len(records)} records have neither a run time nor a failure of their "
            "programs; measure them again"
        )
    has_rows = records.n_rows[first] >= 0
    if not has_rows.any():
        others = _other_versions(store, feature_set)
        failed = set(store.batches.quarantined_lines(quarantine_name(feature_set)))
        all_failed = failed.issuperset(records.program_ids[first].tolist())
        advice = (
            "all failed; see: tunedb quarantine"
            if all_failed
            else f"run: tunedb extract --set {name}"
        )
        raise NotFoundError(
            f"{where}: none of {len(first)} measured programs has features of {name} version "
            f"{version}{others}; {advice}"
        )
    widths = np.unique(records.n_columns[first][has_rows]).tolist()
    if widths != [len(feature_set.columns)]:
        raise UsageError(
            f"{where}: {name} version {version} is stored with {widths[-1]} columns and has "
            f"{len(feature_set.columns)}; raise its version, and run: tunedb extract --set {name}"
        )


def _other_versions(store: Store, feature_set: NamedSet) -> str:
    """Return the stored versions of a feature set, for a message."""
    counts = [
        f"{stored.programs} have those of version {stored.version}"
        for stored in store.features.sets()
        if stored.name == feature_set.name and stored.programs
    ]
    return f" ({', '.join(counts)})" if counts else ""
