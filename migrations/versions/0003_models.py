"""Tables of models.

* ``session_factor``: how much slower one session measured than another;
* ``prediction``: the score of a program by a model, before its measurement.

Revision 0003, after 0002.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

Int = sa.BigInteger().with_variant(sa.Integer, "sqlite")
Real: sa.types.TypeEngine[float] = sa.REAL().with_variant(sa.Double, "postgresql")
Text = sa.Text()


def upgrade() -> None:
    op.create_table(
        "session_factor",
        sa.Column("target_id", Int, nullable=False),
        sa.Column("subject", Text, nullable=False),
        sa.Column("subject_id", Int, nullable=False),
        sa.Column("machine", Int, nullable=False),
        sa.Column("factor", Real, nullable=False),
        sa.Column("spread", Real, nullable=True),
        sa.Column("programs", Int, nullable=False),
        sa.Column("estimated_at", Int, nullable=False),
        sa.ForeignKeyConstraint(
            ["target_id"], ["target.id"], name=op.f("fk_session_factor_target_id_target")
        ),
        sa.PrimaryKeyConstraint(
            "target_id", "subject", "subject_id", name=op.f("pk_session_factor")
        ),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "prediction",
        sa.Column("model_id", Int, nullable=False),
        sa.Column("program_id", Int, nullable=False),
        sa.Column("score", Real, nullable=False),
        sa.Column("predicted_at", Int, nullable=False),
        sa.ForeignKeyConstraint(
            ["model_id"], ["model.id"], name=op.f("fk_prediction_model_id_model")
        ),
        sa.ForeignKeyConstraint(
            ["program_id"], ["program.id"], name=op.f("fk_prediction_program_id_program")
        ),
        sa.PrimaryKeyConstraint("model_id", "program_id", name=op.f("pk_prediction")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("prediction")
    op.drop_table("session_factor")
