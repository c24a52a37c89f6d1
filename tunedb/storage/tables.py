"""Tables: records and what belongs to them as columns, for analysis (docs/tables.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from sqlalchemy import case, literal_column, select

from ..errors import NotFoundError, StorageError, UsageError
from ..json_checks import parse_json
from ..records import Origin, Status, Trust, WorkloadFormat
from ..system.gc_pause import paused_gc
from . import schema
from ._lists import transpose
from .database import Database
from .engine import Prepared
from .lookup import Lookup
from .programs import Programs
from .read_statements import parameter
from .records import AnyTargets, AnyWorkloads, ids_of
from .retractions import is_retracted

if TYPE_CHECKING:
    from .arrow import Table

_m, _p, _f = schema.measurement.c, schema.program.c, schema.feature.c

TableName: TypeAlias = Literal[
    "records", "best", "failures", "tasks", "workloads", "sessions", "features", "launches"
]

#: int64, float64, float32, bool, timestamp[us, UTC], string, list<string>, list<float64>, and
#: fixed_size_list<float32>, of Arrow.
ColumnType: TypeAlias = Literal[
    "int", "float", "float32", "bool", "time", "text", "texts", "floats", "vector"
]

#: Rows of a batch: the bytes of a column should fit into the processor's cache.
_ROWS = 8_192

#: The first microsecond of the year 10000, which the views and many clients do not know.
_YEAR_10000 = 253_402_300_800_000_000

#: Programs of a page of features, which have up to hundreds of rows each.
_PROGRAMS = 1_024


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table.

    Parameters
    ----------
    name : str
        Its name, also in the view of that table.
    type : str
        One of :data:`ColumnType`.
    unit : str
        Unit of its numbers; empty if they have none.
    source : str
        SQL of its values, if not the column of the view.
    """

    name: str
    type: ColumnType
    unit: str = ""
    source: str = ""


def _columns(*columns: tuple[str, ...]) -> tuple[TableColumn, ...]:
    return tuple(TableColumn(*column) for column in columns)  # type: ignore[arg-type]


_TASK = (("workload_id", "int"), ("workload", "text"), ("target_id", "int"), ("target", "text"))
_FACTS = (("family", "text"), ("arguments", "text"), ("flops", "float", "FLOP"))
_SOURCE = (("source", "text"), ("trust", "text"))

