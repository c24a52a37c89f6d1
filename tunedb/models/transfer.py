"""Evaluation between two databases: models train on the records of one and rank those of the other.

The regimes have the names of :data:`tunedb.models.splits.REGIMES`; here the training side is always
of the first database and the test side always of the second. Groups of both stay apart, also where
workload and target are the same: times of two databases need not be of one machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .. import identity
from ..errors import UsageError
from . import dataset, evaluation
from .dataset import Dataset, ExampleWorkload
from .scope import EVERYTHING, Scope
from .splits import (
    NEW_FAMILY,
    NEW_HARDWARE,
    NEW_WORKLOAD,
    SAME_WORKLOAD,
    Regime,
    Split,
    SplitPlan,
    shape_class,
)

if TYPE_CHECKING:
    from ..features.base import FeatureSet
    from ..storage.store import Store
    from .base import Floats


@dataclass(frozen=True, eq=False)
class Transfer:
    """The programs of two databases, and which of them are ranked.

    Parameters
    ----------
    examples : Dataset
        Programs of the training database, then those of the test database. Equal programs of both
        have one number in ``program_ids``.
    tested : ndarray of bool, shape (n,)
        True for the programs of the test database.
    noise : ndarray of float64, or None
        Noise of the run times of the test database (:func:`tunedb.models.evaluation.repeat_noise`).
    """

    examples: Dataset
    tested: NDArray[np.bool_]
    noise: Floats | None

    @property
    def regimes(self) -> dict[str, Regime]:
        """Makers of the splits by regime, for :func:`tunedb.models.evaluation.evaluate`."""
        return {name: partial(regime, self.tested) for name, regime in _REGIMES.items()}


def load(
    train: Store,
    test: Store,
    feature_set: FeatureSet,
    *,
    label: str = "median",
    corrected: bool = False,
    scopes: tuple[Scope, Scope] = (EVERYTHING, EVERYTHING),
    on_read: Callable[[int, int], None] | None = None,
) -> Transfer:
    """Return the measured programs of two databases.

    Features of steps are computed, so that no database need store them; others are read.

    Parameters
    ----------
    train, test : Store
        Databases to train on, and to rank the records of.
    feature_set : FeatureSet
        Feature set.
    label, corrected
        As for :func:`tunedb.models.dataset.load`.
    scopes : pair of Scope
        Records of either database.
    on_read : callable or None
        Progress callback.

    Raises
    ------
    TuneDBError
        As for :func:`tunedb.models.dataset.load`, for either database.
    """
    sides, digests = [], []
    for store, scope in zip((train, test), scopes, strict=True):
        examples = dataset.load_or_compute(
            store, feature_set, label=label, corrected=corrected, scope=scope, on_read=on_read
        )
        records = store.training.records(feature_set, **scope.ids())
        ids, first = np.unique(records.program_ids, return_index=True)
        digests.append(records.digests[first][np.searchsorted(ids, examples.program_ids)])
        sides.append(examples)
    numbers = np.unique(np.concatenate(digests), axis=0, return_inverse=True)[1].ravel() + 1
    tested = np.arange(len(numbers)) >= len(sides[0])
    examples = replace(_joined(*sides), program_ids=numbers)
    return Transfer(examples, tested, evaluation.repeat_noise(records))


def _joined(first: Dataset, second: Dataset) -> Dataset:
    """Return the programs of both; equal workloads become one, groups stay apart."""
    workloads: dict[bytes, ExampleWorkload] = {}
    for workload in (*first.workloads, *second.workloads):
        workloads.setdefault(workload.digest, workload)
    number = {digest: i for i, digest in enumerate(workloads)}
    groups = [
        replace(group, workload=number[side.workloads[group.workload].digest])
        for side in (first, second)
        for group in side.groups
    ]
    names = ("seconds", "throughput", "failures", "trials", "origins", "costs", "cut_short", "rows")
    columns: dict[str, Any] = {
        name: np.concatenate((getattr(first, name), getattr(second, name))) for name in names
    }
    return replace(
        first,
        **columns,
        program_ids=np.concatenate((first.program_ids, second.program_ids)),
        starts=np.concatenate((first.starts, second.starts[1:] + first.starts[-1])),
        group=np.concatenate((first.group, second.group + np.int32(len(first.groups)))),
        groups=tuple(groups),
        workloads=tuple(workloads.values()),
        digest=identity.digest("examples", first.digest, second.digest),
    )


# ---- Regimes -------------------------------------------------------------------------------------

Mask = NDArray[np.bool_]


def _same_workload(tested: Mask, examples: Dataset, plan: SplitPlan) -> Iterator[Split]:
    """Yield the split whose test side has new programs of the workloads and targets trained on."""
    pairs = [(group.workload, group.target) for group in examples.groups]
    number = {pair: i for i, pair in enumerate(pairs)}
    key = np.array([number[pair] for pair in pairs])[examples.group]
    known = np.isin(key, key[~tested])
    if not (known & tested).any():
        raise UsageError("the databases have no workload and target in common")
    new = ~np.isin(examples.program_ids, examples.program_ids[~tested])
    if not (known & tested & new).any():
        raise UsageError("the test database has no other programs of the workloads in common")
    yield _split(SAME_WORKLOAD, "programs of common workloads", ~tested, tested & known & new)


def _new_workload(tested: Mask, examples: Dataset, plan: SplitPlan) -> Iterator[Split]:
    """Yield the split whose test side has workloads of shapes that the training side lacks."""
    classes = [shape_class(workload) for workload in examples.workloads]
    trained = {classes[i] for i in np.unique(examples.workload[~tested])}
    new = np.array([one not in trained for one in classes])[examples.workload]
    if not (new & tested).any():
        raise UsageError("the training database has all workloads of the test database")
    yield _split(NEW_WORKLOAD, "workloads of one database", ~tested, tested & new)


def _new_family(tested: Mask, examples: Dataset, plan: SplitPlan) -> Iterator[Split]:
    """Yield a split for each family of the test database; training is without that family."""
    families = [workload.family for workload in examples.workloads]
    family_of = np.array([family or "" for family in families])[examples.workload]
    found = False
    for family in sorted(set(family_of[tested].tolist()) - {""}):
        train = ~tested & (family_of != family) & (family_of != "")
        if train.any():
            found = True
            yield _split(NEW_FAMILY, family, train, tested & (family_of == family))
    if not found:
        raise UsageError("the training database has no other operator family")


def _new_hardware(tested: Mask, examples: Dataset, plan: SplitPlan) -> Iterator[Split]:
    """Yield a split for each target of the test database that the training database lacks."""
    targets = np.array([group.target.hex() for group in examples.groups])
    names = {group.target.hex(): group.target_id for group in examples.groups}
    target_of = targets[examples.group]
    new = sorted(set(target_of[tested].tolist()) - set(target_of[~tested].tolist()))
    if not new:
        raise UsageError("the training database has all targets of the test database")
    for target in new:
        test = tested & (target_of == target)
        yield _split(NEW_HARDWARE, f"target {names[target]}", ~tested, test)


def _split(regime: str, name: str, train: Mask, test: Mask) -> Split:
    return Split(regime, name, np.flatnonzero(train), np.flatnonzero(test))


_REGIMES: dict[str, Callable[[Mask, Dataset, SplitPlan], Iterator[Split]]] = {
    SAME_WORKLOAD: _same_workload,
    NEW_WORKLOAD: _new_workload,
    NEW_FAMILY: _new_family,
    NEW_HARDWARE: _new_hardware,
}
