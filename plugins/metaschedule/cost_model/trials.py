"""What was measured while tuning, as examples that a model learns from beside those of a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .... import identity
from ....models.base import Label, part
from ....models.dataset import FAILURES, ORIGINS, Dataset, ExampleWorkload, Group
from ....records import FailureKind, Origin, Phase, Program, Status
from ....run_times import NO_TIME, status_of
from ..failures import classify
from ..features.candidate_features import stacked
from ..measure.measure_callback import run_secs_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ....features.base import NamedSet


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """A candidate that was measured.

    Parameters
    ----------
    program : bytes
        Digest of the program.
    program_id : int
        Its local number; 0 where it is not stored.
    rows : ndarray of float32, shape (k, columns)
        Its features.
    seconds : float
        Run time by the label policy; NaN where it failed.
    failure : int
        0, or what failed: index into :data:`~tunedb.models.dataset.FAILURES`.
    """

    program: bytes
    program_id: int
    rows: NDArray[np.float32]
    seconds: float
    failure: int = 0


def trial_of(
    rows: NDArray[np.float32], program: Program, program_id: int, result: Any, label: str
) -> Trial | None:
    """Return what is learnt from a candidate; None where that is nothing.

    Parameters
    ----------
    rows : ndarray of float32, shape (k, columns)
        Its features.
    program, program_id : Program, int
        What ran, and its local number or 0.
    result : tvm RunnerResult
        What came out. TVM's cost models do not see what failed to build.
    label : str
        Name of the label policy.
    """
    if result.error_msg is not None:
        kind = classify(Phase.RUN, str(result.error_msg)).kind
        if kind == FailureKind.INFRASTRUCTURE:  # no fault of the program
            return None
        return Trial(program.digest, program_id, rows, float("nan"), FAILURES.index(kind))
    times = np.array(run_secs_of(result), np.float64)
    times = times[(times > 0) & (times < np.inf) & (times != NO_TIME)]
    if not len(times):
        if status_of(run_secs_of(result)) == Status.OK:
            return None
        unknown = FAILURES.index(FailureKind.UNKNOWN)
        return Trial(program.digest, program_id, rows, float("nan"), unknown)
    policy: Label = part("label", label)[0]
    seconds = float(policy.seconds(times, np.array([0, len(times)]))[0])
    return Trial(program.digest, program_id, rows, seconds)


class Trials:
    """The trials of a run for one target, by workload.

    A program that was measured several times is one trial, the last one; but one that worked once
    has not failed.

    Parameters
    ----------
    target_id, target : int, bytes
        Local number (0 where it is not stored) and digest of the target.
    """

    def __init__(self, target_id: int, target: bytes) -> None:
        self._target_id = target_id
        self._target = target
        self._workloads: dict[bytes, ExampleWorkload] = {}
        self._trials: dict[bytes, dict[bytes, Trial]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._trials.values()))

    def has(self, workload: bytes, program: bytes) -> bool:
        """Tell whether a program was measured in this run."""
        return program in self._trials.get(workload, ())

    def add(self, workload: ExampleWorkload, trial: Trial) -> None:
        """Add what was measured."""
        self._workloads.setdefault(workload.digest, workload)
        trials = self._trials.setdefault(workload.digest, {})
        known = trials.get(trial.program)
        if known is None or not trial.failure or known.failure:
            trials[trial.program] = trial

    def count(self, workload: bytes) -> int:
        """Return how many programs of a workload were measured in this run."""
        return len(self._trials.get(workload, ()))

    def best(self, workload: bytes) -> float:
        """Return the shortest time of a workload in seconds; infinity where nothing worked."""
        trials = self._trials.get(workload, {}).values()
        return min((one.seconds for one in trials if not one.failure), default=float("inf"))

    def examples(self, feature_set: NamedSet, label: str, base: Dataset | None) -> Dataset:
        """Return the trials as examples, with those of a store where there are any.

        Trials of a workload join its group in `base`: both have the target. Where `base` has
        several machines of it, they are a group of their own.

        Parameters
        ----------
        feature_set : NamedSet
            Whose rows they have.
        label : str
            Name of the label policy that made their seconds.
        base : Dataset or None
            A dataset of the same feature set and label, with rows.
        """
        mine = self._own(feature_set, label)
        return mine if base is None else joined(base, mine)

    def _own(self, feature_set: NamedSet, label: str) -> Dataset:
        """Return the trials alone, in canonical order."""
        workloads = tuple(self._workloads[digest] for digest in sorted(self._workloads))
        ordered: list[tuple[int, int, Trial]] = []
        for number, workload in enumerate(workloads):
            made = self._trials[workload.digest]
            order = {program: at for at, program in enumerate(made)}
            ordered += [(number, order[program], made[program]) for program in sorted(made)]
        trials = [trial for _, _, trial in ordered]
        rows, starts = stacked([trial.rows for trial in trials], len(feature_set.columns))
        group = np.array([number for number, _, _ in ordered], np.int32)
        seconds = np.array([trial.seconds for trial in trials], np.float64)
        failures = np.array([trial.failure for trial in trials], np.int8)
        numbers = np.array([at for _, at, _ in ordered], np.int32)
        told = b"".join(trial.program for trial in trials), seconds, failures, numbers
        return Dataset(
            feature_set=feature_set.name,
            version=feature_set.version,
            columns=feature_set.columns,
            rows=rows,
            starts=starts,
            program_ids=np.array([trial.program_id for trial in trials], np.int64),
            group=group,
            seconds=seconds,
            throughput=throughput_of(seconds, seconds, group, len(workloads)),
            failures=failures,
            trials=numbers,
            origins=np.full(len(trials), ORIGINS.index(Origin.UNKNOWN), np.int8),
            costs=np.full(len(trials), np.nan),
            groups=tuple(
                Group(number, self._target_id, self._target, "") for number in range(len(workloads))
            ),
            workloads=workloads,
            label=label,
            digest=identity.digest(
                "trials",
                f"{feature_set.name} {feature_set.version} {label}".encode(),
                self._target,
                *(workload.digest for workload in workloads),
                group.tobytes(),
                *(part if isinstance(part, bytes) else part.tobytes() for part in told),
            ),
        )


def throughput_of(
    seconds: NDArray[np.float64], bests: NDArray[np.float64], group: NDArray[np.int32], groups: int
) -> NDArray[np.float64]:
    """Return best time of the group / time for each program, 0 where it has no time.

    `bests` has, for each program, the best time that is known to whom it was taken from.
    """
    best = np.full(groups, np.inf)
    worked = np.isfinite(seconds)
    np.minimum.at(best, group[worked], bests[worked])
    found = np.zeros(len(seconds))
    found[worked] = best[group[worked]] / seconds[worked]
    return found


def joined(base: Dataset, mine: Dataset) -> Dataset:
    """Return examples of a store and of a run in one; what both measured is the run's.

    Parameters
    ----------
    base, mine : Dataset
        Of the same feature set and label, with rows. A group of `mine` joins that of the same
        workload, target and machine; one that names no machine joins the only one there is.
    """
    numbers = {workload.digest: at for at, workload in enumerate(base.workloads)}
    workloads = list(base.workloads)
    groups = list(base.groups)
    group_of: list[int] = []
    for one in mine.groups:
        workload = mine.workloads[one.workload]
        number = numbers.get(workload.digest)
        if number is None:
            number = len(workloads)
            workloads.append(workload)
        same = [
            at
            for at, group in enumerate(base.groups)
            if (group.workload, group.target) == (number, one.target)
            and one.machine in ("", group.machine)
        ]
        if len(same) == 1:
            group_of.append(same[0])
        else:
            group_of.append(len(groups))
            machine = one.machine or ("this run" if same else "")
            groups.append(replace(one, workload=number, machine=machine))
    group = np.array(group_of, np.int32)[mine.group]
    base, mine, group = _each_once(base, mine, group)
    group = np.concatenate([base.group, group])
    return _concatenated(base, mine, group.astype(np.int32), tuple(groups), workloads)


def _each_once(
    base: Dataset, mine: Dataset, group: NDArray[np.int32]
) -> tuple[Dataset, Dataset, NDArray[np.int32]]:
    """Leave out one of two examples of a program in a group: the store's, or the run's failure.

    `group` says for each of `mine` its group in `base`.
    """
    old = list(zip(base.group.tolist(), base.program_ids.tolist(), strict=True))
    new = list(zip(group.tolist(), mine.program_ids.tolist(), strict=True))
    worked = {pair for pair, bad in zip(old, base.failed, strict=True) if not bad}
    keep = np.array([not (b and p in worked) for p, b in zip(new, mine.failed, strict=True)], bool)
    kept = {pair for pair, stays in zip(new, keep, strict=True) if stays and pair[1]}
    base = base.take(np.array([pair not in kept for pair in old], bool))
    return base, mine.take(keep), group[keep]


def _concatenated(
    base: Dataset,
    mine: Dataset,
    group: NDArray[np.int32],
    groups: tuple[Group, ...],
    workloads: Sequence[ExampleWorkload],
) -> Dataset:
    """Return the programs of both, those of a group together, the store's before the run's."""
    sizes = np.concatenate([base.sizes, mine.sizes])
    before = np.concatenate([base.starts[:-1], base.starts[-1] + mine.starts[:-1]])
    order = np.argsort(group, kind="stable")
    starts = np.concatenate(([0], np.cumsum(sizes[order])))
    rows = np.arange(starts[-1]) + np.repeat(before[order] - starts[:-1], sizes[order])
    # The run's trials come after all that the store has of their group.
    after = np.zeros(len(groups), np.int32)
    np.maximum.at(after, base.group, base.trials + 1)
    trials = np.concatenate([base.trials, mine.trials + after[group[len(base) :]]])

    def both(name: str) -> Any:
        return np.concatenate([getattr(base, name), getattr(mine, name)])[order]

    seconds = both("seconds")
    # The best program of a group may be none of those that were chosen from the store.
    bests = seconds * both("throughput")
    return replace(
        base,
        rows=np.concatenate([base.rows, mine.rows])[rows],
        starts=starts,
        program_ids=both("program_ids"),
        group=group[order],
        seconds=seconds,
        throughput=throughput_of(seconds, bests, group[order], len(groups)),
        failures=both("failures"),
        trials=trials[order].astype(np.int32),
        origins=both("origins"),
        costs=both("costs"),
        groups=groups,
        workloads=tuple(workloads),
        digest=identity.digest("trials", base.digest, identity.pack_int(len(base)), mine.digest),
    )
