"""Features: rows of numbers for programs, which models read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, and_, func, select

from .. import limits
from ..json_checks import parse_json
from ..results import FeatureCoverage, StoredFeatures
from . import schema, statements
from .database import Database
from .programs import Programs, parts
from .rows import Rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..features.base import NamedSet

_f, _s = schema.feature.c, schema.feature_set.c


class Features:
    """``store.features``: adds and reads rows of feature sets."""

    def __init__(self, db: Database, rows: Rows, programs: Programs) -> None:
        self._db = db
        self._rows = rows
        self._programs = programs

    def __repr__(self) -> str:
        return f"<features of {self._db.location}>"

    def add(self, feature_set: NamedSet, programs: Iterable[tuple[int, NDArray[Any]]]) -> int:
        """Add rows of a feature set in one transaction; programs that have theirs keep them.

        Rows that came with a merge are replaced: what is computed here counts. A program that was
        removed meanwhile (:mod:`tunedb.storage.pruning`) is left out.

        Parameters
        ----------
        feature_set : FeatureSet
            Whose rows they are.
        programs : iterable of (int, array of shape (rows, columns))
            A program's local number, and its rows; kept as float32.

        Returns
        -------
        int
            How many programs had none before that were computed here.

        Raises
        ------
        FormatError, LimitError
            Rows that cannot be kept (:func:`tunedb.features.blobs.checked`); nothing is added.
        UsageError
            This version of the feature set is stored with other columns.
        """
        from ..features import blobs

        # Before the transaction: nobody waits for the packing.
        rows = blobs.pack(feature_set, programs)
        if not rows:
            return 0
        with self._db.transaction() as connection:
            key = {"feature_set_id": self._rows.feature_set(connection, feature_set)}
            rows = [row | key for row in rows]
            new = statements.insert["feature"].many(connection, rows)
            if new < len(rows) and (marked := _marked(connection, rows)):
                statements.forget_features.many(connection, marked)
                statements.unmark_features.many(connection, marked)
                new += statements.insert["feature"].many(connection, rows)
            return new

    def rows(
        self, feature_set: NamedSet, program_ids: Sequence[int]
    ) -> list[NDArray[np.float32] | None]:
        """Return the rows of programs that count, in their order; None where there are none.

        Parameters
        ----------
        feature_set : FeatureSet
            Whose rows: those of this version.
        program_ids : sequence of int
            Local numbers.

        Returns
        -------
        list of (array of float32, shape (rows, columns)) or None
            The arrays are read-only.

        Raises
        ------
        LimitError, StorageError
            Rows that are damaged (:func:`tunedb.features.blobs.unpack`).
        """
        from ..features import blobs

        set_id = self._programs.set_id(feature_set)
        if set_id is None:
            return [None] * len(program_ids)
        found: dict[int, NDArray[np.float32]] = {}
        counting = self._programs.counting()
        for part in parts(program_ids):
            rows = self._db.select(
                select(_f.program_id, _f.n_rows, _f.n_columns, _f.data).where(
                    _f.program_id.in_(part), _f.feature_set_id == set_id, *counting
                )
            )
            found.update({r[0]: blobs.unpack(r[1], r[2], bytes(r[3])) for r in rows})
        return [found.get(id_) for id_ in program_ids]

    def coverage(
        self,
        feature_set: NamedSet,
        *,
        workload_ids: Sequence[int] | None = None,
        target_ids: Sequence[int] | None = None,
        for_tvm: bool = False,
        computed: bool = False,
    ) -> FeatureCoverage:
        """Count the programs that have rows of a feature set.

        Parameters
        ----------
        feature_set, workload_ids, target_ids, for_tvm
            As :meth:`Programs.without_features`.
        computed : bool
            Only rows that were computed here; otherwise all that count
            (:func:`tunedb.storage.attribution.features_count`).
        """
        chosen = self._programs.chosen(
            select(func.count()), workload_ids, target_ids, for_tvm=False
        )
        total = int(self._db.select(chosen.select_from(schema.program))[0][0])
        if for_tvm:
            workload_ids = self._programs.rebuildable(workload_ids)
        set_id = self._programs.set_id(feature_set)
        joined = schema.program.outerjoin(
            schema.feature,
            and_(
                _f.program_id == schema.program.c.id,
                _f.feature_set_id == set_id,
                *self._programs.counting(computed=computed),
            ),
        )
        counted = select(func.count(), func.count(_f.program_id)).select_from(joined)
        able, known = self._db.select(
            self._programs.chosen(counted, workload_ids, target_ids, for_tvm=for_tvm)
        )[0]
        return FeatureCoverage(total, able, known)

    def sets(self) -> list[StoredFeatures]:
        """Return the feature sets that have rows here, or had a place for them, by name."""
        sums = (
            select(
                _f.feature_set_id,
                func.count().label("programs"),
                func.sum(_f.n_rows).label("rows"),
                func.sum(func.length(_f.data)).label("bytes"),
            )
            .group_by(_f.feature_set_id)
            .subquery()
        )
        rows = self._db.select(
            select(_s.name, _s.version, _s.columns, sums)
            .select_from(schema.feature_set.outerjoin(sums, sums.c.feature_set_id == _s.id))
            .order_by(_s.name, _s.version)
        )
        return [
            StoredFeatures(
                name=row.name,
                version=row.version,
                columns=tuple(map(str, parse_json(row.columns.encode()))),
                programs=row.programs or 0,
                rows=int(row.rows or 0),
                bytes=int(row.bytes or 0),
            )
            for row in rows
        ]


def _marked(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, int]]:
    """Return the keys of those rows of a feature set that programs have from elsewhere."""
    mark = schema.foreign_feature.c
    found = select(mark.program_id, mark.feature_set_id)
    marked: list[dict[str, int]] = []
    for start in range(0, len(rows), limits.BATCH_ROWS):
        part = rows[start : start + limits.BATCH_ROWS]
        ids = [row["program_id"] for row in part]
        of_set = mark.feature_set_id == part[0]["feature_set_id"]
        marked += [
            dict(row._mapping)
            for row in connection.execute(found.where(of_set, mark.program_id.in_(ids)))
        ]
    return marked
