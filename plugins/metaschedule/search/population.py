"""Populations of candidates: how they begin, breed and are ranked in one round of the search."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ....errors import UsageError
from ....records import Origin
from ....search.crossover import cross
from ....search.draft import Draft
from ....search.mutation import (
    mutate_compute_location,
    mutate_parallel,
    mutate_tile_size,
    mutate_unroll,
)
from ..database.candidates import CROSSOVER, Lineage
from . import schedule_queries

if TYPE_CHECKING:
    from ....search.operators import Operators
    from ....search.prior import TilePrior
    from .draft_replay import Replays
    from .search_report import Tally

#: What breeds changed; the others of a generation survive as they are (Ansor, MetaSchedule).
_MUTATED = 0.85
#: How often a generation is filled up after illegal and known offspring, and how often one place of
#: it is tried. On GPUs most offspring break a limit of the device.
_PASSES = 4
_TRIES = 4
#: How often as many random programs as are wanted are drawn until they are legal, and how few do.
_DRAWS = 5
_FEW_RANDOM = 50
#: Random programs whose tiles are drawn from the prior, and each tile of theirs that is.
_GUIDED = 0.5

RANDOM, WARM = "random", "warm"


@dataclass(frozen=True, slots=True)
class Shares:
    """Where the initial population of a round comes from; numbers that add up to 1.

    Parameters
    ----------
    measured : float
        The best programs that were measured of this very workload. MetaSchedule's and Ansor's share
        is 0.2; more would leave the model no unmeasured program to find near them.
    warm : float
        Programs of other workloads, adapted. There are few donors, so what they do not fill is
        drawn at random; 0.3 lets a search whose neighbours are known well begin from them, and
        leaves half of the population to chance where they are misleading.
    random : float
        Drawn from the design spaces, for half of them with tiles from the prior.
    """

    measured: float = 0.2
    warm: float = 0.3
    random: float = 0.5

    def __post_init__(self) -> None:
        parts = (self.measured, self.warm, self.random)
        if min(parts) < 0 or not math.isclose(sum(parts), 1, abs_tol=1e-6):
            raise UsageError(
                "the shares of measured, warm and random programs must be 0 or more and add up to "
                f"1, not {self.measured}, {self.warm}, {self.random}"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Individual:
    """A legal program of a population.

    Parameters
    ----------
    draft : Draft
        All of its decisions.
    schedule : tvm Schedule
        It, postprocessed.
    lineage : Lineage
        What it descends from.
    score : float
        What the cost model says, 0 or more; the higher, the faster.
    is_served : bool
        Whether its times are known and stand for a measurement.
    """

    draft: Draft
    schedule: Any
    lineage: Lineage
    score: float = 0.0
    is_served: bool = False


@dataclass(frozen=True, slots=True)
class Child:
    """A draft that is not replayed yet, its lineage, and the operator that made it."""

    draft: Draft
    lineage: Lineage
    operator: str


class Breeding:
    """One round: everything that was replayed and scored in it.

    Parameters
    ----------
    replays : Replays
        Makes schedules of drafts.
    score : callable
        Returns a score for each of some schedules.
    operators : Operators
        How often each operator is taken.
    rng : random.Random
        Where chance comes from.
    tally : Tally
        Counts.
    prior : TilePrior or None
        Which tiles are likely to be good.
    most_parallel : int or None
        Most parallel iterations; None for no bound.
    """

    def __init__(
        self,
        replays: Replays,
        score: Callable[[Sequence[Any]], Sequence[float]],
        operators: Operators,
        rng: random.Random,
        tally: Tally,
        prior: TilePrior | None = None,
        most_parallel: int | None = None,
    ) -> None:
        self._replays = replays
        self._score = score
        self._operators = operators
        self._rng = rng
        self._tally = tally
        self._prior = prior
        self._most_parallel = most_parallel
        # Keys of drafts that were made, and of those that became programs: TVM completes a draft.
        self._tried: set[bytes] = set()
        self._entered: set[bytes] = set()
        self._extents: dict[bytes, dict[str, list[list[int]]]] = {}
        self.individuals: list[Individual] = []

    # ------------------------------------------------------------------ the beginning

    def add(self, children: Sequence[Child]) -> list[Individual]:
        """Replay and score drafts; return the legal ones that this round has not seen."""
        made = self._replays.schedules([child.draft for child in children])
        legal = []
        for child, schedule in zip(children, made, strict=True):
            self._tally.offspring[child.operator] += 1
            if schedule is None:
                self._tally.illegal[child.operator] += 1
                continue
            legal.append(Individual(completed(child.draft, schedule), schedule, child.lineage))
        return self.enter(legal)

    def enter(self, known: Sequence[Individual]) -> list[Individual]:
        """Score programs whose schedules are known; return those that the round did not have."""
        new = {one.draft.key: one for one in reversed(known) if one.draft.key not in self._entered}
        fresh = list(reversed(new.values()))
        self._entered.update(new)
        scores = self._score([one.schedule for one in fresh]) if fresh else []
        entered = [replace(one, score=score) for one, score in zip(fresh, scores, strict=True)]
        self.individuals += entered
        return entered

    def draw(self, templates: Sequence[Draft], number: int) -> list[Individual]:
        """Return random programs of the design spaces; fewer where most are illegal.

        Parameters
        ----------
        templates : sequence of Draft
            The design spaces, with the decisions that were drawn when they were made: they tell
            the extents of the loops.
        number : int
            How many programs are wanted.
        """
        found: list[Individual] = []
        for _ in range(_DRAWS):
            drafts = [self._random(templates) for _ in range(number)]
            found += self.add([Child(one, Lineage(Origin.RANDOM), RANDOM) for one in drafts])
            if len(found) >= min(number, _FEW_RANDOM):
                break
        return found[:number]

    def _random(self, templates: Sequence[Draft]) -> Draft:
        template = self._rng.choice(templates)
        bare = Draft(template.instructions, {})
        if self._prior is None or self._rng.random() >= _GUIDED:
            return bare
        places: Counter[int] = Counter()
        for number, one in enumerate(template.instructions):
            if one.kind == "SamplePerfectTile" and number in template.decisions:
                levels, innermost = one.attrs
                extent = math.prod(template.decisions[number])
                tile = self._prior.draw(extent, levels, innermost, self._rng, places[levels])
                places[levels] += 1
                bare = bare.with_decision(number, tile)
        return bare

    # ------------------------------------------------------------------ evolution

    def evolve(self, population: Sequence[Individual], size: int) -> list[Individual]:
        """Return the next generation.

        Parents are drawn in proportion to their scores. A generation has `size` programs, fewer
        where the operators find no more legal ones.
        """
        if not population:
            return []
        weights = cumulated(population)

        def draw() -> Individual:
            return self._rng.choices(population, cum_weights=weights)[0]

        n_mutants = sum(self._rng.random() < _MUTATED for _ in range(size))
        following = [draw() for _ in range(size - n_mutants)]
        for _ in range(_PASSES):
            missing = size - len(following)
            children = [child for _ in range(missing) if (child := self._child(draw)) is not None]
            if not children:
                break
            following += self.add(children)
        return following

    def _child(self, draw: Callable[[], Individual]) -> Child | None:
        """Return offspring that this round has not seen, or None after some tries."""
        for _ in range(_TRIES):
            operator = self._operators.draw(self._rng)
            first = draw()
            if operator == CROSSOVER:
                second = draw()
                draft = cross(first.draft, second.draft, self._rng)
                lineage = first.lineage.crossed(second.lineage)
            else:
                draft = self._mutated(operator, first.draft)
                lineage = first.lineage.mutated(operator)
            if draft is not None and not self._is_met(draft.key):
                self._tried.add(draft.key)
                return Child(draft, lineage, operator)
        return None

    def _mutated(self, operator: str, draft: Draft) -> Draft | None:
        if operator == "tile_size":
            return mutate_tile_size(draft, self._rng, prior=self._prior)
        if operator == "unroll":
            return mutate_unroll(draft, self._rng)
        if operator == "parallel":
            key = draft.key
            if key not in self._extents:
                self._extents[key] = self._replays.extents(draft)
            extents = self._extents[key]
            return mutate_parallel(draft, self._rng, extents, most=self._most_parallel)
        return mutate_compute_location(draft, self._rng, self._replays.location(draft))

    def _is_met(self, key: bytes) -> bool:
        return key in self._tried or key in self._entered


def completed(draft: Draft, schedule: Any) -> Draft:
    """Return a draft with the decisions that TVM drew for its schedule."""
    n_decisions = sum(one.is_sampling for one in draft.instructions)
    return (
        draft if len(draft.decisions) == n_decisions else schedule_queries.from_tvm(schedule.trace)
    )


def cumulated(population: Iterable[Individual]) -> list[float]:
    """Return running sums of scores, to draw in proportion to them; equal ones if all are 0."""
    scores = [one.score for one in population]
    if sum(scores) <= 0:
        scores = [1.0] * len(scores)
    return list(itertools.accumulate(scores))
