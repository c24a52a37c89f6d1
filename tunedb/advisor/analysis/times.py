"""Run time against block size: the effect of the block alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..observations import Observation


@dataclass(frozen=True, slots=True)
class SizeTimes:
    """Run times of the blocks of one size, in all slices of a kernel.

    Parameters
    ----------
    threads : int
        Of a block.
    launches : int
        With that size.
    low, median, high : float
        Of the time over the best of its slice: the 10th, 50th and 90th percentile; at least 1.
    best : int
        Slices whose best launch has that size.
    """

    threads: int
    launches: int
    low: float
    median: float
    high: float
    best: int


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """Run time against block size of one kernel on one device.

    Parameters
    ----------
    kernel, device : str
        Names.
    slices, launches : int
        Slices of at least two block sizes, and their launches.
    sizes : tuple of SizeTimes
        By threads.
    """

    kernel: str
    device: str
    slices: int
    launches: int
    sizes: tuple[SizeTimes, ...]


@dataclass(frozen=True, slots=True)
class SliceGain:
    """Gain of the best block in one slice.

    Parameters
    ----------
    kernel, device : str
        Names.
    gain : float
        Time at the size nearest to 256 threads over the best time; at least 1.
    """

    kernel: str
    device: str
    gain: float


def comparable_slices(observations: Iterable[Observation]) -> list[list[Observation]]:
    """Return the slices with at least two block sizes, ascending in threads each."""
    slices: dict[bytes, list[Observation]] = defaultdict(list)
    for launch in observations:
        if launch.seconds > 0 and np.isfinite(launch.seconds):
            slices[launch.slice].append(launch)
    ordered = [
        sorted(launches, key=lambda launch: (launch.threads, launch.record, launch.launch))
        for launches in slices.values()
    ]
    return [launches for launches in ordered if launches[0].threads != launches[-1].threads]


def kernel_times(observations: Sequence[Observation]) -> list[KernelTimes]:
    """Return run time against block size of each kernel and device, most launches first."""
    groups: dict[tuple[str, str], list[list[Observation]]] = defaultdict(list)
    for launches in comparable_slices(observations):
        groups[launches[0].kernel, launches[0].device].append(launches)
    times = [
        KernelTimes(kernel, device, len(slices), sum(map(len, slices)), tuple(_sizes(slices)))
        for (kernel, device), slices in groups.items()
    ]
    return sorted(times, key=lambda kernel: (-kernel.launches, kernel.kernel, kernel.device))


def _sizes(slices: list[list[Observation]]) -> Iterable[SizeTimes]:
    ratios: dict[int, list[float]] = defaultdict(list)
    best: dict[int, int] = defaultdict(int)
    for launches in slices:
        fastest = min(launches, key=lambda launch: launch.seconds)
        best[fastest.threads] += 1
        for launch in launches:
            ratios[launch.threads].append(launch.seconds / fastest.seconds)
    for threads, values in sorted(ratios.items()):
        low, median, high = map(float, np.quantile(values, (0.1, 0.5, 0.9)))
        yield SizeTimes(threads, len(values), low, median, high, best[threads])


def slice_gains(observations: Sequence[Observation], *, base: int = 256) -> list[SliceGain]:
    """Return the gain of each slice from its best block over that nearest to `base` threads.

    Of two equally near sizes the smaller one counts, and of equal sizes the faster shape.
    """
    gains = []
    for launches in comparable_slices(observations):
        usual = min(
            launches,
            key=lambda launch: (abs(launch.threads - base), launch.threads, launch.seconds),
        )
        best = min(launch.seconds for launch in launches)
        gains.append(SliceGain(usual.kernel, usual.device, usual.seconds / best))
    return gains
