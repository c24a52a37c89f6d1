"""The command line ``tunedb``: click commands, one package per group, without SQL.

Only this package prints. A command's module is imported when the command is called, and imports the
library inside its functions: ``tunedb --help`` takes a tenth of a second.
"""

from __future__ import annotations

from .app import main

__all__ = ["main"]
