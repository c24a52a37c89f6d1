"""SQL statements that write, rendered once per dialect."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    ScalarSelect,
    Select,
    Table,
    and_,
    bindparam,
    case,
    delete,
    exists,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql import Executable

from ..records import Status, Trust
from . import schema
from .engine import Prepared
from .retractions import is_retracted, served_value, store_key

_INSERT = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def _insertion(table: Table) -> Prepared:
    """Return ``INSERT … ON CONFLICT DO NOTHING`` of all columns but ``id``."""
    return Prepared({name: _insert_into(name, table, {}) for name in _INSERT})


def _insertion_for_id(table: Table) -> Prepared:
    """Return :func:`_insertion` that returns the id of the new row."""
    return Prepared({name: _insert_into(name, table, {}).returning(table.c.id) for name in _INSERT})


def _insert_into(dialect: str, table: Table, computed: Mapping[str, Any]) -> Any:
    """Return :func:`_insertion` for one dialect."""
    values = {c.name: bindparam(c.name, type_=c.type) for c in table.columns if c.name != "id"}
    statement: Any = _INSERT[dialect](table).values({**values, **computed})
    return statement.on_conflict_do_nothing()


def this_program() -> ScalarSelect[int]:
    """Return the id of the program with the digest ``program``, by its index."""
    p = schema.program.c
    return select(p.id).where(p.digest == bindparam("program", type_=schema.Blob)).scalar_subquery()


def this_measurement() -> ColumnElement[bool]:
    """Return the condition for the measurement with these digests.

    Its parameters are ``measurement`` and ``program``, the digest of its program.
    """
    m = schema.measurement.c
    return and_(
        m.program_id == this_program(),
        m.digest == bindparam("measurement", type_=schema.Blob),
    )


def _insert_measurement() -> Prepared:
    """Return the insertion that finds its program by digest and derives ``served``."""
    columns = ("digest", "source_id", "session_id")
    parameters = {name: bindparam(name, type_=schema.measurement.c[name].type) for name in columns}
    retracted = is_retracted(SimpleNamespace(**parameters))
    served = case((retracted, literal_column("0")), else_=bindparam("served", type_=schema.Int))
    # A server's guard derives it itself (tunedb.storage.guards).
    values = {"sqlite": served, "postgresql": literal_column("0")}
    return Prepared(
        {
            name: _insert_into(
                name, schema.measurement, {"program_id": this_program(), "served": value}
            )
            for name, value in values.items()
        }
    )


def _insertion_where(
    table: Table, condition: ColumnElement[bool], computed: Mapping[str, Any] | None = None
) -> Prepared:
    """Return the insertion of one row for each match of a condition."""
    columns = {c.name: bindparam(c.name, type_=c.type) for c in table.c if c.name != "id"}
    columns |= computed or {}
    source = select(*columns.values()).where(condition)
    statements: dict[str, Executable] = {}
    for name, dialect_insert in _INSERT.items():
        statement: Any = dialect_insert(table).from_select(list(columns), source)
        statements[name] = statement.on_conflict_do_nothing()
    return Prepared(statements)


def _insert_of_measurement(table: Table) -> Prepared:
    """Return the insertion that needs a stored measurement; a failure needs one without times."""
    m = schema.measurement.c
    condition = this_measurement()
    if table is schema.failure:
        for status in (Status.OK, Status.CUT_SHORT):
            condition = and_(condition, m.status != literal_column(str(int(status))))
    return _insertion_where(table, condition, {"measurement_id": m.id})


def _insert_of_program(table: Table) -> Prepared:
    """Return the insertion that needs a stored program: it may have been removed meanwhile."""
    program = bindparam("program_id", type_=schema.Int)
    return _insertion_where(table, schema.program.c.id == program)


#: Insertions by table.
insert: Final = {
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
        schema.model,
        schema.session_factor,
        schema.counter_set,
        schema.account,
    )
}
insert["measurement"] = _insert_measurement()
for _table in (schema.failure, schema.launch):
    insert[_table.name] = _insert_of_measurement(_table)
for _table in (schema.feature, schema.prediction):
    insert[_table.name] = _insert_of_program(_table)

#: Queries of a row's id by its digest, by table.
id_of: Final = {
    table.name: Prepared(
        select(table.c.id).where(table.c.digest == bindparam("digest", type_=table.c.digest.type))
    )
    for table in schema.metadata.sorted_tables
    if "digest" in table.c and "id" in table.c
}
#: Insertions of shared rows that return the id of a new row, by table.
insert_for_id: Final = {
    table.name: _insertion_for_id(table)
    for table in (
        schema.source,
        schema.session,
        schema.workload,
        schema.target,
        schema.sketch,
        schema.tail,
        schema.args_info,
        schema.context,
        schema.counter_set,
    )
}
feature_set: Final = Prepared(
    select(schema.feature_set.c.id, schema.feature_set.c.columns).where(
        schema.feature_set.c.name == bindparam("name", type_=schema.Text),
        schema.feature_set.c.version == bindparam("version", type_=schema.Int),
    )
)
last_measurement: Final = Prepared(
    select(schema.measurement.c.id)
    .order_by(schema.measurement.c.id.desc())
    .limit(literal_column("1"))
)
measurements_after: Final = Prepared(
    select(schema.measurement.c.id, schema.measurement.c.digest).where(
        schema.measurement.c.id > bindparam("id", type_=schema.Int)
    )
)
_m = schema.measurement.c


def _update_served(condition: ColumnElement[bool]) -> Prepared:
    """Return the update of ``served`` of measurements; only changed rows are written."""
    value = served_value(_m)
    return Prepared(
        update(schema.measurement).where(condition, _m.served != value).values(served=value)
    )


#: Updates ``served`` after the trust of a source changed.
serve_source: Final = _update_served(_m.source_id == bindparam("source", type_=schema.Int))

_stop_serving = Prepared(
    update(schema.measurement)
    .where(_m.served == literal_column("1"), is_retracted(_m, many=True))
    .values(served=literal_column("0"))
)


def stop_serving(connection: Connection) -> int:
    """Stop serving retracted records; return their number.

    Retractions only ever stop serving. Writers of a server may not change ``served``: there a
    function of the owner does so.
    """
    if connection.dialect.name == "sqlite":
        return _stop_serving(connection).rowcount
    return int(connection.exec_driver_sql("SELECT tunedb_stop_serving()").scalar_one())


set_trust: Final = Prepared(
    update(schema.source)
    .where(schema.source.c.id == bindparam("source", type_=schema.Int))
    .values(trust=bindparam("new_trust", type_=schema.Int))
)

#: Source of a measurement, and the database of that source.
source_of: Final = Prepared(
    select(_m.source_id, schema.source.c.store)
    .join_from(schema.measurement, schema.source, schema.source.c.id == _m.source_id)
    .where(this_measurement())
)
measurement_id: Final = Prepared(select(schema.measurement.c.id).where(this_measurement()))
less_trusted: Final = Prepared(
    select(schema.source.c.id)
    .where(schema.source.c.trust < bindparam("trust", type_=schema.Int))
    .limit(literal_column("1"))
)


def _is_retracted_under(source: str) -> ColumnElement[bool]:
    """Return the condition that a measurement would be retracted under another source."""
    source_id = bindparam(source, type_=schema.Int)
    return is_retracted(
        SimpleNamespace(digest=_m.digest, source_id=source_id, session_id=_m.session_id)
    )


_served_under_source = case(
    (_is_retracted_under("source"), literal_column("0")),
    else_=bindparam("valid", type_=schema.Int),
)


def _assign_source(*conditions: ColumnElement[bool]) -> Prepared:
    """Return the update of a record's source; a server's guard derives ``served`` from it."""
    update_ = update(schema.measurement).where(this_measurement(), *conditions)
    update_ = update_.values(source_id=bindparam("source", type_=schema.Int))
    return Prepared({"sqlite": update_.values(served=_served_under_source), "postgresql": update_})


#: Assigns a known record of a less trusted source to the better one.
take_over: Final = _assign_source(
    schema.measurement.c.source_id.in_(
        select(schema.source.c.id).where(
            schema.source.c.trust < bindparam("trust", type_=schema.Int)
        )
    )
)

#: Replaces a retrained model; it keeps its id, to which its predictions refer.
replace_model: Final = Prepared(
    update(schema.model)
    .where(schema.model.c.digest == bindparam("known", type_=schema.Blob))
    .values(
        card=bindparam("new_card", type_=schema.Text),
        body=bindparam("new_body", type_=schema.Blob),
    )
)

#: Removes all factors of a target; new estimates replace them as a whole.
delete_factors: Final = Prepared(
    delete(schema.session_factor).where(
        schema.session_factor.c.target_id == bindparam("target", type_=schema.Int)
    )
)

release_quarantined: Final = Prepared(
    delete(schema.quarantine).where(
        schema.quarantine.c.id == bindparam("quarantined", type_=schema.Int)
    )
)

#: Corrects the version that a foreign source gave a workload; only the first own source does so.
correct_version: Final = Prepared(
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
                # Makes SQLite use the index of top-k.
                schema.measurement.c.served == literal_column("1"),
                schema.source.c.trust >= literal_column(str(int(Trust.OWN))),
                # A merged source belongs to another database, however far it is trusted.
                schema.source.c.store == bindparam("store", type_=schema.Text),
            )
        ),
    )
    .values(tvm_version=bindparam("version", type_=schema.Text))
)

#: Adds a script to a workload that lacks one: a script is a label and may come later.
add_script: Final = Prepared(
    update(schema.workload)
    .where(
        schema.workload.c.id == bindparam("workload", type_=schema.Int),
        schema.workload.c.script.is_(None),
    )
    .values(script=bindparam("text", type_=schema.Blob))
)

# ------------------------------------------------------------------ writes of a merge


def _insert_selected(table: Table, query: Select[Any]) -> Prepared:
    """Return the insertion of a query's rows, known ones excepted."""
    statements: dict[str, Executable] = {}
    for name, dialect_insert in _INSERT.items():
        statement: Any = dialect_insert(table).from_select(query.selected_columns.keys(), query)
        statements[name] = statement.on_conflict_do_nothing()
    return Prepared(statements)


