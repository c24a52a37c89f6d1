"""Measurements of the same kernel on other devices: the first source of advice.

A kernel that ran elsewhere needs no model. The log run times of its blocks, less the mean of their
slice, are averaged over the other devices; similar devices weigh more. Launches of the same program
(equal parameters) come first. Where none were measured, all programs of the kernel's family count.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...launches import Extents
from ..devices import lookup
from ..labels import DECREASE, INCREASE, NO_CHANGE, Floats
from ..observations import Observation
from .splits import families, slice_numbers

#: Weight of a device with the same compute capability, its major number, the vendor, or none.
SIMILAR = (1.0, 0.5, 0.25, 0.1)

#: Savings below this count as none (in the logarithm: about as much in per cent).
TOLERANCE = 0.02

#: Score of a step that is impossible or unknown.
NEVER = -1e3

_DeviceKey = tuple[str, str, str]
_Key = tuple[Hashable, Extents]
_Ints = npt.NDArray[np.int64]


def devices(observations: Sequence[Observation]) -> npt.NDArray[np.str_]:
    """Return the usual name of each observation's device."""
    return np.array([_device(one)[0] for one in observations], np.str_)


def _device(observation: Observation) -> _DeviceKey:
    """Return name, vendor and compute capability of a device."""
    known, capability = lookup(observation.device), observation.compute_capability or ""
    if known is None:
        return observation.device, "NVIDIA" if capability else "", capability
    return known.name, known.vendor, capability


def _weight(one: _DeviceKey, other: _DeviceKey) -> float:
    """Return the weight of another device; 0 for the device itself."""
    if one[0] == other[0]:
        return 0.0
    equal, generation, vendor, none = SIMILAR
    if one[2] and one[2] == other[2]:
        return equal
    if one[2] and one[2].partition(".")[0] == other[2].partition(".")[0]:
        return generation
    return vendor if one[1] and one[1] == other[1] else none


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Mean centred log run times of blocks, by device.

    Parameters
    ----------
    devices : tuple
        Name, vendor and compute capability of each device.
    tables : tuple of (dict, ndarray)
        By program, then by family: (program or family, block) → row of an array, shape
        (m, len(devices)), with NaN where the device did not run the block.
    """

    devices: tuple[_DeviceKey, ...]
    tables: tuple[tuple[dict[_Key, int], Floats], ...]

    @classmethod
    def from_observations(cls, observations: Sequence[Observation]) -> Measured:
        """Return the measurements of observations, whole slices."""
        logs = np.log(np.array([one.seconds for one in observations], np.float64))
        number, names = slice_numbers(observations), [_device(one) for one in observations]
        logs -= (np.bincount(number, logs) / np.bincount(number))[number] if len(logs) else 0.0
        known = {name[0]: name for name in names}
        order = {name: i for i, name in enumerate(known)}
        columns = np.array([order[name[0]] for name in names], np.int64)
        tables = []
        for keys in _keys(observations):
            rows: dict[_Key, int] = {}
            at = np.array([rows.setdefault(key, len(rows)) for key in keys], np.int64)
            sums, counts = np.zeros((2, len(rows), len(known)))
            np.add.at(sums, (at, columns), logs)
            np.add.at(counts, (at, columns), 1)
            tables.append((rows, np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)))
        return cls(tuple(known.values()), tuple(tables))

    def scores(
        self, observations: Sequence[Observation], after: _Ints
    ) -> tuple[Floats, npt.NDArray[np.int8]]:
        """Return the savings of one step, as logarithms of time ratios, from other devices.

        Parameters
        ----------
        observations : sequence of Observation
        after : ndarray, shape (n, 3), int64
            Position of the observation after the step of each label (:func:`.regret.one_step`).

        Returns
        -------
        scores : ndarray, shape (n, 3), float64
            The tolerance for no change; very low for a step that no other device measured.
        table : ndarray, shape (n,), int8
            0 for launches of the same program, 1 for other programs of the kernel, -1 if nothing is
            known.
        """
        names = [_device(one) for one in observations]
        weights = {name: [_weight(name, other) for other in self.devices] for name in set(names)}
        weight = np.array([weights[name] for name in names]).reshape(len(names), len(self.devices))
        found = np.full(after.shape, NEVER)
        found[:, NO_CHANGE] = TOLERANCE
        table = np.full(len(after), -1, np.int8)
        for number, ((rows, logs), keys) in enumerate(
            zip(self.tables, _keys(observations), strict=True)
        ):
            padded = np.vstack([logs, np.full(len(self.devices), np.nan)])
            at = padded[[rows.get(key, -1) for key in keys]]
            unknown = table < 0
            for code in (DECREASE, INCREASE):
                saved = at - at[after[:, code]]
                shares = weight * ~np.isnan(saved)
                total = shares.sum(axis=1)
                use = unknown & (total > 0) & (after[:, code] != np.arange(len(after)))
                found[use, code] = (shares * np.nan_to_num(saved)).sum(axis=1)[use] / total[use]
                table[use] = number
        return found, table

    def blocks(self, observation: Observation) -> list[Extents]:
        """Return the blocks of the observation's program that other devices ran."""
        rows, logs = self.tables[0]
        other = np.array([_weight(_device(observation), name) > 0 for name in self.devices])
        return [
            block
            for (program, block), row in rows.items()
            if program == observation.program and (~np.isnan(logs[row]) & other).any()
        ]


def _keys(observations: Sequence[Observation]) -> tuple[list[_Key], ...]:
    """Return the keys of observations in both tables: program or family, and block."""
    groups = families(observations).tolist()
    return (
        [(one.program or one.slice, one.extents) for one in observations],
        [(name, one.extents) for name, one in zip(groups, observations, strict=True)],
    )
