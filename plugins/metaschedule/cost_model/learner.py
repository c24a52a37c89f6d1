"""A cost model of one target that learns from the trials of a tuning run."""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ....errors import TuneDBError
from ....models import cards, dataset, failure_store, training_job
from ....models import store as stored
from ....models.base import TrainingSet, part
from ....models.failures import FailureModel
from ....models.recipe import Recipe
from ....models.scope import Scope
from ....models.training import Fitted, fit, select
from ....results import NewModel
from .ledger import Scorer
from .scoring import Scoring
from .trials import Trial, Trials, joined

if TYPE_CHECKING:
    from ....features.base import FeatureSet
    from ....models.dataset import Dataset, ExampleWorkload
    from ....models.model import Model
    from ....records import Target
    from ....results import StoredModel
    from ....storage.store import Store

_log = logging.getLogger("tunedb")

#: Programs of a store that are learnt from again beside the trials of a run; of more, so many
#: diverse ones.
BASE_PROGRAMS = 4_000

#: Share by which the programs must grow until they are learnt from again (TVM's, apache/tvm#11892).
_GROWTH = 0.2

#: Trials of a workload from which on they are learnt from when they have doubled, however much the
#: model knows of others: on Roller's V100 logs, models that had learnt from a workload's first 128
#: trials ordered 71 % of the pairs among its next 64, models of other workloads alone 67 %.
_ROUND = 64

#: Last trials in the store of a workload that is tuned that are learnt from beside the others: its
#: next ones are like them. On 14 of Roller's V100 logs, models that had learnt from a workload's
#: first 128 trials ordered 59 and 53 % of the pairs among trials n to n + 96 (n = 256 and 512),
#: those that had learnt from all n 62 and 58 % (standard error of the difference: 2 %).
_OWN = 512

#: Programs below which nothing is learnt.
_LEAST = 16

#: Rounds of boosting while tuning, of each booster and of all together, and rows times rounds: a
#: second on one core.
_MOST_ROUNDS = 200
_LEAST_ROUNDS = 30
_ALL_ROUNDS = 300
_WORK = 2_000_000

#: With fewer rounds, each goes further, so far at most. On the 24 workloads of TVM's records that
#: `benchmarks/metaschedule.py` reads, each by a model of the others, 40 rounds of 0.3 order 0.9 %
#: of the pairs more than 40 of 0.1 (standard error 0.4 %).
_MOST_ETA = 0.3


@dataclass(frozen=True, slots=True)
class Settings:
    """What a user chose.

    Parameters
    ----------
    features : FeatureSet
        What models see.
    recipe : Recipe or None
        How models are trained; None for that of the model that is found, or the default.
    device : str
        XGBoost's.
    residuals : bool
        Whether scores may be corrected for the workload at hand.
    avoid_failures : bool
        Whether expected failures are subtracted.
    """

    features: FeatureSet
    recipe: Recipe | None
    device: str = "cpu"
    residuals: bool = True
    avoid_failures: bool = True


