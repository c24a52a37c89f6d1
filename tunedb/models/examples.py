"""What a model learns from: measured programs with their features, as arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..records import FailureKind, Origin

if TYPE_CHECKING:
    from collections.abc import Sequence

#: What the numbers of :attr:`Examples.failures` and :attr:`Examples.origins` stand for.
FAILURES: tuple[FailureKind | None, ...] = (None, *FailureKind)
ORIGINS: tuple[Origin, ...] = tuple(Origin)


@dataclass(frozen=True, slots=True)
class ExampleWorkload:
    """A workload as models see it: enough to split by, and to find its neighbours.

    Parameters
    ----------
    id : int
        Local number.
    digest : bytes
        Its identity.
    name : str
        Its name.
    family : str or None
        Operator family (:mod:`tunedb.programs.workload_info.families`).
    shapes : tuple of tuple of int
        Shapes of its arguments, outputs last; empty where unknown.
    flops : float or None
        Operations of one run.
    """

    id: int
    digest: bytes
    name: str
    family: str | None
    shapes: tuple[tuple[int, ...], ...]
    flops: float | None


@dataclass(frozen=True, slots=True)
class Group:
    """Programs whose times are comparable: of one workload, for one target, on one machine.

    Parameters
    ----------
    workload : int
        Index into :attr:`Examples.workloads`.
    target_id : int
        Local number of the target.
    target : bytes
        Digest of the target.
    machine : str
        What tells the machines of a target apart: empty where sessions do not contradict each
        other (:mod:`tunedb.models.sessions`).
    """

    workload: int
    target_id: int
    target: bytes
    machine: str


@dataclass(frozen=True, eq=False)
class Examples:
    """Measured programs with their features.

    Programs are in an order that depends on nothing but what they are: by the digests of workload
    and target, machine, and digest of the program. A program that a group measured several times
    is one example.

    Parameters
    ----------
    feature_set, version : str, int
        What computed the rows.
    columns : tuple of str
        Names of the columns.
    rows : ndarray of float32, shape (m, columns)
        The rows of all programs, one after another. Without rows where they are streamed
        (:mod:`tunedb.models.external`).
    starts : ndarray of int64, shape (n + 1,)
        The rows of program i are ``rows[starts[i]:starts[i + 1]]``.
    program_ids : ndarray of int64, shape (n,)
        Local numbers.
    group : ndarray of int32, shape (n,)
        Index into `groups`.
    seconds : ndarray of float64, shape (n,)
        Run time by the label policy; NaN where the program failed.
    throughput : ndarray of float64, shape (n,)
        Best run time of the group / run time, in (0, 1]; 0 where the program failed.
    failures : ndarray of int8, shape (n,)
        0, or what failed: index into :data:`FAILURES`.
    trials : ndarray of int32, shape (n,)
        Which trial of its group it was, from 0, in the order of measurement.
    origins : ndarray of int8, shape (n,)
        Index into :data:`ORIGINS`.
    costs : ndarray of float64, shape (n,)
        Seconds of the whole trial; NaN where unknown.
    groups : tuple of Group
        All groups, also those of which a subset has no program.
    workloads : tuple of ExampleWorkload
        All workloads.
    label : str
        Name of the label policy.
    digest : bytes
        Identity of all that was read: programs, labels, failures, trials, origins, feature set.
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
    groups: tuple[Group, ...]
    workloads: tuple[ExampleWorkload, ...]
    label: str
    digest: bytes

    def __len__(self) -> int:
        return len(self.program_ids)

    @cached_property
    def workload(self) -> NDArray[np.int32]:
        """Index into :attr:`workloads` of each program, shape (n,)."""
        of_group = np.array([group.workload for group in self.groups], np.int32)
        found: NDArray[np.int32] = of_group[self.group]
        return found

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Rows of each program, shape (n,)."""
        return np.diff(self.starts)

    @property
    def failed(self) -> NDArray[np.bool_]:
        """Whether each program failed, shape (n,)."""
        told: NDArray[np.bool_] = self.failures != 0
        return told

    def take(self, chosen: NDArray[np.int64] | NDArray[np.bool_] | Sequence[int]) -> Examples:
        """Return some of the programs, in the order of their numbers; groups keep theirs.

        Parameters
        ----------
        chosen : array of int or of bool
            Numbers of programs, each at most once, or whether each is taken.
        """
        index = np.asarray(chosen)
        index = np.flatnonzero(index) if index.dtype == bool else np.sort(index.astype(np.int64))
        sizes = self.sizes[index]
        starts = np.concatenate(([0], np.cumsum(sizes)))
        if len(self.rows):
            # Row numbers of all chosen programs, without a loop.
            shift = np.repeat(self.starts[:-1][index] - starts[:-1], sizes)
            rows = self.rows[np.arange(starts[-1]) + shift]
        else:
            rows = self.rows
        names = ("program_ids", "group", "seconds", "throughput", "failures", "trials", "origins")
        parts = {name: getattr(self, name)[index] for name in (*names, "costs")}
        return replace(self, rows=rows, starts=starts, **parts)
