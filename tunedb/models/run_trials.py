"""Trials of a tuning run as a dataset, optionally joined with the dataset of a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import identity
from ..records import Origin
from .aggregation import stacked
from .dataset import ORIGINS, Dataset, ExampleWorkload, Group, digested, throughput_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..features.base import NamedSet


@dataclass(frozen=True, slots=True, eq=False)
class RunTrial:
    """A measured program of a tuning run.

    Parameters
    ----------
    program : bytes
        Digest of the program.
    program_id : int
        Local number of the program; 0 if not stored.
    rows : ndarray of float32, shape (k, columns)
        Features of the program.
    seconds : float
        Run time by the label policy; NaN if it failed.
    failure : int
        0, or the failure as an index into :data:`~tunedb.models.dataset.FAILURES`.
    cut_short : bool
        Whether the run stopped it after its first repeats.
    """

    program: bytes
    program_id: int
    rows: NDArray[np.float32]
    seconds: float
    failure: int = 0
    cut_short: bool = False

    @property
    def rank(self) -> int:
        """Whole measurements count before others, and those before failures."""
        return 0 if self.failure else 1 if self.cut_short else 2


class RunTrials:
    """The trials of a tuning run for a target, by workload.

    Of several measurements of a program the last one counts, except that a failure never replaces
    a success, and one that was cut short no whole one.

    Parameters
    ----------
    target_id, target : int, bytes
        Local number (0 if not stored) and digest of the target.
    """

    def __init__(self, target_id: int, target: bytes) -> None:
        self._target_id = target_id
        self._target = target
        self._workloads: dict[bytes, ExampleWorkload] = {}
        self._trials: dict[bytes, dict[bytes, RunTrial]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._trials.values()))

    def has(self, workload: bytes, program: bytes) -> bool:
        """Return whether this run measured a program."""
        return program in self._trials.get(workload, ())

    def add(self, workload: ExampleWorkload, trial: RunTrial) -> None:
        """Add a trial of a workload."""
        self._workloads.setdefault(workload.digest, workload)
        trials = self._trials.setdefault(workload.digest, {})
        known = trials.get(trial.program)
        if known is None or trial.rank >= known.rank:
            trials[trial.program] = trial

    def count(self, workload: bytes) -> int:
        """Return the number of programs of a workload that this run measured."""
        return len(self._trials.get(workload, ()))

    def best(self, workload: bytes) -> float:
        """Return the shortest whole time of a workload in seconds; infinity if there is none."""
        trials = self._trials.get(workload, {}).values()
        return min((trial.seconds for trial in trials if trial.rank == 2), default=float("inf"))

    def dataset(self, feature_set: NamedSet, label: str, base: Dataset | None = None) -> Dataset:
        """Return the trials as a dataset, joined with `base` if given.

        Parameters
        ----------
        feature_set : NamedSet
            Feature set of the rows.
        label : str
            Name of the label policy of the seconds.
        base : Dataset, optional
            Dataset of the same feature set and label, with rows. Trials of a workload join its
            group with the same target. If `base` has several machines of the target, they form a
            separate group.

        Returns
        -------
        Dataset
            Programs in canonical order: by the digests of workload and program.
        """
        run = self._run_dataset(feature_set, label)
        return run if base is None else join(base, run)

    def _run_dataset(self, feature_set: NamedSet, label: str) -> Dataset:
        workloads = tuple(self._workloads[digest] for digest in sorted(self._workloads))
        ordered: list[tuple[int, int, RunTrial]] = []
        for index, workload in enumerate(workloads):
            by_program = self._trials[workload.digest]
            turns = {program: turn for turn, program in enumerate(by_program)}
            ordered += [
                (index, turns[program], by_program[program]) for program in sorted(by_program)
            ]
        trials = [trial for _, _, trial in ordered]
        rows, starts = stacked([trial.rows for trial in trials], len(feature_set.columns))
        group = np.array([index for index, _, _ in ordered], np.int32)
        seconds = np.array([trial.seconds for trial in trials], np.float64)
        failures = np.array([trial.failure for trial in trials], np.int8)
        cut_short = np.array([trial.cut_short for trial in trials], bool)
        turns_of_trials = np.array([turn for _, turn, _ in ordered], np.int32)
        return Dataset(
            feature_set=feature_set.name,
            version=feature_set.version,
            columns=feature_set.columns,
            rows=rows,
            starts=starts,
            program_ids=np.array([trial.program_id for trial in trials], np.int64),
            group=group,
            seconds=seconds,
            throughput=throughput_of(seconds, group, cut_short=cut_short),
            failures=failures,
            trials=turns_of_trials,
            origins=np.full(len(trials), ORIGINS.index(Origin.UNKNOWN), np.int8),
            costs=np.full(len(trials), np.nan),
            cut_short=cut_short,
            groups=tuple(
                Group(index, self._target_id, self._target, "") for index in range(len(workloads))
            ),
            workloads=workloads,
            label=label,
            digest=identity.digest(
                "trials",
                f"{feature_set.name} {feature_set.version} {label}".encode(),
                self._target,
                *(workload.digest for workload in workloads),
                group.tobytes(),
                b"".join(trial.program for trial in trials),
                *(column.tobytes() for column in (seconds, failures, turns_of_trials)),
                *digested(cut_short),
            ),
        )


def join(base: Dataset, run: Dataset) -> Dataset:
    """Join the datasets of a store and of a tuning run.

    Of two examples of a program in a group, that of the run wins, unless it failed or was cut short
    in the run and has a better measurement in the store.

    Parameters
    ----------
    base, run : Dataset
        Datasets of the same feature set and label, with rows. A group of `run` joins the group of
        the same workload, target and machine; without a machine it joins the only one of `base`.

    Returns
    -------
    Dataset
        Programs group by group; in each group those of the store precede those of the run.
    """
    index_of = {workload.digest: index for index, workload in enumerate(base.workloads)}
    workloads = list(base.workloads)
    groups = list(base.groups)
    group_of: list[int] = []
    for run_group in run.groups:
        workload = run.workloads[run_group.workload]
        index = index_of.get(workload.digest)
        if index is None:
            index = len(workloads)
            workloads.append(workload)
        same = [
            number
            for number, group in enumerate(base.groups)
            if (group.workload, group.target) == (index, run_group.target)
            and run_group.machine in ("", group.machine)
        ]
        if len(same) == 1:
            group_of.append(same[0])
        else:
            group_of.append(len(groups))
            machine = run_group.machine or ("this run" if same else "")
            groups.append(replace(run_group, workload=index, machine=machine))
    group = np.array(group_of, np.int32)[run.group]
    base, run, group = _without_duplicates(base, run, group)
    group = np.concatenate([base.group, group]).astype(np.int32)
    return _concatenated(base, run, group, tuple(groups), workloads)


def _without_duplicates(
    base: Dataset, run: Dataset, group: NDArray[np.int32]
) -> tuple[Dataset, Dataset, NDArray[np.int32]]:
    """Remove duplicate examples of a program; `group` has the run's groups in `base`."""
    old = list(zip(base.group.tolist(), base.program_ids.tolist(), strict=True))
    new = list(zip(group.tolist(), run.program_ids.tolist(), strict=True))
    ranks = dict(zip(old, _ranks(base), strict=True))
    keep = np.array(
        [rank >= ranks.get(pair, 0) for pair, rank in zip(new, _ranks(run), strict=True)], bool
    )
    kept = {pair for pair, stays in zip(new, keep, strict=True) if stays and pair[1]}
    base = base.take(np.array([pair not in kept for pair in old], bool))
    return base, run.take(keep), group[keep]


