"""The sources of aliases, failures and launches.

* ``workload_alias``, ``failure``, ``launch``: the source that states the row;
* ``foreign_feature``: the features that came with a merge;
* ``retraction``: also of the aliases of a source alone.

Revision 0006, after 0005.
"""

# Only names of this file are formatted into SQL here.
# ruff: noqa: S608

from __future__ import annotations

from collections.abc import Callable, Sequence

import sqlalchemy as sa
from alembic import op

from tunedb import identity

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

Int = sa.BigInteger().with_variant(sa.Integer, "sqlite")
Real: sa.types.TypeEngine[float] = sa.REAL().with_variant(sa.Double(), "postgresql")
Text = sa.Text()
Blob = sa.LargeBinary()

_NUMBERS = (
    *("block_x", "block_y", "block_z", "grid_x", "grid_y", "grid_z"),
    *("registers", "static_shared", "dynamic_shared"),
)
_FAILURE = "id, digest, measurement_id, kind, phase, message, seconds"
_LAUNCH = (
    f"id, digest, measurement_id, number, kernel, threads, {', '.join(_NUMBERS)}, "
    "seconds, counter_set_id, counters"
)

_ASIDE = {
    table: f"CREATE TABLE old_{table} AS SELECT * FROM {table}"
    for table in ("workload_alias", "failure", "launch", "retraction")
}
_NUMBERED = {
    table: f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), "
    f"coalesce((SELECT max(id) FROM {table}), 0) + 1, false)"
    for table in ("failure", "launch")
}

#: The name of the foreign source of rows that earlier revisions did not attribute.
_BEFORE = "before revision 0006"
_UNKNOWN = "unknown"

#: If all records of a workload have one source, its aliases belong to that source.
_ALIASES = """
    INSERT INTO workload_alias (scheme, key, workload_id, source_id)
    SELECT a.scheme, a.key, a.workload_id,
        CASE WHEN s.first = s.last THEN s.first ELSE (SELECT id FROM source WHERE digest = :before)
        END
    FROM old_workload_alias AS a
    LEFT JOIN (
        SELECT workload_id, min(source_id) AS first, max(source_id) AS last
        FROM measurement GROUP BY workload_id
    ) AS s ON s.workload_id = a.workload_id"""

#: A measurement that succeeded has no failure; its own source did not state this one.
_FAILURES = f"""
    INSERT INTO failure ({_FAILURE}, source_id)
    SELECT {", ".join(f"f.{name}" for name in _FAILURE.split(", "))},
        CASE WHEN m.status = 0 THEN (SELECT id FROM source WHERE digest = :before)
        ELSE m.source_id END
    FROM old_failure AS f JOIN measurement AS m ON m.id = f.measurement_id"""
_LAUNCHES = f"""
    INSERT INTO launch ({_LAUNCH}, source_id)
    SELECT {", ".join(f"l.{name}" for name in _LAUNCH.split(", "))}, m.source_id
    FROM old_launch AS l JOIN measurement AS m ON m.id = l.measurement_id"""
_RETRACTIONS = """
    INSERT INTO retraction (digest, store, subject, reason, created_at)
    SELECT digest, store, subject, reason, created_at FROM old_retraction"""

#: Earlier revisions attribute no rows, and have one retraction of each digest and database.
_PLAIN_ALIASES = """
    INSERT INTO workload_alias (scheme, key, workload_id)
    SELECT DISTINCT scheme, key, workload_id FROM old_workload_alias"""
_PLAIN_FAILURES = f"""
    INSERT INTO failure ({_FAILURE})
    SELECT {_FAILURE} FROM old_failure
    WHERE id IN (SELECT min(id) FROM old_failure GROUP BY digest)"""
_PLAIN_LAUNCHES = f"""
    INSERT INTO launch ({_LAUNCH})
    SELECT {_LAUNCH} FROM old_launch
    WHERE id IN (SELECT min(id) FROM old_launch GROUP BY digest)"""
_WHOLE_RETRACTIONS = """
    INSERT INTO retraction (digest, store, subject, reason, created_at)
    SELECT digest, store, min(subject), min(reason), min(created_at)
    FROM old_retraction WHERE subject <> 'aliases' GROUP BY digest, store"""


