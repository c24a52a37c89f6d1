"""SQL statements that read, rendered once per dialect."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Select, and_, bindparam, case, func, literal_column, or_, select

from ..records import MODULES, Trust, WorkloadFormat
from . import columns, schema
from .attribution import accepted_failure
from .columns import Form
from .engine import Prepared
from .retractions import is_retracted
from .statements import this_measurement
from .superseded import is_ranked

_m, _p, _f = schema.measurement.c, schema.program.c, schema.failure.c


def parameter(name: str, column: Any = _m.id) -> Any:
    """Return a named parameter of a column's type."""
    return bindparam(name, type_=column.type)


top_k: Final = Prepared(
    select(_m.mean, _m.id)
    .where(
        _m.workload_id == parameter("workload"),
        _m.target_id == parameter("target"),
        _m.served == literal_column("1"),
        is_ranked(_m, parameter("workload"), parameter("target")),
    )
    .order_by(_m.mean, _m.id)
    .limit(parameter("k"))
)


def _join_shared_json(joined: Any) -> Any:
    """Return a join with the tables of shared JSON."""
    for name in columns.names_of(Form.SHARED_JSON):
        table = schema.metadata.tables[name]
        joined = joined.outerjoin(table, table.c.id == _m[f"{name}_id"])
    return joined


def _column(column: columns.Column) -> Any:
    """Return the selected expression for a column of measurements."""
    if column.form is Form.SHARED_JSON:
        return schema.metadata.tables[column.name].c.body.label(column.name)
    return schema.metadata.tables[column.table].c[column.stored]


def record_query() -> Select[Any]:
    """Return the query whose rows :meth:`Loader.record` reads."""
    joined = _join_shared_json(
        schema.measurement.join(schema.program, _p.id == _m.program_id)
    ).outerjoin(schema.failure, _f.id == accepted_failure(schema.failure, _m))
    return select(
        *(_column(c) for c in columns.MEASUREMENT if c.name != "program_digest"),
        _m.mean,
        _f.kind.label("failure_kind"),
        _f.phase,
        _f.message,
        _f.seconds,
        case((is_retracted(_m), literal_column("1")), else_=literal_column("0")).label("retracted"),
    ).select_from(joined)


record_by_id: Final = Prepared(record_query().where(_m.id == parameter("id")))

#: The records of any number of `ids`, which SQLAlchemy expands at each execution.
records_by_id: Final = record_query().where(_m.id.in_(bindparam("ids", expanding=True)))


def answer_query() -> Select[Any]:
    """Return the query whose rows :meth:`Answers.from_row` reads."""
    joined = (
        schema.measurement.join(schema.program, _p.id == _m.program_id)
        .join(schema.sketch, schema.sketch.c.id == _p.sketch_id)
        .join(schema.source, schema.source.c.id == _m.source_id)
        .outerjoin(schema.tail, schema.tail.c.id == _p.tail_id)
        .outerjoin(schema.session, schema.session.c.id == _m.session_id)
    )
    covered = {column.name: _column(column) for column in columns.IDENTITY}
    covered["session"] = schema.session.c.digest
    return select(
        _m.id,
        _m.workload_id,
        _m.target_id,
        _p.sketch_id,
        schema.sketch.c.body,
        _p.tail_id,
        schema.tail.c.body,
        _p.decisions,
        # Digests, mean time, and the source.
        _p.digest,
        _m.digest,
        _m.mean,
        schema.source.c.trust,
        schema.source.c.store,
        # Fields of the measurement's digest besides the program.
        *covered.values(),
    ).select_from(_join_shared_json(joined))


answer: Final = Prepared(answer_query().where(_m.id == parameter("id")))
by_id: Final = {
    table.name: Prepared(select(table).where(table.c.id == parameter("id")))
    for table in (
        schema.workload,
        schema.target,
        schema.sketch,
        schema.tail,
        schema.session,
        schema.counter_set,
        schema.source,
    )
}
workload_by_digest: Final = Prepared(
    select(schema.workload.c.id).where(
        schema.workload.c.digest == bindparam("digest", type_=schema.Blob)
    )
)
target_by_digest: Final = Prepared(
    select(schema.target.c.id).where(
        schema.target.c.digest == bindparam("digest", type_=schema.Blob)
    )
)
targets_by_kind: Final = Prepared(
    select(schema.target.c.id)
    .where(
        schema.target.c.kind == bindparam("kind", type_=schema.Text),
        schema.target.c.architecture == bindparam("architecture", type_=schema.Text),
    )
    .order_by(schema.target.c.id)
)
targets_of: Final = Prepared(
    select(_p.target_id).distinct().where(_p.workload_id == parameter("workload"))
)
served_targets: Final = Prepared(
    # One index seek per target; DISTINCT would read all records of the workload.
    select(schema.target.c.id).where(
        select(literal_column("1"))
        .where(
            _m.workload_id == parameter("workload"),
            _m.target_id == schema.target.c.id,
            _m.served == literal_column("1"),
        )
        .exists()
    )
)


