"""Learner: the cost model of one target, trained again on the trials of a tuning run."""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from ....errors import TuneDBError
from ....models import cards, dataset, failure_store, training_job
from ....models import store as model_store
from ....models.aggregation import stacked
from ....models.base import TrainingSet, recipe_part
from ....models.failures import FailureModel
from ....models.recipe import Recipe
from ....models.run_trials import RunTrial, RunTrials, join
from ....models.scope import Scope
from ....models.training import Fitted, can_learn, fit, select, tuning_recipe
from ....models.training_sets import DIVERSE
from ....results import NewModel
from .ledger import Scorer
from .scoring import Scoring

if TYPE_CHECKING:
    from ....features.base import FeatureSet
    from ....models.cards import TrainingCost
    from ....models.dataset import Dataset, ExampleWorkload
    from ....models.model import Model
    from ....records import Target
    from ....results import StoredModel
    from ....storage.store import Store

_log = logging.getLogger("tunedb")

#: Most programs of a store in the training set beside the trials of a run; of more, so many diverse
#: ones.
BASE_PROGRAMS = 4_000

#: Growth of the programs after which the model is trained again (TVM's, apache/tvm#11892).
_GROWTH = 0.2

#: Programs of a prior that give way to each program of the store or the run. A prior helps a search
#: to begin; what is measured here then counts more.
_FADING = 4

#: Least trials of a workload at which the model is retrained when they have doubled, however many
#: programs of others it was trained on: on Roller's V100 logs, models with a workload's first
#: 128 trials in their training set ordered 71 % of the pairs among its next 64, models of other
#: workloads alone 67 %.
_ROUND = 64

#: Last stored trials of a workload that is tuned in the training set beside the others: its next
#: ones are like them. On 14 of Roller's V100 logs, models of a workload's first 128 trials ordered
#: 59 and 53 % of the pairs among trials n to n + 96 (n = 256 and 512), models of all n trials 62
#: and 58 % (standard error of the difference: 2 %).
_OWN = 512


@dataclass(frozen=True, slots=True)
class CostModelOptions:
    """Options of a cost model; see :class:`.cost_model.CostModel`.

    Parameters
    ----------
    features : FeatureSet
        Feature set of the models.
    recipe : Recipe or None
        Recipe of the models; None for that of the stored model, or the default.
    device : str
        Device that XGBoost trains on.
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


class ExampleSource(Protocol):
    """Source of a store's measured programs and their rows."""

    def load(self, recipe: Recipe, scope: Scope) -> Dataset:
        """Return the examples of a scope without rows; NotFoundError if there is none."""

    def with_rows(self, examples: Dataset) -> Dataset:
        """Return some of the examples with their rows."""


class PriorSource(Protocol):
    """Measured programs of a prior, and a model of them."""

    def load(self, recipe: Recipe, most: int) -> Dataset | None:
        """Return diverse programs, at most so many, without rows; None where it has none."""

    def with_rows(self, examples: Dataset) -> Dataset | None:
        """Return some of the programs with their rows; None where they cannot be read."""

    def scorer(self) -> Scorer | None:
        """Return the model that was trained when the prior was made; None without one."""


@dataclass(frozen=True, slots=True)
class StoredExamples:
    """The programs of a store that have rows of a feature set."""

    store: Store
    features: FeatureSet

    def load(self, recipe: Recipe, scope: Scope) -> Dataset:
        """Return the examples of a scope without rows; NotFoundError if there is none."""
        return dataset.load(
            self.store,
            self.features,
            label=recipe.label,
            corrected=recipe.corrected,
            scope=scope,
            rows=False,
        )

    def with_rows(self, examples: Dataset) -> Dataset:
        """Return some of the examples with their rows."""
        return dataset.with_rows(self.store, examples)


