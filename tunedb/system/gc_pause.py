"""Less garbage collection while millions of small objects are made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_gc() -> Iterator[None]:
    """Do not search for cycles inside of the block.

    Python looks through young objects after every 700 of them, and a line of a log has 150: that
    is a seventh of an import's time. Nothing that an import, a merge or a round of a search makes
    is part of a cycle.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