def upgrade() -> None:
    _add_source_of_before()
    _remake("workload_alias", lambda: _create_alias(sources=True), [_ALIASES])
    _remake("failure", lambda: _create_failure(sources=True), [_FAILURES])
    _remake("launch", lambda: _create_launch(sources=True), [_LAUNCHES])
    _remake("retraction", lambda: _create_retraction(subjects=True), [_RETRACTIONS])
    op.create_table(
        "foreign_feature",
        sa.Column("program_id", Int, nullable=False),
        sa.Column("feature_set_id", Int, nullable=False),
        sa.Column("source_id", Int, nullable=False),
        _reference("foreign_feature", "feature_set_id", "feature_set"),
        _reference("foreign_feature", "program_id", "program"),
        _reference("foreign_feature", "source_id", "source"),
        sa.PrimaryKeyConstraint("program_id", "feature_set_id", name=op.f("pk_foreign_feature")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("foreign_feature")
    _remake("retraction", lambda: _create_retraction(subjects=False), [_WHOLE_RETRACTIONS])
    _remake("launch", lambda: _create_launch(sources=False), [_PLAIN_LAUNCHES])
    _remake("failure", lambda: _create_failure(sources=False), [_PLAIN_FAILURES])
    _remake("workload_alias", lambda: _create_alias(sources=False), [_PLAIN_ALIASES])


def _before() -> bytes:
    """Return the digest of the source of rows that earlier revisions did not attribute."""
    return identity.digest("source", _UNKNOWN.encode(), _BEFORE.encode())


def _add_source_of_before() -> None:
    """Add that source if a row may belong to it."""
    op.get_bind().execute(
        sa.text(
            """
            INSERT INTO source (digest, name, kind, trust, store, created_at, tunedb_version)
            SELECT :before, :name, 'api', 0, :store,
                coalesce((SELECT min(created_at) FROM source), 0), '0.1.0'
            WHERE EXISTS (
                SELECT 1 FROM failure AS f JOIN measurement AS m ON m.id = f.measurement_id
                WHERE m.status = 0
            ) OR EXISTS (
                SELECT 1 FROM workload_alias AS a WHERE (
                    SELECT count(DISTINCT m.source_id) FROM measurement AS m
                    WHERE m.workload_id = a.workload_id
                ) <> 1
            )"""
        ),
        {
            "before": _before(),
            "name": _BEFORE,
            "store": _UNKNOWN,
        },
    )


def _remake(table: str, create: Callable[[], None], copies: Sequence[str]) -> None:
    """Recreate a table and copy its rows.

    The rows are copied twice, because a renamed table would keep quotes around its name.
    """
    op.execute(_ASIDE[table])
    op.drop_table(table)
    create()
    for copy in copies:
        parameters = {"before": _before()} if ":before" in copy else {}
        op.get_bind().execute(sa.text(copy), parameters)
    op.drop_table(f"old_{table}")
    # PostgreSQL must continue numbering after the copied rows, which kept their numbers.
    if table in _NUMBERED and op.get_bind().dialect.name == "postgresql":
        op.execute(_NUMBERED[table])


def _reference(table: str, column: str, other: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        [column], [f"{other}.id"], name=op.f(f"fk_{table}_{column}_{other}")
    )


def _create_alias(*, sources: bool) -> None:
    said = [sa.Column("source_id", Int, nullable=False)] if sources else []
    by = [_reference("workload_alias", "source_id", "source")] if sources else []
    key = ["scheme", "key", "workload_id", *(["source_id"] if sources else [])]
    op.create_table(
        "workload_alias",
        sa.Column("scheme", Text, nullable=False),
        sa.Column("key", Text, nullable=False),
        sa.Column("workload_id", Int, nullable=False),
        *said,
        *by,
        _reference("workload_alias", "workload_id", "workload"),
        sa.PrimaryKeyConstraint(*key, name=op.f("pk_workload_alias")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_workload_alias_workload_id"), "workload_alias", ["workload_id"])


def _source(*, sources: bool) -> list[sa.Column[int]]:
    """Return the column with the source of a row."""
    return [sa.Column("source_id", Int, nullable=False)] if sources else []


def _known_by(table: str, *, sources: bool) -> list[sa.schema.Constraint]:
    """Return the constraints that identify a row."""
    of = [_reference(table, "source_id", "source")] if sources else []
    key = ["digest", *(["source_id"] if sources else [])]
    return [*of, sa.UniqueConstraint(*key, name=op.f(f"uq_{table}_{'_'.join(key)}"))]


def _create_failure(*, sources: bool) -> None:
    op.create_table(
        "failure",
        sa.Column("id", Int, nullable=False),
        sa.Column("digest", Blob, nullable=False),
        sa.Column("measurement_id", Int, nullable=False),
        sa.Column("kind", Text, nullable=False),
        sa.Column("phase", Text, nullable=False),
        sa.Column("message", Text, nullable=False),
        sa.Column("seconds", Real, nullable=True),
        *_source(sources=sources),
        _reference("failure", "measurement_id", "measurement"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_failure")),
        *_known_by("failure", sources=sources),
        sqlite_strict=True,
    )
    op.create_index(op.f("ix_failure_measurement_id"), "failure", ["measurement_id"])


def _create_launch(*, sources: bool) -> None:
    op.create_table(
        "launch",
        sa.Column("id", Int, nullable=False),
        sa.Column("digest", Blob, nullable=False),
        sa.Column("measurement_id", Int, nullable=False),
        sa.Column("number", Int, nullable=False),
        sa.Column("kernel", Text, nullable=False),
        sa.Column("threads", Int, nullable=False),
        *(sa.Column(name, Int, nullable=True) for name in _NUMBERS),
        sa.Column("seconds", Real, nullable=True),
        sa.Column("counter_set_id", Int, nullable=True),
        sa.Column("counters", Blob, nullable=True),
        *_source(sources=sources),
        _reference("launch", "counter_set_id", "counter_set"),
        _reference("launch", "measurement_id", "measurement"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_launch")),
        *_known_by("launch", sources=sources),
        sqlite_strict=True,
    )
    op.create_index(op.f("ix_launch_measurement_id"), "launch", ["measurement_id"])


def _create_retraction(*, subjects: bool) -> None:
    key = ["digest", "store", *(["subject"] if subjects else [])]
    op.create_table(
        "retraction",
        sa.Column("digest", Blob, nullable=False),
        sa.Column("store", Text, nullable=False),
        sa.Column("subject", Text, nullable=False),
        sa.Column("reason", Text, nullable=False),
        sa.Column("created_at", Int, nullable=False),
        sa.PrimaryKeyConstraint(*key, name=op.f("pk_retraction")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