class Learner:
    """Predictions for one target, by a model that is trained again while tuning.

    Parameters
    ----------
    store : Store
        Store of models and programs.
    options : CostModelOptions
        Options of the user.
    target : Target
        Target of the programs.
    target_ids : sequence of sequence of int
        Groups of targets of the store; the first that has programs gives the training set: the
        target's own number, then those of compatible ones.
    examples : ExampleSource, optional
        Source of the store's programs; by default those that have rows of the feature set.
    prior : PriorSource, optional
        Its model is the first one of a store with few programs. Later its programs join those of
        the store; four of :data:`BASE_PROGRAMS` give way to each one.

    Attributes
    ----------
    recipe : Recipe
        Recipe of the models.
    scoring : Scoring or None
        The model in use.
    failures : FailureModel or None
        Model of failures, calibrated by the trials of the run; it is never retrained.
    """

    def __init__(
        self,
        store: Store,
        options: CostModelOptions,
        target: Target,
        target_ids: Sequence[Sequence[int]],
        examples: ExampleSource | None = None,
        prior: PriorSource | None = None,
    ) -> None:
        self._prior = prior
        self._examples = examples or StoredExamples(store, options.features)
        self.recipe: Recipe = options.recipe or Recipe(features=options.features.name)
        self.scoring: Scoring | None = None
        self.failures: FailureModel | None = None
        # Whether the model of failures was trained on the target; margins and outcomes of the run.
        self._is_trained_here = False
        self._margins: list[float] = []
        self._failed: list[bool] = []
        self._store = store
        self._options = options
        self._kind = target.kind
        self._target_ids = [list(ids) for ids in target_ids if ids]
        self._trials = RunTrials(store.targets.id_of(target.digest) or 0, target.digest)
        self._base: Dataset | None = None
        self._base_is_read = False
        # Programs of the prior, without rows at first; whether the model in use knows some.
        self._shipped: Dataset | None = None
        self._prior_is_read = False
        self._knows_prior = False
        # Programs of the store and the run in the latest training set.
        self._own_programs = 0
        self._prepared: set[bytes] = set()
        # Whether to train before the next prediction.
        self._is_stale = False
        # Whether the store may have trials of a workload that are not in the training set.
        self._is_partial = True

    # ------------------------------------------------------------------ the first model

    def begin(self, given: Scorer | None = None) -> None:
        """Take the model that is given, or the best one of the store.

        A stored model that does not load is logged and left out.
        """
        if self._options.avoid_failures:
            self.failures = self._find_failures()
            self.calibrate([], [])
        if given is not None:
            self.use(given)
            return
        for ids in self._target_ids:
            try:
                best = model_store.find(
                    self._store, feature_set=self._options.features, target_ids=ids
                )
                # A model with a card alone would have to be retrained first, perhaps for minutes.
                if best is not None and best.size is not None:
                    self._use_stored(best)
                    if not self._is_outgrown(best, ids):
                        return
                    break
            except TuneDBError as error:
                _log.warning("%s: a stored model is left out: %s", self._store.location, error)
        self._is_stale = True

    def _use_stored(self, stored: StoredModel) -> None:
        model = model_store.load_model(self._store, stored)
        model.check(self._options.features)
        if self._options.recipe is None:
            self.recipe = model.recipe
        row = NewModel(
            digest=stored.digest,
            kind=stored.kind,
            parameters=stored.parameters,
            training_digest=stored.training_digest,
            card=stored.card,
            body=None,
        )
        self.use(scorer_of(model, row, stored.id))
        self._is_partial = model.recipe.training_set != "all"

    def _find_failures(self) -> FailureModel | None:
        """Return the newest model of failures for the target and feature set, or None.

        One that was trained on other targets of the kind is better than none.
        """
        store = self._store
        groups = [[store.targets.get(id_).digest for id_ in ids] for ids in self._target_ids]
        models = [
            (any(cards.covers(stored, group) for group in groups), stored)
            for stored in reversed(store.models.all(kind=failure_store.KIND))
        ]
        for is_trained, stored in sorted(models, key=lambda each: not each[0]):
            try:
                if is_trained or self._is_of_kind(stored):
                    model = failure_store.load_failures(self._store, stored)
                    model.check(self._options.features)
                    self._is_trained_here = is_trained
                    return model
            except TuneDBError as error:
                _log.debug("%s: model %d is left out: %s", self._store.location, stored.id, error)
        return None

    def _is_of_kind(self, stored: StoredModel) -> bool:
        """Return whether a model was trained on targets of the kind of this one."""
        targets = self._store.targets
        ids = (targets.id_of(bytes.fromhex(each)) for each in cards.target_digests(stored))
        return self._kind in {targets.get(id_).kind for id_ in ids if id_ is not None}

    def calibrate(self, rows: Sequence[NDArray[np.float32]], failed: Sequence[bool]) -> None:
        """Calibrate the model of failures on the target by trials of the run, if there is one."""
        if self.failures is None:
            return
        if rows:
            stack = stacked(rows, len(self._options.features.columns))
            self._margins += self.failures.margins(*stack).tolist()
            self._failed += failed
        self.failures = self.failures.on_target(
            np.array(self._margins), np.array(self._failed, bool), is_trained=self._is_trained_here
        )

    def _is_outgrown(self, stored: StoredModel, target_ids: list[int]) -> bool:
        """Tell whether the store has grown much since a model of few programs was trained."""
        if int(stored.card["learnt"]["programs"]) >= BASE_PROGRAMS:
            return False
        features = self._options.features
        known = self._store.features.coverage(features, target_ids=target_ids).known
        return known >= (1 + _GROWTH) * int(stored.card["data"]["programs"])

    def use(self, scorer: Scorer) -> None:
        """Predict with another model from now on."""
        self.scoring = Scoring(scorer)
        self._is_stale = self._is_partial = False

    # ------------------------------------------------------------------ training

    def prepare_for(self, workload: ExampleWorkload, threads: int) -> None:
        """Train on the stored trials of a workload if the model does not cover it.

        The training set of a stored model has few or early trials of each workload. The last ones
        of the workload that is tuned are the most informative.
        """
        if workload.digest not in self._prepared:
            self._prepared.add(workload.digest)
            own = self._read_own(workload) if workload.id and self._is_partial else None
            if own is not None:
                self._read_base()
                known = 0 if self._base is None else _count(self._base, workload.digest)
                self._base = own if self._base is None else join(self._base, own)
                new = _count(self._base, workload.digest) - known
                self._is_stale |= new >= max(_ROUND, known)
        if self._is_stale:
            self._is_stale = False
            self.train(threads)

    def add(
        self,
        workload: ExampleWorkload,
        trials: Sequence[RunTrial],
        known: Container[int],
        threads: int,
    ) -> None:
        """Add a measured batch; retrain or correct scores if necessary.

        Parameters
        ----------
        workload : ExampleWorkload
            Workload of the batch.
        trials : sequence of RunTrial
            Results of the batch.
        known : container of int
            Programs that the store had measured before: they may be in the training set, so they
            do not test the model.
        threads : int
            Threads of XGBoost.
        """
        new = [
            trial
            for trial in trials
            if trial.program_id not in known
            and not self._trials.has(workload.digest, trial.program)
        ]
        scoring = self.scoring
        if scoring is not None and new:
            rows = [trial.rows for trial in new]
            seconds = np.array([np.inf if trial.failure else trial.seconds for trial in new])
            scoring.compare(workload.digest, rows, scoring.scores(rows, threads), seconds)
        self.calibrate([trial.rows for trial in new], [bool(trial.failure) for trial in new])
        for trial in trials:
            self._trials.add(workload, trial)
        if scoring is None or self._is_due(scoring, workload.digest):
            self.train(threads)
        elif self._options.residuals and new:
            scoring.correct(workload.digest, self._trials.best(workload.digest))

    def _is_due(self, scoring: Scoring, workload: bytes) -> bool:
        """Tell whether to train again: the data grew, or the model drifted."""
        grown = _GROWTH * scoring.scorer.trained_on
        if self._knows_prior:
            # Many programs of a prior must not keep the model from the trials of the run.
            grown = min(grown, max(_ROUND, _GROWTH * self._own_programs))
        if scoring.unseen() >= grown:
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

    def own_examples(self, workload: bytes) -> tuple[Dataset, int]:
        """Return a workload's examples, and the number of those of other workloads."""
        self._read_base()
        run = self._trials.dataset(self._options.features, self.recipe.label)
        found = [each for each in (self._base, run) if each is not None]
        masks = [_is_of(each, workload) for each in found]
        own = [each.take(mask) for each, mask in zip(found, masks, strict=True)]
        others = sum(int((~mask).sum()) for mask in masks)
        shipped = self._fading_prior()
        if shipped is not None:
            mask = _is_of(shipped, workload)
            others += int((~mask).sum())
            rows = self._with_rows(shipped.take(mask)) if mask.any() else None
            own += [] if rows is None else [rows]
        return reduce(join, own), others

    @property
    def workloads(self) -> tuple[ExampleWorkload, ...]:
        """Workloads of the store's programs that models learn from."""
        self._read_base()
        found = (self._base, self._fading_prior())
        return tuple(workload for each in found if each is not None for workload in each.workloads)

    def train(self, threads: int) -> None:
        """Train a model on the store's programs and the trials, if these are enough.

        The first model is that of the prior where there are few.
        """
        options = self._options
        self._read_base()
        known = self._known_programs()
        if self._prior is not None and self.scoring is None and known < _ROUND:
            shipped = self._prior.scorer()
            if shipped is not None:
                self._own_programs, self._knows_prior = known, True
                self.use(shipped)
                self._is_partial = True
                return
        base = self._training_base()
        examples = self._trials.dataset(options.features, self.recipe.label, base)
        if not can_learn(examples):
            return
        self._own_programs = known
        recipe = tuning_recipe(self.recipe, int(examples.sizes.sum()))
        cost = cards.TrainingCost()
        fitted = fit(examples, recipe, threads=threads, device=options.device)
        row = row_of(fitted, examples, self._store.key, cost)
        self.use(scorer_of(fitted.model, row))
        self._is_partial = True

    # ------------------------------------------------------------------ the store's programs

    def _read_base(self) -> None:
        """Read the programs of the store for the training set, once."""
        if self._base_is_read:
            return
        self._base_is_read = True
        for ids in self._target_ids:
            try:
                self._base = self._load_base(ids)
                return
            except TuneDBError as error:
                _log.info("%s: no model to start with: %s", self._store.location, error)

    def _known_programs(self) -> int:
        """Return the number of programs of the store and the run."""
        return len(self._trials) + (0 if self._base is None else len(self._base))

    def _room(self) -> int:
        """Return the number of programs of the prior that the training set has room for."""
        return max(0, BASE_PROGRAMS - _FADING * self._known_programs())

    def _read_prior(self) -> None:
        """Read the programs of the prior, once, without their rows."""
        if not self._prior_is_read:
            self._prior_is_read = True
            if self._prior is not None and self._room():
                self._shipped = self._prior.load(self.recipe, self._room())

    def _fading_prior(self) -> Dataset | None:
        """Return the programs of the prior that there is room for; None for none."""
        self._read_prior()
        shipped, room = self._shipped, self._room()
        if shipped is None or len(shipped) <= room:
            return shipped
        return shipped.take(DIVERSE.choose(shipped, str(room), 0)) if room else None

    def _with_rows(self, shipped: Dataset) -> Dataset | None:
        """Return programs of the prior with their rows; None where they cannot be read."""
        if self._prior is None or len(shipped.rows):
            return shipped
        return self._prior.with_rows(shipped)

    def _training_base(self) -> Dataset | None:
        """Return the training set beside the trials of the run, the fading prior included."""
        self._read_base()
        self._read_prior()
        if self._shipped is not None:
            self._shipped = self._with_rows(self._shipped)
        own, shipped = self._base, self._fading_prior()
        self._knows_prior = shipped is not None
        if own is None or shipped is None:
            return shipped if own is None else own
        return join(own, shipped)

    def _read_own(self, workload: ExampleWorkload) -> Dataset | None:
        """Return the last stored trials of a workload; None if these are few."""
        for ids in self._target_ids:
            try:
                examples = self._load(ids, [workload.id])
                if len(examples) < _ROUND:
                    return None
                last = examples.trials >= examples.trials.max() + 1 - _OWN
                return self._examples.with_rows(examples.take(last))
            except TuneDBError as error:
                _log.debug("%s: no records of this workload: %s", self._store.location, error)
        return None

    def _load(self, target_ids: list[int], workload_ids: list[int] | None = None) -> Dataset:
        """Return examples of the store without rows."""
        return self._examples.load(self.recipe, Scope(workload_ids, target_ids))

    def _load_base(self, target_ids: list[int]) -> Dataset:
        recipe, examples = self.recipe, self._load(target_ids)
        for choice in (recipe.training_set, f"diverse:{BASE_PROGRAMS}"):
            policy: TrainingSet
            policy, argument = recipe_part("training set", choice)
            examples = examples.take(policy.choose(examples, argument, recipe.seed))
            if len(examples) <= BASE_PROGRAMS:
                break
        return self._examples.with_rows(examples)


