"""Model of drafts: their scores, and the chance that TVM accepts them, from their steps alone."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from .... import identity
from ....errors import TuneDBError
from ....exchange.prior import SHIPPED
from ....features.base import Needs
from ....features.steps import STEPS
from ....models import dataset, prior_models
from ....models._xgboost import import_xgboost, threads_to_use
from ....models.dataset import ExampleWorkload
from ....models.kernel_regression import LOSS, MOST_OWN, KernelRegression, share_of_trees
from ....models.scope import Scope
from ....models.training_sets import DIVERSE
from ....programs.workload_info import signature_of
from ....records import Program, Target, Trace, Workload
from ..cost_model.learner import CostModelOptions, Learner, scorer_of
from ..cost_model.online import trial_of
from ..cost_model.scoring import positive
from ..features.candidate_features import unstored_program
from ..targets import class_of

if TYPE_CHECKING:
    from ....features.base import StepFeatures
    from ....models.dataset import Dataset
    from ....models.model import Model
    from ....models.recipe import Recipe
    from ....records import Signature
    from ....results import StoredProgram
    from ....search.draft import Draft
    from ....storage.store import Store
    from ..cost_model.ledger import Scorer
    from ..database.handle import Handle
    from ..database.layers import PriorLayer

    Floats = NDArray[np.float64]
    Rows = NDArray[np.float32]

_log = logging.getLogger("tunedb")

#: Share of illegal drafts from which the chance of a replay is predicted, and the least number of
#: them.
_ILLEGAL = 0.05
_LEAST_ILLEGAL = 8
#: Growth of the replayed drafts after which their classifier is trained again.
_GROWTH = 0.5
#: Latest replayed drafts that it learns from.
_MOST_REPLAYED = 2_000
_CLASSIFIER = {"objective": "binary:logistic", "max_depth": 4, "eta": 0.3, "tree_method": "hist"}
_CLASSIFIER_ROUNDS = 40


@dataclass(frozen=True, slots=True)
class DraftFeatures:
    """The columns of ``steps`` for programs without their post-processing, which no draft has."""

    name: str = "steps.draft"
    version: int = STEPS.version
    columns: tuple[str, ...] = STEPS.columns
    needs: Needs = Needs.STEPS

    @staticmethod
    def rows(programs: Sequence[StoredProgram]) -> list[Rows | Exception]:
        """Return a float32 array (1, columns) per program, or the error."""
        bare = [replace(one, trace=replace(one.trace, tail=None)) for one in programs]
        return STEPS.rows(bare)


#: The feature set of drafts.
FEATURES: Final = DraftFeatures()
#: Columns of the limits of a GPU, and the tolerance of a comparison in float32.
_LIMITS = [
    FEATURES.columns.index(name)
    for name in (
        "grid.threads",
        "grid.least_threads",
        "device.threads",
        "fetch.bytes_ratio",
        "pipeline.extent",
    )
]
_ROUNDING = 1e-3
#: What a program loses on a CPU if its innermost loop reaches several groups of channels of a
#: grouped convolution, in the units of :data:`LOSS`: its vectors gather their input, and it takes
#: about 12 times as long (docs/search.md). Stored programs hardly show it.
_GATHERS, _GPU = (FEATURES.columns.index(name) for name in ("inner.groups", "device.gpu"))
_GATHERING = 1 - 12**-0.3
#: Column that counts the instructions that the features do not know.
_UNKNOWN = FEATURES.columns.index("steps.unknown")


@dataclass(frozen=True, slots=True)
class ComputedExamples:
    """All measured programs of a store; their rows are computed from the stored steps."""

    store: Store
    features: StepFeatures

    def load(self, recipe: Recipe, scope: Scope) -> Dataset:
        """Return the examples of a scope without rows; NotFoundError if there is none."""
        return dataset.load_computed(
            self.store, self.features, label=recipe.label, corrected=recipe.corrected, scope=scope
        )

    def diverse(self, recipe: Recipe, target_ids: Sequence[int], most: int) -> Dataset:
        """Return diverse examples of some targets, at most so many; errors as :meth:`load`."""
        examples = self.load(recipe, Scope(target_ids=target_ids))
        return examples.take(DIVERSE.choose(examples, str(most), recipe.seed))

    def with_rows(self, examples: Dataset) -> Dataset:
        """Return some of the examples with their rows; those with damaged steps are left out."""
        return dataset.compute_rows(self.store, self.features, examples)


@dataclass(frozen=True, slots=True)
class _PriorSource:
    """The measured programs of a prior for a target, and their model."""

    prior: PriorLayer
    target: Target
    features: StepFeatures

    def load(self, recipe: Recipe, most: int) -> Dataset | None:
        """Return diverse programs, at most so many, without rows; None where it has none."""
        ids = [id_ for group in self.prior.levels(self.target) for id_ in group]
        store = self.prior.store
        if store is None or not ids:
            return None
        try:
            return ComputedExamples(store, self.features).diverse(recipe, ids, most)
        except TuneDBError as error:
            self.prior.leave_out(error)
            return None

    def with_rows(self, examples: Dataset) -> Dataset | None:
        """Return some of the programs with their rows; times of other databases are no group's."""
        store = self.prior.store
        if store is None:
            return None
        try:
            chosen = ComputedExamples(store, self.features).with_rows(examples)
        except TuneDBError as error:
            self.prior.leave_out(error)
            return None
        # Local numbers mean nothing here, and own times are compared with own ones alone.
        return chosen.derived(
            program_ids=np.zeros_like(chosen.program_ids),
            groups=tuple(
                replace(group, target_id=0, target=identity.digest(SHIPPED, group.target))
                for group in chosen.groups
            ),
            workloads=tuple(replace(workload, id=0) for workload in chosen.workloads),
        )

    def scorer(self) -> Scorer | None:
        """Return the model of the prior for the target's class; None without one."""
        class_ = class_of(self.target)
        if class_ is None:
            return None
        name = prior_models.name_of(class_, self.features)
        try:
            found = prior_models.read(self.prior.bundle, name)
            if found is None:
                return None
            found.model.check(self.features)
        except TuneDBError as error:
            _log.info("the model %s of the prior is left out: %s", name, error)
            return None
        return scorer_of(found.model, found.row)


