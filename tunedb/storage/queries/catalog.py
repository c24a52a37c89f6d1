"""Workloads, targets, sources and sessions."""

from collections.abc import Iterable, Sequence
from typing import Any

import orjson
from sqlalchemy import case, func, select

from ... import identity
from ...errors import NotFoundError, UsageError
from ...programs.workload_info import is_rebuildable, signature_of
from ...records import (
    Quarantined,
    Session,
    Signature,
    Source,
    SourceKind,
    Status,
    Target,
    Trust,
    Workload,
    WorkloadFormat,
)
from ...results import QuarantineRow, TargetSummary, WorkloadSummary
from .. import schema
from ..attribution import is_believed
from . import statements as st
from .reader import Reader

_m, _f = schema.measurement.c, schema.failure.c


class Catalog(Reader):
    """What records refer to."""

    # ------------------------------------------------------------------ workloads and targets

    def workload(self, id_: int) -> Workload:
        """Return a workload by its id."""
        return self._workloads.fetch(id_, self._load_workload)

    def _load_workload(self, id_: int) -> Workload:
        row = self._one("workload", id_)
        script = None if row.script is None else self._unpack(row.script).decode()
        made = Workload(row.format, self._unpack(row.body), row.name, row.tvm_version, script)
        self._workload_digests[id_] = (made.digest, bytes(row.digest))
        return made

    def workload_digests(self, id_: int) -> tuple[bytes, bytes]:
        """Return the digest of a workload as it is, and the one that its row has."""
        if id_ not in self._workload_digests:
            self._load_workload(id_)
        return self._workload_digests[id_]

    def _one(self, table: str, id_: int) -> Any:
        """Return the row of a table by id."""
        rows = self._rows(st.by_id[table], id=id_)
        if not rows:
            raise NotFoundError(f"{self._location}: no {table} {id_}")
        return rows[0]

    def target(self, id_: int) -> Target:
        """Return a target by its id."""

        def load(key: int) -> Target:
            row = self._one("target", key)
            return Target(row.kind, row.config.encode(), row.text)

        return self._targets.fetch(id_, load)

    def workload_id(self, digest: bytes) -> int | None:
        """Return the id of the workload with this digest, or None."""
        rows = self._rows(st.workload_by_digest, digest=digest)
        return rows[0][0] if rows else None

    def served_targets(self, workload_ids: Iterable[int]) -> list[int]:
        """Return the ids of the targets for which these workloads have records to serve."""
        found = {r[0] for w in workload_ids for r in self._rows(st.served_targets, workload=w)}
        return sorted(found)

    def workloads_without(self, scheme: str, tvm_version: str, after: int) -> list[int]:
        """Return ids above `after` of served modules without such an alias.

        Those whose graph a TVM release wrote, and those with a script, which outlives releases.
        """
        return [
            row[0]
            for row in self._rows(
                st.workloads_without,
                scheme=scheme,
                version=tvm_version + "%",
                after=after,
                store=self.store_key,
            )
        ]

    def is_own(self, workload_id: int) -> bool:
        """Tell whether a workload has a record of an own source that can be served.

        A source that was merged is another database's, however far it is trusted.
        """
        return bool(self._rows(st.own_records, workload=workload_id, store=self.store_key))

    def own_workloads(self) -> set[int]:
        """Return the ids of the workloads with a record of an own source, failed ones too.

        Looks at all measurements; :meth:`is_own` does not.
        """
        return {row[0] for row in self._rows(st.own_workloads, store=self.store_key)}

    def local_workloads(self) -> set[int]:
        """Return the ids of the workloads that a source of this database has records of.

        The others came by merges alone: nobody here has said that their bodies are harmless.
        """
        return {row[0] for row in self._rows(st.local_workloads, store=self.store_key)}

    def last_workload(self) -> int:
        """Return the highest id of a workload, or 0."""
        return int(self._rows(st.last_workload)[0][0] or 0)

    def targets_of(self, workload_ids: Iterable[int]) -> list[int]:
        """Return the ids of the targets for which these workloads have programs."""
        found = {row[0] for w in workload_ids for row in self._rows(st.targets_of, workload=w)}
        return sorted(found)

    def find_workloads(self, text: str) -> list[int]:
        """Return the ids of workloads whose name, id or digest (from its start) is `text`.

        A FAIR T1 input has the name of the kernel that it describes, and is meant by its number or
        digest alone.
        """
        table = schema.workload.c
        rows = self._select(
            select(table.id, table.name, table.digest, table.format).order_by(table.id)
        )
        names = {row.id: "" if row.format == WorkloadFormat.T1 else row.name for row in rows}
        exact = [row.id for row in rows if text and text in (names[row.id], str(row.id))]
        if exact:
            return exact
        short = text.lower()
        return [
            row.id
            for row in rows
            if text in names[row.id] or (len(short) >= 4 and row.digest.hex().startswith(short))
        ]

    def find_targets(self, text: str) -> list[int]:
        """Return the ids of targets whose kind or id is `text`, or that have these attributes.

        Parameters
        ----------
        text : str
            ``llvm``, ``3`` or JSON such as ``{"kind": "llvm", "num-cores": 2}``.

        Raises
        ------
        UsageError
            Text that begins as JSON and is none.
        """
        wanted: dict[str, Any] | None = None
        if text.lstrip().startswith("{"):
            try:
                wanted = orjson.loads(text)
            except orjson.JSONDecodeError as error:
                raise UsageError(f"target {text!r} is not JSON ({error})") from None
        found = []
        for row in self._select(select(schema.target.c.id).order_by(schema.target.c.id)):
            target = self.target(row.id)
            if wanted is None:
                matches = text in (target.kind, str(row.id))
            else:
                have = target.attributes or {}
                matches = all(have.get(key) == value for key, value in wanted.items())
            if matches:
                found.append(row.id)
        return found

    def target_id(self, digest: bytes) -> int | None:
        """Return the id of the target with this digest, or None."""
        rows = self._rows(st.target_by_digest, digest=digest)
        return rows[0][0] if rows else None

    def target_ids(self) -> list[int]:
        """Return the ids of all targets."""
        return [row.id for row in self._select(select(schema.target.c.id))]

    def compatible_targets(self, target: Target) -> list[int]:
        """Return the ids of targets of the same kind and architecture."""
        architecture = identity.clean_text(target.architecture)
        rows = self._rows(st.targets_by_kind, kind=target.kind, architecture=architecture)
        return [row[0] for row in rows]

    def workloads(self) -> list[WorkloadSummary]:
        """Return all workloads with their numbers of records and best times."""
        stats = (
            select(
                _m.workload_id,
                func.count().label("records"),
                func.sum(case((_m.status == int(Status.FAILED), 1), else_=0)).label("failed"),
                func.min(case((_m.served == 1, _m.mean), else_=None)).label("best"),
                func.count(_m.target_id.distinct()).label("targets"),
            )
            .group_by(_m.workload_id)
            .subquery()
        )
        w = schema.workload.c
        rows = self._select(
            select(
                *(w.id, w.digest, w.name, w.format, w.tvm_version),
                *(w.function, w.arguments, w.family, w.flops),
                w.script.is_not(None).label("has_script"),
                stats,
            )
            .select_from(schema.workload.outerjoin(stats, stats.c.workload_id == w.id))
            .order_by(w.id)
        )
        return [
            WorkloadSummary(
                id=row.id,
                digest=row.digest,
                name=row.name,
                format=row.format,
                tvm_version=row.tvm_version,
                signature=self._signature(row),
                rebuildable=is_rebuildable(
                    row.format, row.tvm_version, has_script=bool(row.has_script)
                ),
                records=row.records or 0,
                failed=row.failed or 0,
                best=row.best,
                targets=row.targets or 0,
            )
            for row in rows
        ]

    def _signature(self, row: Any) -> Signature:
        """Return the signature of a workload's row; that of a row of revision 0001 is made now."""
        if (row.function, row.arguments, row.family, row.flops) == (None, None, None, None):
            return signature_of(self.workload(row.id))
        arguments = None
        if row.arguments is not None:
            arguments = tuple((d, tuple(shape)) for d, shape in orjson.loads(row.arguments))
        return Signature(row.function, arguments, row.family, row.flops)

    def targets(self) -> list[TargetSummary]:
        """Return all targets with their numbers of records and workloads."""
        t = schema.target.c
        rows = self._select(
            select(t.id, func.count(_m.id), func.count(_m.workload_id.distinct()))
            .select_from(schema.target.outerjoin(schema.measurement, _m.target_id == t.id))
            .group_by(t.id)
            .order_by(t.id)
        )
        return [TargetSummary(id_, self.target(id_), n, w) for id_, n, w in rows]

    def args_info(self) -> dict[int, bytes]:
        """Return a description of the arguments of each workload that has one, by its id."""
        first = (
            select(_m.workload_id, func.min(_m.args_info_id).label("args_info_id"))
            .group_by(_m.workload_id)
            .subquery()
        )
        a = schema.args_info.c
        rows = self._select(
            select(first.c.workload_id, a.body).join_from(
                first, schema.args_info, a.id == first.c.args_info_id
            )
        )
        return {row.workload_id: row.body.encode() for row in rows}

    def source(self, id_: int) -> Source:
        """Return a source by its id."""
        row = self._one("source", id_)
        return Source(row.name, SourceKind(row.kind), Trust(row.trust))

    def sources(self) -> list[tuple[Source, int]]:
        """Return all sources with their numbers of records."""
        t = schema.source.c
        rows = self._select(
            select(t.name, t.kind, t.trust, func.count(_m.id).label("records"))
            .select_from(schema.source.outerjoin(schema.measurement, _m.source_id == t.id))
            .group_by(t.id, t.name, t.kind, t.trust)
            .order_by(t.id)
        )
        return [
            (Source(row.name, SourceKind(row.kind), Trust(row.trust)), row.records) for row in rows
        ]

    def session(self, id_: int) -> Session:
        """Return a session by its id."""

        def load(key: int) -> Session:
            row = self._one("session", key)
            return Session(row.key, row.started_at, row.fingerprint.encode())

        return self._sessions.fetch(id_, load)

    def failures(self) -> dict[str, int]:
        """Return the number of failures of each kind."""
        rows = self._select(
            select(_f.kind, func.count(_f.measurement_id.distinct()))
            .join_from(schema.failure, schema.measurement, _m.id == _f.measurement_id)
            .where(is_believed(_f, _m))
            .group_by(_f.kind)
        )
        return {row[0]: row[1] for row in rows}

    def quarantined(
        self, limit: int | None = None, ids: Sequence[int] | None = None
    ) -> list[QuarantineRow]:
        """Return what could not be understood, newest first.

        Parameters
        ----------
        limit : int or None
            How many at most.
        ids : sequence of int or None
            Only these rows.
        """
        q = schema.quarantine.c
        statement = select(schema.quarantine).order_by(q.id.desc()).limit(limit)
        if ids is not None:
            statement = statement.where(q.id.in_(ids))
        return [
            QuarantineRow(
                row.id,
                self._sources.fetch(row.source_id, self.source),
                row.created_at,
                Quarantined(row.file, row.line, row.reason, bytes(row.data)),
            )
            for row in self._select(statement)
        ]

    def quarantined_lines(self, file: str) -> dict[int, list[int]]:
        """Return the ids of what could not be understood of a file, by number of line."""
        q = schema.quarantine.c
        lines: dict[int, list[int]] = {}
        for row in self._select(select(q.id, q.line).where(q.file == file)):
            lines.setdefault(row.line, []).append(row.id)
        return lines

    def quarantined_ids(self, file: str | None = None) -> list[int]:
        """Return the ids of what could not be understood, oldest first; of one file, or all."""
        q = schema.quarantine.c
        statement = select(q.id).order_by(q.id)
        if file is not None:
            statement = statement.where(q.file == file)
        return [row.id for row in self._select(statement)]