def _is_own() -> Any:
    """Return the condition that a source is own: of this database, not merged into it."""
    return and_(
        schema.source.c.trust >= literal_column(str(int(Trust.OWN))),
        schema.source.c.store == bindparam("store", type_=schema.Text),
    )


#: Finds served modules without an alias of a scheme that an own source stated.
workloads_without: Final = Prepared(
    select(schema.workload.c.id)
    .where(
        schema.workload.c.id > parameter("after"),
        schema.workload.c.format.in_([literal_column(f"'{name}'") for name in MODULES]),
        ~select(literal_column("1"))
        .where(
            schema.workload_alias.c.workload_id == schema.workload.c.id,
            schema.workload_alias.c.scheme == bindparam("scheme", type_=schema.Text),
            schema.workload_alias.c.source_id.in_(select(schema.source.c.id).where(_is_own())),
        )
        .exists(),
        select(literal_column("1"))
        .where(_m.workload_id == schema.workload.c.id, _m.served == literal_column("1"))
        .exists(),
    )
    .order_by(schema.workload.c.id)
)
measurement_by_digest: Final = Prepared(select(_m.id).where(this_measurement()))


own_records: Final = Prepared(
    select(_m.id)
    .select_from(schema.measurement.join(schema.source, schema.source.c.id == _m.source_id))
    .where(
        _m.workload_id == parameter("workload"),
        _m.served == literal_column("1"),
        _is_own(),
    )
    .limit(literal_column("1"))
)
own_workloads: Final = Prepared(
    select(_m.workload_id)
    .distinct()
    .where(_m.source_id.in_(select(schema.source.c.id).where(_is_own())))
)
#: Finds workloads whose body the plugin wrote, or that come from a log that the user vouched for.
#: Revalidation also has a verified source, but its measurements do not vouch for the body.
local_workloads: Final = Prepared(
    select(schema.workload.c.id).where(
        or_(
            schema.workload.c.script.is_not(None),
            schema.workload.c.id.in_(
                select(_m.workload_id).where(
                    _m.source_id.in_(
                        select(schema.source.c.id).where(
                            schema.source.c.store == bindparam("store", type_=schema.Text),
                            or_(
                                schema.source.c.trust == literal_column(str(int(Trust.OWN))),
                                and_(
                                    schema.source.c.trust
                                    == literal_column(str(int(Trust.VERIFIED))),
                                    schema.source.c.kind == literal_column("'file'"),
                                ),
                            ),
                        )
                    )
                )
            ),
        )
    )
)
last_workload: Final = Prepared(select(func.max(schema.workload.c.id)))
size: Final = Prepared(select(func.count()).select_from(schema.measurement))
program_by_digest: Final = Prepared(
    select(_p.id).where(_p.digest == parameter("digest", _p.digest))
)
trusted_records: Final = Prepared(
    select(_m.id)
    .select_from(schema.measurement.join(schema.source, schema.source.c.id == _m.source_id))
    .where(
        _m.program_id == parameter("program"),
        schema.source.c.trust >= literal_column(str(int(Trust.VERIFIED))),
    )
    .limit(literal_column("1"))
)
own_programs: Final = Prepared(
    select(_m.id)
    .select_from(schema.measurement.join(schema.source, schema.source.c.id == _m.source_id))
    .where(_m.program_id == parameter("program"), _is_own())
    .limit(literal_column("1"))
)
untrusted_sources: Final = Prepared(
    select(schema.source.c.id)
    .where(schema.source.c.trust < literal_column(str(int(Trust.VERIFIED))))
    .limit(literal_column("1"))
)
#: Finds GPU kernels: their parameters have no features, and models are not trained on them.
kernels: Select[Any] = select(schema.workload.c.id).where(
    schema.workload.c.format == literal_column(f"'{WorkloadFormat.KERNEL}'")
)
first_kernel: Final = Prepared(kernels.limit(literal_column("1")))
feature_set: Final = Prepared(
    select(schema.feature_set.c.id).where(
        schema.feature_set.c.name == bindparam("name", type_=schema.Text),
        schema.feature_set.c.version == bindparam("version", type_=schema.Int),
    )
)
