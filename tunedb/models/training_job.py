"""Training a model for a database: the inputs, the training, its evaluation, and the card."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from math import isfinite
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ..errors import UsageError
from ..extraction.extract import extract, quarantine_name
from ..features.base import FeatureSet, StepFeatures, feature_set
from . import cards, sessions
from ._xgboost import import_xgboost
from .base import Floats, recipe_part
from .baselines import NearestNeighbour, RandomOrder
from .dataset import DataCounts, Dataset, load_counted, with_rows
from .evaluation import Evaluation, Result, evaluate, repeat_noise
from .metrics import FIGURES
from .recipe import Recipe
from .scope import Scope
from .splits import NEW_WORKLOAD, POOLS
from .training import Fitted, fit, most_rounds, select

if TYPE_CHECKING:
    from ..storage.store import Store

# ---- A quick evaluation of a recipe, for the card of its model -----------------------------------
#
# A small ``tunedb evaluate``: one regime, held-out workloads, and few seeds. Each seed takes about
# as long as the training itself. :mod:`tunedb.models.drift` compares later trials with the card.

#: Name of the model in the figures of a card.
MODEL = "model"

#: Name of the oracle that measures each program once.
FLOOR = "noise floor"

#: The pool that measures a model's quality: candidates that no model has chosen yet.
FIRST = "random"

#: Seeds of the splits, and the number of rows above which there is only one.
_SEEDS, _FEW_ROWS = 3, 30_000


def quick_evaluation(
    examples: Dataset,
    recipe: Recipe,
    *,
    noise: Floats | None = None,
    threads: int | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Evaluate the ranking of unseen workloads by a recipe.

    Parameters
    ----------
    examples : Dataset
        All inputs of the model, with rows.
    recipe : Recipe
        Recipe of the model.
    noise : ndarray of float64 or None
        Deviations of run times (:func:`tunedb.models.evaluation.repeat_noise`).
    threads : int or None
        Threads of XGBoost.
    on_step : callable or None
        Called with the number of finished trainings, and of all.

    Returns
    -------
    dict
        For JSON: ``pools`` has for each kind of pool the number of ``workloads`` and ``figures``:
        model or baseline → figure → ``[mean, low, high]`` (95 % bootstrap interval over
        workloads), and as ``noise floor`` the figures of an oracle that measures each program once.
        ``pairwise`` is the model's mean in random pools, or in all trials if random ones are too
        few; ``pairwise_p5`` the 5th percentile over workloads, in the kind of pool where it is
        lower: accuracy below it is drift. If no workload can be held out, ``impossible`` is the
        reason, and the others are empty or None.
    """
    seeds = 1 if len(examples.rows) > _FEW_ROWS else _SEEDS
    try:
        evaluation = evaluate(
            examples,
            {MODEL: recipe},
            regimes=(NEW_WORKLOAD,),
            seeds=seeds,
            baselines=(RandomOrder(), NearestNeighbour(training_set=recipe.training_set)),
            noise=noise,
            threads=threads,
            on_step=on_step and (lambda done, total, _: on_step(done, total)),
        )
    except UsageError as error:
        return no_evaluation(str(error))
    results = [
        result
        for pool in POOLS
        if (result := evaluation.result(NEW_WORKLOAD, pool, MODEL)) is not None
    ]
    first = evaluation.result(NEW_WORKLOAD, FIRST, MODEL) or results[0]
    return {
        "regime": NEW_WORKLOAD,
        "seeds": seeds,
        "splits": evaluation.splits[NEW_WORKLOAD]["digest"],
        "seconds": evaluation.seconds,
        "pools": {result.pool: _pool(evaluation, result.pool) for result in results},
        "pairwise": first.summary("pairwise").mean,
        "pairwise_p5": min(
            float(np.quantile(result.column("pairwise"), 0.05)) for result in results
        ),
        "impossible": None,
    }


def no_evaluation(reason: str) -> dict[str, Any]:
    """Return the result of :func:`quick_evaluation` without an evaluation."""
    return {
        "regime": NEW_WORKLOAD,
        "seeds": 0,
        "splits": None,
        "seconds": None,
        "pools": {},
        "pairwise": None,
        "pairwise_p5": None,
        "impossible": reason,
    }