def _parameters(table: Table, *names: str) -> list[Any]:
    """Return parameters with the names and types of columns."""
    return [bindparam(name, type_=table.c[name].type).label(name) for name in names]


#: Inserts rows of features for the program with a digest, if it is stored.
insert_feature: Final = _insert_selected(
    schema.feature,
    select(
        schema.program.c.id.label("program_id"),
        *_parameters(schema.feature, "feature_set_id", "n_rows", "n_columns", "data"),
    ).where(schema.program.c.digest == bindparam("program", type_=schema.Blob)),
)

_f = schema.feature.c

#: Marks rows of features as merged, unless the program has rows already. Rows that come back from
#: this database's own sources were computed here and get no mark.
mark_foreign_feature: Final = _insert_selected(
    schema.foreign_feature,
    select(
        schema.program.c.id.label("program_id"),
        *_parameters(schema.foreign_feature, "feature_set_id", "source_id"),
    ).where(
        schema.program.c.digest == bindparam("program", type_=schema.Blob),
        ~exists(
            select(literal_column("1")).where(
                _f.program_id == schema.program.c.id,
                _f.feature_set_id == bindparam("feature_set_id", type_=schema.Int),
            )
        ),
        bindparam("source_id", type_=schema.Int).not_in(
            select(schema.source.c.id).where(schema.source.c.store == store_key())
        ),
    ),
)

