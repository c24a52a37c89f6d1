"""The first schema.

Revision 0001, after None.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# Frozen copies of the types of tunedb/storage/schema.py: a revision must not change with the code.
Int = sa.BigInteger().with_variant(sa.Integer, "sqlite")
Real: sa.types.TypeEngine[float] = sa.REAL().with_variant(sa.Double, "postgresql")
Text = sa.Text()
Blob = sa.LargeBinary()


def upgrade() -> None:
    op.create_table(
        "args_info",
        sa.Column("id", Int, nullable=False),
        sa.Column("digest", Blob, nullable=False),
        sa.Column("body", Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_args_info")),
        sa.UniqueConstraint("digest", name=op.f("uq_args_info_digest")),
        sqlite_strict=True,
    )
    op.create_table(
        "feature_set",
        sa.Column("id", Int, nullable=False),
        sa.Column("name", Text, nullable=False),
        sa.Column("version", Int, nullable=False),
        sa.Column("columns", Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_feature_set")),
        sa.UniqueConstraint("name", "version", name=op.f("uq_feature_set_name_version")),
        sqlite_strict=True,
    )
    op.create_table(
        "meta",
        sa.Column("key", Text, nullable=False),
        sa.Column("value", Text, nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_meta")),
        sqlite_strict=True,
    )
    op.create_table(
        "model",
        sa.Column("id", Int, nullable=False),
        sa.Column("digest", Blob, nullable=False),
        sa.Column("kind", Text, nullable=False),
        sa.Column("parameters", Text, nullable=False),
        sa.Column("training_digest", Blob, nullable=False),
        sa.Column("card", Text, nullable=False),
        sa.Column("created_at", Int, nullable=False),
        sa.Column("body", Blob, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_model")),
        sa.UniqueConstraint("digest", name=op.f("uq_model_digest")),
        sqlite_strict=True,
    )
    op.create_table(
        "retraction",
        sa.Column("subject", Text, nullable=False),
        sa.Column("digest", Blob, nullable=False),
        sa.Column("reason", Text, nullable=False),
        sa.Column("created_at", Int, nullable=False),
        sa.PrimaryKeyConstraint("subject", "digest", name=op.f("pk_retraction")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "session",
        sa.Column("id", Int, nullable=False),
        sa.Column("digest", Blob, nullable=False),
        sa.Column("key", Text, nullable=False),
        sa.Column("started_at", Int, nullable=False),
        sa.Column("fingerprint", Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_session")),
        sa.UniqueConstraint("digest", name=op.f("uq_session_digest")),
        sqlite_strict=True,
    )
    op.create_table(
        "sketch",
        sa.Column("id", Int, nullable=False),
        sa.Column("digest", Blob, nullable=False),
        sa.Column("body", Blob, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sketch")),
        sa.UniqueConstraint("digest", name=op.f("uq_sketch_digest")),
        sqlite_strict=True,
    )
    op.create_table(
        "source",
        sa.Column("id", Int, nullable=False),
        sa.Column("digest", Blob, nullable=False),
        sa.Column("name", Text, nullable=False),
        sa.Column("kind", Text, nullable=False),
        sa.Column("trust", Int, nullable=False),
        sa.Column("store", Text, nullable=False),
        sa.Column("created_at", Int, nullable=False),
        sa.Column("tunedb_version", Text, nullable=False),
        sa.Column("note", Text, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_source")),
        sa.UniqueConstraint("digest", name=op.f("uq_source_digest")),
        sqlite_strict=True,
    )
    op.create_table(
        "tail",
        sa.Column("id", Int, nullable=False),
        sa.Column("digest", Blob, nullable=False),
        sa.Column("body", Blob, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tail")),
        sa.UniqueConstraint("digest", name=op.f("uq_tail_digest")),
        sqlite_strict=True,
    )
    op.create_table(
        "target",
        sa.Column("id", Int, nullable=False),
        sa.Column("digest", Blob, nullable=False),
        sa.Column("kind", Text, nullable=False),
        sa.Column("architecture", Text, nullable=False),
        sa.Column("config", Text, nullable=False),
        sa.Column("text", Text, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_target")),
        sa.UniqueConstraint("digest", name=op.f("uq_target_digest")),
        sqlite_strict=True,
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
        sa.Column("created_at", Int, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workload")),
        sa.UniqueConstraint("digest", name=op.f("uq_workload_digest")),
        sqlite_strict=True,
    )
    op.create_table(
        "program",
        sa.Column("id", Int, nullable=False),
        sa.Column("digest", Blob, nullable=False),
        sa.Column("workload_id", Int, nullable=False),
        sa.Column("target_id", Int, nullable=False),
        sa.Column("sketch_id", Int, nullable=False),
        sa.Column("tail_id", Int, nullable=True),
        sa.Column("decisions", Text, nullable=False),
        sa.ForeignKeyConstraint(
            ["sketch_id"], ["sketch.id"], name=op.f("fk_program_sketch_id_sketch")
        ),
        sa.ForeignKeyConstraint(["tail_id"], ["tail.id"], name=op.f("fk_program_tail_id_tail")),
        sa.ForeignKeyConstraint(
            ["target_id"], ["target.id"], name=op.f("fk_program_target_id_target")
        ),
        sa.ForeignKeyConstraint(
            ["workload_id"], ["workload.id"], name=op.f("fk_program_workload_id_workload")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_program")),
        sa.UniqueConstraint("digest", name=op.f("uq_program_digest")),
        sqlite_strict=True,
    )
    op.create_table(
        "quarantine",
        sa.Column("id", Int, nullable=False),
        sa.Column("digest", Blob, nullable=False),
        sa.Column("source_id", Int, nullable=False),
        sa.Column("file", Text, nullable=False),
        sa.Column("line", Int, nullable=False),
        sa.Column("reason", Text, nullable=False),
        sa.Column("data", Blob, nullable=False),
        sa.Column("created_at", Int, nullable=False),
        sa.ForeignKeyConstraint(
            ["source_id"], ["source.id"], name=op.f("fk_quarantine_source_id_source")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_quarantine")),
        sa.UniqueConstraint("digest", name=op.f("uq_quarantine_digest")),
        sqlite_strict=True,
    )
    op.create_table(
        "workload_alias",
        sa.Column("scheme", Text, nullable=False),
        sa.Column("key", Text, nullable=False),
        sa.Column("workload_id", Int, nullable=False),
        sa.ForeignKeyConstraint(
            ["workload_id"], ["workload.id"], name=op.f("fk_workload_alias_workload_id_workload")
        ),
        sa.PrimaryKeyConstraint("scheme", "key", "workload_id", name=op.f("pk_workload_alias")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    with op.batch_alter_table("workload_alias", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_workload_alias_workload_id"), ["workload_id"], unique=False
        )

    op.create_table(
        "feature",
        sa.Column("program_id", Int, nullable=False),
        sa.Column("feature_set_id", Int, nullable=False),
        sa.Column("n_rows", Int, nullable=False),
        sa.Column("n_columns", Int, nullable=False),
        sa.Column("data", Blob, nullable=False),
        sa.ForeignKeyConstraint(
            ["feature_set_id"],
            ["feature_set.id"],
            name=op.f("fk_feature_feature_set_id_feature_set"),
        ),
        sa.ForeignKeyConstraint(
            ["program_id"], ["program.id"], name=op.f("fk_feature_program_id_program")
        ),
        sa.PrimaryKeyConstraint("program_id", "feature_set_id", name=op.f("pk_feature")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "measurement",
        sa.Column("id", Int, nullable=False),
        sa.Column("digest", Blob, nullable=False),
        sa.Column("program_id", Int, nullable=False),
        sa.Column("workload_id", Int, nullable=False),
        sa.Column("target_id", Int, nullable=False),
        sa.Column("status", Int, nullable=False),
        sa.Column("run_secs", Blob, nullable=True),
        sa.Column("mean", Real, nullable=True),
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
        sa.ForeignKeyConstraint(
            ["args_info_id"], ["args_info.id"], name=op.f("fk_measurement_args_info_id_args_info")
        ),
        sa.ForeignKeyConstraint(
            ["program_id"], ["program.id"], name=op.f("fk_measurement_program_id_program")
        ),
        sa.ForeignKeyConstraint(
            ["session_id"], ["session.id"], name=op.f("fk_measurement_session_id_session")
        ),
        sa.ForeignKeyConstraint(
            ["source_id"], ["source.id"], name=op.f("fk_measurement_source_id_source")
        ),
        sa.ForeignKeyConstraint(
            ["target_id"], ["target.id"], name=op.f("fk_measurement_target_id_target")
        ),
        sa.ForeignKeyConstraint(
            ["workload_id"], ["workload.id"], name=op.f("fk_measurement_workload_id_workload")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_measurement")),
        sa.UniqueConstraint("digest", name=op.f("uq_measurement_digest")),
        sqlite_strict=True,
    )
    with op.batch_alter_table("measurement", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_measurement_program_id"), ["program_id"], unique=False)
        batch_op.create_index(
            "ix_measurement_top_k",
            ["workload_id", "target_id", "mean", "id", "served"],
            unique=False,
            sqlite_where=sa.text("served = 1"),
            postgresql_where=sa.text("served = 1"),
        )

    op.create_table(
        "failure",
        sa.Column("id", Int, nullable=False),
        sa.Column("digest", Blob, nullable=False),
        sa.Column("measurement_id", Int, nullable=False),
        sa.Column("kind", Text, nullable=False),
        sa.Column("phase", Text, nullable=False),
        sa.Column("message", Text, nullable=False),
        sa.Column("seconds", Real, nullable=True),
        sa.ForeignKeyConstraint(
            ["measurement_id"],
            ["measurement.id"],
            name=op.f("fk_failure_measurement_id_measurement"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_failure")),
        sa.UniqueConstraint("digest", name=op.f("uq_failure_digest")),
        sqlite_strict=True,
    )
    with op.batch_alter_table("failure", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_failure_measurement_id"), ["measurement_id"], unique=False
        )


def downgrade() -> None:
    with op.batch_alter_table("failure", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_failure_measurement_id"))

    op.drop_table("failure")
    with op.batch_alter_table("measurement", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_measurement_top_k",
            sqlite_where=sa.text("served = 1"),
            postgresql_where=sa.text("served = 1"),
        )
        batch_op.drop_index(batch_op.f("ix_measurement_program_id"))

    op.drop_table("measurement")
    op.drop_table("feature")
    with op.batch_alter_table("workload_alias", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_workload_alias_workload_id"))

    op.drop_table("workload_alias")
    op.drop_table("quarantine")
    op.drop_table("program")
    op.drop_table("workload")
    op.drop_table("target")
    op.drop_table("tail")
    op.drop_table("source")
    op.drop_table("sketch")
    op.drop_table("session")
    op.drop_table("retraction")
    op.drop_table("model")
    op.drop_table("meta")
    op.drop_table("feature_set")
    op.drop_table("args_info")
