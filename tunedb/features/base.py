"""Protocols of feature sets, and the registry of the feature sets.

A feature set is one object, registered by its name under the entry point ``tunedb.features``, which
other packages can use too.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from .. import extensions
from ..errors import NotFoundError, PluginError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..results import StoredProgram
    from ._nest import Nest

#: Entry points under which feature sets register.
GROUP = "tunedb.features"


class Needs(StrEnum):
    """The input of a feature set."""

    #: Steps, the workload's shapes and the target, from the database.
    STEPS = "steps"
    #: The flat form of the scheduled module, unchanged.
    SCHEDULED = "scheduled"
    #: The flat form of the module as TVM lowers it for its own ``PerStoreFeature``.
    LOWERED = "lowered"
    #: The flat form with blocks lowered and buffers flattened, unit loops kept.
    FLAT = "flat"


class NamedSet(Protocol):
    """The identity of a feature set, installed or stored."""

    @property
    def name(self) -> str:
        """Name such as ``ansor.per_store/tvm``; it includes options other than the default."""

    @property
    def version(self) -> int:
        """Number that changes whenever a value may change for some program."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns; empty if their number depends on the program."""


class FeatureSet(NamedSet, Protocol):
    """A named, versioned extractor: a :class:`StepFeatures` or a :class:`NestFeatures`."""

    @property
    def needs(self) -> Needs:
        """The input of the rows."""


@runtime_checkable
class StepFeatures(FeatureSet, Protocol):
    """A feature set that needs no IR."""

    def rows(self, programs: Sequence[StoredProgram]) -> list[NDArray[np.float32] | Exception]:
        """Return a float32 array (n, columns) per program, or the error."""


@runtime_checkable
class NestFeatures(FeatureSet, Protocol):
    """A feature set of programs in a flat form, which ``needs`` selects."""

    def nest_rows(self, nest: Nest, *, gpu: bool) -> NDArray[np.float64]:
        """Return the rows (n, columns) of a program; the GIL is released."""


@cache
def load_feature_sets() -> tuple[dict[str, FeatureSet], dict[str, str]]:
    """Return loaded feature sets, and error messages for the others, by name.

    ``TUNEDB_PLUGINS=""`` skips feature sets of other packages.
    """
    return extensions.load(GROUP, "feature set", _checked)


def _checked(name: str, candidate: Any) -> FeatureSet:
    """Return a feature set, or raise TypeError if it follows no protocol or has another name."""
    if not isinstance(candidate, StepFeatures | NestFeatures):
        raise TypeError("it is neither StepFeatures nor NestFeatures (tunedb.features.base)")
    if candidate.name != name:
        raise TypeError(f"it calls itself {candidate.name!r}")
    return candidate


def feature_sets() -> dict[str, FeatureSet]:
    """Return the installed feature sets that load, by name."""
    return load_feature_sets()[0]


def feature_set(name: str) -> FeatureSet:
    """Return one feature set.

    Raises
    ------
    NotFoundError
        No feature set has this name.
    PluginError
        The feature set does not load.
    """
    loaded, broken = load_feature_sets()
    if name in broken:
        raise PluginError(f"feature set {name!r} does not load ({broken[name]}); reinstall it")
    if name not in loaded:
        raise NotFoundError(f"no feature set {name!r}; there are: {', '.join(loaded)}")
    return loaded[name]


def feature_names(set: str | FeatureSet) -> tuple[str, ...]:
    """Return the names of the columns of a feature set, in their order.

    Parameters
    ----------
    set : str or FeatureSet
        One of :func:`feature_sets`, or its name.

    Returns
    -------
    tuple of str
        Empty if the number of columns depends on the program.

    Raises
    ------
    NotFoundError, PluginError
        As :func:`feature_set`.
    """
    return (feature_set(set) if isinstance(set, str) else set).columns