#: Removes a program's rows of a feature set.
delete_features: Final = Prepared(
    delete(schema.feature).where(
        _f.program_id == bindparam("program_id", type_=schema.Int),
        _f.feature_set_id == bindparam("feature_set_id", type_=schema.Int),
    )
)
#: Removes the mark of merged rows.
unmark_features: Final = Prepared(
    delete(schema.foreign_feature).where(
        schema.foreign_feature.c.program_id == bindparam("program_id", type_=schema.Int),
        schema.foreign_feature.c.feature_set_id == bindparam("feature_set_id", type_=schema.Int),
    )
)

#: Finds any merged rows of features.
any_foreign_feature: Final = Prepared(
    select(schema.foreign_feature.c.program_id).limit(literal_column("1"))
)

#: Inserts a name of the workload with a digest, if it is stored.
insert_alias: Final = _insert_selected(
    schema.workload_alias,
    select(
        *_parameters(schema.workload_alias, "scheme", "key"),
        schema.workload.c.id.label("workload_id"),
        *_parameters(schema.workload_alias, "source_id"),
    ).where(schema.workload.c.digest == bindparam("workload", type_=schema.Blob)),
)


def _better_source() -> ColumnElement[bool]:
    """Return the condition that a source takes precedence over a record's own."""
    known = schema.source.alias()
    trust, digest = bindparam("trust", type_=schema.Int), bindparam("owner", type_=schema.Blob)
    return (
        select(literal_column("1"))
        .where(
            known.c.id == _m.source_id,
            or_(known.c.trust < trust, and_(known.c.trust == trust, known.c.digest > digest)),
        )
        .correlate_except(known)
        .exists()
    )


#: Assigns a known record to the source with the most trust; among equals to that with the smallest
#: digest, so that the order of merges does not matter.
claim_record: Final = _assign_source(_better_source())

#: Finds the keys of databases with a source that is trusted here.
trusted_stores: Final = Prepared(
    select(schema.source.c.store)
    .where(schema.source.c.trust > literal_column(str(int(Trust.FOREIGN))))
    .distinct()
)

#: Finds the keys of databases that push under this session's account of a server.
own_stores: Final = Prepared(
    select(schema.account.c.store).where(schema.account.c.role == literal_column("session_user"))
)

delete_watermark: Final = Prepared(
    delete(schema.watermark).where(
        *(
            schema.watermark.c[name] == bindparam(name, type_=schema.Text)
            for name in ("direction", "peer", "selection")
        )
    )
)
insert["watermark"] = _insertion(schema.watermark)
