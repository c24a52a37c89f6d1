"""The only import of scikit-learn; it is late, because advice needs NumPy alone."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..errors import PluginError


def import_sklearn(name: str = "sklearn") -> Any:
    """Return the module ``sklearn``, or one of its modules.

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
