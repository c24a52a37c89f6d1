"""The only reader with SQL.

Every method is one statement, so it sees one snapshot, or says that it is made of several.
"""

from __future__ import annotations

from .records import Query

__all__ = ["Query"]