#: Columns of all tables: the public contract of :meth:`Store.table`.
COLUMNS: dict[str, tuple[TableColumn, ...]] = {
    "records": _columns(
        ("record_id", "int"),
        ("digest", "text"),
        *_TASK,
        ("status", "text"),
        ("mean_seconds", "float", "s"),
        ("run_seconds", "floats", "s"),
        ("trial_seconds", "float", "s"),
        ("measured_at", "time"),
        ("session_id", "int"),
        *_SOURCE,
        ("served", "bool"),
        ("retracted", "bool"),
        ("origin", "text"),
        ("program_id", "int"),
        ("program", "text"),
        ("donor", "text"),
        ("decisions", "texts"),
    ),
    "best": _columns(
        *_TASK,
        *_FACTS,
        ("record_id", "int"),
        ("mean_seconds", "float", "s"),
        ("gflops", "float", "GFLOP/s"),
        ("measured_at", "time"),
        *_SOURCE,
        ("decisions", "texts"),
    ),
    "failures": _columns(
        ("record_id", "int"),
        *_TASK,
        ("kind", "text"),
        ("phase", "text"),
        ("message", "text"),
        ("seconds", "float", "s"),
        ("measured_at", "time"),
        ("session_id", "int"),
        *_SOURCE,
        ("retracted", "bool"),
    ),
    "tasks": _columns(
        *_TASK,
        *_FACTS,
        ("records", "int"),
        ("failed", "int"),
        ("foreign_records", "int"),
        ("served", "int"),
        ("best_seconds", "float", "s"),
        ("best_gflops", "float", "GFLOP/s"),
        ("first_measured_at", "time"),
        ("last_measured_at", "time"),
    ),
    "workloads": _columns(
        ("workload_id", "int", "", "w.id"),
        ("workload", "text", "", "w.name"),
        ("format", "text", "", "w.format"),
        ("family", "text", "", "w.family"),
        ("arguments", "text", "", "w.arguments"),
        ("flops", "float", "FLOP", "w.flops"),
        ("tvm_version", "text", "", "w.tvm_version"),
        ("targets", "int", "", "count(v.target_id)"),
        *(
            (n, "int", "", f"CAST(coalesce(sum(v.{n}), 0) AS bigint)")
            for n in ("records", "failed", "foreign_records", "served")
        ),
    ),
    "sessions": _columns(
        ("session_id", "int"),
        ("session", "text"),
        ("started_at", "time"),
        ("cpu", "text"),
        ("gpu", "text"),
        ("cores", "int"),
        ("threads", "int"),
        ("os", "text"),
        ("tvm_version", "text"),
        ("tunedb_version", "text"),
        ("records", "int"),
        ("failed", "int"),
        ("foreign_records", "int"),
        ("last_measured_at", "time"),
    ),
    "features": _columns(
        ("program_id", "int"),
        *_TASK,
        ("row", "int"),
        ("merged", "bool"),
        ("trust", "text"),
        ("features", "vector"),
    ),
    "launches": _columns(
        ("launch_id", "int"),
        ("record_id", "int"),
        *_TASK,
        ("kernel", "text"),
        ("number", "int"),
        ("threads", "int"),
        ("block", "text"),
        ("grid", "text"),
        ("registers", "int"),
        ("static_shared_bytes", "int", "B"),
        ("dynamic_shared_bytes", "int", "B"),
        ("seconds", "float", "s"),
        ("tool", "text"),
        ("counters", "texts"),
        ("values", "floats", "", "l.counters"),
        *_SOURCE,
        ("retracted", "bool"),
    ),
}

#: Tables that are read from views: the FROM clause, and the id by which pages are cut, if any.
_VIEWS: dict[str, tuple[str, str | None]] = {
    "best": ("v_best AS v", None),
    "failures": ("v_failures AS v", "record_id"),
    "tasks": ("v_tasks AS v", None),
    "workloads": ("workload AS w LEFT JOIN v_tasks AS v ON v.workload_id = w.id", None),
    "sessions": ("v_sessions AS v", None),
    "launches": ("v_launches AS v JOIN launch AS l ON l.id = v.launch_id", "launch_id"),
}

#: SQL of a column of a view by type, for each dialect.
_READ: dict[str, dict[str, str]] = {
    "sqlite": {
        # json_each calls an integer of JSON beyond 64 bits an integer, and gives it as REAL.
        "int": "CASE WHEN typeof({0}) = 'integer' THEN {0} END",
        "time": (
            "CAST(strftime('%s', {0}) AS INTEGER) * 1000000 + CAST(substr({0}, 21) AS INTEGER)"
        ),
    },
    "postgresql": {
        "time": "CAST(extract(epoch FROM {0}) * 1000000 AS bigint)",
        "text": "CAST({0} AS text)",
        "texts": "CAST({0} AS text)",
    },
}

#: Values of a record that the table needs.
_RECORD: dict[str, Any] = {
    "id": _m.id,
    "digest": _m.digest,
    "workload": _m.workload_id,
    "target": _m.target_id,
    "status": _m.status,
    "run_secs": _m.run_secs,
    "mean": case((_m.status == literal_column(str(int(Status.OK))), _m.mean)),
    "all_cost": _m.all_cost,
    "measured_at": case(
        (
            _m.measured_at.between(literal_column("1"), literal_column(str(_YEAR_10000 - 1))),
            _m.measured_at,
        )
    ),
    "session": _m.session_id,
    "source": _m.source_id,
    "served": _m.served,
    "origin": _m.origin,
    "donor": _m.donor,
    "program": _m.program_id,
    "program_digest": _p.digest,
    "decisions": _p.decisions,
}

