"""Checks of rows without a digest: values that other rows determine, and formats.

A part of :mod:`tunedb.maintenance.check`.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Table, and_, exists, literal, select, tuple_

from .. import identity, limits
from ..errors import NotFoundError
from ..json_checks import parse_json
from ..storage import schema, versions
from ..storage.retractions import ALIASES, SUBJECTS, store_key
from .check_derived import DAMAGE, PAGE, unreadable

if TYPE_CHECKING:
    from ..storage.store import Store
    from .check import CheckReport

_KEYS = frozenset({"format", "store", "created_by", "created_at"})

#: Patterns of the values of table ``meta``, by key; values of other keys are free.
_META_FORMS = {
    "store": re.compile(r"[0-9a-f]{32}"),
    "created_at": re.compile(r"\d{1,19}"),
    schema.PRUNED: re.compile(r"\d{1,19}"),
}


def rows_of(connection: Connection, table: Table) -> Iterator[Any]:
    """Yield the rows of a table in the order of its key, a page at a time."""
    key = list(table.primary_key.columns)
    statement = select(table).order_by(*key).limit(PAGE)
    rows = connection.execute(statement).all()
    while rows:
        yield from rows
        last = [literal(rows[-1]._mapping[column]) for column in key]
        rows = connection.execute(statement.where(tuple_(*key) > tuple_(*last))).all()


# ---------------------------------------------------------------------- row by row


def _meta_problem(row: Any, _: Store) -> str | None:
    """Return the problem of a row of table ``meta``."""
    if row.key not in _KEYS | {schema.PRUNED}:
        return f"{row.key!r} is not one of its keys"
    form = _META_FORMS.get(row.key)
    if form is not None and not form.fullmatch(row.value):
        return f"{row.key} is {row.value!r}"
    return None


def _prediction_problem(row: Any, _: Store) -> str | None:
    """Return the problem of a prediction."""
    if math.isfinite(row.score):
        return None
    return f"the score of program {row.program_id} is {row.score}"


def _factor_problem(row: Any, store: Store) -> str | None:
    """Return the problem of a session's factor."""
    where = f"{row.subject} {row.subject_id}"
    find: Callable[[int], Any] | None = {
        "session": store.sessions.get,
        "source": store.sources.get,
    }.get(row.subject)
    if find is None:
        return f"{where}: a factor of neither a session nor a source"
    try:
        find(row.subject_id)
    except NotFoundError:
        return f"{where} has a factor, but does not exist"
    if not (math.isfinite(row.factor) and row.factor > 0):
        return f"{where}: its factor is {row.factor}"
    return None


def _set_problem(row: Any, _: Store) -> str | None:
    """Return the problem of a feature set; if it is installed, its columns must be equal."""
    from ..features.base import load_feature_sets

    label = f"{row.name} version {row.version}"
    try:
        columns = parse_json(row.columns.encode())
    except DAMAGE as error:
        return f"{label}: {unreadable(error)}"
    installed = load_feature_sets()[0].get(row.name)
    if installed is None or installed.version != row.version:
        return None
    return None if tuple(columns) == installed.columns else f"{label} has other columns"


#: Tables whose rows have no digest → function of a row's problem. The first column names the row.
PLAIN: dict[Table, Callable[[Any, Store], str | None]] = {
    schema.meta: _meta_problem,
    schema.feature_set: _set_problem,
    schema.prediction: _prediction_problem,
    schema.session_factor: _factor_problem,
}


# ---------------------------------------------------------------------- whole tables


def check_tables(connection: Connection, store: Store, report: CheckReport) -> None:
    """Check that rows of several tables agree."""
    _check_store(connection, store, report)
    _check_retractions(connection, report)
    _check_foreign_features(connection, report)
    _check_orphans(connection, report)
    _check_samples(connection, store, report)


def _check_store(connection: Connection, store: Store, report: CheckReport) -> None:
    """Compare the key of the store with the header of a SQLite file.

    The cards of its models confirm the key too (:mod:`.check_derived`). Sources do not: all own
    sources may come from other databases.
    """
    keys = set(connection.execute(select(schema.meta.c.key)).scalars())
    for key in sorted(_KEYS - keys):
        report.add("readable", "meta", None, f"it has no {key}")
    if connection.dialect.name == "sqlite":
        mark = versions.mark_of(connection)
        if mark and mark != versions.store_mark(store.key):
            report.add("digest", "meta", None, "the file's header belongs to another store key")