class Learner:
    """Predicts for one target, and learns.

    Parameters
    ----------
    store : Store
        Where models and programs are found.
    settings : Settings
        What the user chose.
    target : Target
        What programs are for.
    target_ids : sequence of sequence of int
        Groups of targets of the store whose programs are learnt from, the first that has any:
        the target's own number, then those of what may stand in for it.

    Attributes
    ----------
    recipe : Recipe
        How models are trained.
    scoring : Scoring or None
        The model in use.
    failures : FailureModel or None
        What tells which programs will fail; it stays as it is.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        target: Target,
        target_ids: Sequence[Sequence[int]],
    ) -> None:
        self.recipe = settings.recipe or Recipe(features=settings.features.name)
        self.scoring: Scoring | None = None
        self.failures: FailureModel | None = None
        self._store = store
        self._settings = settings
        self._target_ids = [list(ids) for ids in target_ids if ids]
        self._trials = Trials(store.targets.id_of(target.digest) or 0, target.digest)
        self._base: Dataset | None = None
        self._base_is_read = False
        self._met: set[bytes] = set()
        # Whether to learn before the next prediction.
        self._is_stale = False
        # Whether the model may not have learnt from all that the store has of a workload.
        self._is_partial = True

    # ------------------------------------------------------------------ the first model

    def begin(self, given: Scorer | None = None) -> None:
        """Take the model that is given, or the best one of the store.

        Nothing that is wrong with the store's ends a run: it begins without a model then.
        """
        if self._settings.avoid_failures:
            self.failures = self._find_failures()
        if given is not None:
            self.use(given)
            return
        for ids in self._target_ids:
            try:
                found = stored.find(
                    self._store, feature_set=self._settings.features, target_ids=ids
                )
                # One of which only the card is kept would be trained first, for minutes perhaps.
                if found is not None and found.size is not None:
                    self._take(found)
                    if not self._has_outgrown(found, ids):
                        return
                    break
            except TuneDBError as error:
                _log.warning("%s: a stored model is left out: %s", self._store.location, error)
        self._is_stale = True

    def _take(self, found: StoredModel) -> None:
        model = stored.load_model(self._store, found)
        model.check(self._settings.features)
        if self._settings.recipe is None:
            self.recipe = model.recipe
        row = NewModel(
            digest=found.digest,
            kind=found.kind,
            parameters=found.parameters,
            training_digest=found.training_digest,
            card=found.card,
            body=None,
        )
        self.use(scorer_of(model, row, found.id))
        self._is_partial = model.recipe.training_set != "all"

    def _find_failures(self) -> FailureModel | None:
        """Return the newest model of failures for the target and feature set, or None."""
        store = self._store
        groups = [[store.targets.get(id_).digest for id_ in ids] for ids in self._target_ids]
        for found in reversed(store.models.all(kind=failure_store.KIND)):
            try:
                if any(cards.covers(found, group) for group in groups):
                    model = failure_store.load_failures(self._store, found)
                    model.check(self._settings.features)
                    return model
            except TuneDBError as error:
                _log.debug("%s: model %d is left out: %s", self._store.location, found.id, error)
        return None

    def _has_outgrown(self, found: StoredModel, target_ids: list[int]) -> bool:
        """Tell whether the store has grown since a model learnt from what it had, not very much."""
        if int(found.card["learnt"]["programs"]) >= BASE_PROGRAMS:
            return False
        features = self._settings.features
        known = self._store.features.coverage(features, target_ids=target_ids).known
        return known >= (1 + _GROWTH) * int(found.card["data"]["programs"])

    def use(self, scorer: Scorer) -> None:
        """Predict with another model from now on."""
        self.scoring = Scoring(scorer)
        self._is_stale = self._is_partial = False

    # ------------------------------------------------------------------ learning

    def prepare_for(self, workload: ExampleWorkload, threads: int) -> None:
        """Make ready to predict for a workload: learn from what the store has, where it must be.

        The model of the store has learnt from few or early trials of each workload. Of one that is
        tuned, the last ones say most.
        """
        if workload.digest not in self._met:
            self._met.add(workload.digest)
            own = self._read_own(workload) if workload.id and self._is_partial else None
            if own is not None:
                base = self._read_base()
                known = 0 if base is None else _count(base, workload.digest)
                self._base = own if base is None else joined(base, own)
                new = _count(self._base, workload.digest) - known
                self._is_stale |= new >= max(_ROUND, known)
        if self._is_stale:
            self._is_stale = False
            self.learn(threads)

    def add(
        self,
        workload: ExampleWorkload,
        trials: Sequence[Trial],
        known: Container[int],
        threads: int,
    ) -> None:
        """Learn from a batch that was measured.

        Parameters
        ----------
        workload : ExampleWorkload
            Of which it is.
        trials : sequence of Trial
            What came out.
        known : container of int
            Programs that the store had measured before: the model may have learnt from them, so
            they tell nothing of how it does on others.
        threads : int
            Of XGBoost.
        """
        new = [
            one
            for one in trials
            if one.program_id not in known and not self._trials.has(workload.digest, one.program)
        ]
        scoring = self.scoring
        if scoring is not None and new:
            rows = [one.rows for one in new]
            seconds = np.array([np.inf if one.failure else one.seconds for one in new])
            scoring.compare(workload.digest, rows, scoring.scores(rows, threads), seconds)
        for one in trials:
            self._trials.add(workload, one)
        if scoring is None or self._is_due(scoring, workload.digest):
            self.learn(threads)
        elif self._settings.residuals and new:
            scoring.correct(workload.digest, self._trials.best(workload.digest))

    def _is_due(self, scoring: Scoring, workload: bytes) -> bool:
        """Tell whether to learn again: data grew, or the model says what is not so."""
        if scoring.unseen() >= _GROWTH * scoring.scorer.learnt:
            return True
        new = scoring.unseen(workload)
        if new >= max(_ROUND, self._trials.count(workload) - new):
            return True
        if not scoring.has_drifted(workload):
            return False
        _log.info(
            "%s: the cost model orders %.2f of a workload's trials as measured; it retrains",
            *(self._store.location, scoring.accuracy(workload)),
        )
        return True

    def learn(self, threads: int) -> None:
        """Train a model of the store's programs and the trials; without enough, leave it."""
        settings = self._settings
        base = self._read_base()
        examples = self._trials.examples(settings.features, self.recipe.label, base)
        if not _has_pairs(examples):
            return
        recipe = _short(self.recipe, int(examples.sizes.sum()))
        cost = cards.Cost()
        fitted = fit(examples, recipe, threads=threads, device=settings.device)
        row = self._row(fitted, examples, cost.to_json())
        self.use(scorer_of(fitted.model, row))
        self._is_partial = True

    def _row(self, fitted: Fitted, examples: Dataset, cost: dict[str, Any]) -> NewModel:
        """Return the row of a model that was trained here: its card, without boosters."""
        recipe = fitted.model.recipe
        card = cards.make_card(
            recipe,
            examples,
            select(examples, recipe),
            store_key=self._store.key,
            training=training_job.course(fitted) | {"tuning": True},
            cost=cost,
            body=fitted.model.to_bytes(),
        )
        identity = (stored.KIND, recipe.to_json(), examples.digest)
        digest = cards.model_digest(*identity, card["versions"])
        return NewModel(digest, *identity, card, None)

    # ------------------------------------------------------------------ the store's programs

    def _read_base(self) -> Dataset | None:
        """Return the programs of the store that are learnt from; they are read once."""
        if not self._base_is_read:
            self._base_is_read = True
            for ids in self._target_ids:
                try:
                    self._base = self._load_base(ids)
                    break
                except TuneDBError as error:
                    _log.info("%s: no model to start with: %s", self._store.location, error)
        return self._base

    def _read_own(self, workload: ExampleWorkload) -> Dataset | None:
        """Return the last trials of a workload in the store; None where it has few."""
        for ids in self._target_ids:
            try:
                examples = self._load(ids, [workload.id])
                if len(examples) < _ROUND:
                    return None
                last = examples.trials >= examples.trials.max() + 1 - _OWN
                return dataset.with_rows(self._store, examples.take(last))
            except TuneDBError as error:
                _log.debug("%s: no records of this workload: %s", self._store.location, error)
        return None

    def _load(self, target_ids: list[int], workload_ids: list[int] | None = None) -> Dataset:
        """Return examples of the store without rows."""
        return dataset.load(
            self._store,
            self._settings.features,
            label=self.recipe.label,
            corrected=self.recipe.corrected,
            scope=Scope(workload_ids, target_ids),
            rows=False,
        )

    def _load_base(self, target_ids: list[int]) -> Dataset:
        recipe, examples = self.recipe, self._load(target_ids)
        for choice in (recipe.training_set, f"diverse:{BASE_PROGRAMS}"):
            policy: TrainingSet
            policy, argument = part("training set", choice)
            examples = examples.take(policy.choose(examples, argument, recipe.seed))
            if len(examples) <= BASE_PROGRAMS:
                break
        return dataset.with_rows(self._store, examples)