#: Formats of workloads whose programs are traces: their decisions are the first element of the
#: stored ones.
_TRACES = (WorkloadFormat.GRAPH, WorkloadFormat.NODES, WorkloadFormat.ARGUMENTS)


class Tables:
    """Reads tables: columns are made from the values of thousands of rows at once."""

    def __init__(self, db: Database, lookup: Lookup, programs: Programs) -> None:
        self._db = db
        self._lookup = lookup
        self._programs = programs

    def read(
        self,
        name: str,
        workload: AnyWorkloads | None,
        target: AnyTargets | None,
        feature_set: str | None,
        *,
        wide: bool,
    ) -> Table:
        """Return a table; see :meth:`tunedb.storage.store.Store.table`."""
        if name not in COLUMNS:
            raise UsageError(f"no table {name!r}; there are: {', '.join(get_args(TableName))}")
        if name != "features" and (feature_set is not None or wide):
            raise UsageError(f"table {name} has no features; leave feature_set and wide out")
        if name == "sessions" and (workload, target) != (None, None):
            raise UsageError("a session is of no single workload or target; leave them out")
        if name == "workloads" and target is not None:
            raise UsageError("a workload is of no single target; read the table tasks")
        chosen = {
            "workload_id": None
            if workload is None
            else ids_of(workload, self._lookup.require_workloads),
            "target_id": None if target is None else ids_of(target, self._lookup.require_targets),
        }
        with paused_gc():
            if name == "records":
                return self._records(chosen)
            if name == "features":
                return self._features(chosen, feature_set, wide=wide)
            return self._view(name, chosen)

    # ------------------------------------------------------------------ tables with a view

    def _view(self, name: str, chosen: dict[str, list[int] | None]) -> Table:
        """Return the table of a view."""
        from .arrow import Table

        columns, (source, key) = COLUMNS[name], _VIEWS[name]
        read = _READ["sqlite" if self._db.is_file else "postgresql"]
        values = [
            read.get(column.type, "{0}").format(column.source or f"v.{column.name}")
            for column in columns
        ]
        table = Table(name, columns)
        where = {"workload_id": "w.id" if name == "workloads" else "v.workload_id"}
        conditions = [
            f"{where.get(which, f'v.{which}')} IN ({', '.join(_literals(chosen_ids))})"
            for which, chosen_ids in chosen.items()
            if chosen_ids is not None
        ]
        ids = [v for v, column in zip(values, columns, strict=True) if column.name.endswith("_id")]
        order = f" ORDER BY v.{key} LIMIT {_ROWS}" if key else f" ORDER BY {', '.join(ids)}"
        if name == "workloads":
            order = " GROUP BY w.id" + order
        position = next((i for i, column in enumerate(columns) if column.name == key), 0)
        after = 0
        while True:
            pages = [f"v.{key} > {after}"] if key else []
            met = " AND ".join([*conditions, *pages])
            query = f"SELECT {', '.join(values)} FROM {source}"  # noqa: S608 - names of ours
            rows = self._db.plain(f"{query} WHERE {met}{order}" if met else query + order)
            for batch in _batches(rows):
                table.append(len(batch), transpose(batch, len(columns)))
            if key is None or len(rows) < _ROWS:
                return table
            after = rows[-1][position]

    # ------------------------------------------------------------------ records

    def _records(self, chosen: dict[str, list[int] | None]) -> Table:
        """Return all records, in order of insertion."""
        from . import arrow

        names = _Names(self._db)
        columns = dict(_RECORD)
        if self._db.select(select(schema.retraction.c.digest).limit(1)):
            is_any = is_retracted(_m, many=True)
            columns["retracted"] = case((is_any, literal_column("1")), else_=literal_column("0"))
        table = arrow.Table("records", COLUMNS["records"])
        for rows in self._pages(columns, chosen):
            row = dict(zip(columns, transpose(rows, len(columns)), strict=True))
            workloads, targets, sources = row["workload"], row["target"], row["source"]
            names = names.with_rows(workloads, targets, sources)
            table.append(
                len(rows),
                (
                    row["id"],
                    arrow.hexadecimal(row["digest"]),
                    workloads,
                    arrow.named(workloads, names.workloads),
                    targets,
                    arrow.named(targets, names.targets),
                    arrow.named(row["status"], _STATUSES),
                    row["mean"],
                    row["run_secs"],
                    row["all_cost"],
                    row["measured_at"],
                    row["session"],
                    arrow.named(sources, names.sources),
                    arrow.named(sources, names.trust),
                    row["served"],
                    row.get("retracted", [False] * len(rows)),
                    arrow.named(row["origin"], _ORIGINS),
                    row["program"],
                    arrow.hexadecimal(row["program_digest"]),
                    [donor and donor.hex() for donor in row["donor"]],
                    arrow.lists(bytes(map(names.kinds.__getitem__, workloads)), row["decisions"]),
                ),
            )
        return table

    def _pages(
        self, columns: Mapping[str, Any], chosen: dict[str, list[int] | None]
    ) -> Iterator[Sequence[Any]]:
        """Yield pages of records; each is a snapshot, and records added meanwhile come last."""
        statement = (
            select(*columns.values())
            .join_from(schema.measurement, schema.program, _p.id == _m.program_id)
            .where(_m.id > parameter("after"), *_among(_m, chosen))
            .order_by(_m.id)
            .limit(literal_column(str(_ROWS)))
        )
        page = Prepared(statement)
        after = 0
        while rows := self._db.tuples(page, after=after):
            yield rows
            after = rows[-1][0]

    # ------------------------------------------------------------------ features

    def _features(
        self, chosen: dict[str, list[int] | None], feature_set: str | None, *, wide: bool
    ) -> Table:
        """Return the usable rows of the latest version of a feature set."""
        import numpy as np

        from ..features import blobs
        from . import arrow

        set_id, features = self._feature_set(feature_set)
        width = len(features)
        columns = COLUMNS["features"]
        if wide:
            wide_columns = [TableColumn(f"features.{name}", "float32") for name in features]
            columns = (*columns[:-1], *wide_columns)
        names = _Names(self._db)
        table = arrow.Table("features", columns, width)
        mark = schema.foreign_feature.c
        # NULL for rows computed here.
        trust = (
            select(schema.source.c.trust)
            .where(
                mark.program_id == _f.program_id,
                mark.feature_set_id == _f.feature_set_id,
                schema.source.c.id == mark.source_id,
            )
            .correlate(schema.feature)
            .scalar_subquery()
        )
        statement = (
            select(
                *(_f.program_id, _p.workload_id, _p.target_id, _f.n_rows, _f.n_columns, _f.data),
                trust,
            )
            .join_from(schema.feature, schema.program, _p.id == _f.program_id)
            .where(
                _f.feature_set_id == literal_column(str(set_id)),
                _f.program_id > parameter("after", _f.program_id),
                *self._programs.feature_conditions(),
                *_among(_p, chosen),
            )
            .order_by(_f.program_id)
            .limit(literal_column(str(_PROGRAMS)))
        )
        page = Prepared(statement)
        after = 0
        while rows := self._db.tuples(page, after=after):
            after = rows[-1][0]
            programs, workloads, targets, counts, widths, data, trusts = transpose(rows, 7)
            if set(widths) != {width}:
                raise StorageError(
                    f"{self._db.location}: features that do not have {width} columns; "
                    "run: tunedb db check"
                )
            names = names.with_rows(workloads, targets)
            blocks = [
                blobs.unpack(n_rows, width, bytes(body))
                for n_rows, body in zip(counts, data, strict=True)
            ]
            per_row: list[list[Any]] = [
                np.repeat(values, counts).tolist() for values in (programs, workloads, targets)
            ]
            table.append(
                sum(counts),
                (
                    per_row[0],
                    per_row[1],
                    arrow.named(per_row[1], names.workloads),
                    per_row[2],
                    arrow.named(per_row[2], names.targets),
                    np.concatenate([np.arange(n_rows) for n_rows in counts]).tolist(),
                    np.repeat([value is not None for value in trusts], counts),
                    arrow.named(
                        [t for t, n in zip(trusts, counts, strict=True) for _ in range(n)], _TRUSTS
                    ),
                    *(
                        np.ascontiguousarray(np.concatenate(blocks).T)
                        if wide
                        else [arrow.vectors(np.concatenate(blocks))]
                    ),
                ),
            )
        return table

    def _feature_set(self, name: str | None) -> tuple[int, list[str]]:
        """Return the id and the columns of a feature set's latest version."""
        s = schema.feature_set.c
        stored = {
            row.name: (row.id, [str(column) for column in parse_json(row.columns.encode())])
            for row in self._db.select(select(s.id, s.name, s.columns).order_by(s.version))
        }
        if not stored:
            raise NotFoundError(f"{self._db.location}: no features; run: tunedb extract")
        known = ", ".join(sorted(stored))
        if name is None and len(stored) > 1:
            raise UsageError(f"several feature sets; give feature_set, one of: {known}")
        if name is not None and name not in stored:
            raise NotFoundError(f"{self._db.location}: no features {name!r}; there are: {known}")
        return stored[name] if name is not None else next(iter(stored.values()))


