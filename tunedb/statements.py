"""The statements of writes, rendered once for each dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    ColumnElement,
    ScalarSelect,
    Table,
    and_,
    bindparam,
    case,
    delete,
    exists,
    literal_column,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql import Executable

from . import schema
from .engine import Prepared
from .records import Trust

_INSERT = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def _insertion(table: Table, computed: Mapping[str, Any] | None = None) -> Prepared:
    """Return ``INSERT … ON CONFLICT DO NOTHING`` of all columns but ``id``, per dialect.

    Parameters
    ----------
    table : Table
        Where to.
    computed : mapping or None
        Column → expression, for columns that are not given as parameters.
    """
    statements: dict[str, Executable] = {}
    values: dict[str, Any] = {
        c.name: bindparam(c.name, type_=c.type) for c in table.columns if c.name != "id"
    }
    for name, dialect_insert in _INSERT.items():
        statement: Any = dialect_insert(table).values({**values, **(computed or {})})
        statements[name] = statement.on_conflict_do_nothing()
    return Prepared(statements)


def this_program() -> ScalarSelect[int]:
    """Return the id of the program with the digest ``program``; only its index is read."""
    p = schema.program.c
    return select(p.id).where(p.digest == bindparam("program", type_=schema.Blob)).scalar_subquery()


def this_measurement() -> ColumnElement[bool]:
    """Return the condition for the measurement with a digest and its program's digest.

    Its parameters are called ``measurement`` and ``program``.
    """
    m = schema.measurement.c
    return and_(
        m.program_id == this_program(),
        m.digest == bindparam("measurement", type_=schema.Blob),
    )


def _insert_measurement() -> Prepared:
    """Return the insertion that finds its program by digest and derives ``served``."""
    m, r = schema.measurement.c, schema.retraction.c
    retracted = exists(
        select(literal_column("1")).where(
            r.subject == literal_column("'measurement'"),
            r.digest == bindparam("digest", type_=m.digest.type),
        )
    )
    served = case((retracted, literal_column("0")), else_=bindparam("served", type_=schema.Int))
    return _insertion(schema.measurement, {"program_id": this_program(), "served": served})


def _insert_failure() -> Prepared:
    """Return the insertion that finds its measurement; without one it inserts nothing."""
    columns = {c.name: bindparam(c.name, type_=c.type) for c in schema.failure.c if c.name != "id"}
    found = {**columns, "measurement_id": schema.measurement.c.id}
    source = select(*found.values()).where(this_measurement())
    statements: dict[str, Executable] = {}
    for name, dialect_insert in _INSERT.items():
        statement: Any = dialect_insert(schema.failure).from_select(list(found), source)
        statements[name] = statement.on_conflict_do_nothing()
    return Prepared(statements)


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
        schema.context,
        schema.program,
        schema.quarantine,
        schema.retraction,
        schema.feature_set,
        schema.feature,
        schema.model,
        schema.prediction,
        schema.session_factor,
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
feature_set = Prepared(
    select(schema.feature_set.c.id, schema.feature_set.c.columns).where(
        schema.feature_set.c.name == bindparam("name", type_=schema.Text),
        schema.feature_set.c.version == bindparam("version", type_=schema.Int),
    )
)
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
    .where(schema.measurement.c.id == bindparam("measurement", type_=schema.Int))
    .values(served=0)
)


measurement_id = Prepared(select(schema.measurement.c.id).where(this_measurement()))
less_trusted = Prepared(
    select(schema.source.c.id)
    .where(schema.source.c.trust < bindparam("trust", type_=schema.Int))
    .limit(literal_column("1"))
)

#: A record known from a source that is trusted less belongs to the better one from then on.
take_over = Prepared(
    update(schema.measurement)
    .where(
        this_measurement(),
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

#: A model that is made again keeps its number, which its predictions have.
remake_model = Prepared(
    update(schema.model)
    .where(schema.model.c.digest == bindparam("known", type_=schema.Blob))
    .values(
        card=bindparam("new_card", type_=schema.Text),
        body=bindparam("new_body", type_=schema.Blob),
    )
)

#: Estimates of a target are replaced as a whole.
forget_factors = Prepared(
    delete(schema.session_factor).where(
        schema.session_factor.c.target_id == bindparam("target", type_=schema.Int)
    )
)

release = Prepared(
    delete(schema.quarantine).where(
        schema.quarantine.c.id == bindparam("quarantined", type_=schema.Int)
    )
)

#: An own source corrects the version that a foreign one gave a workload; the first own one counts.
correct_version = Prepared(
    update(schema.workload)
    .where(
        schema.workload.c.id == bindparam("workload", type_=schema.Int),
        ~exists(
            select(literal_column("1"))
            .select_from(
                schema.measurement.join(
                    schema.source, schema.source.c.id == schema.measurement.c.source_id
                )
            )
            .where(
                schema.measurement.c.workload_id == schema.workload.c.id,
                # So that the index of top-k finds them.
                schema.measurement.c.served == literal_column("1"),
                schema.source.c.trust >= literal_column(str(int(Trust.OWN))),
            )
        ),
    )
    .values(tvm_version=bindparam("version", type_=schema.Text))
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
