"""Features: numeric rows of programs, the input of models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, and_, func, select

from .. import limits
from ..json_checks import parse_json
from ..results import FeatureCoverage, StoredFeatures
from . import schema, statements
from .database import Database
from .loader import in_batches
from .programs import Programs
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
        """Add rows of a feature set in one transaction; programs that have rows keep them.

        Merged rows are replaced by rows computed here. Programs removed meanwhile
        (:mod:`tunedb.storage.pruning`) are ignored.

        Parameters
        ----------
        feature_set : FeatureSet
            Feature set of the rows.
        programs : iterable of (int, array of shape (rows, columns))
            Program ids with their rows, which are stored as float32.

        Returns
        -------
        int
            Number of programs that had no rows computed here.

        Raises
        ------
        FormatError, LimitError
            Rows cannot be stored (:func:`tunedb.features.blobs.checked`); nothing is added.
        UsageError
            This version of the feature set is stored with other columns.
        """
        from ..features import blobs

        # Packed before the transaction, so that no other writer waits for it.
        rows = blobs.pack(feature_set, programs)
        if not rows:
            return 0
        with self._db.transaction() as connection:
            key = {"feature_set_id": self._rows.feature_set(connection, feature_set)}
            rows = [row | key for row in rows]
            new = statements.insert["feature"].many(connection, rows)
            if new < len(rows) and (merged := _merged_keys(connection, rows)):
                statements.delete_features.many(connection, merged)
                statements.unmark_features.many(connection, merged)
                new += statements.insert["feature"].many(connection, rows)
            return new

    def rows(
        self, feature_set: NamedSet, program_ids: Sequence[int]
    ) -> list[NDArray[np.float32] | None]:
        """Return the usable rows of programs, in the order of `program_ids`.

        Parameters
        ----------
        feature_set : FeatureSet
            Feature set; only rows of its version are returned.
        program_ids : sequence of int
            Program ids.

        Returns
        -------
        list of (array of float32, shape (rows, columns)) or None
            The arrays are read-only; None for programs without rows.

        Raises
        ------
        LimitError, StorageError
            Rows are damaged (:func:`tunedb.features.blobs.unpack`).
        """
        from ..features import blobs

        set_id = self._programs.set_id(feature_set)
        if set_id is None:
            return [None] * len(program_ids)
        arrays: dict[int, NDArray[np.float32]] = {}
        conditions = self._programs.feature_conditions()
        for ids in in_batches(program_ids):
            rows = self._db.select(
                select(_f.program_id, _f.n_rows, _f.n_columns, _f.data).where(
                    _f.program_id.in_(ids), _f.feature_set_id == set_id, *conditions
                )
            )
            arrays.update({r[0]: blobs.unpack(r[1], r[2], bytes(r[3])) for r in rows})
        return [arrays.get(id_) for id_ in program_ids]

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
        feature_set : FeatureSet
            Feature set; only rows of its version count.
        workload_ids, target_ids : sequence of int or None
            Only programs of these workloads and targets.
        for_tvm : bool
            Count as `able` only programs whose module this TVM can load, and that a trusted source
            has measured.
        computed : bool
            Count as `known` only rows that were computed here; otherwise all usable rows.

        Returns
        -------
        FeatureCoverage
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
                *self._programs.feature_conditions(computed=computed),
            ),
        )
        counted = select(func.count(), func.count(_f.program_id)).select_from(joined)
        able, known = self._db.select(
            self._programs.chosen(counted, workload_ids, target_ids, for_tvm=for_tvm)
        )[0]
        return FeatureCoverage(total, able, known)

    def sets(self) -> list[StoredFeatures]:
        """Return all feature sets known to the database, by name.

        Returns
        -------
        list of StoredFeatures
        """
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


def _merged_keys(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, int]]:
    """Return the keys of those rows for which the program has merged rows."""
    mark = schema.foreign_feature.c
    merged: list[dict[str, int]] = []
    for start in range(0, len(rows), limits.BATCH_ROWS):
        batch = rows[start : start + limits.BATCH_ROWS]
        statement = select(mark.program_id, mark.feature_set_id).where(
            mark.feature_set_id == batch[0]["feature_set_id"],
            mark.program_id.in_([row["program_id"] for row in batch]),
        )
        merged += [dict(row._mapping) for row in connection.execute(statement)]
    return merged
