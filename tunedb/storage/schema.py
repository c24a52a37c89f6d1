"""Tables, as SQLAlchemy Core; only Alembic (``migrations/``) creates them.

SQLite tables are STRICT, which allows five type names; SQLAlchemy's ``Double``, ``String(n)``,
``Boolean`` and ``DateTime`` emit others. Four types therefore serve all columns, on both dialects.
Times of day are integer microseconds since 1970, UTC.

Every row with an identity has a ``digest`` (:mod:`tunedb.identity`), by which a merge compares
rows; integer keys are local. Rows are immutable except for ``measurement.served``, which is derived
from status, trust and retractions, and for labels (names, trust, notes).
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    UniqueConstraint,
    text,
)
from sqlalchemy import Text as Text_
from sqlalchemy.types import REAL, TypeEngine

#: Revisions of ``migrations/versions`` in order, so that a database can be checked without
#: importing Alembic (0.2 s). A test compares them with the scripts.
REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009", "0010", "0011")
HEAD = REVISIONS[-1]

#: ``PRAGMA application_id`` of a tunedb file: "tndb".
APPLICATION_ID = 0x746E6462

#: Value of ``meta.format``, by which a server database is recognised.
FORMAT = "tunedb"

#: Key of ``meta``: the id of the last measurement when records were last pruned. Below it, missing
#: ids are no sign of a loss.
PRUNED = "pruned"

Int: Final = BigInteger().with_variant(Integer, "sqlite")
Real: TypeEngine[float] = REAL().with_variant(Double, "postgresql")
Text = Text_()
Blob: Final = LargeBinary()

metadata: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _table(name: str, *items: Column[Any] | UniqueConstraint, rowid: bool = True) -> Table:
    """Return a STRICT table."""
    return Table(name, metadata, *items, sqlite_strict=True, sqlite_with_rowid=rowid)


def _id() -> Column[int]:
    return Column("id", Int, primary_key=True)


def _digest() -> Column[bytes]:
    return Column("digest", Blob, nullable=False, unique=True)


meta = _table(
    "meta",
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

source = _table(
    "source",
    _id(),
    _digest(),
    Column("name", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("trust", Int, nullable=False),
    Column("store", Text, nullable=False),
    Column("created_at", Int, nullable=False),
    Column("tunedb_version", Text, nullable=False),
    Column("note", Text),
)

session = _table(
    "session",
    _id(),
    _digest(),
    Column("key", Text, nullable=False),
    Column("started_at", Int, nullable=False),
    Column("fingerprint", Text, nullable=False),
)

workload = _table(
    "workload",
    _id(),
    _digest(),
    Column("format", Text, nullable=False),
    Column("body", Blob, nullable=False),
    Column("name", Text, nullable=False),
    Column("tvm_version", Text),
    Column("script", Blob),
    Column("function", Text),
    Column("arguments", Text),
    Column("family", Text),
    Column("flops", Real),
    Column("created_at", Int, nullable=False),
)

#: Names of workloads, each stated by a source; accepted if that source is trusted
#: (:mod:`tunedb.storage.attribution`).
workload_alias = _table(
    "workload_alias",
    Column("scheme", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("workload_id", Int, ForeignKey("workload.id"), primary_key=True, index=True),
    Column("source_id", Int, ForeignKey("source.id"), primary_key=True),
    rowid=False,
)

target = _table(
    "target",
    _id(),
    _digest(),
    Column("kind", Text, nullable=False),
    Column("architecture", Text, nullable=False),
    Column("config", Text, nullable=False),
    Column("text", Text),
)

sketch = _table("sketch", _id(), _digest(), Column("body", Blob, nullable=False))

tail = _table("tail", _id(), _digest(), Column("body", Blob, nullable=False))

args_info = _table("args_info", _id(), _digest(), Column("body", Text, nullable=False))

context = _table("context", _id(), _digest(), Column("body", Text, nullable=False))

program = _table(
    "program",
    _id(),
    _digest(),
    Column("workload_id", Int, ForeignKey("workload.id"), nullable=False),
    Column("target_id", Int, ForeignKey("target.id"), nullable=False),
    Column("sketch_id", Int, ForeignKey("sketch.id"), nullable=False),
    Column("tail_id", Int, ForeignKey("tail.id")),
    Column("decisions", Blob, nullable=False),
)

#: Measurements, which are found through their program: an index of digests alone would be written
#: at random, which costs a large import half of its time, and 30 bytes of each record.
measurement = _table(
    "measurement",
    _id(),
    Column("digest", Blob, nullable=False),
    Column("program_id", Int, ForeignKey("program.id"), nullable=False),
    Column("workload_id", Int, ForeignKey("workload.id"), nullable=False),
    Column("target_id", Int, ForeignKey("target.id"), nullable=False),
    Column("status", Int, nullable=False),
    Column("run_secs", Blob),
    Column("mean", Real),
    Column("measured_at", Int, nullable=False),
    Column("occurrence", Int, nullable=False),
    Column("session_id", Int, ForeignKey("session.id")),
    Column("source_id", Int, ForeignKey("source.id"), nullable=False),
    Column("args_info_id", Int, ForeignKey("args_info.id")),
    Column("origin", Text),
    Column("donor", Blob),
    Column("served", Int, nullable=False),
    Column("all_cost", Real),
    Column("context_id", Int, ForeignKey("context.id")),
    Column("extra", Text),
    UniqueConstraint("program_id", "digest"),
)

#: Covering index of top-k queries. It includes ``served``, because SQLite reads that column
#: although the condition of the index implies its value.
TOP_K_INDEX = Index(
    "ix_measurement_top_k",
    measurement.c.workload_id,
    measurement.c.target_id,
    measurement.c.mean,
    measurement.c.id,
    measurement.c.served,
    sqlite_where=text("served = 1"),
    postgresql_where=text("served = 1"),
)

#: Start of a measurement's ``extra`` after a final, and after one that its program lost
#: (:mod:`tunedb.storage.superseded`).
FINAL, LOST = '{"final":', '{"final":"lost"'

#: Index of the measurements of lost finals, which are few: it keeps top-k queries fast.
LOST_INDEX = Index(
    "ix_measurement_lost",
    measurement.c.workload_id,
    measurement.c.target_id,
    sqlite_where=text(f"substr(extra, 1, {len(LOST)}) = '{LOST}'"),
    postgresql_where=text(f"substr(extra, 1, {len(LOST)}) = '{LOST}'"),
)

#: Causes of failed measurements, each stated by a source, which need not be the measurement's own
#: (:mod:`tunedb.storage.attribution` has the conditions under which it is accepted).
failure = _table(
    "failure",
    _id(),
    Column("digest", Blob, nullable=False),
    Column("measurement_id", Int, ForeignKey("measurement.id"), nullable=False, index=True),
    Column("kind", Text, nullable=False),
    Column("phase", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("seconds", Real),
    Column("source_id", Int, ForeignKey("source.id"), nullable=False),
    UniqueConstraint("digest", "source_id"),
)

#: Sets of a profiler's counters: JSON of ``[[name, unit], …]`` in the order of the values.
counter_set = _table(
    "counter_set",
    _id(),
    _digest(),
    Column("tool", Text, nullable=False),
    Column("tool_version", Text),
    Column("compute_capability", Text),
    Column("counters", Text, nullable=False),
)

#: GPU kernels launched by measured programs, each stated by a source. Counters are float64,
#: little-endian, in the order of their set; NaN if not measured.
launch = _table(
    "launch",
    _id(),
    Column("digest", Blob, nullable=False),
    Column("measurement_id", Int, ForeignKey("measurement.id"), nullable=False, index=True),
    Column("number", Int, nullable=False),
    Column("kernel", Text, nullable=False),
    Column("threads", Int, nullable=False),
    Column("block_x", Int),
    Column("block_y", Int),
    Column("block_z", Int),
    Column("grid_x", Int),
    Column("grid_y", Int),
    Column("grid_z", Int),
    Column("registers", Int),
    Column("static_shared", Int),
    Column("dynamic_shared", Int),
    Column("seconds", Real),
    Column("counter_set_id", Int, ForeignKey("counter_set.id")),
    Column("counters", Blob),
    Column("source_id", Int, ForeignKey("source.id"), nullable=False),
    UniqueConstraint("digest", "source_id"),
)

quarantine = _table(
    "quarantine",
    _id(),
    _digest(),
    Column("source_id", Int, ForeignKey("source.id"), nullable=False),
    Column("file", Text, nullable=False),
    Column("line", Int, nullable=False),
    Column("reason", Text, nullable=False),
    Column("data", Blob, nullable=False),
    Column("created_at", Int, nullable=False),
)

feature_set = _table(
    "feature_set",
    _id(),
    Column("name", Text, nullable=False),
    Column("version", Int, nullable=False),
    Column("columns", Text, nullable=False),
    UniqueConstraint("name", "version"),
)

feature = _table(
    "feature",
    Column("program_id", Int, ForeignKey("program.id"), primary_key=True),
    Column("feature_set_id", Int, ForeignKey("feature_set.id"), primary_key=True),
    Column("n_rows", Int, nullable=False),
    Column("n_columns", Int, nullable=False),
    Column("data", Blob, nullable=False),
    rowid=False,
)

#: Sources of those rows of ``feature`` that came with a merge.
foreign_feature = _table(
    "foreign_feature",
    Column("program_id", Int, ForeignKey("program.id"), primary_key=True),
    Column("feature_set_id", Int, ForeignKey("feature_set.id"), primary_key=True),
    Column("source_id", Int, ForeignKey("source.id"), nullable=False),
    rowid=False,
)

model = _table(
    "model",
    _id(),
    _digest(),
    Column("kind", Text, nullable=False),
    Column("parameters", Text, nullable=False),
    Column("training_digest", Blob, nullable=False),
    Column("card", Text, nullable=False),
    Column("created_at", Int, nullable=False),
    Column("body", Blob),
)

#: Slow-down of sessions relative to others that measured the same programs. A session is a row of
#: ``session``, or for records without one their ``source``.
session_factor = _table(
    "session_factor",
    Column("target_id", Int, ForeignKey("target.id"), primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("subject_id", Int, primary_key=True),
    Column("machine", Int, nullable=False),
    Column("factor", Real, nullable=False),
    Column("spread", Real),
    Column("programs", Int, nullable=False),
    Column("estimated_at", Int, nullable=False),
    rowid=False,
)

#: Scores that models gave programs before these were measured.
prediction = _table(
    "prediction",
    Column("model_id", Int, ForeignKey("model.id"), primary_key=True),
    # The index is for removing programs, which checks each for references.
    Column("program_id", Int, ForeignKey("program.id"), primary_key=True, index=True),
    Column("score", Real, nullable=False),
    Column("predicted_at", Int, nullable=False),
    rowid=False,
)

#: Records that stay stored but must not be served. ``digest`` is that of a measurement, or of a
#: source or session for all of its records; with the subject ``aliases`` it is that of a source,
#: for its aliases alone. ``store`` is the database that issued the retraction.
retraction = _table(
    "retraction",
    Column("digest", Blob, primary_key=True),
    Column("store", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("reason", Text, nullable=False),
    Column("created_at", Int, nullable=False),
    rowid=False,
)

#: Roles of a server under which databases push: only that role retracts records in a database's
#: name, or adds records to its sources that are trusted there.
account = _table(
    "account",
    Column("store", Text, primary_key=True),
    Column("role", Text, nullable=False),
    Column("registered_at", Int, nullable=False),
    rowid=False,
)

#: Progress of exchanges with other databases, in ids of the sending side: its rows up to there were
#: exchanged. ``measurement_digest`` tells whether that side is still the same database.
watermark = _table(
    "watermark",
    Column("direction", Text, primary_key=True),
    Column("peer", Text, primary_key=True),
    Column("selection", Text, primary_key=True),
    Column("measurement_id", Int, nullable=False),
    Column("measurement_digest", Blob),
    Column("failure_id", Int, nullable=False),
    Column("launch_id", Int, nullable=False),
    Column("retractions", Int, nullable=False),
    Column("exchanged_at", Int, nullable=False),
    rowid=False,
)
