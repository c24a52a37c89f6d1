"""What the programs of a prior teach: how well a model of some of them ranks the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..features.steps import STEPS
from . import dataset
from .base import Floats
from .evaluation import FigureSummary, OnStep, Result, evaluate
from .recipe import Recipe
from .share import nearest
from .splits import NEW_FAMILY, NEW_HARDWARE, NEW_WORKLOAD, all_trials, pools, shape_class
from .training import can_learn, fit, tuning_recipe

if TYPE_CHECKING:
    from ..storage.store import Store
    from .dataset import Dataset
    from .model import Model

#: What is held out: new shapes, one family at a time, one machine at a time.
REGIMES = (NEW_WORKLOAD, NEW_FAMILY, NEW_HARDWARE)
#: Figures of the card.
FIGURES = ("pairwise", "top1", "top5", "trials90")
#: Share of the best throughput from which a first choice is right.
RIGHT = 0.9
#: Splits by workload, and pools: a search chose most programs of a prior.
_SEEDS, _POOL = 3, "search"
_MODEL = "model"
#: Parts of the workloads, each of which is held out once; least programs of a held-out workload.
FOLDS, FEWEST = 3, 10


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The figures of a regime.

    Parameters
    ----------
    regime : str
        One of :data:`REGIMES`.
    workloads, programs : int
        Held-out workloads, and ranked programs over all splits.
    figures : dict of str to FigureSummary
        By the names of :data:`FIGURES`.
    worst : str
        Name of the workload with the lowest top-1.
    worst_share : float
        Its top-1: throughput of the model's first choice over that of the best program.
    """

    regime: str
    workloads: int
    programs: int
    figures: dict[str, FigureSummary]
    worst: str
    worst_share: float


@dataclass(frozen=True, slots=True)
class PriorCard:
    """What models of a prior's programs are worth for others.

    Parameters
    ----------
    held_out : sequence of HeldOut
        One for each regime that the programs allow.
    impossible : dict of str to str
        Regime → reason why it has no figures.
    right, wrong, unsure : int
        Workloads of a machine, each held out once: the model's first choice has :data:`RIGHT` of
        the best throughput or more; it has less; there is no similar workload, or no model of the
        others, so that nothing is expected of a choice.
    worst_share : float or None
        Least share of the best throughput of a first choice; None without one.
    """

    held_out: Sequence[HeldOut]
    impossible: dict[str, str]
    right: int
    wrong: int
    unsure: int
    worst_share: float | None


def prior_card(
    store: Store, *, threads: int | None = None, on_step: OnStep | None = None
) -> PriorCard:
    """Train models on parts of a prior, and let them rank the rest.

    Features are those of ``steps``, computed from the stored programs; the recipe is that of a
    search.

    Parameters
    ----------
    store : Store
        Database of a prior.
    threads : int, optional
        Threads of XGBoost; by default one for each core.
    on_step : callable, optional
        Progress callback.

    Raises
    ------
    UsageError
        Nothing can be held out.
    NotFoundError
        No program was measured.
    """
    examples = dataset.load_or_compute(store, STEPS)
    recipe = tuning_recipe(Recipe(features=STEPS.name), len(examples))
    evaluation = evaluate(
        examples,
        {_MODEL: recipe},
        regimes=REGIMES,
        pools=(_POOL,),
        seeds=_SEEDS,
        baselines=(),
        threads=threads,
        on_step=on_step,
    )
    names = {workload.digest: workload.name for workload in examples.workloads}

    def train(some: Dataset) -> Model | None:
        return fit(some, recipe, threads=threads).model if can_learn(some) else None

    shares = shares_of_first_choices(examples, train)
    return PriorCard(
        held_out=[_held_out(result, names) for result in evaluation.results],
        impossible=evaluation.impossible,
        right=int((shares >= RIGHT).sum()),
        wrong=int((shares < RIGHT).sum()),
        unsure=sum(1 for _ in pools(examples, all_trials(examples), FEWEST)) - len(shares),
        worst_share=float(shares.min()) if len(shares) else None,
    )


def shares_of_first_choices(examples: Dataset, train: Callable[[Dataset], Model | None]) -> Floats:
    """Hold each workload out once, and rank its programs by a model of others.

    Parameters
    ----------
    examples : Dataset
        With rows.
    train : callable
        Returns a model of some examples, None if these are too few.

    Returns
    -------
    ndarray of float64, shape (n,)
        Throughput of the model's first choice / best throughput, of each held-out workload of a
        family that others have, too.
    """
    # Nearly equal shapes are on one side.
    classes = sorted({shape_class(each) for each in examples.workloads}, key=repr)
    fold_of = {shapes: number % FOLDS for number, shapes in enumerate(classes)}
    folds = np.array([fold_of[shape_class(each)] for each in examples.workloads])
    found: list[float] = []
    for fold in range(FOLDS):
        held = folds[examples.workload] == fold
        model = train(examples.take(~held))
        if model is None:
            continue
        others = [examples.workloads[number] for number in np.unique(examples.workload[~held])]
        for pool in pools(examples, held, FEWEST):
            one = examples.take(pool)
            if np.isfinite(nearest(one.workloads[one.workload[0]], others)):
                scores = model.scores(one.rows, one.starts)
                first = one.throughput[scores == scores.max()].mean()
                found.append(float(first / one.throughput.max()))
    return np.array(found, np.float64)


def _held_out(result: Result, names: dict[bytes, str]) -> HeldOut:
    top1 = result.column("top1")
    worst = int(np.argmin(top1))
    return HeldOut(
        regime=result.regime,
        workloads=len(result.workloads),
        programs=result.programs,
        figures={figure: result.summary(figure) for figure in FIGURES},
        worst=names[result.workloads[worst]],
        worst_share=float(top1[worst]),
    )