@dataclass(frozen=True, slots=True, eq=False)
class DraftTask:
    """A task as the model of drafts sees it: workload and target in their stored form."""

    workload: Workload
    signature: Signature
    example: ExampleWorkload
    target: Target

    @classmethod
    def of(cls, handle: Handle, workload: Workload, target: Any) -> DraftTask:
        """Return the task of a workload for a target of TVM."""
        signature = signature_of(workload)
        id_ = handle.store.workloads.id_of(workload.digest) or 0
        example = ExampleWorkload.from_signature(id_, workload.digest, workload.name, signature)
        return cls(workload, signature, example, handle.targets.stored(target))

    def rows(self, drafts: Sequence[Draft]) -> list[Rows | Exception]:
        """Return a float32 array (1, columns) for each draft, or the error."""
        return self.rows_of_traces([draft.trace() for draft in drafts])

    def rows_of_traces(self, traces: Sequence[Trace]) -> list[Rows | Exception]:
        """Return a float32 array (1, columns) for each stored trace, or the error."""
        return STEPS.rows(
            [
                unstored_program(self.workload, self.signature, self.target, trace)
                for trace in traces
            ]
        )


class TaskModel:
    """Scores of the drafts of one task; worker processes can have it.

    Parameters
    ----------
    trees : Model or None
        Boosted trees; None scores all drafts equally.
    regression : KernelRegression or None
        Regression of the task's own programs around the trees' scores, if it has some.

    Attributes
    ----------
    legality : Legality
        Chance that TVM accepts a draft of the task.
    """

    def __init__(self, trees: Model | None, regression: KernelRegression | None) -> None:
        self.legality: Final = Legality()
        self._trees = trees
        self._regression = regression

    def scores(self, _task: DraftTask, rows: Rows, threads: int) -> Floats:
        """Return a score for each row, 0 or more; 1 without trees. The higher, the faster."""
        if self._trees is None:
            return np.ones(len(rows))
        self._trees.use_threads(threads)
        found = _scores(self._trees, rows)
        if self._regression is not None:
            found = self._regression.scores(rows, found)
        return positive(found, LOSS)


