"""Loader of entry points: log formats, feature sets, parts of models."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, TypeVar

T = TypeVar("T")

_log = logging.getLogger("tunedb")


def load(
    group: str, what: str, check: Callable[[str, Any], T]
) -> tuple[dict[str, T], dict[str, str]]:
    """Return loaded entry points, and error messages for the others, by name.

    Entry points that fail to load are logged. ``TUNEDB_PLUGINS=""`` skips those of other packages.

    Parameters
    ----------
    group : str
        Group of entry points.
    what : str
        Description of an entry point, for messages.
    check : callable
        Called with an entry point's name and object; returns the value to register, or raises
        TypeError with the reason.
    """
    loaded: dict[str, T] = {}
    broken: dict[str, str] = {}
    own_only = os.environ.get("TUNEDB_PLUGINS") == ""
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        if own_only and not entry.value.startswith("tunedb."):
            continue
        try:
            loaded[entry.name] = check(entry.name, entry.load())
        except Exception as error:  # a plugin's import may raise anything
            broken[entry.name] = f"{type(error).__name__}: {error}"
            _log.warning("%s %s (%s) does not load: %s", what, entry.name, entry.value, error)
    return loaded, broken
