"""MetaSchedule cost model that is trained from a tunedb database and stores predictions there."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from tvm.s_tir.meta_schedule.cost_model.cost_model import _PyCostModel

from ....errors import PluginError, UsageError
from ....features.base import feature_set
from ....models._xgboost import import_xgboost
from ....models.recipe import Recipe
from ....models.training_job import check_recipe
from ..compat import register_errors
from ..database.database import Database, handle_of
from .learner import CostModelOptions
from .online import OnlineModel

__all__ = ["CostModel"]

register_errors()

_DEVICES = ("cpu", "cuda")


class CostModel(_PyCostModel):
    """A cost model that begins with a model of the database.

    For each target it takes the best model that ``tunedb train`` has stored for the feature set.
    Without one it trains a model on the programs that have rows of the set, in about a second; in
    an empty database it predicts at random until the first batch is measured. It retrains when the
    new trials are a fifth of its programs, when the trials of a workload have doubled, and when it
    orders them worse than its card promises (drift). In between, a residual corrects the scores of
    a workload if that helps on held-out trials.

    Predictions made before the measurement of a program are stored (``tunedb models drift``), with
    a card of each model of the run. Missing rows of measured candidates are stored, so that the
    next model need not extract them again.

    Parameters
    ----------
    database : Database, str or Path
        Database of the run, or the URL or path of another one.
    features : str
        Feature set. ``MeasureCallback`` stores rows of the database's feature sets.
    recipe : Recipe, optional
        Recipe of the models; by default that of the stored model. Its feature set is `features`.
        Training while tuning has no held-out workloads and at most 200 rounds; of a large database
        it uses 4,000 diverse programs.
    threads : int, optional
        Threads that extract, score and train; by default those of the tuning context.
    device : {"cpu", "cuda"}
        Device that XGBoost trains on. The tree method is always ``hist``.
    residuals : bool
        Whether scores may be corrected for the workload at hand.
    avoid_failures : bool
        Whether scores are lowered by the cost of expected failures
        (:func:`tunedb.models.failures.penalty`), if the database has a model of failures
        (``tunedb train --failures``).

    Raises
    ------
    NotFoundError
        The feature set, or a part of the recipe, does not exist.
    UsageError
        The number of columns of the feature set depends on the program; the device is unknown; or
        `threads` is below 1.
    PluginError
        XGBoost is not installed, or a part of the recipe does not load.

    Notes
    -----
    Scores are those of the loss, for ``throughput`` the share of the best throughput of the
    workload, and exponentials of them for losses that only compare; a candidate without features
    gets the lowest. Stored predictions are the model's own scores, without residual and failures.
    An error while they are written is logged once and never ends a run.

    Examples
    --------
    >>> database = Database("tune.db", target=target)
    >>> ms.tune_tir(mod, target, work_dir, 64, database=database, cost_model=CostModel(database),
    ...             measure_callbacks=[MeasureCallback(database),
    ...                                ms.measure_callback.RemoveBuildArtifact(),
    ...                                ms.measure_callback.UpdateCostModel()])
    """

    # TVM's objects lack an instance dictionary.
    __slots__ = ("__dict__", "__weakref__")

    def __init__(
        self,
        database: Database | str | Path,
        *,
        features: str = "tunedb.scheduled",
        recipe: Recipe | None = None,
        threads: int | None = None,
        device: str = "cpu",
        residuals: bool = True,
        avoid_failures: bool = True,
    ) -> None:
        import_xgboost()
        if device not in _DEVICES:
            raise UsageError(f"device must be one of {', '.join(_DEVICES)}, not {device!r}")
        if threads is not None and threads < 1:
            raise UsageError(f"threads must be 1 or more, not {threads}")
        if recipe is not None:
            recipe = replace(recipe, features=features)
            check_recipe(recipe)
        options = CostModelOptions(feature_set(features), recipe, device, residuals, avoid_failures)
        if isinstance(database, str | Path):
            database = Database(database, features=())
        handle = handle_of(database)
        if handle is None:
            raise PluginError(
                f"CostModel needs a tunedb database, not {type(database).__name__}; "
                "give it one, or a path: CostModel('tune.db')"
            )
        online = OnlineModel(handle, options, threads)
        super().__init__(online.load, online.save, online.update, online.predict)
        self._online = online
        # A run may own the only other reference to it.
        self._database = database
        # Callbacks may store the last batch after the cost model was trained on it.
        weakref.finalize(online, online.ledger.write)

    def flush(self) -> None:
        """Write predictions whose programs were stored after the cost model saw them."""
        self._online.flush()

    def __copy__(self) -> NoReturn:
        raise TypeError("a CostModel cannot be copied; create another one for the database")

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> NoReturn:
        self.__copy__()
