"""What is asked of a database that is read for an exchange; one set of statements per revision.

Columns come in the order of :data:`tunedb.sharing.wire.COLUMNS`, so that a row that was fetched is
a row of a chunk. What an earlier revision lacks is NULL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Select,
    any_,
    bindparam,
    cast,
    func,
    literal_column,
    null,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY

from .. import schema
from ..engine import Prepared

_m, _p, _f, _v = schema.measurement.c, schema.program.c, schema.failure.c, schema.feature.c
_l, _c = schema.launch.c, schema.counter_set.c

_ROWS = schema.measurement.join(schema.program, _p.id == _m.program_id)

#: The first revision with contexts, whole trials and bytes as decisions; with retractions of other
#: databases; with launches; and with the sources of aliases, failures and launches.
_LOGS, _SHARING, _LAUNCHES, _SAID = "0002", "0004", "0005", "0006"

#: What shared rows are read from, by the name that wire.COLUMNS gives them.
_SHARED: Mapping[str, tuple[Any, ...]] = {
    "source": tuple(schema.source.c[n] for n in ("id", "digest", "name", "kind", "store")),
    "session": tuple(
        schema.session.c[n] for n in ("id", "digest", "key", "started_at", "fingerprint")
    ),
    "workload": tuple(
        schema.workload.c[n] for n in ("id", "digest", "format", "body", "name", "tvm_version")
    ),
    "target": tuple(schema.target.c[n] for n in ("id", "digest", "kind", "config", "text")),
    "sketch": tuple(schema.sketch.c[n] for n in ("id", "digest", "body")),
    "tail": tuple(schema.tail.c[n] for n in ("id", "digest", "body")),
    "args_info": tuple(schema.args_info.c[n] for n in ("id", "digest", "body")),
    "context": tuple(schema.context.c[n] for n in ("id", "digest", "body")),
}

#: Tables whose bodies are compressed.
COMPRESSED = frozenset({"workload", "sketch", "tail"})


def _number(name: str) -> Any:
    return bindparam(name, type_=schema.Int)


@dataclass(frozen=True, slots=True)
class Launches:
    """The statements for launches, up to number ``newest``.

    Parameters
    ----------
    of_range, of, later : Prepared
        As :attr:`Tables.failures`, :attr:`Tables.failures_of` and :attr:`Tables.later`.
    sets_of_range, sets_of, sets_later : Prepared
        The sets of counters that these refer to.
    """

    of_range: Prepared
    of: Prepared
    later: Prepared
    sets_of_range: Prepared
    sets_of: Prepared
    sets_later: Prepared


@dataclass(frozen=True, slots=True)
class Tables:
    """The statements for one revision.

    Parameters
    ----------
    position : Prepared
        Last measurement, its digest, last failure, number of retractions, last launch.
    digest : Prepared
        The digest of measurement ``id``.
    page, page_of : Prepared
        Measurements in order of their numbers: above ``after`` and up to ``until``, at most
        ``n``; those with numbers ``ids``.
    failures, failures_of : Prepared
        Failures up to number ``newest`` of measurements from ``first`` to ``last``; of ``ids``.
    later : Prepared
        Failures above number ``oldest`` and up to ``newest`` of measurements up to ``last``; the
        number of the measurement stands before the columns.
    features, features_of : Prepared
        Features of measurements from ``first`` to ``last``; of ``ids``. The number of the program
        stands before the columns.
    feature_sets, retractions : Prepared
        All of them.
    aliases_of : Prepared
        The aliases of workloads ``ids``.
    shared : mapping
        Table → its rows with numbers ``ids``.
    launches : Launches or None
        None where the revision has none.
    """

    position: Prepared
    digest: Prepared
    page: Prepared
    page_of: Prepared
    failures: Prepared
    failures_of: Prepared
    later: Prepared
    features: Prepared
    features_of: Prepared
    feature_sets: Prepared
    retractions: Prepared
    aliases_of: Prepared
    shared: Mapping[str, Prepared]
    launches: Launches | None


def among(column: Any, statement: Select[Any]) -> Prepared:
    """Return a statement of the rows whose `column` is one of ``ids`` (see :func:`listed`)."""
    values = func.json_each(bindparam("ids", type_=schema.Text)).table_valued("value")
    array = bindparam("ids", type_=ARRAY(BigInteger))
    return Prepared(
        {
            "sqlite": statement.where(column.in_(select(values.c.value))),
            "postgresql": statement.where(column == any_(array)),
        }
    )


#: Up to which number records may have been pruned.
PRUNED = Prepared(select(schema.meta.c.value).where(schema.meta.c.key == schema.PRUNED))


@cache
def tables_of(revision: str) -> Tables:
    """Return the statements for a revision."""
    measurement = _measurement(revision)
    failure = (_f.id, _f.digest)
    is_said = revision >= _SAID
    said = (_f.kind, _f.phase, _f.message, _f.seconds, _f.source_id if is_said else null())
    own = select(*failure, _f.measurement_id, null(), null(), *said).where(
        _f.id <= _number("newest")
    )
    features = select(
        _v.program_id, _m.id, _v.feature_set_id, _v.n_rows, _v.n_columns, _v.data
    ).join_from(schema.measurement, schema.feature, _v.program_id == _m.program_id)
    alias, retraction = schema.workload_alias.c, schema.retraction.c
    store = retraction.store if revision >= _SHARING else null()
    sets = schema.feature_set.c
    return Tables(
        position=_position(revision),
        digest=Prepared(select(_m.digest).where(_m.id == _number("id"))),
        page=Prepared(
            measurement.where(_m.id > _number("after"), _m.id <= _number("until"))
            .order_by(_m.id)
            .limit(_number("n"))
        ),
        page_of=among(_m.id, measurement.order_by(_m.id)),
        failures=Prepared(own.where(_f.measurement_id.between(_number("first"), _number("last")))),
        failures_of=among(_f.measurement_id, own),
        later=_later(said),
        features=Prepared(features.where(_m.id.between(_number("first"), _number("last")))),
        features_of=among(_m.id, features),
        feature_sets=Prepared(select(sets.id, sets.name, sets.version, sets.columns)),
        retractions=Prepared(
            select(retraction.digest, store, retraction.subject, retraction.reason).order_by(
                retraction.digest
            )
        ),
        aliases_of=among(
            alias.workload_id,
            select(
                *(alias.workload_id, alias.scheme, alias.key),
                alias.source_id if is_said else null(),
            ),
        ),
        shared={
            name: among(columns[0], select(*columns))
            for name, columns in _SHARED.items()
            if name != "context" or revision >= _LOGS
        },
        launches=_launches(said=is_said) if revision >= _LAUNCHES else None,
    )


def _measurement(revision: str) -> Select[Any]:
    """Return the columns of measurements with those of their programs."""
    logs = revision >= _LOGS
    return select(
        *(_m.id, _m.digest, _p.digest),
        *(_p.workload_id, _p.target_id, _p.sketch_id, _p.tail_id),
        _p.decisions if logs else cast(_p.decisions, schema.Blob),
        *(_m.status, _m.run_secs, _m.measured_at, _m.occurrence, _m.session_id, _m.source_id),
        _m.args_info_id,
        # The first revision had a word for None.
        _m.origin if logs else func.nullif(_m.origin, literal_column("'unknown'")),
        _m.donor,
        *((_m.all_cost, _m.context_id, _m.extra) if logs else (null(), null(), null())),
    ).select_from(_ROWS)


def _later(said: tuple[Any, ...]) -> Prepared:
    """Return the failures that were learnt after their measurements were given."""
    return Prepared(
        select(
            *(_f.measurement_id, _f.id, _f.digest, null(), _p.digest, _m.digest),
            *said,
        )
        .select_from(schema.failure.join(_ROWS, _m.id == _f.measurement_id))
        .where(_f.id > _number("oldest"), _f.id <= _number("newest"), _m.id <= _number("last"))
        .order_by(_f.id)
    )


def _launches(*, said: bool) -> Launches:
    """Return the statements for launches; `said` is whether their sources are known."""
    columns = (
        *(_l.number, _l.kernel, _l.threads),
        *(_l.block_x, _l.block_y, _l.block_z, _l.grid_x, _l.grid_y, _l.grid_z),
        *(_l.registers, _l.static_shared, _l.dynamic_shared, _l.seconds),
        *(_l.counter_set_id, _l.counters),
        _l.source_id if said else null(),
    )
    until = _l.id <= _number("newest")
    own = select(_l.id, _l.digest, _l.measurement_id, null(), null(), *columns).where(until)
    named = (_c.id, _c.digest, _c.tool, _c.tool_version, _c.compute_capability, _c.counters)
    sets = (
        select(*named)
        .distinct()
        .join_from(schema.launch, schema.counter_set, _c.id == _l.counter_set_id)
        .where(until)
    )
    ends = _l.measurement_id.between(_number("first"), _number("last"))
    after = (_l.id > _number("oldest"), _l.measurement_id <= _number("last"))
    return Launches(
        of_range=Prepared(own.where(ends)),
        of=among(_l.measurement_id, own),
        later=Prepared(
            select(_l.measurement_id, _l.id, _l.digest, null(), _p.digest, _m.digest, *columns)
            .select_from(schema.launch.join(_ROWS, _m.id == _l.measurement_id))
            .where(until, *after)
            .order_by(_l.id)
        ),
        sets_of_range=Prepared(sets.where(ends)),
        sets_of=among(_l.measurement_id, sets),
        sets_later=Prepared(sets.where(*after)),
    )


def _position(revision: str) -> Prepared:
    """Return how far the rows of a database go."""
    other = schema.measurement.alias().c
    last = select(func.max(other.id)).scalar_subquery()
    return Prepared(
        select(
            last,
            select(_m.digest).where(_m.id == last).scalar_subquery(),
            select(func.max(_f.id)).scalar_subquery(),
            select(func.count()).select_from(schema.retraction).scalar_subquery(),
            select(func.max(_l.id)).scalar_subquery() if revision >= _LAUNCHES else null(),
        )
    )
