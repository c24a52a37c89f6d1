"""Columns for logs of other tools.

* ``program.decisions`` holds bytes: numbers of transform steps are packed, not JSON;
* ``measurement`` gets the seconds of the whole trial, the values that many lines of a log share
  (``context``) and those of one line (``extra``). Queries reach it through its program, so the
  index of its digest alone is dropped, and so are median and minimum, which no query used;
* ``workload`` gets its signature.

Revision 0002, after 0001.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

Int = sa.BigInteger().with_variant(sa.Integer, "sqlite")
Real: sa.types.TypeEngine[float] = sa.REAL().with_variant(sa.Double, "postgresql")
Text = sa.Text()
Blob = sa.LargeBinary()

_SAVE = {
    "workload": "CREATE TABLE old_workload AS SELECT * FROM workload",
    "program": "CREATE TABLE old_program AS SELECT * FROM program",
    "measurement": "CREATE TABLE old_measurement AS SELECT * FROM measurement",
}

_COPY_WORKLOAD = """
    INSERT INTO workload (id, digest, format, body, name, tvm_version, script, created_at)
    SELECT id, digest, format, body, name, tvm_version, script, created_at
    FROM old_workload ORDER BY id"""

_COPY_PROGRAM = """
    INSERT INTO program (id, digest, workload_id, target_id, sketch_id, tail_id, decisions)
    SELECT id, digest, workload_id, target_id, sketch_id, tail_id, CAST(decisions AS BLOB)
    FROM old_program ORDER BY id"""

_COPY_PROGRAM_BACK = """
    INSERT INTO program (id, digest, workload_id, target_id, sketch_id, tail_id, decisions)
    SELECT id, digest, workload_id, target_id, sketch_id, tail_id, CAST(decisions AS TEXT)
    FROM old_program ORDER BY id"""

_COPY_MEASUREMENT = """
    INSERT INTO measurement (
        id, digest, program_id, workload_id, target_id, status, run_secs, mean, measured_at,
        occurrence, session_id, source_id, args_info_id, donor, served, origin)
    SELECT
        id, digest, program_id, workload_id, target_id, status, run_secs, mean, measured_at,
        occurrence, session_id, source_id, args_info_id, donor, served, NULLIF(origin, 'unknown')
    FROM old_measurement ORDER BY id"""

_COPY_MEASUREMENT_BACK = """
    INSERT INTO measurement (
        id, digest, program_id, workload_id, target_id, status, run_secs, mean, measured_at,
        occurrence, session_id, source_id, args_info_id, donor, served, origin)
    SELECT
        id, digest, program_id, workload_id, target_id, status, run_secs, mean, measured_at,
        occurrence, session_id, source_id, args_info_id, donor, served, COALESCE(origin, 'unknown')
    FROM old_measurement ORDER BY id"""


def upgrade() -> None:
    op.create_table(
        "context",
        sa.Column("id", Int, nullable=False),
        sa.Column("digest", Blob, nullable=False),
        sa.Column("body", Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_context")),
        sa.UniqueConstraint("digest", name=op.f("uq_context_digest")),
        sqlite_strict=True,
    )
    if op.get_bind().dialect.name == "sqlite":
        _upgrade_sqlite()
    else:
        _upgrade_postgresql()


def _upgrade_sqlite() -> None:
    """Recreate the tables: SQLite can change neither a type nor a constraint."""
    _anew("workload", lambda: _create_workload(signature=True), _COPY_WORKLOAD)
    _anew("program", lambda: _create_program(Blob), _COPY_PROGRAM)
    _anew("measurement", _create_measurement, _COPY_MEASUREMENT)
    _create_top_k()


def _upgrade_postgresql() -> None:
    for name, type_ in (
        ("function", Text),
        ("arguments", Text),
        ("family", Text),
        ("flops", Real),
    ):
        op.add_column("workload", sa.Column(name, type_))
    op.execute(
        "ALTER TABLE program ALTER COLUMN decisions TYPE bytea USING convert_to(decisions, 'UTF8')"
    )
    op.drop_constraint("uq_measurement_digest", "measurement")
    op.drop_index("ix_measurement_program_id", "measurement")
    op.drop_column("measurement", "median")
    op.drop_column("measurement", "minimum")
    op.alter_column("measurement", "origin", nullable=True)
    op.execute("UPDATE measurement SET origin = NULL WHERE origin = 'unknown'")
    op.add_column("measurement", sa.Column("all_cost", Real))
    op.add_column("measurement", sa.Column("context_id", Int))
    op.add_column("measurement", sa.Column("extra", Text))
    op.create_foreign_key(
        op.f("fk_measurement_context_id_context"), "measurement", "context", ["context_id"], ["id"]
    )
    op.create_unique_constraint(
        op.f("uq_measurement_program_id_digest"), "measurement", ["program_id", "digest"]
    )


def downgrade() -> None:
    """Go back to 0001; values without a column there are lost."""
    if op.get_bind().dialect.name == "sqlite":
        _downgrade_sqlite()
    else:
        _downgrade_postgresql()
    op.drop_table("context")


def _downgrade_sqlite() -> None:
    _anew("workload", lambda: _create_workload(signature=False), _COPY_WORKLOAD)
    _anew("program", lambda: _create_program(Text), _COPY_PROGRAM_BACK)
    _anew("measurement", _create_first_measurement, _COPY_MEASUREMENT_BACK)
    op.create_index(op.f("ix_measurement_program_id"), "measurement", ["program_id"])
    _create_top_k()


def _downgrade_postgresql() -> None:
    for name in ("function", "arguments", "family", "flops"):
        op.drop_column("workload", name)
    op.execute(
        "ALTER TABLE program ALTER COLUMN decisions TYPE text USING convert_from(decisions, 'UTF8')"
    )
    op.drop_constraint("uq_measurement_program_id_digest", "measurement")
    for name in ("all_cost", "context_id", "extra"):
        op.drop_column("measurement", name)
    op.execute("UPDATE measurement SET origin = 'unknown' WHERE origin IS NULL")
    op.alter_column("measurement", "origin", nullable=False)
    op.add_column("measurement", sa.Column("median", Real))
    op.add_column("measurement", sa.Column("minimum", Real))
    op.create_unique_constraint(op.f("uq_measurement_digest"), "measurement", ["digest"])
    op.create_index(op.f("ix_measurement_program_id"), "measurement", ["program_id"])


def _anew(table: str, create: Callable[[], None], copy: str) -> None:
    """Recreate a table and copy its rows.

    The rows are copied twice, because a renamed table would keep quotes around its name.
    """
    op.execute(_SAVE[table])
    op.drop_table(table)
    create()
    op.execute(copy)
    op.drop_table(f"old_{table}")


def _create_workload(*, signature: bool) -> None:
    added = (
        sa.Column("function", Text, nullable=True),
        sa.Column("arguments", Text, nullable=True),
        sa.Column("family", Text, nullable=True),
        sa.Column("flops", Real, nullable=True),
    )
    op.create_table(
        "workload",
        sa.Column("id", Int, nullable=False),
        sa.Column("digest", Blob, nullable=False),
        sa.Column("format", Text, nullable=False),
        sa.Column("body", Blob, nullable=False),
        sa.Column("name", Text, nullable=False),
        sa.Column("tvm_version", Text, nullable=True),
        sa.Column("script", Blob, nullable=True),
        *(added if signature else ()),
        sa.Column("created_at", Int, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workload")),
        sa.UniqueConstraint("digest", name=op.f("uq_workload_digest")),
        sqlite_strict=True,
    )


def _create_program(decisions: sa.types.TypeEngine) -> None:  # type: ignore[type-arg]
    op.create_table(
        "program",
        sa.Column("id", Int, nullable=False),
        sa.Column("digest", Blob, nullable=False),
        sa.Column("workload_id", Int, nullable=False),
        sa.Column("target_id", Int, nullable=False),
        sa.Column("sketch_id", Int, nullable=False),
        sa.Column("tail_id", Int, nullable=True),
        sa.Column("decisions", decisions, nullable=False),
        *(_foreign("program", name) for name in ("sketch", "tail", "target", "workload")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_program")),
        sa.UniqueConstraint("digest", name=op.f("uq_program_digest")),
        sqlite_strict=True,
    )


def _create_measurement() -> None:
    op.create_table(
        "measurement",
        sa.Column("id", Int, nullable=False),
        sa.Column("digest", Blob, nullable=False),
        *_measured(),
        sa.Column("measured_at", Int, nullable=False),
        sa.Column("occurrence", Int, nullable=False),
        sa.Column("session_id", Int, nullable=True),
        sa.Column("source_id", Int, nullable=False),
        sa.Column("args_info_id", Int, nullable=True),
        sa.Column("origin", Text, nullable=True),
        sa.Column("donor", Blob, nullable=True),
        sa.Column("served", Int, nullable=False),
        sa.Column("all_cost", Real, nullable=True),
        sa.Column("context_id", Int, nullable=True),
        sa.Column("extra", Text, nullable=True),
        *(_foreign("measurement", name) for name in (*_REFERRED, "context")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_measurement")),
        sa.UniqueConstraint("program_id", "digest", name=op.f("uq_measurement_program_id_digest")),
        sqlite_strict=True,
    )


def _create_first_measurement() -> None:
    op.create_table(
        "measurement",
        sa.Column("id", Int, nullable=False),
        sa.Column("digest", Blob, nullable=False),
        *_measured(),
        sa.Column("median", Real, nullable=True),
        sa.Column("minimum", Real, nullable=True),
        sa.Column("measured_at", Int, nullable=False),
        sa.Column("occurrence", Int, nullable=False),
        sa.Column("session_id", Int, nullable=True),
        sa.Column("source_id", Int, nullable=False),
        sa.Column("args_info_id", Int, nullable=True),
        sa.Column("origin", Text, nullable=False),
        sa.Column("donor", Blob, nullable=True),
        sa.Column("served", Int, nullable=False),
        *(_foreign("measurement", name) for name in _REFERRED),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_measurement")),
        sa.UniqueConstraint("digest", name=op.f("uq_measurement_digest")),
        sqlite_strict=True,
    )


_REFERRED = ("args_info", "program", "session", "source", "target", "workload")


def _measured() -> tuple[sa.Column, ...]:  # type: ignore[type-arg]
    return (
        sa.Column("program_id", Int, nullable=False),
        sa.Column("workload_id", Int, nullable=False),
        sa.Column("target_id", Int, nullable=False),
        sa.Column("status", Int, nullable=False),
        sa.Column("run_secs", Blob, nullable=True),
        sa.Column("mean", Real, nullable=True),
    )


def _foreign(table: str, parent: str) -> sa.ForeignKeyConstraint:
    name = op.f(f"fk_{table}_{parent}_id_{parent}")
    return sa.ForeignKeyConstraint([f"{parent}_id"], [f"{parent}.id"], name=name)


def _create_top_k() -> None:
    op.create_index(
        "ix_measurement_top_k",
        "measurement",
        ["workload_id", "target_id", "mean", "id", "served"],
        sqlite_where=sa.text("served = 1"),
        postgresql_where=sa.text("served = 1"),
    )
