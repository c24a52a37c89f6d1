"""Targets: devices and compiler configurations of programs."""

from __future__ import annotations

from sqlalchemy import func, select

from .. import identity
from ..records import Target
from ..results import TargetSummary
from . import read_statements as st
from . import schema
from .database import Database
from .loader import Loader
from .lookup import Lookup
from .programs import among
from .retry import retried
from .rows import Rows

_m, _t = schema.measurement.c, schema.target.c


class Targets:
    """``store.targets``: adds and finds targets."""

    def __init__(self, db: Database, loader: Loader, rows: Rows, lookup: Lookup) -> None:
        self._db = db
        self._loader = loader
        self._rows = rows
        self._lookup = lookup

    def __repr__(self) -> str:
        return f"<targets of {self._db.location}>"

    @retried
    def add(self, target: Target) -> int:
        """Add a target.

        Parameters
        ----------
        target : Target
            The target.

        Returns
        -------
        int
            Id of the target.
        """
        with self._db.transaction() as connection:
            return self._rows.target(connection, target)

    def get(self, id_: int) -> Target:
        """Return a target by its id.

        Parameters
        ----------
        id_ : int
            Id of the target.

        Returns
        -------
        Target

        Raises
        ------
        NotFoundError
            The database has no such target.
        """
        return self._loader.target(id_)

    def id_of(self, digest: bytes) -> int | None:
        """Return the id of the target with a digest.

        Parameters
        ----------
        digest : bytes
            Digest of the target.

        Returns
        -------
        int or None
        """
        rows = self._db.fetch(st.target_by_digest, digest=digest)
        return rows[0][0] if rows else None

    def find(self, text: str | None = None) -> list[TargetSummary]:
        """Return targets with their statistics, in order of insertion.

        Parameters
        ----------
        text : str or None
            An id, a kind or label (``llvm``, ``llvm skylake-avx512``), or JSON of some attributes
            such as ``{"kind": "llvm", "num-cores": 2}``; None for all.

        Returns
        -------
        list of TargetSummary
            :class:`Records` takes them where it takes ids. Reads all measurements.

        Raises
        ------
        UsageError
            The text begins as JSON and is none.

        Examples
        --------
        >>> store.targets.find("llvm")
        [Target(1, 'llvm skylake 1 cores', 2 records, 1 workloads)]
        """
        ids = None if text is None else self._lookup.targets(text)
        statement = (
            select(_t.id, func.count(_m.id), func.count(_m.workload_id.distinct()))
            .select_from(schema.target.outerjoin(schema.measurement, _m.target_id == _t.id))
            .group_by(_t.id)
            .order_by(_t.id)
        )
        if ids is not None:
            statement = statement.where(among(_t.id, ids))
        return [
            TargetSummary(id_, self._loader.target(id_), records, workloads)
            for id_, records, workloads in self._db.select(statement)
        ]

    def compatible(self, target: Target) -> list[int]:
        """Return the ids of targets of the same kind and architecture.

        Parameters
        ----------
        target : Target
            A target, which need not be stored.

        Returns
        -------
        list of int
        """
        architecture = identity.clean_text(target.architecture)
        rows = self._db.fetch(st.targets_by_kind, kind=target.kind, architecture=architecture)
        return [row[0] for row in rows]
