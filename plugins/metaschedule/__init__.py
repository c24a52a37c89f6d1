"""tunedb in TVM MetaSchedule's tuning loop.

>>> from tunedb.plugins.metaschedule import tune
>>> result = tune(mod, target, database="tune.db", max_trials_global=64)

or part by part, in TVM's own calls:

>>> from tvm.s_tir import meta_schedule as ms
>>> from tunedb.plugins.metaschedule import (
...     CostModel, Database, EvolutionarySearch, MeasureCallback, WarmBuilder)
>>> database = Database("tune.db", target=target)
>>> ms.tune_tir(mod, target, work_dir, 64, database=database, builder=WarmBuilder(),
...             cost_model=CostModel(database), strategy=EvolutionarySearch(database),
...             measure_callbacks=[MeasureCallback(database),
...                                ms.measure_callback.RemoveBuildArtifact(),
...                                ms.measure_callback.UpdateCostModel()])

Importing this package checks that the installed apache-tvm and apache-tvm-ffi fit together.
Classes are loaded on first use, because builder workers import the package too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ...system import cpus  # noqa: F401  it reads which CPUs there are before TVM pins a thread
from .compat import check_versions

if TYPE_CHECKING:
    from .cost_model.cost_model import CostModel
    from .database.database import Database
    from .deploy.apply import compile
    from .features.feature_extractor import FeatureExtractor, PerStoreFeature
    from .measure.measure_callback import MeasureCallback
    from .measure.measured import Known
    from .measure.reuse import ReusingBuilder, ReusingRunner
    from .search.mutators import OperatorMutator
    from .search.strategy import EvolutionarySearch
    from .tuning.tune import tune
    from .workers.warm_builder import WarmBuilder

__all__ = [
    "CostModel",
    "Database",
    "EvolutionarySearch",
    "FeatureExtractor",
    "Known",
    "MeasureCallback",
    "OperatorMutator",
    "PerStoreFeature",
    "ReusingBuilder",
    "ReusingRunner",
    "WarmBuilder",
    "compile",
    "tune",
]

check_versions()

_MODULES = {
    "CostModel": "cost_model.cost_model",
    "Database": "database.database",
    "EvolutionarySearch": "search.strategy",
    "FeatureExtractor": "features.feature_extractor",
    "Known": "measure.measured",
    "MeasureCallback": "measure.measure_callback",
    "OperatorMutator": "search.mutators",
    "PerStoreFeature": "features.feature_extractor",
    "ReusingBuilder": "measure.reuse",
    "ReusingRunner": "measure.reuse",
    "WarmBuilder": "workers.warm_builder",
    "compile": "deploy.apply",
    "tune": "tuning.tune",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = value
    return value