class DraftModel:
    """Scores of drafts for one target, learnt from stored programs and the trials of the run.

    Its rows are those of the feature set ``steps`` without post-processing. It is trained as
    :class:`~..cost_model.cost_model.CostModel` is. A regression of the workload's own programs
    corrects the scores of the trees (:mod:`tunedb.models.kernel_regression`): it learns from each
    batch, also where the trees have learnt from thousands of other programs.

    Parameters
    ----------
    handle : Handle
        Handle of the database.
    target : Target
        Stored form of the target.
    groups : sequence of sequence of int, optional
        Groups of targets, as for :class:`~..cost_model.learner.Learner`; by default those that the
        handle serves.
    features : FeatureSet, optional
        ``steps`` with post-processing, for programs that TVM has replayed; by default without it.

    Attributes
    ----------
    legality : Legality
        Chance that TVM accepts a draft.
    """

    def __init__(
        self,
        handle: Handle,
        target: Target,
        groups: Sequence[Sequence[int]] | None = None,
        features: StepFeatures = FEATURES,
    ) -> None:
        self.legality: Final = Legality()
        # The regression corrects the scores.
        options = CostModelOptions(features, None, residuals=False, avoid_failures=False)
        self._store = store = handle.store
        if groups is None:
            groups = handle.targets.groups(target)
        shipped = None if handle.prior is None else _PriorSource(handle.prior, target, features)
        examples = ComputedExamples(store, features)
        self._learner = Learner(store, options, target, groups, examples, shipped)
        self._learner.begin()
        # By workload: the regression of its own programs, None where it has none.
        self._own: dict[bytes, KernelRegression | None] = {}

    def prepare_for(self, task: DraftTask, threads: int) -> bool:
        """Train if a task asks for it; return whether there is a model."""
        scoring = self._learner.scoring
        self._learner.prepare_for(task.example, threads)
        if self._learner.scoring is not scoring:
            self._own.clear()
        return self._learner.scoring is not None

    def scores(self, task: DraftTask, rows: Rows, threads: int) -> Floats:
        """Return a score for each row, 0 or more; 1 without a model. The higher, the faster."""
        return self._of_task(task).scores(task, rows, threads)

    def of_task(self, task: DraftTask, threads: int) -> TaskModel | None:
        """Return the model of one task, trained if the task asks for it; None without one."""
        return self._of_task(task) if self.prepare_for(task, threads) else None

    def _of_task(self, task: DraftTask) -> TaskModel:
        scoring = self._learner.scoring
        trees = None if scoring is None else scoring.scorer.model
        regression = None if trees is None else self._own_regression(task, trees)
        return TaskModel(trees, regression)

    @property
    def workloads(self) -> tuple[ExampleWorkload, ...]:
        """Workloads of the stored programs that models learn from."""
        return self._learner.workloads

    def _own_regression(self, task: DraftTask, trees: Model) -> KernelRegression | None:
        """Return the regression of a workload's own programs around the trees' scores."""
        digest = task.example.digest
        if digest not in self._own:
            examples, others = self._learner.own_examples(digest)
            self._own[digest] = None
            if len(examples) and examples.throughput.max() > 0:
                last = examples.take(np.argsort(examples.trials, kind="stable")[-MOST_OWN:])
                share = share_of_trees(len(examples), others)
                self._own[digest] = KernelRegression.fit(
                    last.rows, last.throughput, _scores(trees, last.rows), share
                )
        return self._own[digest]

    def add(
        self, task: DraftTask, measured: Sequence[tuple[Draft, Program, Any]], threads: int
    ) -> None:
        """Add programs with TVM's results of their runs, before these are stored.

        Parameters
        ----------
        task : DraftTask
            The task.
        measured : sequence of Draft, Program and tvm RunnerResult
            Programs of a batch.
        threads : int
            Threads of XGBoost.
        """
        rows = task.rows([draft for draft, _, _ in measured])
        ids = self._store.programs.ids([program.digest for _, program, _ in measured])
        trials = []
        for (_, program, result), id_, own_rows in zip(measured, ids, rows, strict=True):
            if not isinstance(own_rows, Exception):
                trial = trial_of(own_rows, program, id_ or 0, result, self._learner.recipe.label)
                trials += [] if trial is None else [trial]
        self._learner.add(task.example, trials, {id_ for id_ in ids if id_}, threads)
        self._own.clear()