def _ranks(examples: Dataset) -> list[int]:
    """Return the rank of each program, as :attr:`RunTrial.rank`."""
    ranks: list[int] = np.where(examples.failed, 0, 2 - examples.cut_short).tolist()
    return ranks


def _concatenated(
    base: Dataset,
    run: Dataset,
    group: NDArray[np.int32],
    groups: tuple[Group, ...],
    workloads: Sequence[ExampleWorkload],
) -> Dataset:
    """Concatenate both datasets and sort by group, the store before the run."""
    sizes = np.concatenate([base.sizes, run.sizes])
    before = np.concatenate([base.starts[:-1], base.starts[-1] + run.starts[:-1]])
    order = np.argsort(group, kind="stable")
    starts = np.concatenate(([0], np.cumsum(sizes[order])))
    rows = np.arange(starts[-1]) + np.repeat(before[order] - starts[:-1], sizes[order])
    # Trials of the run follow those of the store in their group.
    first_turn = np.zeros(len(groups), np.int32)
    np.maximum.at(first_turn, base.group, base.trials + 1)
    trials = np.concatenate([base.trials, run.trials + first_turn[group[len(base) :]]])

    def both(name: str) -> Any:
        return np.concatenate([getattr(base, name), getattr(run, name)])[order]

    seconds = both("seconds")
    # The best program of a group may not be among those of `base`, but its time follows from them.
    before = both("throughput")
    bests = seconds * before
    cut_short = both("cut_short")
    # It does not follow from a throughput that was unknown (0) or bounded (1).
    tells_no_best = cut_short & ((before == 0) | (before == 1))
    return base.derived(
        rows=np.concatenate([base.rows, run.rows])[rows],
        starts=starts,
        program_ids=both("program_ids"),
        group=group[order],
        seconds=seconds,
        throughput=throughput_of(seconds, group[order], bests, cut_short=tells_no_best),
        failures=both("failures"),
        trials=trials[order].astype(np.int32),
        origins=both("origins"),
        costs=both("costs"),
        cut_short=cut_short,
        groups=groups,
        workloads=tuple(workloads),
        digest=identity.digest("trials", base.digest, identity.pack_int(len(base)), run.digest),
    )
