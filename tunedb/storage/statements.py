"""The statements of writes, rendered once for each dialect."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

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
from .retractions import is_retracted, ours, served_value

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
    return Prepared({name: _insert_into(name, table, computed or {}) for name in _INSERT})


def _insert_into(dialect: str, table: Table, computed: Mapping[str, Any]) -> Executable:
    """Return :func:`_insertion` of one dialect."""
    values = {c.name: bindparam(c.name, type_=c.type) for c in table.columns if c.name != "id"}
    statement: Any = _INSERT[dialect](table).values({**values, **computed})
    inserting: Executable = statement.on_conflict_do_nothing()
    return inserting


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
    """Return the insertion that finds its program by digest and derives ``served``.

    A server derives it itself (:mod:`tunedb.storage.guards`).
    """
    columns = ("digest", "source_id", "session_id")
    given = {name: bindparam(name, type_=schema.measurement.c[name].type) for name in columns}
    retracted = is_retracted(SimpleNamespace(**given))
    served = case((retracted, literal_column("0")), else_=bindparam("served", type_=schema.Int))
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
    """Return the insertion that inserts nothing where the condition finds nothing."""
    columns = {c.name: bindparam(c.name, type_=c.type) for c in table.c if c.name != "id"}
    found = {**columns, **(computed or {})}
    source = select(*found.values()).where(condition)
    statements: dict[str, Executable] = {}
    for name, dialect_insert in _INSERT.items():
        statement: Any = dialect_insert(table).from_select(list(found), source)
        statements[name] = statement.on_conflict_do_nothing()
    return Prepared(statements)


def _insert_of_measurement(table: Table) -> Prepared:
    """Return the insertion that finds its measurement; without one it inserts nothing.

    A failure of a measurement that succeeded is not inserted either.
    """
    m = schema.measurement.c
    found = {"measurement_id": m.id}
    condition = this_measurement()
    if table is schema.failure:
        condition = and_(condition, m.status != literal_column(str(int(Status.OK))))
    return _insertion_where(table, condition, found)


def _insert_of_program(table: Table) -> Prepared:
    """Return the insertion that inserts nothing where its program was removed meanwhile."""
    program = bindparam("program_id", type_=schema.Int)
    return _insertion_where(table, schema.program.c.id == program)


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
_m = schema.measurement.c


def _serving(condition: ColumnElement[bool]) -> Prepared:
    """Return the derivation of ``served`` for measurements; only rows that change are written."""
    value = served_value(_m)
    return Prepared(
        update(schema.measurement).where(condition, _m.served != value).values(served=value)
    )


#: After the trust of a source changed.
serve_source = _serving(_m.source_id == bindparam("source", type_=schema.Int))

_stop_serving = Prepared(
    update(schema.measurement)
    .where(_m.served == literal_column("1"), is_retracted(_m, many=True))
    .values(served=literal_column("0"))
)


def stop_serving(connection: Connection) -> int:
    """Serve no longer what was taken back; return how many records that were.

    After retractions came, which only ever take away. Writers of a server may not change what is
    served: there a function of the owner does.
    """
    if connection.dialect.name == "sqlite":
        return _stop_serving(connection).rowcount
    return int(connection.exec_driver_sql("SELECT tunedb_stop_serving()").scalar_one())


set_trust = Prepared(
    update(schema.source)
    .where(schema.source.c.id == bindparam("source", type_=schema.Int))
    .values(trust=bindparam("new_trust", type_=schema.Int))
)

#: The source of a measurement, and the database that it is of.
source_of = Prepared(
    select(_m.source_id, schema.source.c.store)
    .join_from(schema.measurement, schema.source, schema.source.c.id == _m.source_id)
    .where(this_measurement())
)
measurement_id = Prepared(select(schema.measurement.c.id).where(this_measurement()))
less_trusted = Prepared(
    select(schema.source.c.id)
    .where(schema.source.c.trust < bindparam("trust", type_=schema.Int))
    .limit(literal_column("1"))
)


def _taken_back_from(source: str) -> ColumnElement[bool]:
    """Return the condition that a measurement is retracted once it is the source's of that name."""
    source_id = bindparam(source, type_=schema.Int)
    return is_retracted(
        SimpleNamespace(digest=_m.digest, source_id=source_id, session_id=_m.session_id)
    )


_served_then = case(
    (_taken_back_from("source"), literal_column("0")),
    else_=bindparam("valid", type_=schema.Int),
)


