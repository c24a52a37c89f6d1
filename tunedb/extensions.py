"""What is registered under an entry point, by name: log formats, feature sets, parts of models."""

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
    """Return what loads of a group, and why the rest does not, both by name.

    What fails to load is logged and left out. ``TUNEDB_PLUGINS=""`` leaves out what belongs to
    other packages.

    Parameters
    ----------
    group : str
        Of entry points.
    what : str
        What they are, for messages.
    check : callable
        Called with an entry point's name and object; returns what is registered, or raises
        TypeError with what is wrong about it.
    """
    found: dict[str, T] = {}
    broken: dict[str, str] = {}
    own_only = os.environ.get("TUNEDB_PLUGINS") == ""
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        if own_only and not entry.value.startswith("tunedb."):
            continue
        try:
            found[entry.name] = check(entry.name, entry.load())
        except Exception as error:  # a plugin's import may raise anything
            broken[entry.name] = f"{type(error).__name__}: {error}"
            _log.warning("%s %s (%s) does not load: %s", what, entry.name, entry.value, error)
    return found, broken
