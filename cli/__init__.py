"""The command line ``tunedb``: click commands, one file each, without SQL.

Only this package prints. Commands are imported when they are called, and they import the library
inside their functions: ``tunedb --help`` takes a tenth of a second.
"""

from __future__ import annotations

from .app import main

__all__ = ["main"]
