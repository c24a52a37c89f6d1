"""What a feature set is, and which there are.

A feature set is one object, registered under the entry point ``tunedb.features`` by its own name.
Those of other packages are found in the same way.
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
    """What a feature set is computed from."""

    #: Steps, the workload's shapes and the target, as the database has them.
    STEPS = "steps"
    #: The flat form of the scheduled module, as it is.
    SCHEDULED = "scheduled"
    #: The flat form of the module as TVM lowers it for its own ``PerStoreFeature``.
    LOWERED = "lowered"
    #: The flat form with blocks lowered and buffers flattened, unit loops kept.
    FLAT = "flat"


class NamedSet(Protocol):
    """What tells one feature set from another: those that are installed, and those stored."""

    @property
    def name(self) -> str:
        """``ansor.per_store/tvm``; options other than the default are part of it."""

    @property
    def version(self) -> int:
        """Changes whenever a value may change for some program."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns; empty where their number depends on the program."""


class FeatureSet(NamedSet, Protocol):
    """A named, versioned extractor: a :class:`StepFeatures` or a :class:`NestFeatures`."""

    @property
    def needs(self) -> Needs:
        """What the rows are computed from."""


@runtime_checkable
class StepFeatures(FeatureSet, Protocol):
    """A feature set that needs no IR."""

    def rows(self, programs: Sequence[StoredProgram]) -> list[NDArray[np.float32] | Exception]:
        """Return a row matrix (n, columns) for each program, or why there is none."""


@runtime_checkable
class NestFeatures(FeatureSet, Protocol):
    """A feature set of programs in the flat form; ``needs`` says which."""

    def nest_rows(self, nest: Nest, *, gpu: bool) -> NDArray[np.float64]:
        """Return the rows (n, columns) of a program; the GIL is released."""


@cache
def load_feature_sets() -> tuple[dict[str, FeatureSet], dict[str, str]]:
    """Return all feature sets by name, and why others do not load.

    One that fails to load is reported and left out. ``TUNEDB_PLUGINS=""`` leaves out those of
    other packages.
    """
    return extensions.load(GROUP, "feature set", _checked)


def _checked(name: str, candidate: Any) -> FeatureSet:
    """Return a feature set, or raise TypeError with what is wrong about it."""
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
        There is none of this name.
    PluginError
        It does not load.
    """
    found, broken = load_feature_sets()
    if name in broken:
        raise PluginError(f"feature set {name!r} does not load ({broken[name]}); reinstall it")
    if name not in found:
        raise NotFoundError(f"no feature set {name!r}; there are: {', '.join(found)}")
    return found[name]


def feature_names(set: str | FeatureSet) -> tuple[str, ...]:
    """Return the names of the columns of a feature set, in their order.

    Parameters
    ----------
    set : str or FeatureSet
        One of :func:`feature_sets`, or its name.

    Returns
    -------
    tuple of str
        Empty where the number of columns depends on the program.

    Raises
    ------
    NotFoundError, PluginError
        As :func:`feature_set`.
    """
    return (feature_set(set) if isinstance(set, str) else set).columns
