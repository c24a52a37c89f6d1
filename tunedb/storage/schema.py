"""Tables, as SQLAlchemy Core. Alembic (``migrations/``) is the only way that they come to be.

SQLite tables are STRICT, which knows five type names; SQLAlchemy's ``Double``, ``String(n)``,
``Boolean`` and ``DateTime`` emit others. So four types serve all columns, on both dialects. Times
of day are integer microseconds since 1970, UTC.

Every row with an identity has a ``digest`` (:mod:`tunedb.identity`), which is what a merge
compares; integer keys are local. Rows are immutable but for ``measurement.served``, which is
derived from status, trust and retractions, and for labels (names, trust, notes).
"""

from __future__ import annotations

from typing import Any

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
REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007")
HEAD = REVISIONS[-1]

#: ``PRAGMA application_id`` of a tunedb file: "tndb".
APPLICATION_ID = 0x746E6462

#: Value of ``meta.format``, by which a server database is recognised.
FORMAT = "tunedb"

#: Key of ``meta``: the last measurement's number when records were last pruned. Up to there a
#: number without a record says nothing of what the database has lost.
PRUNED = "pruned"

Int = BigInteger().with_variant(Integer, "sqlite")
Real: TypeEngine[float] = REAL().with_variant(Double, "postgresql")
Text = Text_()
Blob = LargeBinary()

metadata = MetaData(
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

#: A name under which a source knows a workload. It counts as far as that source is trusted
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

#: A measurement is found through its program: an index of digests alone would be written at
#: random, which costs a large import half of its time, and 30 bytes of each record.
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

#: Serves top-k without touching the table: every column that the query names is in it, ``served``
#: too, because SQLite reads it again although the index's own condition implies it.
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

#: Why a measurement failed, as a source says it. Others than the measurement's own source may say
#: something of it too; :mod:`tunedb.storage.attribution` tells which of them count.
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

#: Which counters a profiler gave: JSON of ``[[name, unit], …]`` in the order of the values.
counter_set = _table(
    "counter_set",
    _id(),
    _digest(),
    Column("tool", Text, nullable=False),
    Column("tool_version", Text),
    Column("compute_capability", Text),
    Column("counters", Text, nullable=False),
)

#: One GPU kernel that a measured program launched, as a source says it. Counters are float64,
#: little-endian, in the order of their set; NaN is what was not measured.
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

#: Rows of ``feature`` that were not computed here but came with a merge, and from which source.
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

#: How much slower one session measured than another, where both measured the same programs. A
#: session is a row of ``session``, or for records without one their ``source``.
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

#: What a model said of a program before it was measured.
prediction = _table(
    "prediction",
    Column("model_id", Int, ForeignKey("model.id"), primary_key=True),
    # The index is for removing programs, which asks for each whether something refers to it.
    Column("program_id", Int, ForeignKey("program.id"), primary_key=True, index=True),
    Column("score", Real, nullable=False),
    Column("predicted_at", Int, nullable=False),
    rowid=False,
)

#: What must not be served any more, although it stays stored. A digest is that of a measurement, a
#: source or a session, whose records are all meant, or with the subject ``aliases`` that of a
#: source whose aliases alone are meant; ``store`` is the database that says so.
retraction = _table(
    "retraction",
    Column("digest", Blob, primary_key=True),
    Column("store", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("reason", Text, nullable=False),
    Column("created_at", Int, nullable=False),
    rowid=False,
)

#: On a server, under which of its roles a database pushes: only that one takes records back in the
#: database's name, or adds records to its sources that are trusted there.
account = _table(
    "account",
    Column("store", Text, primary_key=True),
    Column("role", Text, nullable=False),
    Column("registered_at", Int, nullable=False),
    rowid=False,
)

#: How far an exchange with another database has come, in numbers of the side that gives: its rows
#: up to there were looked at. ``measurement_digest`` tells whether that side is still the same.
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
