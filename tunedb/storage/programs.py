"""Programs: workloads for a target with a trace, as tuning and training read them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Select, bindparam, func, literal_column, select

from .. import identity
from ..programs.workload_info import is_rebuildable
from ..records import MODULES, Failure, FailureKind, Origin, Phase, Program, Status, Trust
from ..results import StoredProgram
from ..system.one_line import one_line
from . import read_statements as st
from . import schema
from .attribution import accepted_failure, is_merged_feature, is_usable_feature
from .database import Database
from .loader import Loader, in_batches
from .retractions import is_retracted
from .statements import any_foreign_feature
from .superseded import is_ranked

if TYPE_CHECKING:
    from ..features.base import NamedSet

_p, _w, _m = schema.program.c, schema.workload.c, schema.measurement.c
_f, _s, _x = schema.feature.c, schema.source.c, schema.failure.c


@dataclass(frozen=True, slots=True)
class MeasuredProgram:
    """A measurement as far as it decides whether its program must be measured again.

    Parameters
    ----------
    id : int
        Id of the measurement.
    program_id : int
        Id of its program.
    digest : bytes
        Digest of the program.
    run_secs : tuple of float or None
        All repeats in seconds; None for a failure.
    mean : float
        Mean in seconds, by which records are ranked; infinite for a failure.
    failure : Failure or None
        Last known cause of the failure.
    """

    id: int
    program_id: int
    digest: bytes
    run_secs: tuple[float, ...] | None
    mean: float
    failure: Failure | None = None

    __repr__ = one_line


class Programs:
    """``store.programs``, for packages that read single programs."""

    def __init__(self, db: Database, loader: Loader) -> None:
        self._db = db
        self._loader = loader

    def get(self, ids: Sequence[int]) -> list[StoredProgram]:
        """Return programs in the order of their ids; missing ones are omitted."""
        by_id: dict[int, Any] = {}
        for batch in in_batches(ids):
            rows = self._db.select(select(schema.program).where(_p.id.in_(batch)))
            by_id.update({row.id: row for row in rows})
        return self._loader.programs([by_id[id_] for id_ in ids if id_ in by_id])

    def ids(self, digests: Iterable[bytes]) -> list[int | None]:
        """Return the id of the program with each digest, or None."""
        rows_of = (self._db.fetch(st.program_by_digest, digest=digest) for digest in digests)
        return [rows[0][0] if rows else None for rows in rows_of]

    def targets(self, workload_ids: Iterable[int]) -> list[int]:
        """Return the ids of the targets for which these workloads have programs."""
        return sorted(
            {row[0] for w in workload_ids for row in self._db.fetch(st.targets_of, workload=w)}
        )

    def donors(self, origin: Origin) -> Iterator[tuple[bytes, float | None, int]]:
        """Yield donor, mean run time in s and time of measurement of an origin's records.

        Reads all records.
        """
        columns = select(_m.donor, _m.mean, _m.measured_at)
        rows = self._db.select(columns.where(_m.origin == origin.value))
        return (tuple(row) for row in rows if row.donor is not None)

    def args_info(self) -> dict[int, bytes]:
        """Return the description of each workload's arguments, by its id, if a record has one."""
        first = (
            select(_m.workload_id, func.min(_m.args_info_id).label("args_info_id"))
            .group_by(_m.workload_id)
            .subquery()
        )
        a = schema.args_info.c
        rows = self._db.select(
            select(first.c.workload_id, a.body).join_from(
                first, schema.args_info, a.id == first.c.args_info_id
            )
        )
        return {row.workload_id: row.body.encode() for row in rows}

    def structures(self) -> Iterator[tuple[int, int | None, Program]]:
        """Yield the distinct pairs of sketch and tail ids, each with one of their programs."""
        p = schema.program.c
        first = select(func.min(p.id)).group_by(p.sketch_id, p.tail_id).scalar_subquery()
        for row in self._db.select(select(schema.program).where(p.id.in_(first))):
            yield row.sketch_id, row.tail_id, self._loader.program(row)

    def measured(
        self,
        workload_ids: Sequence[int],
        target_id: int,
        session_ids: Sequence[int],
        after: int = 0,
    ) -> list[MeasuredProgram]:
        """Return the measurements of workloads in some sessions, in order of insertion.

        Served records, and failures with a known cause; retracted and superseded records and those
        of untrusted sources are omitted. Runs three statements.

        Parameters
        ----------
        workload_ids : sequence of int
            Workloads that are the same computation.
        target_id : int
            Id of the target.
        session_ids : sequence of int
            Ids of the sessions.
        after : int
            Only measurements with a greater id.
        """
        # Rows added between the statements are left for the next call.
        newest = self._db.select(select(func.max(_m.id).label("id")))[0].id or 0
        chosen = (
            _m.workload_id.in_(workload_ids),
            _m.target_id == target_id,
            _m.session_id.in_(session_ids),
        )
        joined = schema.measurement.join(schema.program, _p.id == _m.program_id)
        # By the index of top-k.
        ran = self._db.select(
            select(_m.id, _m.program_id, _p.digest, _m.run_secs, _m.mean)
            .select_from(joined)
            .where(
                *chosen,
                _m.served == literal_column("1"),
                _m.id.between(after + 1, newest),
                is_ranked(_m),
            )
        )
        # Starts from the failures, which are few.
        failed = self._db.select(
            select(_m.id, _m.program_id, _p.digest, _x.kind, _x.phase, _x.message, _x.seconds)
            .select_from(
                schema.failure.join(joined, _m.id == _x.measurement_id).join(
                    schema.source, _s.id == _m.source_id
                )
            )
            .where(
                *chosen,
                _x.measurement_id.between(after + 1, newest),
                _x.id == accepted_failure(schema.failure, _m),
                _m.status == int(Status.FAILED),
                _s.trust >= int(Trust.VERIFIED),
                ~is_retracted(_m),
            )
        )
        programs = {row.id: _ran(row) for row in ran} | {row.id: _failed(row) for row in failed}
        return [programs[id_] for id_ in sorted(programs)]

    def has_kernels(self) -> bool:
        """Return true if there are workloads of GPU kernels, whose programs have no features."""
        return bool(self._db.fetch(st.first_kernel))

    # ------------------------------------------------------------------ features

    def without_features(
        self,
        feature_set: NamedSet,
        *,
        after: int = 0,
        limit: int = 1000,
        workload_ids: Sequence[int] | None = None,
        target_ids: Sequence[int] | None = None,
        for_tvm: bool = False,
    ) -> list[StoredProgram]:
        """Return programs without rows of a feature set, in order of their ids.

        Merged rows count as missing: rows computed here replace them. GPU kernels are excluded:
        :mod:`tunedb.advisor` learns from their launches.

        Parameters
        ----------
        feature_set : FeatureSet
            Feature set; rows of its version count.
        after : int
            Only ids above this one: the last id of the previous page, or 0.
        limit : int
            Maximum number of programs.
        workload_ids, target_ids : sequence of int or None
            Only programs of these workloads and targets.
        for_tvm : bool
            Only programs whose module this TVM can load, and that a trusted source has measured.

        Returns
        -------
        list of StoredProgram
            Programs share the objects of their workload, target, sketch and tail.
        """
        if for_tvm:
            # An exact list, because SQL cannot compare versions.
            workload_ids = self.rebuildable(workload_ids)
        chosen = self.chosen(select(schema.program), workload_ids, target_ids, for_tvm=for_tvm)
        set_id = self.set_id(feature_set)
        if set_id is not None:
            known = select(1).where(
                _f.program_id == _p.id,
                _f.feature_set_id == set_id,
                *self.feature_conditions(computed=True),
            )
            chosen = chosen.where(~known.exists())
        rows = self._db.select(chosen.where(_p.id > after).order_by(_p.id).limit(limit))
        return self._loader.programs(rows)

    def chosen(
        self,
        statement: Any,
        workload_ids: Sequence[int] | None,
        target_ids: Sequence[int] | None,
        *,
        for_tvm: bool,
    ) -> Select[Any]:
        """Return a query of programs with these conditions."""
        if workload_ids is not None:
            statement = statement.where(among(_p.workload_id, workload_ids))
        if target_ids is not None:
            statement = statement.where(among(_p.target_id, target_ids))
        # Most databases have no kernels; these need no check per program.
        if self.has_kernels():
            statement = statement.where(_p.workload_id.not_in(st.kernels))
        # Most databases have only trusted sources; these need no check per program.
        if for_tvm and self._db.fetch(st.untrusted_sources):
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

    def rebuildable(self, workload_ids: Sequence[int] | None) -> list[int]:
        """Return the ids of workloads of which this TVM can load a module."""
        rows = self._db.select(
            select(_w.id, _w.format, _w.tvm_version, _w.script.is_not(None).label("has_script"))
            .where(_w.format.in_(MODULES))
            .order_by(_w.id)
        )
        allowed = None if workload_ids is None else set(workload_ids)
        return [
            row.id
            for row in rows
            if (allowed is None or row.id in allowed)
            and is_rebuildable(row.format, row.tvm_version, has_script=bool(row.has_script))
        ]

    def set_id(self, feature_set: NamedSet) -> int | None:
        """Return the id of a feature set, or None if the database has no row of it."""
        rows = self._db.fetch(st.feature_set, name=feature_set.name, version=feature_set.version)
        return rows[0][0] if rows else None

    def feature_conditions(self, *, computed: bool = False) -> list[Any]:
        """Return the conditions under which rows of features are usable.

        Parameters
        ----------
        computed : bool
            Only rows computed here.
        """
        # Few databases have merged rows; the others need no check per row.
        if not self._db.fetch(any_foreign_feature):
            return []
        return [~is_merged_feature(_f) if computed else is_usable_feature(_f)]


def among(column: Any, ids: Sequence[int]) -> Any:
    """Return the condition that a column has one of these values, of any number."""
    # Ids are written into the SQL text: a statement takes 32,766 parameters.
    return column.in_(bindparam(None, list(ids), expanding=True, literal_execute=True))


def _ran(row: Any) -> MeasuredProgram:
    times = identity.unpack_floats(row.run_secs)
    return MeasuredProgram(row.id, row.program_id, bytes(row.digest), times, row.mean)


def _failed(row: Any) -> MeasuredProgram:
    failure = Failure(FailureKind(row.kind), Phase(row.phase), row.message, row.seconds)
    return MeasuredProgram(row.id, row.program_id, bytes(row.digest), None, math.inf, failure)