def row_of(fitted: Fitted, examples: Dataset, store_key: str, cost: TrainingCost) -> NewModel:
    """Return the row of a model that a tuning run uses: its card, without boosters.

    Parameters
    ----------
    fitted : Fitted
        The trained model.
    examples : Dataset
        Its training set.
    store_key : str
        Key of the database.
    cost : TrainingCost
        Stopwatch of the training.
    """
    recipe = fitted.model.recipe
    card = cards.make_card(
        recipe,
        examples,
        select(examples, recipe),
        store_key=store_key,
        training=training_job.training_json(fitted) | {"tuning": True},
        cost=cost.to_json(),
        body=fitted.model.to_bytes(),
    )
    identity = (model_store.KIND, recipe.to_json(), examples.digest)
    digest = cards.model_digest(*identity, card["versions"])
    return NewModel(digest, *identity, card, None)


def scorer_of(model: Model, row: NewModel, id_: int | None = None) -> Scorer:
    """Return a model with the figures of its card."""
    return Scorer(
        model=model,
        row=row,
        trained_on=int(row.card["learnt"]["programs"]),
        least=row.card["drift"]["pairwise_p5"],
        id=id_,
    )


def _count(examples: Dataset, workload: bytes) -> int:
    """Return the number of programs of a workload."""
    return int(_is_of(examples, workload).sum())


def _is_of(examples: Dataset, workload: bytes) -> NDArray[np.bool_]:
    """Return a mask of the programs of a workload."""
    is_own = [each.digest == workload for each in examples.workloads]
    mask: NDArray[np.bool_] = np.array(is_own, bool)[examples.workload]
    return mask
