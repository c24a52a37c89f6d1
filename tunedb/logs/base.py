"""What a format of tuning logs is, and which formats there are."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from ..errors import FormatError, PluginError
from ..records import Measurement, Quarantined

_log = logging.getLogger("tunedb")

#: Entry points under which formats register.
GROUP = "tunedb.logs"


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a reader found, and how many bytes it has read so far."""

    item: Measurement | Quarantined
    position: int


class LogFormat(Protocol):
    """A format of tuning logs. Register the class under the entry point ``tunedb.logs``.

    Attributes
    ----------
    name : str
        The format's name.
    """

    name: str

    def matches(self, path: Path) -> bool:
        """Tell whether a file or directory looks like this format; reads little or nothing."""
        ...

    def files(self, path: Path) -> list[Path]:
        """Return the files that :meth:`read` reads, whose sizes make up the progress."""
        ...

    def read(self, path: Path) -> Iterator[Parsed]:
        """Yield what the log holds, in its order. Never raises for a bad line."""
        ...


@cache
def formats() -> dict[str, LogFormat]:
    """Return all formats by name; one that fails to load is reported and left out.

    ``TUNEDB_PLUGINS=""`` leaves out those of other packages.
    """
    found: dict[str, LogFormat] = {}
    own_only = os.environ.get("TUNEDB_PLUGINS") == ""
    for entry in entry_points(group=GROUP):
        if own_only and not entry.value.startswith("tunedb."):
            continue
        try:
            found[entry.name] = entry.load()()
        except Exception as error:  # a plugin's import may raise anything
            _log.warning("log format %s (%s) does not load: %s", entry.name, entry.value, error)
    if not found:
        raise PluginError("no log format is registered; reinstall tunedb: pip install tunedb")
    return found


def format_of(path: Path) -> LogFormat:
    """Return the format of a file or directory.

    Raises
    ------
    FormatError
        None matches.
    """
    for candidate in formats().values():
        if candidate.matches(path):
            return candidate
    names = ", ".join(sorted(formats()))
    raise FormatError(f"{path}: no log that tunedb knows (formats: {names})")
