"""A lost final supersedes the records of its machine, whatever their evaluator.

The views ``v_best`` and ``v_tasks`` follow :mod:`tunedb.storage.superseded`.

Revision 0011, after 0010.
"""

from __future__ import annotations

from importlib import import_module

from alembic import op

from tunedb.migrations.views import replace_views

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_views = import_module("tunedb.migrations.versions.0010_finals").views


def upgrade() -> None:
    before = _views(op.get_bind().dialect.name)
    replace_views(
        {
            name: statement.replace("'os', 'python'", "'evaluator', 'os', 'python'")
            for name, statement in before.items()
        }
    )


def downgrade() -> None:
    replace_views(_views(op.get_bind().dialect.name))
