"""Tables for exchanges between databases.

* ``retraction``: also of whole sources and sessions, and by which database;
* ``watermark``: how far an exchange with another database has come;
* an index for the removal of programs, which would otherwise scan all predictions for each one.

Revision 0004, after 0003.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

Int = sa.BigInteger().with_variant(sa.Integer, "sqlite")
Text = sa.Text()
Blob = sa.LargeBinary()

#: In earlier revisions each retraction is the database's own.
_BY_THIS_STORE = """
    INSERT INTO retraction (digest, store, subject, reason, created_at)
    SELECT o.digest, m.value, o.subject, o.reason, o.created_at
    FROM old_retraction AS o, meta AS m WHERE m.key = 'store'"""

#: Earlier revisions have neither other databases' retractions nor those of sources and sessions.
_OF_MEASUREMENTS = """
    INSERT INTO retraction (subject, digest, reason, created_at)
    SELECT o.subject, o.digest, o.reason, o.created_at
    FROM old_retraction AS o, meta AS m
    WHERE m.key = 'store' AND o.store = m.value AND o.subject = 'measurement'"""

#: The records of these retractions are not served, and must stay so.
_RECORD_BY_RECORD = """
    INSERT INTO retraction (subject, digest, reason, created_at)
    SELECT 'measurement', m.digest, min(o.reason), min(o.created_at)
    FROM measurement AS m
    JOIN source AS s ON s.id = m.source_id
    LEFT JOIN session AS t ON t.id = m.session_id
    JOIN old_retraction AS o ON o.digest IN (m.digest, s.digest, t.digest)
    WHERE o.store IN (s.store, (SELECT value FROM meta WHERE key = 'store'))
    AND m.digest NOT IN (SELECT digest FROM retraction)
    GROUP BY m.digest"""


def upgrade() -> None:
    _anew(_create_retraction, [_BY_THIS_STORE])
    op.create_table(
        "watermark",
        sa.Column("direction", Text, nullable=False),
        sa.Column("peer", Text, nullable=False),
        sa.Column("selection", Text, nullable=False),
        sa.Column("measurement_id", Int, nullable=False),
        sa.Column("measurement_digest", Blob, nullable=True),
        sa.Column("failure_id", Int, nullable=False),
        sa.Column("retractions", Int, nullable=False),
        sa.Column("exchanged_at", Int, nullable=False),
        sa.PrimaryKeyConstraint("direction", "peer", "selection", name=op.f("pk_watermark")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_prediction_program_id"), "prediction", ["program_id"])


def downgrade() -> None:
    op.drop_index(op.f("ix_prediction_program_id"), "prediction")
    op.drop_table("watermark")
    _anew(_create_first_retraction, [_OF_MEASUREMENTS, _RECORD_BY_RECORD])


def _anew(create: Callable[[], None], copies: Sequence[str]) -> None:
    """Recreate the table and copy its rows.

    The rows are copied twice, because a renamed table would keep quotes around its name.
    """
    op.execute("CREATE TABLE old_retraction AS SELECT * FROM retraction")
    op.drop_table("retraction")
    create()
    for copy in copies:
        op.execute(copy)
    op.drop_table("old_retraction")


def _create_retraction() -> None:
    op.create_table(
        "retraction",
        sa.Column("digest", Blob, nullable=False),
        sa.Column("store", Text, nullable=False),
        sa.Column("subject", Text, nullable=False),
        sa.Column("reason", Text, nullable=False),
        sa.Column("created_at", Int, nullable=False),
        sa.PrimaryKeyConstraint("digest", "store", name=op.f("pk_retraction")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )


def _create_first_retraction() -> None:
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
