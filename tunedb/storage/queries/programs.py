"""Programs and their features."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Select, and_, bindparam, func, select

from ...json_checks import parse_json
from ...programs.workload_info import is_rebuildable
from ...records import MODULES, Signature, Trace, Trust, Workload
from ...results import FeatureCoverage, StoredFeatures, StoredProgram
from .. import schema
from ..attribution import features_count, is_marked
from ..statements import foreign_features
from . import statements as st
from .equivalence import Equivalence

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ...features.base import NamedSet

_p, _w, _m = schema.program.c, schema.workload.c, schema.measurement.c
_f, _s = schema.feature.c, schema.feature_set.c

#: Values in one IN (…): SQLite takes 32,766 parameters.
_IN = 500


class Programs(Equivalence):
    """Programs as feature sets see them, and the rows that were computed of them."""

    # ------------------------------------------------------------------ programs

    def programs(self, ids: Sequence[int]) -> list[StoredProgram]:
        """Return programs by their ids, in their order; those that do not exist are left out."""
        found: dict[int, Any] = {}
        for part in _parts(ids):
            rows = self._select(select(schema.program).where(_p.id.in_(part)))
            found.update({row.id: row for row in rows})
        return self._stored([found[id_] for id_ in ids if id_ in found])

    def program_ids(self, digests: Iterable[bytes]) -> list[int | None]:
        """Return the id of the program with each digest, None where there is none."""
        found = [self._rows(st.program_by_digest, digest=digest) for digest in digests]
        return [rows[0][0] if rows else None for rows in found]

    def is_trusted(self, program_id: int) -> bool:
        """Tell whether a program has a record of a source whose programs TVM may get."""
        return bool(self._rows(st.trusted_records, program=program_id))

    def is_own_program(self, program_id: int) -> bool:
        """Tell whether a program has a record of an own source of this database."""
        return bool(self._rows(st.own_programs, program=program_id, store=self.store_key))

    def programs_without(
        self,
        feature_set: NamedSet,
        *,
        after: int = 0,
        limit: int = 1000,
        workload_ids: Sequence[int] | None = None,
        target_ids: Sequence[int] | None = None,
        for_tvm: bool = False,
    ) -> list[StoredProgram]:
        """Return programs whose rows of a feature set are missing, in order of their ids.

        Rows that came with a merge count as missing: what is computed here takes their place.
        Configurations of GPU kernels are none: :mod:`tunedb.blocksize` learns from their launches.

        Parameters
        ----------
        feature_set : FeatureSet
            Whose rows are missing: those of this version.
        after : int
            Only ids above it: the last one of the page before, or 0.
        limit : int
            How many programs at most.
        workload_ids, target_ids : sequence of int or None
            Only programs of these workloads and targets.
        for_tvm : bool
            Only programs whose module today's TVM can make and may get: a source that is trusted
            has measured them.

        Returns
        -------
        list of StoredProgram
            Programs of one workload, target, sketch or tail share its object.
        """
        if for_tvm:
            # An exact list: SQL knows no versions.
            workload_ids = self._rebuildable(workload_ids)
        chosen = self._chosen(select(schema.program), workload_ids, target_ids, for_tvm=for_tvm)
        set_id = self._set_id(feature_set)
        if set_id is not None:
            known = select(1).where(
                _f.program_id == _p.id, _f.feature_set_id == set_id, *self._counting(computed=True)
            )
            chosen = chosen.where(~known.exists())
        rows = self._select(chosen.where(_p.id > after).order_by(_p.id).limit(limit))
        return self._stored(rows)

    def feature_coverage(
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
            As :meth:`programs_without`.
        computed : bool
            Only rows that were computed here; otherwise all that count
            (:func:`tunedb.storage.attribution.features_count`).
        """
        chosen = self._chosen(select(func.count()), workload_ids, target_ids, for_tvm=False)
        total = int(self._select(chosen.select_from(schema.program))[0][0])
        if for_tvm:
            workload_ids = self._rebuildable(workload_ids)
        set_id = self._set_id(feature_set)
        joined = schema.program.outerjoin(
            schema.feature,
            and_(
                _f.program_id == _p.id,
                _f.feature_set_id == set_id,
                *self._counting(computed=computed),
            ),
        )
        counted = select(func.count(), func.count(_f.program_id)).select_from(joined)
        able, known = self._select(
            self._chosen(counted, workload_ids, target_ids, for_tvm=for_tvm)
        )[0]
        return FeatureCoverage(total, able, known)

    def _chosen(
        self,
        statement: Any,
        workload_ids: Sequence[int] | None,
        target_ids: Sequence[int] | None,
        *,
        for_tvm: bool,
    ) -> Select[Any]:
        """Return a query of programs with the conditions that were asked for."""
        if workload_ids is not None:
            statement = statement.where(_among(_p.workload_id, workload_ids))
        if target_ids is not None:
            statement = statement.where(_among(_p.target_id, target_ids))
        # Most databases have no kernels, and then no program need be asked.
        if self.has_kernels():
            statement = statement.where(_p.workload_id.not_in(st.kernels))
        # Most databases have trusted sources alone, and then no program need be asked.
        if for_tvm and self._rows(st.untrusted_sources):
            trusted = (
                select(1)
                .select_from(
                    schema.measurement.join(schema.source, schema.source.c.id == _m.source_id)
                )
                .where(_m.program_id == _p.id, schema.source.c.trust >= int(Trust.VERIFIED))
            )
            statement = statement.where(trusted.exists())
        chosen: Select[Any] = statement
        return chosen

    def _rebuildable(self, workload_ids: Sequence[int] | None) -> list[int]:
        """Return the ids of workloads of which today's TVM can make a module."""
        rows = self._select(
            select(_w.id, _w.format, _w.tvm_version, _w.script.is_not(None).label("has_script"))
            .where(_w.format.in_(MODULES))
            .order_by(_w.id)
        )
        wanted = None if workload_ids is None else set(workload_ids)
        return [
            row.id
            for row in rows
            if (wanted is None or row.id in wanted)
            and is_rebuildable(row.format, row.tvm_version, has_script=bool(row.has_script))
        ]

    def _stored(self, rows: Sequence[Any]) -> list[StoredProgram]:
        """Return programs of rows of their table."""
        workloads = {i: self._described.fetch(i, self._describe) for i in {r[2] for r in rows}}
        targets = {i: self.target(i) for i in {r[3] for r in rows}}
        sketches = {i: self._trace_body("sketch", i) for i in {r[4] for r in rows}}
        tails: dict[int | None, bytes | None] = {None: None}
        tails.update({i: self._trace_body("tail", i) for i in {r[5] for r in rows} - {None}})
        return [
            StoredProgram(
                id_,
                workload,
                *workloads[workload],
                target,
                targets[target],
                sketch,
                tail,
                Trace(sketches[sketch], tails[tail], bytes(decisions)),
            )
            for id_, _, workload, target, sketch, tail, decisions in rows
        ]

    def _describe(self, id_: int) -> tuple[Workload, Signature]:
        """Return a workload and its signature."""
        return self.workload(id_), self._signature(self._one("workload", id_))

    def _trace_body(self, table: str, id_: int) -> bytes:
        """Return the body of a sketch or tail."""
        return self._bodies[table].fetch(id_, lambda k: self._unpack(self._one(table, k).body))

    # ------------------------------------------------------------------ features

    def has_kernels(self) -> bool:
        """Tell whether there are workloads of GPU kernels, whose programs have no features."""
        return bool(self._rows(st.first_kernel))

    def feature_rows(
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
        from ...features import blobs

        set_id = self._set_id(feature_set)
        if set_id is None:
            return [None] * len(program_ids)
        found: dict[int, NDArray[np.float32]] = {}
        counting = self._counting()
        for part in _parts(program_ids):
            rows = self._select(
                select(_f.program_id, _f.n_rows, _f.n_columns, _f.data).where(
                    _f.program_id.in_(part), _f.feature_set_id == set_id, *counting
                )
            )
            found.update({r[0]: blobs.unpack(r[1], r[2], bytes(r[3])) for r in rows})
        return [found.get(id_) for id_ in program_ids]

    def _counting(self, *, computed: bool = False) -> list[Any]:
        """Return the conditions under which rows of features count.

        Parameters
        ----------
        computed : bool
            Only those that were computed here.
        """
        # Few databases have rows from elsewhere, and then no row need be asked.
        if not self._rows(foreign_features):
            return []
        return [~is_marked(_f) if computed else features_count(_f)]

    def stored_features(self) -> list[StoredFeatures]:
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
        rows = self._select(
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

    def _set_id(self, feature_set: NamedSet) -> int | None:
        """Return the id of a feature set, or None where no row of it was ever stored."""
        rows = self._rows(st.feature_set, name=feature_set.name, version=feature_set.version)
        return rows[0][0] if rows else None


def _parts(values: Sequence[int]) -> Iterable[Sequence[int]]:
    """Yield values in parts that fit one statement."""
    return (values[start : start + _IN] for start in range(0, len(values), _IN))


def _among(column: Any, ids: Sequence[int]) -> Any:
    """Return the condition that a column has one of these values, however many they are."""
    # Numbers in the text: a statement takes 32,766 parameters.
    return column.in_(bindparam(None, list(ids), expanding=True, literal_execute=True))
