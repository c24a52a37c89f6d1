"""Training and test splits by regime, and pools of candidates to rank.

The split affects figures more than the model does: to rank further programs of a training workload
is far easier than to rank programs of a new workload. So there are four regimes. For new workloads
and families, similar ones are excluded from training.

Splits depend only on the programs, a seed and NumPy's PCG64: programs and workloads are numbered in
the order of their digests (:class:`~tunedb.models.dataset.Dataset`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import log2

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..records import Origin
from .dataset import ORIGINS, Dataset, ExampleWorkload
from .metrics import is_rankable

Indices = NDArray[np.int64]

SAME_WORKLOAD = "same-workload"
NEW_WORKLOAD = "new-workload"
NEW_FAMILY = "new-family"
NEW_HARDWARE = "new-hardware"

#: Trials of the first round of MetaSchedule and Ansor, whose candidates no model selected.
FIRST_ROUND = 64

#: Default share of held-out programs or workloads.
_SHARE = 0.2


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """A split into training and test programs.

    Parameters
    ----------
    regime : str
        Key of :data:`REGIMES`.
    name : str
        Short name of the held-out programs.
    train, test : ndarray of int64
        Numbers of programs, ascending and disjoint.
    """

    regime: str
    name: str
    train: Indices
    test: Indices


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """The number and size of splits.

    Parameters
    ----------
    seeds : int
        Number of splits by program and by workload. Families and hardware have one split each.
    held_out : int, optional
        Workloads held out by a seed (:func:`draw`); by default a fifth.
    never : frozenset of int
        Workloads that are never held out (:func:`development`).
    leave_one_out : bool
        Hold out each workload once instead of a sample by each seed.
    fewest : int
        Minimum number of programs of a pool.
    """

    seeds: int = 5
    held_out: int | None = None
    never: frozenset[int] = frozenset()
    leave_one_out: bool = False
    fewest: int = 10


def same_workload(examples: Dataset, plan: SplitPlan) -> Iterator[Split]:
    """Yield splits by program, a fifth held out: an upper bound of the accuracy of a model.

    A program measured on several machines is on one side.

    Raises
    ------
    UsageError
        No workload has enough programs.
    """
    if not rankable_workloads(examples, plan.fewest):
        raise UsageError(f"no workload has {plan.fewest} measured programs to rank")
    _, first, number = np.unique(examples.program_ids, return_index=True, return_inverse=True)
    # Numbers by first appearance: local ids differ between databases, the order does not.
    order = np.argsort(np.argsort(first))[number]
    for seed in range(1, plan.seeds + 1):
        drawn = np.random.default_rng(seed).permutation(len(first)) < _SHARE * len(first)
        yield _split(examples, SAME_WORKLOAD, f"seed {seed}", drawn[order])


def new_workload(examples: Dataset, plan: SplitPlan) -> Iterator[Split]:
    """Yield splits by workload, stratified by family, equal shapes on one side.

    A held-out workload is held out on all targets and machines.

    Raises
    ------
    UsageError
        No training data would remain.
    """
    able = rankable_workloads(examples, plan.fewest)
    free = [i for i in able if i not in plan.never]
    _need_two_classes(examples, able, plan.fewest)
    if plan.leave_one_out:
        for class_members in shape_classes([examples.workloads[i] for i in free]):
            held = [free[i] for i in class_members]
            yield _by_workload(examples, examples.workloads[held[0]].name, held)
        return
    count = max(1, round(_SHARE * len(free))) if plan.held_out is None else plan.held_out
    if not free or count >= len(able):
        raise UsageError(
            f"{count} of {len(able)} workloads cannot be held out: "
            f"only {len(free)} may be, and at least one must stay for training"
        )
    for seed in range(1, plan.seeds + 1):
        drawn = [free[i] for i in draw([examples.workloads[i] for i in free], count, seed)]
        yield _by_workload(examples, f"seed {seed}", drawn)


def new_family(examples: Dataset, plan: SplitPlan) -> Iterator[Split]:
    """Yield a split for each held-out operator family.

    Workloads of unknown family are on neither side: they may belong to the held-out family.

    Raises
    ------
    UsageError
        There is only one family.
    """
    families = [workload.family for workload in examples.workloads]
    tested = {families[i] for i in rankable_workloads(examples, plan.fewest)} - {None}
    if len(tested) < 2:
        raise UsageError(
            f"workloads of two families are needed; there is {next(iter(tested), None) or 'none'}"
        )
    has_family = np.array([family is not None for family in families])[examples.workload]
    for family in sorted(filter(None, tested)):
        held = np.array([workload_family == family for workload_family in families])[
            examples.workload
        ]
        yield _split(examples, NEW_FAMILY, family, held, has_family)


def new_hardware(examples: Dataset, plan: SplitPlan) -> Iterator[Split]:
    """Yield a split for each held-out target and machine.

    The same workloads, even the same programs, are on both sides: only the hardware is new.

    Raises
    ------
    UsageError
        There is only one target and machine.
    """
    keys = [(group.target, group.machine) for group in examples.groups]
    groups = np.unique(examples.group[_rankable_programs(examples, plan.fewest)]).tolist()
    names = {keys[i]: _hardware(examples, i) for i in groups}
    if len(names) < 2:
        raise UsageError(
            "two targets, or two machines of one (tunedb sessions), are needed; "
            f"there is {next(iter(names.values()), 'none')}"
        )
    for key in sorted(names):
        held = np.array([group_key == key for group_key in keys])[examples.group]
        yield _split(examples, NEW_HARDWARE, names[key], held)


Regime = Callable[[Dataset, SplitPlan], Iterator[Split]]

#: Regimes by name, the easiest first.
REGIMES: dict[str, Regime] = {
    SAME_WORKLOAD: same_workload,
    NEW_WORKLOAD: new_workload,
    NEW_FAMILY: new_family,
    NEW_HARDWARE: new_hardware,
}


def random_trials(examples: Dataset) -> NDArray[np.bool_]:
    """Return the mask of randomly drawn programs, shape (n,).

    If the origins of a group's first 64 trials are known and some are random, these are its random
    programs. Otherwise they are the first 64 trials, because a search begins with random
    candidates.
    """
    random = examples.origins == ORIGINS.index(Origin.RANDOM)
    first = examples.trials < FIRST_ROUND
    unknown = first & (examples.origins == ORIGINS.index(Origin.UNKNOWN))
    count = len(examples.groups)
    drawn, undocumented = (
        np.bincount(examples.group[mask], minlength=count) for mask in (random, unknown)
    )
    has_random_pool = (drawn > 0) & (undocumented == 0)
    in_pool: NDArray[np.bool_] = np.where(has_random_pool[examples.group], random, first)
    return in_pool


def all_trials(examples: Dataset) -> NDArray[np.bool_]:
    """Return a mask of all programs, shape (n,)."""
    return np.ones(len(examples), bool)


#: Kinds of pools. Late candidates of a search are all good: in Roller's logs a random order has a
#: top-5 score of 0.88 over all trials, and of 0.60 over the first 64 (docs/models.md).
POOLS: dict[str, Callable[[Dataset], NDArray[np.bool_]]] = {
    "random": random_trials,
    "search": all_trials,
}


def pools(examples: Dataset, chosen: NDArray[np.bool_], fewest: int) -> Iterator[Indices]:
    """Yield the numbers of the programs of each rankable pool; a pool is part of a group.

    Programs that were cut short are in no pool: their times decide no order.

    Parameters
    ----------
    examples : Dataset
        Examples with their groups.
    chosen : ndarray of bool, shape (n,)
        Mask of the programs to use.
    fewest : int
        Minimum size; smaller pools, and pools of equally fast programs, are left out.
    """
    index = np.flatnonzero(chosen & ~examples.cut_short)
    order = index[np.argsort(examples.group[index], kind="stable")]
    edges = np.flatnonzero(np.diff(examples.group[order])) + 1
    for members in np.split(order, edges):
        if len(members) >= fewest and is_rankable(examples.throughput[members]):
            yield members


def rankable_workloads(examples: Dataset, fewest: int) -> list[int]:
    """Return the workloads with a rankable group, ascending by digest."""
    workloads = np.unique(examples.workload[_rankable_programs(examples, fewest)]).tolist()
    return sorted(workloads, key=lambda i: examples.workloads[i].digest)


def _rankable_programs(examples: Dataset, fewest: int) -> Indices:
    """Return the programs of rankable groups."""
    rankable = list(pools(examples, all_trials(examples), fewest))
    return np.concatenate(rankable) if rankable else np.zeros(0, np.int64)


def shape_class(workload: ExampleWorkload) -> tuple[object, ...]:
    """Return the key of nearly equal workloads: family and rounded log2 shapes.

    A workload of unknown shapes has a unique key.
    """
    if workload.family is None or not workload.shapes:
        return (workload.digest,)
    return (
        workload.family,
        tuple(tuple(round(log2(max(d, 1))) for d in shape) for shape in workload.shapes),
    )


def shape_classes(workloads: Sequence[ExampleWorkload]) -> list[list[int]]:
    """Return the numbers of the workloads of each class, in the order of first appearance."""
    classes: dict[tuple[object, ...], list[int]] = {}
    for i, workload in enumerate(workloads):
        classes.setdefault(shape_class(workload), []).append(i)
    return list(classes.values())


def draw(workloads: Sequence[ExampleWorkload], count: int, seed: int) -> list[int]:
    """Return the numbers of a random sample of workloads, stratified by family.

    Workloads are sorted by digest. A family gets its share of `count`, rounded by largest
    remainder; its shape classes are visited in random order, and a class is taken as a whole if it
    still fits. So there may be fewer than `count` workloads, but at least one class.

    Parameters
    ----------
    workloads : sequence of ExampleWorkload
        Workloads to draw from; not empty.
    count : int
        Number of workloads.
    seed : int
        Seed of :func:`numpy.random.default_rng`.
    """
    order = sorted(range(len(workloads)), key=lambda i: workloads[i].digest)
    families: dict[str, list[int]] = {}
    for i in order:
        families.setdefault(workloads[i].family or "", []).append(i)
    names = sorted(families)
    quotas = _largest_remainder(np.array([len(families[name]) for name in names]), count)
    random = np.random.default_rng(seed)
    drawn: list[int] = []
    for name, quota in zip(names, quotas, strict=True):
        members = families[name]
        classes = shape_classes([workloads[i] for i in members])
        taken: list[int] = []
        for number in random.permutation(len(classes)):
            if len(taken) + len(classes[number]) <= quota:
                taken += [members[i] for i in classes[number]]
        drawn += taken
    if not drawn:
        drawn = min(shape_classes([workloads[i] for i in order]), key=len)
        drawn = [order[i] for i in drawn]
    return sorted(drawn)


def _largest_remainder(sizes: NDArray[np.int64], count: int) -> list[int]:
    """Return integer shares of `count` in proportion to sizes."""
    wanted = min(count, int(sizes.sum())) * sizes / sizes.sum()
    shares = np.floor(wanted).astype(int)
    left = round(float(wanted.sum())) - int(shares.sum())
    shares[np.argsort(-(wanted - shares), kind="stable")[:left]] += 1
    return [int(share) for share in shares]


def development(examples: Dataset, count: int, seed: int = 0, fewest: int = 10) -> frozenset[int]:
    """Return development workloads for the choice of recipes, which no reported split holds out.

    Choose on ``examples.take(np.isin(examples.workload, list(workloads)))``, then report on the
    splits of ``SplitPlan(never=workloads)``.
    """
    able = rankable_workloads(examples, fewest)
    return frozenset(able[i] for i in draw([examples.workloads[i] for i in able], count, seed))


def digest(examples: Dataset, splits: Sequence[Split]) -> str:
    """Return a digest of the splits: equal for equal programs, regimes and seeds."""
    state = blake2b(examples.digest, digest_size=16)
    for split in splits:
        state.update(f"{split.regime}\0{split.name}\0{len(split.test)}\0".encode())
        state.update(split.train.astype("<i8").tobytes())
        state.update(split.test.astype("<i8").tobytes())
    return state.hexdigest()


def _need_two_classes(examples: Dataset, able: Sequence[int], fewest: int) -> None:
    """Raise UsageError if there are fewer than two shape classes of rankable workloads."""
    classes = len(shape_classes([examples.workloads[i] for i in able]))
    if classes < 2:
        raise UsageError(
            f"two workloads of different shapes, with {fewest} measured programs each, are needed; "
            f"there {'is one' if classes else 'is none'}"
        )


def _by_workload(examples: Dataset, name: str, held: Collection[int]) -> Split:
    """Return the split that holds out workloads; others of their classes are on no side."""
    classes = {shape_class(examples.workloads[i]) for i in held}
    alike = [i for i, workload in enumerate(examples.workloads) if shape_class(workload) in classes]
    test = np.isin(examples.workload, list(held))
    return _split(examples, NEW_WORKLOAD, name, test, ~np.isin(examples.workload, alike))


def _split(
    examples: Dataset,
    regime: str,
    name: str,
    test: NDArray[np.bool_],
    used: NDArray[np.bool_] | None = None,
) -> Split:
    """Return a split; programs outside of `used` are not in the training set."""
    train = ~test if used is None else used & ~test
    return Split(regime, name, np.flatnonzero(train), np.flatnonzero(test))


def _hardware(examples: Dataset, group: int) -> str:
    """Return the name of a group's target and machine."""
    group_ = examples.groups[group]
    return f"target {group_.target_id}" + (f", machine {group_.machine}" if group_.machine else "")