#: NULL is the trust of features that were computed here.
_TRUSTS: dict[int | None, bytes] = {None: b"own"} | {
    int(trust): trust.name.lower().encode() for trust in Trust
}
_STATUSES = {int(status): status.name.lower().encode() for status in Status}
_ORIGINS: dict[str | None, bytes] = {None: b"unknown"} | {o.value: o.encode() for o in Origin}


class _Names:
    """Names of the few rows that many records share, as UTF-8."""

    def __init__(self, db: Database) -> None:
        self._db = db
        w, s = schema.workload.c, schema.source.c
        workloads = db.select(select(w.id, w.name, w.format))
        sources = db.select(select(s.id, s.name, s.trust))
        self.workloads = {row.id: row.name.encode() for row in workloads}
        self.kinds = {row.id: _kind(row.format) for row in workloads}
        self.sources = {row.id: row.name.encode() for row in sources}
        self.trust = {row.id: _TRUSTS.get(row.trust, b"foreign") for row in sources}
        targets = db.select(select(schema.target))
        self.targets = {row.id: _label(row).encode() for row in targets}

    def with_rows(
        self, workloads: Sequence[int], targets: Sequence[int], sources: Sequence[int] = ()
    ) -> _Names:
        """Return names that cover these rows, some of which may be newer."""
        is_known = (
            self.workloads.keys() >= set(workloads)
            and self.targets.keys() >= set(targets)
            and self.sources.keys() >= set(sources)
        )
        return self if is_known else _Names(self._db)


def _kind(format_: str) -> int:
    """Return the form of decisions."""
    from ._lists import FIRST, LIST, PACKED

    if format_ == WorkloadFormat.ANSOR:
        return PACKED
    return FIRST if format_ in _TRACES else LIST


def _label(row: Any) -> str:
    """Return a target's label from its row."""
    from ..records import Target

    return Target(row.kind, row.config.encode()).label


def _among(columns: Any, chosen: dict[str, list[int] | None]) -> list[Any]:
    """Return the conditions for chosen workloads and targets."""
    return [
        columns[which].in_(map(literal_column, _literals(ids)))
        for which, ids in chosen.items()
        if ids is not None
    ]


def _literals(ids: Sequence[int]) -> list[str]:
    """Return ids as SQL; a statement takes 32,766 parameters. NULL equals none."""
    return [str(int(id_)) for id_ in ids] or ["NULL"]


def _batches(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield rows in batches."""
    for start in range(0, len(rows), _ROWS):
        yield rows[start : start + _ROWS]
