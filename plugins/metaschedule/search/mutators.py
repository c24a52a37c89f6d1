"""Search operators as mutators of TVM's own evolutionary search.

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
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cachetools import FIFOCache
from tvm.s_tir.meta_schedule.mutator.mutator import _PyMutator

from ....errors import PluginError
from ....search.draft import Draft
from ....search.operators import Operator, Operators, operator_named
from ....search.prior import TilePrior
from ..compat import register_errors
from ..database.database import Database, handle_of
from ..database.handle import Handle
from ..modules import shield
from ..targets import as_target
from ..trace_codec import TraceBuilder
from . import schedule_queries
from .schedule_queries import MOST_SEED

__all__ = ["OperatorMutator", "mutators"]

register_errors()

_log = logging.getLogger("tunedb")

#: Programs that a crossover draws its second parent from; TVM's population has 512.
_MOST_PARTNERS = 512
_STORED_PARTNERS = 64
#: Partners that a crossover tries until one can be joined.
_TRIES = 3


class MutatorCounts:
    """Counts of an operator's calls; the clones of a mutator count together.

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
        self.made: int = 0
        self.unchanged: int = 0
        self.illegal: int = 0
        self._lock = threading.Lock()

    def add(self, outcome: str) -> None:
        """Count a call; TVM makes them on many threads."""
        with self._lock:
            setattr(self, outcome, getattr(self, outcome) + 1)


class OperatorMutator(_PyMutator):
    """A search operator as a mutator of TVM.

    Parameters
    ----------
    name : str
        Name of the operator (:data:`tunedb.search.operators.OPERATORS`).
    database : Database, optional
        Source of second parents: crossover draws one from the best programs of the database and
        the latest programs that TVM passed to the mutator.
    prior : TilePrior, optional
        Distribution of good tiles.

    Attributes
    ----------
    name : str
        Name of the operator.
    counts : MutatorCounts
        Counts of its calls and those of its clones.

    Raises
    ------
    UsageError
        There is no operator of this name.
    PluginError
        The database is not tunedb's.
    """

    # TVM's objects lack an instance dictionary.
    __slots__ = ("__dict__", "__weakref__")

    def __init__(
        self,
        name: str,
        *,
        database: Any = None,
        prior: TilePrior | None = None,
    ) -> None:
        if database is not None and handle_of(database) is None:
            raise PluginError(
                f"OperatorMutator needs a tunedb database, not {type(database).__name__}; "
                "leave it out to cross programs of the population only"
            )
        options = _MutatorOptions(operator_named(name), database, prior)
        self._start(options, MutatorCounts())

    def _start(self, options: _MutatorOptions, counts: MutatorCounts) -> None:
        calls = _MutatorCalls(options, counts)
        super().__init__(calls.initialize, calls.apply, lambda: _clone(options, counts))
        self.name: str = options.operator.name
        self.counts = counts


def mutators(
    target: Any,
    database: Database | None = None,
    *,
    operators: Operators | None = None,
    prior: TilePrior | None = None,
) -> dict[OperatorMutator, float]:
    """Return a mutator for each operator, with its probability, for a space generator of TVM's.

    Parameters
    ----------
    target : Target, dict or str
        Target of the tuning run.
    database : Database, optional
        Source of stored programs for crossover.
    operators : Operators, optional
        Weights; by default those for the kind of target. Operators of weight 0 are left out.
    prior : TilePrior, optional
        Distribution of good tiles.

    Raises
    ------
    PluginError
        The database is not tunedb's.
    TargetError
        TVM does not know the target.
    """
    if operators is None:
        operators = Operators.for_target(as_target(target).kind.name)
    return {
        OperatorMutator(name, database=database, prior=prior): probability
        for name, probability in operators.probabilities().items()
        if probability > 0
    }


@dataclass(frozen=True, slots=True)
class _MutatorOptions:
    operator: Operator
    database: Any
    prior: TilePrior | None


def _clone(options: _MutatorOptions, counts: MutatorCounts) -> OperatorMutator:
    clone = OperatorMutator.__new__(OperatorMutator)
    clone._start(options, counts)
    return clone


class _MutatorCalls:
    """The calls of TVM to one clone, which works on the programs of one task."""

    def __init__(self, options: _MutatorOptions, counts: MutatorCounts) -> None:
        self.options = options
        self.mod: Any = None
        self._shield: list[Any] = []
        self.most_parallel: int | None = None
        self._counts = counts
        self._builder = TraceBuilder()
        self._stored: list[Draft] = []
        self._latest: FIFOCache[bytes, Draft] = FIFOCache(_MOST_PARTNERS)
        self._lock = threading.Lock()

    def initialize(self, context: Any) -> None:
        """Take the module and the target of a tuning context."""
        options = self.options
        self.mod = context.mod
        self._shield = shield(context.mod)
        self.most_parallel = schedule_queries.most_parallel(context.target)
        if options.operator.has_partner and options.database is not None:
            handle = handle_of(options.database)
            self._stored = [] if handle is None else _best_drafts(handle, context.mod)

    def apply(self, trace: Any, seed: int) -> Any:
        """Return a changed trace, or None; `seed` is the state of the caller's generator."""
        rng = random.Random(seed)  # noqa: S311  chance, not security
        operator = self.options.operator
        try:
            draft = schedule_queries.from_tvm(trace)
            child = operator.apply(draft, rng, _CallFacts(self, trace, rng))
            if child is None:
                self._counts.add("unchanged")
                return None
            changed = schedule_queries.to_tvm(child, self._builder)
            if operator.may_not_replay:
                schedule_queries.replayed(changed, self.mod, rng.randint(1, MOST_SEED))
        except Exception as error:  # TVM raises ScheduleError, InternalError, ValueError …
            _log.debug("TVM cannot replay an offspring: %s", error)
            self._counts.add("illegal")
            return None
        self._counts.add("made")
        return changed

    def partners(self, draft: Draft, rng: random.Random) -> list[Draft]:
        """Remember a program and return some others to cross it with."""
        with self._lock:
            self._latest.pop(draft.key, None)
            self._latest[draft.key] = draft
            programs = [*self._stored, *self._latest.values()]
        drawn = rng.sample(programs, min(_TRIES + 1, len(programs)))
        return [program for program in drawn if program != draft]


class _CallFacts:
    """Facts for one call of TVM; a query that fails makes the offspring illegal."""

    def __init__(self, calls: _MutatorCalls, trace: Any, rng: random.Random) -> None:
        self.prior = calls.options.prior
        self.most_parallel = calls.most_parallel
        self._calls = calls
        self._trace = trace
        self._rng = rng

    def extents(self, _draft: Draft) -> dict[str, list[list[int]]]:
        return schedule_queries.extents(self._trace, self._calls.mod)

    def locations(self, _draft: Draft) -> dict[int, list[int]]:
        seed = self._rng.randint(1, MOST_SEED)
        return schedule_queries.locations(self._trace, self._calls.mod, seed=seed)

    def partners(self, draft: Draft) -> Iterable[Draft]:
        return self._calls.partners(draft, self._rng)


def _best_drafts(handle: Handle, mod: Any) -> list[Draft]:
    """Return the best stored programs of a module for the handle's target."""
    with handle.lock:
        known = handle.workloads.find(mod)
        records = [] if known is None else handle.get_top_k(known.workload, _STORED_PARTNERS)
    drafts = [schedule_queries.from_tvm(record.trace) for record in records]
    return list({draft.key: draft for draft in drafts}.values())
