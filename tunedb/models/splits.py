"""What is held out, and which of it is ranked: splits by regime, pools of candidates.

The split decides the number more than the model does: to rank other programs of a workload that was
learnt from is far easier than to rank those of a new one. So there are four regimes. Where
workloads or families are new, what is like them is not learnt from.

Splits depend on nothing but what the programs are, a seed and NumPy's PCG64: programs and workloads
are numbered in the order of their digests (:class:`~tunedb.models.dataset.Dataset`).
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

#: Trials of a workload that no model has chosen yet: the first round of MetaSchedule and Ansor.
FIRST_ROUND = 64

#: Share of the programs, or of the workloads, that is held out where nobody says how many.
_SHARE = 0.2


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Programs to learn from, and programs to rank.

    Parameters
    ----------
    regime : str
        A key of :data:`REGIMES`.
    name : str
        What is held out, in few words.
    train, test : ndarray of int64
        Numbers of programs, ascending; none is in both.
    """

    regime: str
    name: str
    train: Indices
    test: Indices


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is held out, and how often.

    Parameters
    ----------
    seeds : int
        Splits by program, and by workload. Families and hardware are held out one by one.
    held_out : int, optional
        Workloads that a seed holds out (:func:`draw`); a fifth of them unless given.
    never : frozenset of int
        Workloads that no seed holds out (:func:`development`).
    one_by_one : bool
        Hold out each workload once instead of some by each seed.
    fewest : int
        Programs of a pool below which its figures say nothing.
    """

    seeds: int = 5
    held_out: int | None = None
    never: frozenset[int] = frozenset()
    one_by_one: bool = False
    fewest: int = 10


def same_workload(examples: Dataset, plan: Plan) -> Iterator[Split]:
    """Yield splits by program, a fifth held out: the upper bound of what a model reaches.

    A program that several machines measured is on one side.

    Raises
    ------
    UsageError
        No workload has enough programs.
    """
    if not judged(examples, plan.fewest):
        raise UsageError(f"no workload has {plan.fewest} measured programs to rank")
    _, first, number = np.unique(examples.program_ids, return_index=True, return_inverse=True)
    # Numbers by first appearance: local ids differ between databases, the order does not.
    order = np.argsort(np.argsort(first))[number]
    for seed in range(1, plan.seeds + 1):
        drawn = np.random.default_rng(seed).permutation(len(first)) < _SHARE * len(first)
        yield _split(examples, SAME_WORKLOAD, f"seed {seed}", drawn[order])


def new_workload(examples: Dataset, plan: Plan) -> Iterator[Split]:
    """Yield splits by workload, families in proportion, equal shapes on one side.

    A held-out workload is unknown on every target and machine.

    Raises
    ------
    UsageError
        There is nothing to learn from beside what would be held out.
    """
    able = judged(examples, plan.fewest)
    free = [i for i in able if i not in plan.never]
    _need_two_classes(examples, able, plan.fewest)
    if plan.one_by_one:
        for one in shape_classes([examples.workloads[i] for i in free]):
            held = [free[i] for i in one]
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


def new_family(examples: Dataset, plan: Plan) -> Iterator[Split]:
    """Yield a split for each operator family, learnt from the others.

    Workloads of unknown family are on neither side: they may be of the one that is held out.

    Raises
    ------
    UsageError
        There is but one family.
    """
    families = [workload.family for workload in examples.workloads]
    tested = {families[i] for i in judged(examples, plan.fewest)} - {None}
    if len(tested) < 2:
        raise UsageError(
            f"workloads of two families are needed; there is {next(iter(tested), None) or 'none'}"
        )
    known = np.array([family is not None for family in families])[examples.workload]
    for family in sorted(filter(None, tested)):
        held = np.array([one == family for one in families])[examples.workload]
        yield _split(examples, NEW_FAMILY, family, held, known)


def new_hardware(examples: Dataset, plan: Plan) -> Iterator[Split]:
    """Yield a split for each target and machine, learnt from the others.

    The same workloads, even the same programs, are on both sides: what is new is the hardware.

    Raises
    ------
    UsageError
        There is but one.
    """
    keys = [(group.target, group.machine) for group in examples.groups]
    groups = np.unique(examples.group[_judged(examples, plan.fewest)]).tolist()
    names = {keys[i]: _hardware(examples, i) for i in groups}
    if len(names) < 2:
        raise UsageError(
            "two targets, or two machines of one (tunedb sessions), are needed; "
            f"there is {next(iter(names.values()), 'none')}"
        )
    for key in sorted(names):
        held = np.array([one == key for one in keys])[examples.group]
        yield _split(examples, NEW_HARDWARE, names[key], held)


Regime = Callable[[Dataset, Plan], Iterator[Split]]

#: What is held out, the easiest to rank first.
REGIMES: dict[str, Regime] = {
    SAME_WORKLOAD: same_workload,
    NEW_WORKLOAD: new_workload,
    NEW_FAMILY: new_family,
    NEW_HARDWARE: new_hardware,
}


def random_trials(examples: Dataset) -> NDArray[np.bool_]:
    """Return which programs nobody chose, shape (n,): those of random origin, or the first round.

    Where the origins of a group's first 64 trials are known and some program of it was drawn at
    random, those that were are its random pool. Elsewhere it is the first 64 trials, because a
    search begins with random candidates.
    """
    random = examples.origins == ORIGINS.index(Origin.RANDOM)
    first = examples.trials < FIRST_ROUND
    unknown = first & (examples.origins == ORIGINS.index(Origin.UNKNOWN))
    count = len(examples.groups)
    drawn, untold = (np.bincount(examples.group[one], minlength=count) for one in (random, unknown))
    told = (drawn > 0) & (untold == 0)
    found: NDArray[np.bool_] = np.where(told[examples.group], random, first)
    return found


def all_trials(examples: Dataset) -> NDArray[np.bool_]:
    """Return that every program is in the pool, shape (n,)."""
    return np.ones(len(examples), bool)


#: Which programs are ranked against each other. Late candidates of a search are all good: a random
#: order reaches a top-5 score of 0.88 there, and one of 0.60 among the first 64 trials of Roller's
#: logs (docs/models.md).
POOLS: dict[str, Callable[[Dataset], NDArray[np.bool_]]] = {
    "random": random_trials,
    "search": all_trials,
}


def pools(examples: Dataset, chosen: NDArray[np.bool_], fewest: int) -> Iterator[Indices]:
    """Yield the numbers of the programs of each pool: those of a group, where they can be ranked.

    Parameters
    ----------
    examples : Dataset
        Of which groups.
    chosen : ndarray of bool, shape (n,)
        Which programs take part.
    fewest : int
        A pool of fewer programs, or of equally fast ones alone, is left out.
    """
    index = np.flatnonzero(chosen)
    order = index[np.argsort(examples.group[index], kind="stable")]
    edges = np.flatnonzero(np.diff(examples.group[order])) + 1
    for one in np.split(order, edges):
        if len(one) >= fewest and is_rankable(examples.throughput[one]):
            yield one


def judged(examples: Dataset, fewest: int) -> list[int]:
    """Return the workloads of which some group can be ranked, ascending by digest."""
    found = np.unique(examples.workload[_judged(examples, fewest)]).tolist()
    return sorted(found, key=lambda i: examples.workloads[i].digest)


def _judged(examples: Dataset, fewest: int) -> Indices:
    """Return the programs of groups that can be ranked."""
    found = list(pools(examples, all_trials(examples), fewest))
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def shape_class(workload: ExampleWorkload) -> tuple[object, ...]:
    """Return what two workloads share that are nearly the same: family and rounded log2 shapes.

    A workload of unknown shapes is like no other.
    """
    if workload.family is None or not workload.shapes:
        return (workload.digest,)
    return (
        workload.family,
        tuple(tuple(round(log2(max(d, 1))) for d in shape) for shape in workload.shapes),
    )


def shape_classes(workloads: Sequence[ExampleWorkload]) -> list[list[int]]:
    """Return the numbers of workloads of equal class together, in the order of first appearance."""
    found: dict[tuple[object, ...], list[int]] = {}
    for i, workload in enumerate(workloads):
        found.setdefault(shape_class(workload), []).append(i)
    return list(found.values())


def draw(workloads: Sequence[ExampleWorkload], count: int, seed: int) -> list[int]:
    """Return numbers of workloads, drawn with equal chances and families in proportion.

    Workloads are sorted by digest. A family gets its share of `count`, rounded by largest
    remainder; its classes of equal shapes come in random order, and each is taken whole where it
    still fits. So there may be fewer than `count`, but one class at least.

    Parameters
    ----------
    workloads : sequence of ExampleWorkload
        To draw from; not empty.
    count : int
        How many.
    seed : int
        Of :func:`numpy.random.default_rng`.
    """
    order = sorted(range(len(workloads)), key=lambda i: workloads[i].digest)
    families: dict[str, list[int]] = {}
    for i in order:
        families.setdefault(workloads[i].family or "", []).append(i)
    names = sorted(families)
    quotas = _largest_remainder(np.array([len(families[name]) for name in names]), count)
    random = np.random.default_rng(seed)
    found: list[int] = []
    for name, quota in zip(names, quotas, strict=True):
        members = families[name]
        classes = shape_classes([workloads[i] for i in members])
        taken: list[int] = []
        for number in random.permutation(len(classes)):
            if len(taken) + len(classes[number]) <= quota:
                taken += [members[i] for i in classes[number]]
        found += taken
    if not found:
        found = min(shape_classes([workloads[i] for i in order]), key=len)
        found = [order[i] for i in found]
    return sorted(found)


def _largest_remainder(sizes: NDArray[np.int64], count: int) -> list[int]:
    """Return whole shares of `count` in proportion to sizes."""
    wanted = min(count, int(sizes.sum())) * sizes / sizes.sum()
    shares = np.floor(wanted).astype(int)
    left = round(float(wanted.sum())) - int(shares.sum())
    shares[np.argsort(-(wanted - shares), kind="stable")[:left]] += 1
    return [int(one) for one in shares]


def development(examples: Dataset, count: int, seed: int = 0, fewest: int = 10) -> frozenset[int]:
    """Return workloads to choose recipes on, which no reported split holds out.

    Choose on ``examples.take(np.isin(examples.workload, list(found)))``, then report on the splits
    of ``Plan(never=found)``.
    """
    able = judged(examples, fewest)
    return frozenset(able[i] for i in draw([examples.workloads[i] for i in able], count, seed))


def digest(examples: Dataset, splits: Sequence[Split]) -> str:
    """Return an identity of what is held out: equal for equal programs, regimes and seeds."""
    state = blake2b(examples.digest, digest_size=16)
    for split in splits:
        state.update(f"{split.regime}\0{split.name}\0{len(split.test)}\0".encode())
        state.update(split.train.astype("<i8").tobytes())
        state.update(split.test.astype("<i8").tobytes())
    return state.hexdigest()


def _need_two_classes(examples: Dataset, able: Sequence[int], fewest: int) -> None:
    """Refuse examples of which nothing would be left to learn from."""
    classes = len(shape_classes([examples.workloads[i] for i in able]))
    if classes < 2:
        raise UsageError(
            f"two workloads of different shapes, with {fewest} measured programs each, are needed; "
            f"there {'is one' if classes else 'is none'}"
        )


def _by_workload(examples: Dataset, name: str, held: Collection[int]) -> Split:
    """Return the split that holds out workloads; others of their classes are on neither side."""
    classes = {shape_class(examples.workloads[i]) for i in held}
    alike = [i for i, one in enumerate(examples.workloads) if shape_class(one) in classes]
    test = np.isin(examples.workload, list(held))
    return _split(examples, NEW_WORKLOAD, name, test, ~np.isin(examples.workload, alike))


def _split(
    examples: Dataset,
    regime: str,
    name: str,
    test: NDArray[np.bool_],
    used: NDArray[np.bool_] | None = None,
) -> Split:
    """Return a split; a program is neither learnt from nor ranked where `used` says so."""
    train = ~test if used is None else used & ~test
    return Split(regime, name, np.flatnonzero(train), np.flatnonzero(test))


def _hardware(examples: Dataset, group: int) -> str:
    """Return target and machine of a group in few words."""
    one = examples.groups[group]
    return f"target {one.target_id}" + (f", machine {one.machine}" if one.machine else "")
