"""The operators of :mod:`tunedb.search` as mutators of TVM's own evolutionary search.

>>> space = ms.space_generator.PostOrderApply(
...     sch_rules=kind, postprocs=kind, mutator_probs=mutators(target, database))
>>> ms.tune_tir(mod, target, work_dir, 64, database=database, space=space)

TVM calls a mutator from many threads, and a trace that it cannot replay ends the run. So offspring
whose steps may depend on each other in other ways than before are replayed before TVM gets them.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from tvm.s_tir.meta_schedule.mutator.mutator import Mutator, _PyMutator

from ....errors import PluginError
from ....search.crossover import cross
from ....search.draft import Draft
from ....search.mutation import (
    mutate_compute_location,
    mutate_parallel,
    mutate_tile_size,
    mutate_unroll,
)
from ....search.operators import Operators
from ....search.prior import TilePrior
from ..compat import register_errors
from ..database.database import Database, handle_of
from ..database.handle import Handle
from ..targets import as_target
from ..trace_codec import TraceBuilder
from . import schedule_queries

__all__ = [
    "ComputeLocationMutator",
    "CrossoverMutator",
    "ParallelMutator",
    "TileSizeMutator",
    "UnrollMutator",
    "mutators",
]

register_errors()

_log = logging.getLogger("tunedb")

#: Programs that a crossover draws its second parent from; TVM's population has 512.
_MOST_PARTNERS = 512
_STORED_PARTNERS = 64
#: Partners that a crossover tries until one can be joined.
_TRIES = 3
_MOST_SEED = 2**31 - 2


class Counts:
    """What became of an operator's calls; the clones of a mutator count together.

    Attributes
    ----------
    made : int
        Offspring that TVM got.
    unchanged : int
        Calls that found nothing to change.
    illegal : int
        Offspring that were dropped because TVM cannot replay them.
    """

    __slots__ = ("_lock", "illegal", "made", "unchanged")

    def __init__(self) -> None:
        self.made = self.unchanged = self.illegal = 0
        self._lock = threading.Lock()

    def add(self, outcome: str) -> None:
        """Count a call; TVM makes them on many threads."""
        with self._lock:
            setattr(self, outcome, getattr(self, outcome) + 1)


class _Mutator(_PyMutator):
    """A mutator whose clones count together.

    Parameters
    ----------
    make : callable
        Returns the work of one task; it is called once for each clone.
    counts : Counts, optional
        By default new ones.
    """

    # TVM's objects have no dictionary of their own.
    __slots__ = ("__dict__", "__weakref__")

    def __init__(self, make: Callable[[], _Work], counts: Counts | None = None) -> None:
        counts = Counts() if counts is None else counts
        work = make()
        work.counts = counts
        super().__init__(work.initialize, work.apply, lambda: _Mutator(make, counts))
        self.counts = counts


class TileSizeMutator(_Mutator):
    """Moves a divisor from one level of a tiled loop to another.

    Parameters
    ----------
    prior : TilePrior, optional
        What is known of good tiles.
    """

    def __init__(self, prior: TilePrior | None = None) -> None:
        super().__init__(lambda: _TileSize(prior))


class UnrollMutator(_Mutator):
    """Changes the number of steps up to which loops are unrolled."""

    def __init__(self) -> None:
        super().__init__(_Unroll)


class ParallelMutator(_Mutator):
    """Changes how many loops are fused into the parallel one, or how many threads a loop has.

    Parameters
    ----------
    jobs_per_core : int
        Most parallel iterations per core of the target.
    """

    def __init__(self, jobs_per_core: int = schedule_queries.JOBS_PER_CORE) -> None:
        super().__init__(lambda: _Parallel(jobs_per_core))


class ComputeLocationMutator(_Mutator):
    """Moves a block that is not tiled itself to another loop of its consumer."""

    def __init__(self) -> None:
        super().__init__(_ComputeLocation)


class CrossoverMutator(_Mutator):
    """Joins the program with another one of its workload, block by block.

    The other one is drawn from the best programs of the database and the latest ones that the
    search has asked to cross.

    Parameters
    ----------
    database : Database, optional
        Where the best programs of the workload come from.
    """

    def __init__(self, database: Any = None) -> None:
        if database is not None and handle_of(database) is None:
            raise PluginError(
                f"CrossoverMutator needs a tunedb database, not {type(database).__name__}; "
                "leave it out to cross programs of the population only"
            )
        super().__init__(lambda: _Crossover(database))


def mutators(
    target: Any,
    database: Database | None = None,
    *,
    operators: Operators | None = None,
    prior: TilePrior | None = None,
) -> dict[Mutator, float]:
    """Return the five mutators with their probabilities, for a space generator of TVM's.

    Parameters
    ----------
    target : Target, dict or str
        What is tuned for.
    database : Database, optional
        Where crossover finds stored programs.
    operators : Operators, optional
        Weights; by default those for the kind of target. Operators of weight 0 are left out.
    prior : TilePrior, optional
        What is known of good tiles.

    Raises
    ------
    PluginError
        The database is not tunedb's.
    TargetError
        TVM does not know the target.
    """
    if operators is None:
        operators = Operators.for_target(as_target(target).kind.name)
    made: dict[str, Callable[[], Mutator]] = {
        "tile_size": lambda: TileSizeMutator(prior),
        "parallel": ParallelMutator,
        "unroll": UnrollMutator,
        "compute_location": ComputeLocationMutator,
        "crossover": lambda: CrossoverMutator(database),
    }
    return {made[name](): share for name, share in operators.probabilities().items() if share > 0}


# ---- what they do --------------------------------------------------------------------------------


class _Work:
    """One operator on the programs of one task."""

    #: Whether offspring are replayed before TVM gets them.
    is_checked = False

    def __init__(self) -> None:
        self.counts = Counts()
        self.mod: Any = None
        self._builder = TraceBuilder()

    def initialize(self, context: Any) -> None:
        """Take the module of a tuning context."""
        self.mod = context.mod

    def apply(self, trace: Any, seed: int) -> Any:
        """Return a changed trace, or None; `seed` is the state of the caller's generator."""
        rng = random.Random(seed)  # noqa: S311  chance, not security
        try:
            made = self.mutated(trace, schedule_queries.from_tvm(trace), rng)
            if made is None:
                self.counts.add("unchanged")
                return None
            changed = schedule_queries.to_tvm(made, self._builder)
            if self.is_checked:
                schedule_queries.replayed(changed, self.mod, rng.randint(1, _MOST_SEED))
        except Exception as error:  # TVM raises ScheduleError, InternalError, ValueError …
            _log.debug("an offspring that TVM cannot replay: %s", error)
            self.counts.add("illegal")
            return None
        self.counts.add("made")
        return changed

    def mutated(self, trace: Any, draft: Draft, rng: random.Random) -> Draft | None:
        """Return a changed draft, or None where nothing can be changed."""
        raise NotImplementedError


