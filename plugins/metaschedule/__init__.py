"""tunedb in TVM MetaSchedule's tuning loop.

>>> from tvm.s_tir import meta_schedule as ms
>>> from tunedb.plugins.metaschedule import (
...     CostModel, Database, MeasureCallback, WarmBuilder)
>>> database = Database("tune.db", target=target)
>>> ms.tune_tir(mod, target, work_dir, 64, database=database, builder=WarmBuilder(),
...             cost_model=CostModel(database),
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
    from .warm_builder import WarmBuilder

__all__ = [
    "CostModel",
    "Database",
    "FeatureExtractor",
    "MeasureCallback",
    "PerStoreFeature",
    "WarmBuilder",
]

check_versions()

_MODULES = {
    "CostModel": "cost_model",
    "Database": "database",
    "FeatureExtractor": "feature_extractor",
    "MeasureCallback": "measure_callback",
    "PerStoreFeature": "feature_extractor",
    "WarmBuilder": "warm_builder",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = value
    return value