def _check_retractions(connection: Connection, report: CheckReport) -> None:
    """Report own retractions whose subject does not fit the table of their digest.

    Retractions of others may state anything; they retract only records of their own store.
    """
    r = schema.retraction.c
    subjects = {
        schema.measurement: ("measurement",),
        schema.session: ("session",),
        schema.source: ("source", ALIASES),
    }
    found = select(r.digest, r.subject).where(r.subject.not_in(SUBJECTS))
    wrong = list(connection.execute(found))
    for table, fitting in subjects.items():
        # The query looks each row up in the index of retractions: that of measurements begins with
        # programs.
        other = select(r.digest, r.subject).join_from(
            table, schema.retraction, r.digest == table.c.digest
        )
        wrong += connection.execute(other.where(r.subject.not_in(fitting), r.store == store_key()))
    for digest, subject in sorted({(bytes(row.digest).hex(), row.subject) for row in wrong}):
        words = f"{digest[:16]} is retracted as {subject!r}, which it is not"
        report.add("derived", "retraction", None, words)


def _check_foreign_features(connection: Connection, report: CheckReport) -> None:
    """Report rows of ``foreign_feature`` without features."""
    foreign, feature = schema.foreign_feature.c, schema.feature.c
    there = exists().where(
        feature.program_id == foreign.program_id,
        feature.feature_set_id == foreign.feature_set_id,
    )
    for program in connection.execute(select(foreign.program_id).where(~there)).scalars():
        report.add("derived", "foreign_feature", program, "it refers to features that are missing")


def _check_orphans(connection: Connection, report: CheckReport) -> None:
    """Check the digests of programs without a measurement; measurements check the others."""
    p, w, t = schema.program.c, schema.workload.c, schema.target.c
    sketch, tail = schema.sketch.c, schema.tail.c
    measured = exists().where(schema.measurement.c.program_id == p.id)
    rows = connection.execute(
        select(
            *(p.id, p.digest, p.decisions),
            *(c.label(name) for name, c in (("workload", w.digest), ("target", t.digest))),
            *(c.label(name) for name, c in (("sketch", sketch.digest), ("tail", tail.digest))),
        )
        .join_from(schema.program, schema.workload, w.id == p.workload_id)
        .join(schema.target, t.id == p.target_id)
        .join(schema.sketch, sketch.id == p.sketch_id)
        .outerjoin(schema.tail, tail.id == p.tail_id)
        .where(~measured)
    )
    for row in rows:
        workload, target, sketched = map(bytes, (row.workload, row.target, row.sketch))
        ending = None if row.tail is None else bytes(row.tail)
        digest = identity.program_digest(workload, target, sketched, ending, bytes(row.decisions))
        if digest != bytes(row.digest):
            report.add("digest", "program", row.id, "its digest does not match its contents")


def _check_samples(connection: Connection, store: Store, report: CheckReport) -> None:
    """Recompute a sample of the features of sets that need no TVM."""
    from ..extraction import verify
    from ..features import blobs

    f, s = schema.feature.c, schema.feature_set.c
    for row in connection.execute(select(s.id, s.name, s.version)).all():
        feature_set = verify.computing(row.name, row.version)
        if feature_set is None:
            continue
        known = list(
            connection.execute(select(f.program_id).where(f.feature_set_id == row.id)).scalars()
        )
        # Not for secrets: any sample will do, and the next run should draw another.
        drawn = sorted(random.sample(known, min(len(known), limits.FEATURE_SAMPLE)))
        stored = {
            features.program_id: features
            for features in connection.execute(
                select(f.program_id, f.n_rows, f.n_columns, f.data).where(
                    and_(f.feature_set_id == row.id, f.program_id.in_(drawn))
                )
            )
        }
        try:
            programs = store.programs.get(drawn)
            rows = [
                blobs.unpack(features.n_rows, features.n_columns, bytes(features.data))
                for features in (stored[program.id] for program in programs)
            ]
            wrong = verify.differing(feature_set, programs, rows)
        except DAMAGE:
            # The checks of features and of programs report a damaged row.
            continue
        for place in wrong:
            words = f"{row.name} version {row.version}: not the features of the program's steps"
            report.add("derived", "feature", programs[place].id, words)