class _TileSize(_Work):
    def __init__(self, prior: TilePrior | None) -> None:
        super().__init__()
        self._prior = prior

    def mutated(self, trace: Any, draft: Draft, rng: random.Random) -> Draft | None:
        return mutate_tile_size(draft, rng, prior=self._prior)


class _Unroll(_Work):
    def mutated(self, trace: Any, draft: Draft, rng: random.Random) -> Draft | None:
        return mutate_unroll(draft, rng)


class _Parallel(_Work):
    def __init__(self, jobs_per_core: int) -> None:
        super().__init__()
        self._jobs_per_core = jobs_per_core
        self._most: int | None = None

    def initialize(self, context: Any) -> None:
        super().initialize(context)
        self._most = schedule_queries.most_parallel(context.target, self._jobs_per_core)

    def mutated(self, trace: Any, draft: Draft, rng: random.Random) -> Draft | None:
        extents = schedule_queries.extents(trace, self.mod)
        return mutate_parallel(draft, rng, extents, most=self._most)


class _ComputeLocation(_Work):
    is_checked = True

    def mutated(self, trace: Any, draft: Draft, rng: random.Random) -> Draft | None:
        places = schedule_queries.locations(trace, self.mod, seed=rng.randint(1, _MOST_SEED))
        return mutate_compute_location(draft, rng, places)


class _Crossover(_Work):
    is_checked = True

    def __init__(self, database: Any) -> None:
        super().__init__()
        # A run may own the only other reference to it.
        self._database = database
        self._stored: list[Draft] = []
        self._met: OrderedDict[bytes, Draft] = OrderedDict()
        self._lock = threading.Lock()

    def initialize(self, context: Any) -> None:
        super().initialize(context)
        handle = None if self._database is None else handle_of(self._database)
        if handle is not None:
            self._stored = _best_drafts(handle, context.mod)

    def mutated(self, trace: Any, draft: Draft, rng: random.Random) -> Draft | None:
        for partner in self._partners(draft, rng):
            child = cross(draft, partner, rng)
            if child is not None:
                return child
        return None

    def _partners(self, draft: Draft, rng: random.Random) -> list[Draft]:
        """Remember a program and return some others to cross it with."""
        with self._lock:
            self._met[draft.key] = draft
            self._met.move_to_end(draft.key)
            if len(self._met) > _MOST_PARTNERS:
                self._met.popitem(last=False)
            pool = [*self._stored, *self._met.values()]
        drawn = rng.sample(pool, min(_TRIES + 1, len(pool)))
        return [one for one in drawn if one != draft]


def _best_drafts(handle: Handle, mod: Any) -> list[Draft]:
    """Return the best stored programs of a module for the handle's target."""
    with handle.lock:
        known = handle.workloads.find(mod)
        records = [] if known is None else handle.get_top_k(known.workload, _STORED_PARTNERS)
    found = {}
    for record in records:
        draft = schedule_queries.from_tvm(record.trace)
        found[draft.key] = draft
    return list(found.values())
