"""The only way to scikit-learn: imported late, because advice does without."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ...errors import PluginError


def import_sklearn(name: str = "sklearn") -> Any:
    """Return the module ``sklearn``, or one inside of it.

    Raises
    ------
    PluginError
        It is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise PluginError(
            f"scikit-learn does not load ({error}); run: pip install 'tunedb[advise]'"
        ) from None
