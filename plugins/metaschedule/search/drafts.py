"""Evolution on drafts: a model of their steps compares thousands, TVM replays the finalists."""

from __future__ import annotations

import random
from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ....search.draft import Draft
from ....search.sampling import decide, draw_tiles
from . import schedule_queries
from .draft_model import DraftModel, DraftTask, Legality
from .population import Child, Individual
from .schedule_queries import DraftReplayer

if TYPE_CHECKING:
    from ....records import Program
    from ....search.prior import TilePrior

#: Least score of a draft that TVM may accept: the model predicts 0 for some of them.
_LEAST_SCORE = 1e-9
#: Bounds of parallel loops that a draft may get where the cores of the target are unknown.
_MOST_PARALLEL = 1024


class DraftScores(Protocol):
    """Scores of drafts by their rows."""

    @property
    def legality(self) -> Legality:
        """Chance that TVM accepts a draft."""

    def scores(self, task: DraftTask, rows: Any, threads: int, /) -> NDArray[np.float64]:
        """Return a score for each row of ``steps``, 0 or more; the higher, the faster."""


class Drafts:
    """Evaluation of the drafts of a task without TVM (:class:`.population.Evaluation`).

    A score is that of the model of drafts, 1 without one, times the chance that TVM accepts the
    draft. Legal places of blocks are asked once for each sketch.

    Parameters
    ----------
    model : DraftScores
        Model of the task or of its target.
    task : DraftTask
        The task.
    replayer : DraftReplayer
        Answers questions about sketches.
    most_parallel : int or None
        Most parallel iterations; None for no bound.
    threads : int
        Threads of XGBoost.
    """

    def __init__(
        self,
        model: DraftScores,
        task: DraftTask,
        replayer: DraftReplayer,
        most_parallel: int | None,
        threads: int,
    ) -> None:
        self._model = model
        self._task = task
        self._replayer = replayer
        self._threads = threads
        self._locations: dict[bytes, dict[int, list[int]]] = {}
        most = most_parallel or _MOST_PARALLEL
        # Products of one nest: 2, 4, 8 …
        self._doublings = [[2] * (most.bit_length() - 1)]

    # ------------------------------------------------------------------ the evaluation

    def programs(self, children: Sequence[Child]) -> list[Individual]:
        """Return all children: none is replayed."""
        return [Individual(child.draft, None, child.lineage) for child in children]

    def scores(self, individuals: Sequence[Individual]) -> list[float]:
        """Return the score of each draft; 0 for one that breaks a limit or cannot be described."""
        rows = self._task.rows([individual.draft for individual in individuals])
        good = [number for number, own in enumerate(rows) if not isinstance(own, Exception)]
        scores = np.zeros(len(rows))
        if good:
            stacked = np.concatenate([rows[number] for number in good])
            predicted = self._model.scores(self._task, stacked, self._threads)
            chances = self._model.legality.chances(stacked)
            scores[good] = np.maximum(predicted, _LEAST_SCORE) * chances
        found: list[float] = scores.tolist()
        return found

    def scored(self, individuals: Sequence[Individual]) -> list[Individual]:
        """Return drafts with scores by what was learnt since."""
        scores = self.scores(individuals)
        return [one.scored(score) for one, score in zip(individuals, scores, strict=True)]

    def random_draft(self, template: Draft, rng: random.Random, prior: TilePrior | None) -> Draft:
        """Return a program of a design space with all of its decisions."""
        draft = template.with_decisions({})
        if prior is not None:
            draft = draw_tiles(template, rng, prior)
        return self.completed(draft, template, rng)

    def completed(self, draft: Draft, template: Draft, rng: random.Random) -> Draft:
        """Return a program of a design space with random decisions where it has none."""
        return decide(draft, template, rng, self.locations(template))

    def extents(self, draft: Draft) -> dict[str, list[list[int]]]:
        """Return loops whose products are the powers of two, for each annotated block.

        The loops that a bound fuses depend on the tiles. Bounds that double reach nearly all of
        them, and the model sees the bound.
        """
        annotated = schedule_queries.parallel_blocks(draft)
        return dict.fromkeys(annotated, self._doublings)

    def locations(self, draft: Draft) -> dict[int, list[int]]:
        """Return the legal places of each block, as the first draft of the sketch has them."""
        places = self._locations.get(draft.skeleton)
        if places is None:
            places = self._replayer.ask(schedule_queries.locations, draft)
            self._locations[draft.skeleton] = places
        return places

    # ------------------------------------------------------------------ finalists and trials

    def replayed(self, drafts: Sequence[Draft], schedules: Sequence[Any]) -> None:
        """Learn from replayed drafts which ones TVM accepts."""
        legal = [schedule is not None for schedule in schedules]
        self._model.legality.add(self._task.rows(drafts), legal, self._threads)


class LearningDrafts(Drafts):
    """Drafts of a task whose trials the model of its target learns.

    Parameters
    ----------
    model : DraftModel
        Model of the task's target.
    task, replayer, most_parallel, threads
        As for :class:`Drafts`.
    """

    def __init__(
        self,
        model: DraftModel,
        task: DraftTask,
        replayer: DraftReplayer,
        most_parallel: int | None,
        threads: int,
    ) -> None:
        super().__init__(model, task, replayer, most_parallel, threads)
        self._learner = model

    def prepare(self) -> bool:
        """Train the model if necessary; return whether there is one."""
        return self._learner.prepare_for(self._task, self._threads)

    def measured(self, trials: Sequence[tuple[Program, Any]]) -> None:
        """Learn from a measured batch: programs and TVM's results."""
        examples = [
            (Draft.from_trace(program.trace), program, result) for program, result in trials
        ]
        self._learner.add(self._task, examples, self._threads)


def finalists(
    individuals: Iterable[Individual],
    number: int,
    spent: Container[bytes],
    chosen: Sequence[Individual],
) -> list[Individual]:
    """Return the drafts to replay: those of the highest scores, and no two that are neighbours.

    Drafts of score 0, which TVM is known to reject, are left out. Two drafts are neighbours if they
    differ in one decision. Neighbours fill the places that are left.

    Parameters
    ----------
    individuals : iterable of Individual
        All drafts of a round.
    number : int
        Most drafts to return.
    spent : container of bytes
        Keys of drafts that need no replay.
    chosen : sequence of Individual
        Finalists that the round has already.
    """
    promising = (individual for individual in individuals if individual.score > 0)
    ranked = sorted(promising, key=lambda individual: -individual.score)
    known = {individual.draft.key for individual in chosen}
    around = {site for individual in chosen for site in _sites(individual.draft)}
    taken: list[Individual] = []
    neighbours: list[Individual] = []
    for individual in ranked:
        if len(taken) == number:
            break
        if individual.draft.key in known or individual.draft.key in spent:
            continue
        sites = _sites(individual.draft)
        if around.isdisjoint(sites):
            around.update(sites)
            taken.append(individual)
        elif len(neighbours) < number:
            neighbours.append(individual)
    return [*taken, *neighbours][:number]


def _sites(draft: Draft) -> list[tuple[Any, ...]]:
    """Return the draft without one decision, for each of them; neighbours have one in common."""
    decisions = [(number, str(draft.decisions[number])) for number in sorted(draft.decisions)]
    form = hash(draft.form)
    return [(form, *decisions[:at], *decisions[at + 1 :]) for at in range(len(decisions))]
