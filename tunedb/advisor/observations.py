"""Training data of the advisor: launches with known run times, one row each.

A *slice* is a set of observations that differ in the thread block alone: one kernel and problem on
one device, with all other parameters equal. Times are comparable inside a slice only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from ..launches import Extents


class Label(StrEnum):
    """Advice for a thread block (Connors and Qasem, HPCC 2017, Algorithm 1)."""

    DECREASE = "decrease"
    NO_CHANGE = "noChange"
    INCREASE = "increase"


#: In the order of threads: a column of a confusion matrix each.
LABELS = tuple(Label)


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """One launch with its run time.

    Parameters
    ----------
    record : int
        Number of the measurement.
    launch : int
        Number of the launch in the database.
    kernel : str
        Name of the kernel without signature and template arguments; evaluation holds it out.
    workload : str
        Name of the workload, which may hold several kernels.
    slice : bytes
        Equal for observations that differ in the block alone.
    device : str
        Name of the device, or its target kind if the name is unknown.
    compute_capability : str or None
        Such as ``"7.5"``; from the counters, or the table of devices.
    threads : int
        Threads of a block.
    block, grid : tuple of int or None
        Extents along x, y and z, the grid in blocks.
    registers, static_shared, dynamic_shared : int or None
        Registers of a thread; bytes of shared memory of a block.
    seconds : float
        Mean run time.
    spread : float or None
        Coefficient of variation of the repeats; None for a single one.
    counters : mapping
        Neutral name (:mod:`tunedb.advisor.counters`) → value; without those not measured.
    parameters : mapping
        Tuning parameters, for people.
    program : bytes
        Equal for observations that differ in the block and the device alone; empty if unknown.
    """

    record: int
    launch: int
    kernel: str
    workload: str
    slice: bytes
    device: str
    compute_capability: str | None
    threads: int
    block: Extents | None
    grid: Extents | None
    registers: int | None
    static_shared: int | None
    dynamic_shared: int | None
    seconds: float
    spread: float | None = None
    counters: Mapping[str, float] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    program: bytes = b""

    @property
    def extents(self) -> Extents:
        """Its block; if only its threads are known, these along x."""
        return self.block or (self.threads, 1, 1)


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """Observations as numbers.

    Parameters
    ----------
    names : tuple of str
        Columns.
    values : ndarray, shape (n, len(names)), float64
        A row per observation; NaN for inputs that were not measured.
    """

    names: tuple[str, ...]
    values: npt.NDArray[np.float64]


#: One label per observation; None without a label.
Labels = Sequence[Label | None]