def _pool(evaluation: Evaluation, pool: str) -> dict[str, Any]:
    """Return the figures of all models in one kind of pool."""
    results = [result for result in evaluation.results if result.pool == pool]
    figures = {result.model: _figures(result) for result in results}
    floor = results[0].floor
    if floor is not None:
        means = floor.mean(axis=0).tolist()
        figures[FLOOR] = {name: [x, None, None] for name, x in zip(FIGURES, means, strict=True)}
    return {"workloads": len(results[0].workloads), "figures": figures}


def _figures(result: Result) -> dict[str, list[float | None]]:
    """Return mean and interval of each figure; an interval of one workload is unknown."""
    summaries = {figure: result.summary(figure) for figure in FIGURES}
    return {
        figure: [x if isfinite(x) else None for x in (summary.mean, summary.low, summary.high)]
        for figure, summary in summaries.items()
    }


# ---- Training ------------------------------------------------------------------------------------

#: Bytes of feature rows up to which a model is trained in memory: 3 million rows of 164 columns.
#: Training takes three times as much: all rows, the training rows, and their bins.
IN_MEMORY_BYTES = 2 * 2**30

#: Called with the step ("features", "sessions", "reading", "features read", "training",
#: "evaluation"), the finished units, and their total: 0 if unknown.
Step = Callable[[str, int, int], None]


def usable(name: str) -> FeatureSet:
    """Return a feature set that models can learn from.

    Raises
    ------
    UsageError
        The number of its columns depends on the program.
    NotFoundError, PluginError
        The feature set does not exist or does not load.
    """
    features = feature_set(name)
    if not features.columns:
        raise UsageError(
            f"the rows of {name} vary in length, so no model can train on "
            "them; list the sets: tunedb features"
        )
    return features


def check_recipe(recipe: Recipe) -> None:
    """Raise NotFoundError, PluginError or UsageError for an impossible part or number.

    So a typing error is reported before anything is read.
    """
    recipe.check()
    recipe_part("loss", recipe.loss)
    recipe_part("row model", recipe.rows)
    recipe_part("label", recipe.label)
    recipe_part("training set", recipe.training_set)


def digest_of_data(
    store: Store, features: str, label: str, corrected: bool, scope: Scope
) -> bytes | None:
    """Return the digest of today's training data for these choices.

    None if programs lack features that training would compute first.
    """
    chosen = usable(features)
    examples, counts = load_counted(store, chosen, label=label, corrected=corrected, scope=scope)
    if isinstance(chosen, StepFeatures) and counts.without_features > len(_failed(store, chosen)):
        return None
    return examples.digest


def _load(store: Store, recipe: Recipe, scope: Scope) -> tuple[Dataset, DataCounts]:
    """Return the examples of a recipe, without feature rows."""
    label, corrected = recipe.label, recipe.corrected
    features = usable(recipe.features)
    return load_counted(store, features, label=label, corrected=corrected, scope=scope)


def _extract(store: Store, features: StepFeatures, scope: Scope, step: Step) -> None:
    """Compute missing features of programs."""
    where: dict[str, Any] = {
        "workload_ids": scope.workload_ids,
        "target_ids": scope.target_ids,
    }
    coverage = store.features.coverage(features, computed=True, **where)
    missing, done = coverage.able - coverage.known - len(_failed(store, features)), 0

    def on_program() -> None:
        nonlocal done
        done += 1
        step("features", done, missing)

    if missing > 0:
        step("features", 0, missing)
        extract(store, features, on_program=on_program, **where)


def _failed(store: Store, features: StepFeatures) -> set[int]:
    """Return the programs whose features failed before: no extraction tries them again."""
    return set(store.batches.quarantined_lines(quarantine_name(features)))


def training_json(fitted: Fitted) -> dict[str, Any]:
    """Return the course of a training, for the card."""
    return {
        "rounds": fitted.rounds,
        "best_round": fitted.best_round,
        "members": len(fitted.model.boosters),
        "held_out": len(fitted.held_out),
        # Pairwise accuracy on held-out workloads.
        "history": cards.thinned(fitted.history),
        "rows": fitted.model.rows,
        "programs": fitted.programs,
        "left_out": fitted.left_out,
        "seconds": fitted.seconds,
        "threads": fitted.threads,
    }


