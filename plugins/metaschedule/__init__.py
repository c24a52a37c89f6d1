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

Importing this package checks that the installed apache-tvm and apache-tvm-ffi fit; the classes
are loaded when they are first named, because builder workers import the package too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .compat import check_versions

if TYPE_CHECKING:
    from .cost_model import CostModel
    from .database import Database
    from .feature_extractor import FeatureExtractor, PerStoreFeature
    from .measure_callback import MeasureCallback
    from .search.mutators import (
        ComputeLocationMutator,
        CrossoverMutator,
        ParallelMutator,
        TileSizeMutator,
        UnrollMutator,
    )
    from .search.strategy import EvolutionarySearch
    from .tuning.known import Known
    from .tuning.reusing import ReusingBuilder, ReusingRunner
    from .tuning.tune import tune
    from .warm_builder import WarmBuilder

__all__ = [
    "ComputeLocationMutator",
    "CostModel",
    "CrossoverMutator",
    "Database",
    "EvolutionarySearch",
    "FeatureExtractor",
    "Known",
    "MeasureCallback",
    "ParallelMutator",
    "PerStoreFeature",
    "ReusingBuilder",
    "ReusingRunner",
    "TileSizeMutator",
    "UnrollMutator",
    "WarmBuilder",
    "tune",
]

check_versions()

_MODULES = {
    "ComputeLocationMutator": "search.mutators",
    "CostModel": "cost_model",
    "CrossoverMutator": "search.mutators",
    "Database": "database",
    "EvolutionarySearch": "search.strategy",
    "FeatureExtractor": "feature_extractor",
    "Known": "tuning.known",
    "MeasureCallback": "measure_callback",
    "ParallelMutator": "search.mutators",
    "PerStoreFeature": "feature_extractor",
    "ReusingBuilder": "tuning.reusing",
    "ReusingRunner": "tuning.reusing",
    "TileSizeMutator": "search.mutators",
    "UnrollMutator": "search.mutators",
    "WarmBuilder": "warm_builder",
    "tune": "tuning.tune",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = value
    return value
