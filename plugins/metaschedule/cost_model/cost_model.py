"""The MetaSchedule cost model that is trained from, and keeps its ledger in, a tunedb database."""

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
from .learner import Settings
from .online import OnlineModel

__all__ = ["CostModel"]

register_errors()

_DEVICES = ("cpu", "cuda")


class CostModel(_PyCostModel):
    """A cost model that begins with what a database knows.

    For each target it takes the best model that ``tunedb train`` has made for the feature set. If
    there is none it trains one of the programs that have rows of the set, in about a second; in an
    empty database it predicts at random until the first batch is measured. It learns from what is
    measured when that is a fifth of all it knows, when the trials of a workload have doubled, and
    when it orders them worse than its card promises (drift). In between, scores of a workload are
    corrected by a residual where that helps on trials that were left out of it.

    What a model said of a program before it was measured is kept (``tunedb models drift``), with a
    card of each model that was trained on the way. Rows of measured candidates are stored unless
    they are, so that nothing is extracted again for the next model.

    Parameters
    ----------
    database : Database, str or Path
        The database of the run, or what opens another one.
    features : str
        Feature set. ``MeasureCallback`` stores rows of the sets that the database is told to keep.
    recipe : Recipe, optional
        How models are trained; by default as the one that is found was. Its feature set is
        `features`. While tuning there are no held-out workloads and at most 200 rounds, and of a
        large database 4,000 diverse programs are learnt from.
    threads : int, optional
        Threads that extract, score and train; by default those of the tuning context.
    device : {"cpu", "cuda"}
        Where XGBoost trains. The tree method is always ``hist``.
    residuals : bool
        Whether scores may be corrected for the workload at hand.
    avoid_failures : bool
        Whether scores are lowered by the share that expected failures cost
        (:func:`tunedb.models.failures.penalty`), where the database has a model of failures
        (``tunedb train --failures``).

    Raises
    ------
    NotFoundError
        There is no such feature set, or no such part of a recipe.
    UsageError
        A feature set whose number of columns depends on the program; another device; no threads.
    PluginError
        XGBoost is not installed, or a part does not load.

    Notes
    -----
    Scores are those of the loss, for ``throughput`` the share of the best throughput of the
    workload, and exponentials of them for losses that only compare; a candidate without features
    gets the lowest. The ledger has the model's own score, without residual and failures. Nothing
    that fails while the ledger is written ends a run: it is logged once.

    Examples
    --------
    >>> database = Database("tune.db", target=target)
    >>> ms.tune_tir(mod, target, work_dir, 64, database=database, cost_model=CostModel(database),
    ...             measure_callbacks=[MeasureCallback(database),
    ...                                ms.measure_callback.RemoveBuildArtifact(),
    ...                                ms.measure_callback.UpdateCostModel()])
    """

    # TVM's objects have no dictionary of their own.
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
        settings = Settings(feature_set(features), recipe, device, residuals, avoid_failures)
        if isinstance(database, str | Path):
            database = Database(database, features=())
        handle = handle_of(database)
        if handle is None:
            raise PluginError(
                f"CostModel needs a tunedb database, not {type(database).__name__}; "
                "give it one, or a path: CostModel('tune.db')"
            )
        online = OnlineModel(handle, settings, threads)
        super().__init__(online.load, online.save, online.update, online.predict)
        self._online = online
        # A run may own the only other reference to it.
        self._database = database
        # Callbacks may store the last batch after the cost model has learnt from it.
        weakref.finalize(online, online.ledger.write)

    def flush(self) -> None:
        """Write predictions whose programs were stored after the cost model saw them."""
        self._online.flush()

    def __copy__(self) -> NoReturn:
        raise TypeError("a CostModel cannot be copied; create another one of its database")

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> NoReturn:
        self.__copy__()
