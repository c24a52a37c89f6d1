"""Alembic's environment: a migration is atomic on a connection of tunedb.storage.engine.

With the driver's own transactions a failing migration left half of its tables behind; inside
``BEGIN IMMEDIATE`` nothing is left.
"""

from __future__ import annotations

from alembic import context

from tunedb.storage.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
