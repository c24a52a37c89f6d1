"""Populations of candidates: how they begin, breed and are ranked in one round of the search."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ....errors import UsageError
from ....records import Origin
from ....search import chance
from ....search.draft import Draft
from ....search.sampling import draw_tiles
from ..database.candidates import Lineage
from . import schedule_queries
from .schedule_queries import DraftReplayer

if TYPE_CHECKING:
    from ....search.operators import Operators
    from ....search.prior import TilePrior
    from .search_report import OperatorCounts

#: Share of offspring in a generation; the others survive unchanged (Ansor, MetaSchedule).
_MUTATED = 0.85
#: Passes that fill a generation up after illegal and known offspring, and tries of one offspring in
#: each. On GPUs most offspring break a limit of the device.
_PASSES = 4
_TRIES = 4
#: Rounds of drawing random programs, and the number of legal ones after which they end.
_DRAWS = 5
_FEW_RANDOM = 50
#: Share of the random programs whose tiles are drawn from the prior.
_GUIDED = 0.5

#: Names beside those of operators in the counts of drafts.
RANDOM, WARM = "random", "warm"


@dataclass(frozen=True, slots=True)
class Shares:
    """Sources of the initial population of a round, as shares that add up to 1.

    Parameters
    ----------
    measured : float
        Best programs that were measured of this very workload. MetaSchedule's and Ansor's share
        is 0.2; more would leave the model no unmeasured program to find near them.
    warm : float
        Programs of other workloads, adapted. Donors are few, so random programs fill the rest; 0.3
        lets a search with good neighbours begin from them, and leaves half of the population to
        chance in case they mislead.
    random : float
        Programs drawn from the design spaces, half of them with tiles from the prior.

    Raises
    ------
    UsageError
        A share is negative, or the shares do not add up to 1.
    """

    measured: float = 0.2
    warm: float = 0.3
    random: float = 0.5

    def __post_init__(self) -> None:
        shares = (self.measured, self.warm, self.random)
        if min(shares) < 0 or not math.isclose(sum(shares), 1, abs_tol=1e-6):
            raise UsageError(
                "the shares of measured, warm and random programs must be 0 or more and add up to "
                f"1, not {self.measured}, {self.warm}, {self.random}"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Individual:
    """A program of a population: a legal one, or a draft that is not replayed yet.

    Parameters
    ----------
    draft : Draft
        Program with all of its decisions.
    schedule : tvm Schedule or None
        Its schedule, postprocessed; None for a draft that was not replayed.
    lineage : Lineage
        Its ancestors.
    score : float
        Score of the cost model, 0 or more; the higher, the faster.
    is_served : bool
        Whether its stored times replace a measurement.
    """

    draft: Draft
    schedule: Any
    lineage: Lineage
    score: float = 0.0
    is_served: bool = False

    def scored(self, score: float) -> Individual:
        """Return the program with another score."""
        # Faster than dataclasses.replace.
        return Individual(self.draft, self.schedule, self.lineage, score, self.is_served)


@dataclass(frozen=True, slots=True)
class Child:
    """A draft that is not replayed yet, its lineage, and the operator that made it."""

    draft: Draft
    lineage: Lineage
    operator: str


class Evaluation(Protocol):
    """A way to compare drafts: by a replay of each, or by a model of drafts."""

    def programs(self, children: Sequence[Child]) -> list[Individual]:
        """Return the children that stay, without scores."""

    def scores(self, individuals: Sequence[Individual]) -> Sequence[float]:
        """Return a score for each program, 0 or more; the higher, the faster."""

    def random_draft(self, template: Draft, rng: random.Random, prior: TilePrior | None) -> Draft:
        """Return a random program of a design space; tiles come from the prior if given."""

    def extents(self, draft: Draft) -> dict[str, list[list[int]]]:
        """Return the loops that can be fused, as ``mutate_parallel`` takes them."""

    def locations(self, draft: Draft) -> dict[int, list[int]]:
        """Return legal places of blocks, as ``mutate_compute_location`` takes them."""


class Replays:
    """Evaluation by replay: TVM decides which drafts are programs, the cost model scores them.

    Parameters
    ----------
    replayer : DraftReplayer
        Makes schedules of drafts.
    score : callable
        Returns a score for each of some schedules.
    counts : OperatorCounts
        Counts of the drafts of the task.
    """

    def __init__(
        self,
        replayer: DraftReplayer,
        score: Callable[[Sequence[Any]], Sequence[float]],
        counts: OperatorCounts,
    ) -> None:
        self._replayer = replayer
        self._score = score
        self._counts = counts
        self._extents: dict[bytes, dict[str, list[list[int]]]] = {}

    def programs(self, children: Sequence[Child]) -> list[Individual]:
        """Return the legal children with their schedules."""
        schedules = self._replayer.schedules([child.draft for child in children])
        legal = []
        for child, schedule in zip(children, schedules, strict=True):
            self._counts.add(child.operator, is_legal=schedule is not None)
            if schedule is not None:
                legal.append(Individual(completed(child.draft, schedule), schedule, child.lineage))
        return legal

    def scores(self, individuals: Sequence[Individual]) -> Sequence[float]:
        """Return the scores of the cost model."""
        return self._score([individual.schedule for individual in individuals])

    def random_draft(self, template: Draft, rng: random.Random, prior: TilePrior | None) -> Draft:
        """Return a program of a design space; TVM draws the decisions that it lacks."""
        return template.with_decisions({}) if prior is None else draw_tiles(template, rng, prior)

    def extents(self, draft: Draft) -> dict[str, list[list[int]]]:
        """Return the extents of the loops over blocks that are annotated to be parallel."""
        if draft.key not in self._extents:
            self._extents[draft.key] = self._replayer.ask(schedule_queries.extents, draft)
        return self._extents[draft.key]

    def locations(self, draft: Draft) -> dict[int, list[int]]:
        """Return another legal decision of one ``SampleComputeLocation``, drawn."""
        query = partial(schedule_queries.locations, seed=self._replayer.draw_seed())
        return self._replayer.ask(query, draft)


class Breeding:
    """One round: everything that was scored in it.

    Parameters
    ----------
    evaluation : Evaluation
        Way to compare drafts.
    operators : Operators
        Weights of the operators.
    rng : random.Random
        Source of chance.
    prior : TilePrior or None
        Distribution of good tiles.
    most_parallel : int or None
        Most parallel iterations; None for no bound.
    """

    def __init__(
        self,
        evaluation: Evaluation,
        operators: Operators,
        rng: random.Random,
        prior: TilePrior | None = None,
        most_parallel: int | None = None,
    ) -> None:
        self._evaluation = evaluation
        self._operators = operators
        self._rng = rng
        self._prior = prior
        self._most_parallel = most_parallel
        # Keys of drafts that were made, and of those that became programs: TVM completes a draft.
        self._tried: set[bytes] = set()
        self._entered: set[bytes] = set()
        self.individuals: list[Individual] = []

    # ------------------------------------------------------------------ the beginning

    def add(self, children: Sequence[Child]) -> list[Individual]:
        """Evaluate drafts; return the programs that this round has not seen."""
        return self.enter(self._evaluation.programs(children))

    def enter(self, individuals: Sequence[Individual]) -> list[Individual]:
        """Score programs; return those that the round did not have."""
        by_key = {program.draft.key: program for program in reversed(individuals)}
        new = {key: program for key, program in by_key.items() if key not in self._entered}
        unscored = list(reversed(new.values()))
        self._entered.update(new)
        scores = self._evaluation.scores(unscored) if unscored else []
        entered = [program.scored(score) for program, score in zip(unscored, scores, strict=True)]
        self.individuals += entered
        return entered

    def draw(self, templates: Sequence[Draft], number: int) -> list[Individual]:
        """Return random programs of the design spaces; fewer if most are illegal.

        Parameters
        ----------
        templates : sequence of Draft
            Design spaces with their initial decisions, which hold the extents of the loops.
        number : int
            Most programs to return.
        """
        drawn: list[Individual] = []
        for _ in range(_DRAWS):
            drafts = [self._random_draft(templates) for _ in range(number)]
            drawn += self.add([Child(draft, Lineage(Origin.RANDOM), RANDOM) for draft in drafts])
            if len(drawn) >= min(number, _FEW_RANDOM):
                break
        return drawn[:number]

    def _random_draft(self, templates: Sequence[Draft]) -> Draft:
        template = self._rng.choice(templates)
        is_guided = self._prior is not None and self._rng.random() < _GUIDED
        prior = self._prior if is_guided else None
        return self._evaluation.random_draft(template, self._rng, prior)

    # ------------------------------------------------------------------ evolution

    def evolve(self, population: Sequence[Individual], size: int) -> list[Individual]:
        """Return the next generation.

        Parents are drawn in proportion to their scores. A generation has `size` programs, fewer if
        the operators find no more legal ones.
        """
        if not population:
            return []
        weights = cumulated(population)

        def draw() -> Individual:
            return chance.draw(self._rng, population, weights)

        facts = _RoundFacts(self._evaluation, draw, self._prior, self._most_parallel)
        n_mutants = sum(self._rng.random() < _MUTATED for _ in range(size))
        generation = [draw() for _ in range(size - n_mutants)]
        for _ in range(_PASSES):
            missing = size - len(generation)
            children = [
                child for _ in range(missing) if (child := self._child(draw, facts)) is not None
            ]
            if not children:
                break
            generation += self.add(children)
        return generation

    def _child(self, draw: Callable[[], Individual], facts: _RoundFacts) -> Child | None:
        """Return offspring that this round has not seen, or None after some tries."""
        for _ in range(_TRIES):
            operator = self._operators.draw(self._rng)
            parent = draw()
            facts.partner_lineage = None
            draft = operator.apply(parent.draft, self._rng, facts)
            if draft is not None and not self._is_seen(draft.key):
                self._tried.add(draft.key)
                lineage = parent.lineage.child(operator.name, facts.partner_lineage)
                return Child(draft, lineage, operator.name)
        return None

    def _is_seen(self, key: bytes) -> bool:
        return key in self._tried or key in self._entered


class _RoundFacts:
    """Facts for the offspring of a generation; has the lineage of the latest partner."""

    def __init__(
        self,
        evaluation: Evaluation,
        draw: Callable[[], Individual],
        prior: TilePrior | None,
        most_parallel: int | None,
    ) -> None:
        self.prior = prior
        self.most_parallel = most_parallel
        self.extents = evaluation.extents
        self.locations = evaluation.locations
        self.partner_lineage: Lineage | None = None
        self._draw = draw

    def partners(self, draft: Draft) -> Iterable[Draft]:
        partner = self._draw()
        self.partner_lineage = partner.lineage
        return (partner.draft,)


def completed(draft: Draft, schedule: Any) -> Draft:
    """Return a draft with the decisions that TVM drew for its schedule."""
    n_decisions = sum(instruction.is_sampling for instruction in draft.instructions)
    return (
        draft if len(draft.decisions) == n_decisions else schedule_queries.from_tvm(schedule.trace)
    )


def cumulated(population: Iterable[Individual]) -> list[float]:
    """Return running sums of scores, to draw in proportion to them; equal ones if all are 0."""
    scores = [individual.score for individual in population]
    if sum(scores) <= 0:
        scores = [1.0] * len(scores)
    return list(itertools.accumulate(scores))