def scorer_of(model: Model, row: NewModel, id_: int | None = None) -> Scorer:
    """Return a model with what its card says of it."""
    return Scorer(
        model=model,
        row=row,
        learnt=int(row.card["learnt"]["programs"]),
        least=row.card["drift"]["pairwise_p5"],
        id=id_,
    )


def _count(examples: Dataset, workload: bytes) -> int:
    """Return how many programs of a workload there are."""
    own = [one.digest == workload for one in examples.workloads]
    return int(np.array(own, bool)[examples.workload].sum())


def _has_pairs(examples: Dataset) -> bool:
    """Tell whether there is something to learn: enough programs, some faster than others."""
    if len(examples) < _LEAST:
        return False
    # Programs of a group stand together; a group of failures alone is told by its zeros.
    same = examples.group[1:] == examples.group[:-1]
    return bool((same & (np.diff(examples.throughput) != 0)).any())


def _short(recipe: Recipe, rows: int) -> Recipe:
    """Return a recipe that learns from all that it is given, and for about a second."""
    affordable = min(_ALL_ROUNDS, _WORK // max(1, rows)) // recipe.members
    wanted = min(recipe.rounds, _MOST_ROUNDS)
    rounds = min(wanted, max(_LEAST_ROUNDS, affordable))
    eta = max(recipe.eta, min(_MOST_ETA, recipe.eta * wanted / max(1, rounds)))
    return replace(recipe, training_set="all", patience=0, rounds=rounds, eta=eta)
