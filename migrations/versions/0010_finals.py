"""Finals: records that lost one rank no more in the views ``v_best`` and ``v_tasks``.

An index finds the measurements of lost finals (:mod:`tunedb.storage.superseded`).

Revision 0010, after 0009.
"""

# Only names of these files are formatted into SQL here.
# ruff: noqa: S608

from __future__ import annotations

from importlib import import_module

import sqlalchemy as sa
from alembic import op

from tunedb.migrations.views import replace_views

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_views = import_module("tunedb.migrations.versions.0009_views").views

#: Condition for the measurements of lost finals.
_LOST = 'substr(extra, 1, 15) = \'{"final":"lost"\''
_NOT_TIMED = "'os', 'python', 'run', 'tunedb', 'tvm_ffi'"
_DEVICES = "'cpu', 'gpu', 'remote'"

_MEMBERS = f"SELECT key, type, value FROM json_each({{}}) WHERE key NOT IN ({_NOT_TIMED})"
_ONE, _OTHER = _MEMBERS.format("d.fingerprint"), _MEMBERS.format("e.fingerprint")
_JSON = "CAST(tunedb_json(convert_to({}.fingerprint, 'UTF8')) AS jsonb)"

#: Sessions d and e are of one class.
_SAME_CLASS = {
    "sqlite": f"""EXISTS (SELECT 1 FROM json_each(d.fingerprint) WHERE key IN ({_DEVICES}))
                AND NOT EXISTS ({_ONE} EXCEPT {_OTHER})
                AND NOT EXISTS ({_OTHER} EXCEPT {_ONE})""",
    "postgresql": f"""jsonb_exists_any({_JSON.format("d")}, ARRAY[{_DEVICES}])
                AND {_JSON.format("d")} - ARRAY[{_NOT_TIMED}]
                = {_JSON.format("e")} - ARRAY[{_NOT_TIMED}]""",
}


def _ranks(record: str, dialect: str) -> str:
    """Return the condition that a record is not superseded."""
    return f"""(NOT EXISTS (SELECT 1 FROM measurement WHERE {_LOST}) OR {record}.id NOT IN (
        SELECT r.id
        FROM measurement AS f
        JOIN measurement AS r ON r.program_id = f.program_id
        JOIN session AS d ON d.id = f.session_id
        JOIN session AS e ON e.id = r.session_id
        WHERE {_LOST.replace("extra", "f.extra")}
            AND f.served = 1 AND r.measured_at < f.measured_at
            AND (f.source_id = r.source_id
                OR f.source_id IN (SELECT id FROM source WHERE trust >= 2))
            AND (d.id = e.id OR {_SAME_CLASS[dialect]})
    ))"""


def views(dialect: str) -> dict[str, str]:
    """Return the statements that create the changed views of a dialect, by name."""
    before = _views(dialect)
    best = f"AND {_ranks('b', dialect)}\n    ORDER BY b.mean"
    task = f"m.served = 1 AND {_ranks('m', dialect)} THEN m.mean"
    return {
        "v_best": before["v_best"].replace("ORDER BY b.mean", best),
        "v_tasks": before["v_tasks"].replace("m.served = 1 THEN m.mean", task),
    }


def upgrade() -> None:
    condition = sa.text(_LOST)
    op.create_index(
        *("ix_measurement_lost", "measurement", ["workload_id", "target_id"]),
        sqlite_where=condition,
        postgresql_where=condition,
    )
    replace_views(views(op.get_bind().dialect.name))


def downgrade() -> None:
    before = _views(op.get_bind().dialect.name)
    replace_views({name: before[name] for name in ("v_best", "v_tasks")})
    op.drop_index("ix_measurement_lost", "measurement")
