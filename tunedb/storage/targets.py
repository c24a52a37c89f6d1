"""Targets: the devices for which programs are."""

from __future__ import annotations

from typing import Any

import orjson
from sqlalchemy import func, select

from .. import identity
from ..errors import UsageError
from ..records import Target
from ..results import TargetSummary
from . import read_statements as st
from . import schema
from .database import Database
from .loader import Loader
from .retry import retried
from .rows import Rows

_m = schema.measurement.c


class Targets:
    """``store.targets``: adds and finds targets."""

    def __init__(self, db: Database, loader: Loader, rows: Rows) -> None:
        self._db = db
        self._loader = loader
        self._rows = rows

    def __repr__(self) -> str:
        return f"<targets of {self._db.location}>"

    @retried
    def add(self, target: Target) -> int:
        """Add a target; return its id."""
        with self._db.transaction() as connection:
            return self._rows.target(connection, target)

    def get(self, id_: int) -> Target:
        """Return a target by its id.

        Raises
        ------
        NotFoundError
            There is none.
        """
        return self._loader.target(id_)

    def id_of(self, digest: bytes) -> int | None:
        """Return the id of the target with this digest, or None."""
        rows = self._db.fetch(st.target_by_digest, digest=digest)
        return rows[0][0] if rows else None

    def find(self, text: str | None = None) -> list[int]:
        """Return the ids of targets whose kind or id is `text`, or that have these attributes.

        Parameters
        ----------
        text : str or None
            ``llvm``, ``3`` or JSON such as ``{"kind": "llvm", "num-cores": 2}``; None for all.

        Raises
        ------
        UsageError
            Text that begins as JSON and is none.
        """
        rows = self._db.select(select(schema.target.c.id).order_by(schema.target.c.id))
        if text is None:
            return [row.id for row in rows]
        wanted: dict[str, Any] | None = None
        if text.lstrip().startswith("{"):
            try:
                wanted = orjson.loads(text)
            except orjson.JSONDecodeError as error:
                raise UsageError(f"target {text!r} is not JSON ({error})") from None
        found = []
        for row in rows:
            target = self._loader.target(row.id)
            if wanted is None:
                matches = text in (target.kind, str(row.id))
            else:
                have = target.attributes or {}
                matches = all(have.get(key) == value for key, value in wanted.items())
            if matches:
                found.append(row.id)
        return found

    def summaries(self) -> list[TargetSummary]:
        """Return all targets with their numbers of records and workloads."""
        t = schema.target.c
        rows = self._db.select(
            select(t.id, func.count(_m.id), func.count(_m.workload_id.distinct()))
            .select_from(schema.target.outerjoin(schema.measurement, _m.target_id == t.id))
            .group_by(t.id)
            .order_by(t.id)
        )
        return [TargetSummary(id_, self._loader.target(id_), n, w) for id_, n, w in rows]

    def compatible(self, target: Target) -> list[int]:
        """Return the ids of targets of the same kind and architecture."""
        architecture = identity.clean_text(target.architecture)
        rows = self._db.fetch(st.targets_by_kind, kind=target.kind, architecture=architecture)
        return [row[0] for row in rows]
