"""Run time against block size: what the block alone does, all else the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..observations import Observation


@dataclass(frozen=True, slots=True)
class Size:
    """What blocks of one size do in the slices of a kernel.

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
class Times:
    """Run time against block size of one kernel on one device.

    Parameters
    ----------
    kernel, device : str
        Which.
    slices, launches : int
        Slices of at least two block sizes, and their launches.
    sizes : tuple of Size
        By threads.
    """

    kernel: str
    device: str
    slices: int
    launches: int
    sizes: tuple[Size, ...]


@dataclass(frozen=True, slots=True)
class Stake:
    """What block size alone buys in one slice.

    Parameters
    ----------
    kernel, device : str
        Which.
    gain : float
        Time at the size nearest to 256 threads over the best time; at least 1.
    """

    kernel: str
    device: str
    gain: float


def slices_of(observations: Iterable[Observation]) -> list[list[Observation]]:
    """Return the slices that hold two block sizes at least, ascending in threads each."""
    found: dict[bytes, list[Observation]] = defaultdict(list)
    for one in observations:
        if one.seconds > 0 and np.isfinite(one.seconds):
            found[one.slice].append(one)
    held = [sorted(one, key=lambda o: (o.threads, o.record, o.launch)) for one in found.values()]
    return [one for one in held if one[0].threads != one[-1].threads]


def times(observations: Sequence[Observation]) -> list[Times]:
    """Return run time against block size of each kernel and device, most launches first."""
    found: dict[tuple[str, str], list[list[Observation]]] = defaultdict(list)
    for held in slices_of(observations):
        found[held[0].kernel, held[0].device].append(held)
    made = [
        Times(kernel, device, len(held), sum(map(len, held)), tuple(_sizes(held)))
        for (kernel, device), held in found.items()
    ]
    return sorted(made, key=lambda one: (-one.launches, one.kernel, one.device))


def _sizes(slices: list[list[Observation]]) -> Iterable[Size]:
    """Yield what each block size does."""
    ratios: dict[int, list[float]] = defaultdict(list)
    best: dict[int, int] = defaultdict(int)
    for held in slices:
        least = min(held, key=lambda one: one.seconds)
        best[least.threads] += 1
        for one in held:
            ratios[one.threads].append(one.seconds / least.seconds)
    for threads, values in sorted(ratios.items()):
        low, median, high = (float(one) for one in np.quantile(values, (0.1, 0.5, 0.9)))
        yield Size(threads, len(values), low, median, high, best[threads])


def stakes(observations: Sequence[Observation], *, base: int = 256) -> list[Stake]:
    """Return what each slice gains from its best block over that nearest to `base` threads.

    Of two sizes that are as near the smaller one counts, and of equal sizes the faster shape.
    """
    found = []
    for held in slices_of(observations):
        usual = min(held, key=lambda one: (abs(one.threads - base), one.threads, one.seconds))
        least = min(one.seconds for one in held)
        found.append(Stake(usual.kernel, usual.device, usual.seconds / least))
    return found
