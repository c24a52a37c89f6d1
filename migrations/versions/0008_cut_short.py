"""Measurements that a tuning run cut short: status 3 of ``measurement``.

The tables stay; an earlier tunedb does not know the status and does not open the database.

Revision 0008, after 0007.
"""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change nothing: ``status`` takes any number."""


def downgrade() -> None:
    # No table refers to them but failures, which they lack, and launches.
    op.execute(
        "DELETE FROM launch WHERE measurement_id IN (SELECT id FROM measurement WHERE status = 3)"
    )
    op.execute("DELETE FROM measurement WHERE status = 3")