def _give(*conditions: ColumnElement[bool]) -> Prepared:
    """Return the statement that gives a record the source with the number ``source``.

    A server derives from that whether the record is served (:mod:`tunedb.storage.guards`).
    """
    given = update(schema.measurement).where(this_measurement(), *conditions)
    given = given.values(source_id=bindparam("source", type_=schema.Int))
    return Prepared({"sqlite": given.values(served=_served_then), "postgresql": given})


#: A record known from a source that is trusted less belongs to the better one from then on.
take_over = _give(
    schema.measurement.c.source_id.in_(
        select(schema.source.c.id).where(
            schema.source.c.trust < bindparam("trust", type_=schema.Int)
        )
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
                # A source that was merged is another database's, however far it is trusted.
                schema.source.c.store == bindparam("store", type_=schema.Text),
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

# ------------------------------------------------------------------ what a merge writes


def _of_selected(table: Table, found: Select[Any]) -> Prepared:
    """Return the insertion of what a query gives, known rows excepted."""
    statements: dict[str, Executable] = {}
    for name, dialect_insert in _INSERT.items():
        statement: Any = dialect_insert(table).from_select(found.selected_columns.keys(), found)
        statements[name] = statement.on_conflict_do_nothing()
    return Prepared(statements)


def _given(table: Table, *names: str) -> list[Any]:
    """Return parameters with the names and types of columns."""
    return [bindparam(name, type_=table.c[name].type).label(name) for name in names]


#: Rows of features for a program that is known by its digest; without one nothing.
feature_of = _of_selected(
    schema.feature,
    select(
        schema.program.c.id.label("program_id"),
        *_given(schema.feature, "feature_set_id", "n_rows", "n_columns", "data"),
    ).where(schema.program.c.digest == bindparam("program", type_=schema.Blob)),
)

_f = schema.feature.c

#: Marks the rows of features that such a program gets with a merge; those that it has stay its own.
#: Those that this database's own sources gave back were computed here.
foreign_feature_of = _of_selected(
    schema.foreign_feature,
    select(
        schema.program.c.id.label("program_id"),
        *_given(schema.foreign_feature, "feature_set_id", "source_id"),
    ).where(
        schema.program.c.digest == bindparam("program", type_=schema.Blob),
        ~exists(
            select(literal_column("1")).where(
                _f.program_id == schema.program.c.id,
                _f.feature_set_id == bindparam("feature_set_id", type_=schema.Int),
            )
        ),
        bindparam("source_id", type_=schema.Int).not_in(
            select(schema.source.c.id).where(schema.source.c.store == ours())
        ),
    ),
)

#: Rows of a feature set that a program has, and their mark.
forget_features = Prepared(
    delete(schema.feature).where(
        _f.program_id == bindparam("program_id", type_=schema.Int),
        _f.feature_set_id == bindparam("feature_set_id", type_=schema.Int),
    )
)
unmark_features = Prepared(
    delete(schema.foreign_feature).where(
        schema.foreign_feature.c.program_id == bindparam("program_id", type_=schema.Int),
        schema.foreign_feature.c.feature_set_id == bindparam("feature_set_id", type_=schema.Int),
    )
)

#: Whether any features came with a merge.
foreign_features = Prepared(select(schema.foreign_feature.c.program_id).limit(literal_column("1")))

#: A name of a workload that is known by its digest; without one nothing.
alias_of = _of_selected(
    schema.workload_alias,
    select(
        *_given(schema.workload_alias, "scheme", "key"),
        schema.workload.c.id.label("workload_id"),
        *_given(schema.workload_alias, "source_id"),
    ).where(schema.workload.c.digest == bindparam("workload", type_=schema.Blob)),
)


def _better_source() -> ColumnElement[bool]:
    """Return the condition that a record's source is trusted less than one, or has a larger digest.

    So the order of merges does not decide to whom a record belongs.
    """
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


#: A known record belongs to the source that is trusted most; of equal ones to the smallest digest.
attribute = _give(_better_source())

#: Keys of the databases with a source that is trusted here.
trusted_stores = Prepared(
    select(schema.source.c.store)
    .where(schema.source.c.trust > literal_column(str(int(Trust.FOREIGN))))
    .distinct()
)

#: Keys of the databases that push under the account of this session of a server.
own_stores = Prepared(
    select(schema.account.c.store).where(schema.account.c.role == literal_column("session_user"))
)

forget_watermark = Prepared(
    delete(schema.watermark).where(
        *(
            schema.watermark.c[name] == bindparam(name, type_=schema.Text)
            for name in ("direction", "peer", "selection")
        )
    )
)
insert["watermark"] = _insertion(schema.watermark)
