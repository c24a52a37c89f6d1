"""Training of a model: training programs, number of rounds, and the boosters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import identity
from ..errors import UsageError
from ._xgboost import threads_to_use
from .aggregation import row_model
from .base import Floats, Objective, RowModel, TrainingSet, recipe_part
from .boosting import (
    EarlyStopping,
    Matrix,
    ObjectiveGradients,
    TrainingMatrix,
    best_round,
    parameters,
)
from .dataset import Dataset
from .model import Model
from .pairs import Pairs
from .recipe import Recipe

#: Share of held-out workloads, which stop boosting.
HELD_OUT_SHARE = 0.2

#: Least workloads with programs to compare for early stopping. One held-out workload says little:
#: the first trees, which have learned little, may rank it best, and a model of those ranks others
#: badly. Too many rounds cost little.
LEAST_WORKLOADS = 10

#: Weight of a program that was cut short: the share of its repeats that ran, one of three. A model
#: that never saw slow programs would not tell them from others.
CUT_SHORT_WEIGHT = 1 / 3

#: Comparisons of each held-out program, in every round.
_PARTNERS = 32

#: Least programs of a training set.
_LEAST = 16

#: Bounds on the rounds of boosting while tuning, of each booster and of all together, and on rows
#: times rounds, which take a second on one core.
_MOST_ROUNDS = 200
_LEAST_ROUNDS = 30
_ALL_ROUNDS = 300
_WORK = 2_000_000

#: Most rounds of boosting of fewer rows. On 16 to 64 random programs of each of 23 CPU workloads,
#: 60 rounds ordered the others as well as 200 (difference in pairs: 0.1 %), in a quarter of the
#: time.
_FEW_ROUNDS = 60

#: Greatest learning rate; with fewer rounds, each goes further. On the 24 workloads of TVM's
#: records that `benchmarks/metaschedule.py` reads, each by a model of the others, 40 rounds of 0.3
#: order 0.9 % of the pairs more than 40 of 0.1 (standard error 0.4 %).
_MOST_ETA = 0.3

#: Called after each round with its number, from 1 and over all boosters, and with the accuracy on
#: held-out workloads; None without held-out workloads.
OnRound = Callable[[int, float | None], None]

#: Builds the matrix of the training programs from the row model, threads and a seed.
MakeMatrix = Callable[[Dataset, RowModel, int, int], TrainingMatrix]


@dataclass(frozen=True, slots=True)
class Fitted:
    """A model, with the facts of its training.

    Parameters
    ----------
    model : Model
        The trained model.
    history : tuple of float
        Mean pairwise accuracy over held-out workloads after each round; empty without held-out
        workloads.
    rounds : int
        Rounds of each booster.
    best_round : int
        :func:`tunedb.models.boosting.best_round` of `history`; `rounds` without a history.
    held_out : tuple of int
        Held-out workloads (indices into :attr:`Dataset.workloads`), which stopped boosting. The
        boosters are trained on all workloads afterwards, these too.
    programs : int
        Training programs of the boosters.
    left_out : dict
        Reason → number of left-out examples: ``only failures`` in their group, or not in the
        ``training set``.
    seconds : float
        Wall time of the whole training.
    threads : int
        Threads of XGBoost. The model does not depend on it.
    """

    model: Model
    history: tuple[float, ...]
    rounds: int
    best_round: int
    held_out: tuple[int, ...]
    programs: int
    left_out: dict[str, int]
    seconds: float
    threads: int


def fit(
    examples: Dataset,
    recipe: Recipe,
    *,
    threads: int | None = None,
    device: str = "cpu",
    on_round: OnRound | None = None,
    make_matrix: MakeMatrix | None = None,
) -> Fitted:
    """Train a model.

    With ``recipe.patience`` the training first holds some workloads out, to find the number of
    rounds after which boosting no longer gains on unseen workloads. It then trains the boosters for
    that many rounds on all workloads, because a workload is worth more than a round. With patience
    0, or fewer than :data:`LEAST_WORKLOADS` workloads, there are ``recipe.rounds`` rounds.

    Equal examples, recipes and versions of XGBoost and NumPy give equal models, to the byte, for
    any number of threads.

    Parameters
    ----------
    examples : Dataset
        With rows.
    recipe : Recipe
        All choices.
    threads : int, optional
        See :func:`tunedb.models._xgboost.threads_to_use`.
    device : str
        XGBoost's device: ``cpu``, or ``cuda`` with a GPU and a build for it.
    on_round : callable, optional
        Callback for progress; at most :func:`most_rounds` rounds. An exception in it ends the
        training without left-over files.
    make_matrix : callable, optional
        Builder of the matrix instead of :func:`in_memory` (as :mod:`tunedb.models.external`).

    Raises
    ------
    UsageError
        No example can be trained on, or a choice of the recipe has a wrong argument.
    NotFoundError, PluginError
        A part that the recipe names does not exist or load; XGBoost is not installed.
    """
    began = perf_counter()
    recipe.check()
    chosen, left_out = _selected(examples, recipe)
    threads = threads_to_use(threads)
    loss, argument = recipe_part("loss", recipe.loss)
    objective = loss.objective(chosen, argument, recipe.seed)
    rows = row_model(recipe.rows, chosen.sizes)
    matrix = (make_matrix or in_memory)(chosen, rows, threads, recipe.seed)
    run = _RankerTraining(chosen, recipe, matrix, objective, threads, device, on_round)
    held_out = _held_out(chosen, recipe)
    history = run.search(held_out) if len(held_out) else []
    best = best_round(history, recipe.patience) if history else recipe.rounds
    boosters = tuple(run.members(best))
    model = Model(
        recipe=recipe,
        feature_set=examples.feature_set,
        version=examples.version,
        columns=examples.columns,
        boosters=boosters,
        rows=rows.name,
    )
    return Fitted(
        model=model,
        history=tuple(history),
        rounds=best,
        best_round=best,
        held_out=tuple(held_out.tolist()),
        programs=len(chosen),
        left_out=left_out,
        seconds=perf_counter() - began,
        threads=threads,
    )


def select(examples: Dataset, recipe: Recipe) -> Dataset:
    """Return the training programs of a recipe.

    They are the recipe's training set of the groups with a program that ran: in a group of failures
    no program is better than another, and no throughput is known.

    Raises
    ------
    UsageError
        No two programs of different quality are left.
    NotFoundError, PluginError
        The training set does not exist or load.
    """
    return _selected(examples, recipe)[0]


def can_learn(examples: Dataset) -> bool:
    """Tell whether a model can be trained: there are enough programs, some faster than others."""
    if len(examples) < _LEAST:
        return False
    # Programs of a group are adjacent; a group of failures alone has only zeros.
    same = examples.group[1:] == examples.group[:-1]
    return bool((same & (np.diff(examples.throughput) != 0)).any())


def tuning_recipe(recipe: Recipe, rows: int) -> Recipe:
    """Return a recipe that trains on all of its examples, for about a second."""
    affordable = min(_ALL_ROUNDS, _WORK // max(1, rows)) // recipe.members
    most = min(recipe.rounds, _MOST_ROUNDS)
    rounds = min(most, max(_LEAST_ROUNDS, affordable))
    eta = max(recipe.eta, min(_MOST_ETA, recipe.eta * most / max(1, rounds)))
    rounds = min(rounds, max(_FEW_ROUNDS, rows))
    return replace(recipe, training_set="all", patience=0, rounds=rounds, eta=eta)


def most_rounds(recipe: Recipe) -> int:
    """Return the maximum number of boosting rounds of a recipe, over all boosters."""
    return recipe.rounds * (recipe.members + (recipe.patience > 0))


def _selected(examples: Dataset, recipe: Recipe) -> tuple[Dataset, dict[str, int]]:
    """Return the training programs of a recipe, and the numbers of left-out ones by reason."""
    ran = np.bincount(examples.group[~examples.failed], minlength=len(examples.groups)) > 0
    able = np.flatnonzero(ran[examples.group])
    if not len(able):
        raise UsageError(
            f"nothing to learn from: none of {_count(len(examples))} ran; "
            "measure or import more, then: tunedb train"
        )
    # Rows, most of the memory, are copied once, and only those of training programs.
    rankable = replace(examples, rows=examples.rows[:0]).take(able)
    policy: TrainingSet
    policy, argument = recipe_part("training set", recipe.training_set)
    chosen = able[policy.choose(rankable, argument, recipe.seed)]
    left_out = {
        "only failures": len(examples) - len(able),
        "training set": len(able) - len(chosen),
    }
    chosen_examples = examples.take(chosen) if len(chosen) < len(examples) else examples
    if not len(
        Pairs.from_labels(chosen_examples.throughput, chosen_examples.group, 2, recipe.seed)
    ):
        raise UsageError(
            f"nothing to learn from: {_count(len(chosen_examples))}, none faster than another "
            "of the same workload; measure or import more, then: tunedb train"
        )
    return chosen_examples, left_out


def _count(programs: int) -> str:
    return f"{programs} program" if programs == 1 else f"{programs} programs"


def in_memory(examples: Dataset, row_model: RowModel, threads: int, seed: int) -> Matrix:
    """Return the matrix of examples.

    Raises
    ------
    UsageError
        The examples have no rows.
    """
    if len(examples.rows) != examples.starts[-1] or not len(examples.rows):
        raise UsageError(
            f"{_count(len(examples))} have no rows of features {examples.feature_set}; "
            f"run: tunedb extract --set {examples.feature_set}"
        )
    rows, starts = row_model.rows(examples.rows, examples.starts)
    return Matrix.from_rows(rows, starts, threads=threads, seed=seed)


@dataclass(slots=True)
class _RankerTraining:
    """One training: the programs, and the matrix that all its boosters share."""

    chosen: Dataset
    recipe: Recipe
    matrix: TrainingMatrix
    objective: Objective
    threads: int
    device: str
    on_round: OnRound | None
    done: int = 0

    def search(self, held_out: NDArray[np.int64]) -> list[float]:
        """Return the accuracy on held-out workloads after each round, until the gain ends."""
        unseen = np.isin(self.chosen.workload, held_out)
        judged = unseen & ~self.chosen.cut_short
        labels, group = self.chosen.throughput[judged], self.chosen.group[judged]
        pairs = Pairs.from_labels(labels, group, _PARTNERS, self.recipe.seed)
        # Held-out programs are in the matrix with weight 0: binning the others again takes longer.
        stopping = EarlyStopping(pairs, judged, self.recipe.patience)
        return self._boost(0, (~unseen).astype(np.float64), self.recipe.rounds, stopping)[1]

    def members(self, rounds: int) -> Iterator[Any]:
        """Yield boosters trained on all workloads."""
        for member in range(self.recipe.members):
            yield self._boost(member, self._counts(member), rounds)[0]

    def _boost(
        self, member: int, counts: Floats | None, rounds: int, stopping: EarlyStopping | None = None
    ) -> tuple[Any, list[float]]:
        """Return a booster of so many rounds at most, and its history."""
        recipe = self.recipe
        if self.chosen.cut_short.any():
            weights = np.where(self.chosen.cut_short, CUT_SHORT_WEIGHT, 1.0)
            counts = weights if counts is None else weights * counts
        settings = parameters(
            recipe, seed=_seed(recipe, member), threads=self.threads, device=self.device
        )
        sizes, power = self.matrix.sizes, recipe.hessian_power
        gradients = ObjectiveGradients(self.objective, sizes, hessian_power=power, counts=counts)
        return self.matrix.boost(
            gradients, settings, rounds, stopping=stopping, on_figure=self._report_round
        )

    def _counts(self, member: int) -> Floats | None:
        """Return each program's weight in a member: the count of its workload in a bootstrap."""
        present = np.unique(self.chosen.workload)
        if self.recipe.members == 1 or len(present) == 1:
            return None
        drawn = np.random.default_rng(_seed(self.recipe, member)).choice(present, len(present))
        times = np.bincount(drawn, minlength=len(self.chosen.workloads)).astype(np.float64)
        return np.asarray(times[self.chosen.workload])

    def _report_round(self, figure: float | None) -> None:
        self.done += 1
        if self.on_round is not None:
            self.on_round(self.done, figure)


def _seed(recipe: Recipe, member: int) -> int:
    """Return the seed of a member; recipes with adjacent seeds share none."""
    return int(np.random.SeedSequence([recipe.seed, member]).generate_state(1)[0] >> 1)


def _held_out(examples: Dataset, recipe: Recipe) -> NDArray[np.int64]:
    """Return the held-out workloads, which stop boosting, ascending.

    The order of two workloads depends on their digests and the seed alone, so that data of others
    do not reshuffle them.
    """
    if recipe.patience == 0:
        return np.empty(0, np.int64)
    # Only workloads with programs to compare have an accuracy.
    whole = np.flatnonzero(~examples.cut_short)
    pairs = Pairs.from_labels(examples.throughput[whole], examples.group[whole], 2, recipe.seed)
    able = np.unique(examples.workload[whole[pairs.compared]]).tolist()
    if len(able) < LEAST_WORKLOADS:
        return np.empty(0, np.int64)
    seed = recipe.seed.to_bytes(8, "little")
    able.sort(key=lambda index: identity.digest("held out", seed, examples.workloads[index].digest))
    return np.sort(np.array(able[: round(HELD_OUT_SHARE * len(able))], np.int64))