def _scores(trees: Model, rows: Rows) -> Floats:
    """Return the scores of programs of one row each."""
    # The column is log2(1 + groups).
    gathers = (rows[:, _GATHERS] > 1.01) & (rows[:, _GPU] == 0)
    scores: Floats = trees.scores(rows, np.arange(len(rows) + 1)) - _GATHERING * gathers
    return scores


class Legality:
    """Chance that TVM accepts a draft, learnt from those that a run has replayed."""

    def __init__(self) -> None:
        self._rows: list[Rows] = []
        self._legal: list[bool] = []
        self._trained_on = 0
        self._booster: Any = None

    def add(self, rows: Sequence[Rows | Exception], legal: Sequence[bool], threads: int) -> None:
        """Add replayed drafts; train again when they have grown by half."""
        for own_rows, is_legal in zip(rows, legal, strict=True):
            if not isinstance(own_rows, Exception):
                self._rows.append(own_rows)
                self._legal.append(is_legal)
        number = len(self._legal)
        illegal = number - sum(self._legal)
        if illegal < max(_LEAST_ILLEGAL, _ILLEGAL * number) or illegal == number:
            return
        if number >= (1 + _GROWTH) * self._trained_on:
            self._trained_on = number
            self._rows, self._legal = self._rows[-_MOST_REPLAYED:], self._legal[-_MOST_REPLAYED:]
            xgboost = import_xgboost()
            data = xgboost.DMatrix(
                np.concatenate(self._rows), np.array(self._legal, np.float32), nthread=threads
            )
            options = _CLASSIFIER | {"nthread": threads_to_use(threads)}
            self._booster = xgboost.train(options, data, _CLASSIFIER_ROUNDS)

    def chances(self, rows: Rows) -> Floats:
        """Return the chance of each row, 1 while nearly all drafts are legal.

        It is 0 for a draft whose steps break a limit: of 385 such drafts for CUDA, TVM accepted
        one.
        """
        limits = np.where(_breaks_limits(rows), 0.0, 1.0)
        if self._booster is None:
            return limits
        return np.asarray(self._booster.inplace_predict(rows), np.float64) * limits


def _breaks_limits(rows: Rows) -> NDArray[np.bool_]:
    """Tell which rows break a limit of a GPU that ``VerifyGPUCode`` checks.

    MetaSchedule's rules demand a warp of threads for most tiled blocks; the threads of a block and
    the bytes of its shared memory have limits of the target. A pipelined loop has two iterations at
    least: where it has one, TVM puts the initialization of the reduction into it, for which the
    pipeline has no stage.
    """
    threads, least, most, shared, pipelined = (rows[:, column] for column in _LIMITS)
    # Numbers of threads and iterations are log2(1 + x).
    is_few = threads < least - _ROUNDING
    is_many = (threads > most + _ROUNDING) | (shared > 1 + _ROUNDING)
    is_one = (pipelined > 0) & (pipelined < 1 + _ROUNDING)
    return (threads > 0) & (is_few | is_many | is_one)


def can_describe(rows: Sequence[Rows | Exception]) -> bool:
    """Tell whether ``steps`` knows every instruction of the programs or drafts of some rows."""
    return not any(isinstance(own, Exception) or own[0, _UNKNOWN] for own in rows)
