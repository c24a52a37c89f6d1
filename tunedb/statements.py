"""The statements of writes, rendered once for each dialect."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Table, bindparam, case, exists, literal_column, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql import Executable

from . import schema
from .engine import Prepared

_INSERT = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def _insertion(table: Table, source: Executable | None = None) -> Prepared:
    """Return ``INSERT … ON CONFLICT DO NOTHING`` of all columns but ``id``, per dialect."""
    statements: dict[str, Executable] = {}
    columns = [column for column in table.columns if column.name != "id"]
    for name, dialect_insert in _INSERT.items():
        statement: Any = dialect_insert(table)
        if source is None:
            statement = statement.values({c.name: bindparam(c.name, type_=c.type) for c in columns})
        else:
            statement = statement.from_select([c.name for c in columns], source)
        statements[name] = statement.on_conflict_do_nothing()
    return Prepared(statements)


def _insert_measurement() -> Prepared:
    """Return the insertion that finds its program by digest and derives ``served``."""
    m, p, r = schema.measurement.c, schema.program.c, schema.retraction.c
    given: dict[str, Any] = {c.name: bindparam(c.name, type_=c.type) for c in m}
    retracted = exists(
        select(literal_column("1")).where(
            r.subject == literal_column("'measurement'"),
            r.digest == bindparam("digest", type_=m.digest.type),
        )
    )
    columns = {
        **given,
        "program_id": p.id,
        "workload_id": p.workload_id,
        "target_id": p.target_id,
        "served": case((retracted, literal_column("0")), else_=given["served"]),
    }
    source = select(*(columns[c.name] for c in m if c.name != "id")).where(
        p.digest == bindparam("program", type_=p.digest.type)
    )
    return _insertion(schema.measurement, source)


def _insert_failure() -> Prepared:
    """Return the insertion that finds its measurement by digest."""
    f, m = schema.failure.c, schema.measurement.c
    given: dict[str, Any] = {c.name: bindparam(c.name, type_=c.type) for c in f}
    columns = {**given, "measurement_id": m.id}
    source = select(*(columns[c.name] for c in f if c.name != "id")).where(
        m.digest == bindparam("measurement", type_=m.digest.type)
    )
    return _insertion(schema.failure, source)


#: Table → its insertion.
insert = {
    table.name: _insertion(table)
    for table in (
        schema.source,
        schema.session,
        schema.workload,
        schema.workload_alias,
        schema.target,
        schema.sketch,
        schema.tail,
        schema.args_info,
        schema.program,
        schema.quarantine,
        schema.retraction,
    )
}
insert["measurement"] = _insert_measurement()
insert["failure"] = _insert_failure()

#: Table → the id of a digest.
id_of = {
    table.name: Prepared(
        select(table.c.id).where(table.c.digest == bindparam("digest", type_=table.c.digest.type))
    )
    for table in schema.metadata.sorted_tables
    if "digest" in table.c and "id" in table.c
}
last_measurement = Prepared(
    select(schema.measurement.c.id)
    .order_by(schema.measurement.c.id.desc())
    .limit(literal_column("1"))
)
measurements_after = Prepared(
    select(schema.measurement.c.id, schema.measurement.c.digest).where(
        schema.measurement.c.id > bindparam("id", type_=schema.Int)
    )
)
stop_serving = Prepared(
    update(schema.measurement)
    .where(schema.measurement.c.digest == bindparam("measurement", type_=schema.Blob))
    .values(served=0)
)


#: A record known from a source that is trusted less belongs to the better one from then on.
take_over = Prepared(
    update(schema.measurement)
    .where(
        schema.measurement.c.digest == bindparam("measurement", type_=schema.Blob),
        schema.measurement.c.source_id.in_(
            select(schema.source.c.id).where(
                schema.source.c.trust < bindparam("trust", type_=schema.Int)
            )
        ),
    )
    .values(
        source_id=bindparam("source", type_=schema.Int),
        served=case(
            (
                exists(
                    select(literal_column("1")).where(
                        schema.retraction.c.subject == literal_column("'measurement'"),
                        schema.retraction.c.digest == schema.measurement.c.digest,
                    )
                ),
                literal_column("0"),
            ),
            else_=bindparam("valid", type_=schema.Int),
        ),
    )
)

#: A script is a label: it may be learnt after the workload.
give_script = Prepared(
    update(schema.workload)
    .where(
        schema.workload.c.id == bindparam("workload", type_=schema.Int),
        schema.workload.c.script.is_(None),
    )
    .values(script=bindparam("text", type_=schema.Blob))
)
