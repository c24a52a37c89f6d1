"""Tables for launches of GPU kernels and for the counters of profilers.

``watermark`` records how far launches have come in an exchange, too.

Revision 0005, after 0004.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
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


def upgrade() -> None:
    op.create_table(
        "counter_set",
        sa.Column("id", Int, nullable=False),
        sa.Column("digest", Blob, nullable=False),
        sa.Column("tool", Text, nullable=False),
        sa.Column("tool_version", Text, nullable=True),
        sa.Column("compute_capability", Text, nullable=True),
        sa.Column("counters", Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_counter_set")),
        sa.UniqueConstraint("digest", name=op.f("uq_counter_set_digest")),
        sqlite_strict=True,
    )
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
        sa.ForeignKeyConstraint(
            ["counter_set_id"],
            ["counter_set.id"],
            name=op.f("fk_launch_counter_set_id_counter_set"),
        ),
        sa.ForeignKeyConstraint(
            ["measurement_id"],
            ["measurement.id"],
            name=op.f("fk_launch_measurement_id_measurement"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_launch")),
        sa.UniqueConstraint("digest", name=op.f("uq_launch_digest")),
        sqlite_strict=True,
    )
    op.create_index(op.f("ix_launch_measurement_id"), "launch", ["measurement_id"])
    _watermark_anew(launches=True)


def downgrade() -> None:
    _watermark_anew(launches=False)
    op.drop_index(op.f("ix_launch_measurement_id"), "launch")
    op.drop_table("launch")
    op.drop_table("counter_set")


_WITH_LAUNCHES = """
    INSERT INTO watermark (direction, peer, selection, measurement_id, measurement_digest,
        failure_id, launch_id, retractions, exchanged_at)
    SELECT direction, peer, selection, measurement_id, measurement_digest,
        failure_id, 0, retractions, exchanged_at
    FROM old_watermark"""
_WITHOUT = """
    INSERT INTO watermark (direction, peer, selection, measurement_id, measurement_digest,
        failure_id, retractions, exchanged_at)
    SELECT direction, peer, selection, measurement_id, measurement_digest,
        failure_id, retractions, exchanged_at
    FROM old_watermark"""


def _watermark_anew(*, launches: bool) -> None:
    """Recreate the table, with a column for launches or without, and copy its rows.

    In SQLite the definition of a table with an added column differs from that of a new table, and a
    renamed table keeps quotes around its name.
    """
    added = [sa.Column("launch_id", Int, nullable=False)] if launches else []
    op.execute("CREATE TABLE old_watermark AS SELECT * FROM watermark")
    op.drop_table("watermark")
    op.create_table(
        "watermark",
        sa.Column("direction", Text, nullable=False),
        sa.Column("peer", Text, nullable=False),
        sa.Column("selection", Text, nullable=False),
        sa.Column("measurement_id", Int, nullable=False),
        sa.Column("measurement_digest", Blob, nullable=True),
        sa.Column("failure_id", Int, nullable=False),
        *added,
        sa.Column("retractions", Int, nullable=False),
        sa.Column("exchanged_at", Int, nullable=False),
        sa.PrimaryKeyConstraint("direction", "peer", "selection", name=op.f("pk_watermark")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.execute(_WITH_LAUNCHES if launches else _WITHOUT)
    op.drop_table("old_watermark")