def _counts_json(counts: DataCounts) -> dict[str, Any]:
    """Return the numbers of read and of left-out records, for the card."""
    return {
        "records": counts.records,
        "left_out": {
            "without features": counts.without_features,
            "failures of infrastructure": counts.infrastructure,
            "records without a time": counts.timeless,
        },
    }


def _is_large(labels: Dataset) -> bool:
    """Tell whether the feature rows of examples should stay on disk."""
    return 4 * int(labels.sizes.sum()) * len(labels.columns) > IN_MEMORY_BYTES


def _silent(step: str, done: int, total: int) -> None:
    """No-op callback."""


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """A recipe and its examples.

    Parameters
    ----------
    store : Store
        The database.
    recipe : Recipe
        Recipe of the model.
    scope : Scope
        Selection of the records.
    labels : Dataset
        Measured programs, without feature rows.
    counts : DataCounts
        Counts of used and unused records.
    external : bool
        Stream feature rows from disk; the model is the same.
    threads : int or None
        Threads of XGBoost.
    step : callable
        Callback for progress.
    """

    store: Store
    recipe: Recipe
    scope: Scope
    labels: Dataset
    counts: DataCounts
    external: bool
    threads: int | None
    step: Step

    @classmethod
    def prepared(
        cls,
        store: Store,
        recipe: Recipe,
        scope: Scope,
        *,
        external: bool | None = None,
        threads: int | None = None,
        step: Step | None = None,
    ) -> Self:
        """Compute missing inputs and return a job; parameters as :func:`store.train`.

        The inputs are features that need no module, and the factors of sessions.
        """
        step = step or _silent
        import_xgboost()  # a missing package is reported before anything is computed
        features = usable(recipe.features)
        if isinstance(features, StepFeatures):
            _extract(store, features, scope, step)
        step("sessions", 0, 0)
        sessions.update(store, scope.target_ids)
        step("reading", 0, 0)
        labels, counts = _load(store, recipe, scope)
        if external is None:
            external = _is_large(labels)
        return cls(store, recipe, scope, labels, counts, external, threads, step)

    @classmethod
    def read(
        cls, store: Store, recipe: Recipe, scope: Scope, *, threads: int | None = None
    ) -> Self:
        """Return a job on the stored inputs; nothing is written."""
        labels, counts = _load(store, recipe, scope)
        large = _is_large(labels)
        return cls(store, recipe, scope, labels, counts, large, threads, _silent)

    @cached_property
    def examples(self) -> Dataset:
        """Measured programs with feature rows: those of :attr:`labels`."""
        return with_rows(self.store, self.labels, on_read=partial(self.step, "features read"))

    def fit(self) -> Fitted:
        """Train the model; raises as :func:`tunedb.models.training.fit`."""
        most = most_rounds(self.recipe)

        def on_round(number: int, _: float | None) -> None:
            self.step("training", number, most)

        settings: dict[str, Any] = {"threads": self.threads, "on_round": on_round}
        examples = self.labels if self.external else self.examples
        self.step("training", 0, most)
        if self.external:
            from .external import fit_external  # most jobs do not need it

            return fit_external(self.store, examples, self.recipe, **settings)
        return fit(examples, self.recipe, **settings)

    def evaluate(self) -> dict[str, Any]:
        """Evaluate the recipe on held-out workloads (:func:`quick_evaluation`)."""
        if self.external:
            return no_evaluation("not evaluated: the features do not fit into memory")

        def on_step(done: int, total: int) -> None:
            self.step("evaluation", done, total)

        features = usable(self.recipe.features)
        records = self.store.training.records(features, **self.scope.ids())
        return quick_evaluation(
            self.examples,
            self.recipe,
            noise=repeat_noise(records),
            threads=self.threads,
            on_step=on_step,
        )

    def card(
        self, fitted: Fitted, body: bytes, *, evaluation: dict[str, Any] | None
    ) -> dict[str, Any]:
        """Return the model's card (:func:`tunedb.models.cards.make_card`)."""
        return cards.make_card(
            self.recipe,
            self.labels,
            select(self.labels, self.recipe),
            store_key=self.store.key,
            scope=self.scope.to_json(self.store),
            counts=_counts_json(self.counts),
            training=training_json(fitted) | {"external": self.external},
            evaluation=evaluation,
            body=body,
        )
