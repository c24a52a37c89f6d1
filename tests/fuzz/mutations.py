"""What a stranger can do to rows, files and lines before he gives them away.

Everything is drawn from a ``random.Random``. Values are drawn from what both databases hold, so
that a row refers to what is there, and from the edges of what a column can hold. Digests are right:
a bundle holds none, and :func:`make_right` computes those of a file anew.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import sqlite3
import struct
from contextlib import closing, suppress
from itertools import groupby

import hostile
import numpy as np
import orjson
import small_logs
import test_mutations
from bundle_bytes import bundle_of, put_together, seal, take_apart
from hostile import CALL, EVIL
from victim import OURS, STRANGER, TEAM, WITH_FEATURES

from tunedb import identity
from tunedb.errors import FormatError, TuneDBError
from tunedb.exchange.bundle import zstd
from tunedb.exchange.column_codec import LAYOUT, encode
from tunedb.exchange.database_peer import DatabasePeer
from tunedb.maintenance import check
from tunedb.programs.metaschedule.trace import dump_value, join_trace
from tunedb.records import Trace
from tunedb.storage import schema
from tunedb.storage.engine import make_engine, parse_url
from tunedb.storage.exchange_types import COLUMNS, Chunk
from tunedb.system.compression import compress, decompress

#: Values of each kind of column, beside those that other rows have.
EDGES = {
    int: (0, 1, -1, 2, 3, 99, 2**31, 2**62, 2**63 - 1, -(2**63)),
    float: (0.0, -0.0, 1e-300, 1e-9, 1e30, -1e30, 1e308, math.nan, math.inf, -math.inf),
    str: (
        *("", "x", EVIL, "é" * 300, "y" * 5000, "../../etc/passwd", "{}", "[]", "null", "NaN"),
        *(OURS, TEAM, STRANGER, "tuning", "team", "stranger", "revalidation", "features"),
        *("link", "script", "tvm:0.27.0:structural", "tvm:0.27.0:anchor-block", "aliases"),
        *("own", "live", "file", "measurement", "source", "session", "crash", "run", "0006"),
    ),
    bytes: (
        *(b"", b"\0" * 16, b"[]", b"{}", b"null", b"[[],[],[]]", b"\xff" * 16),
        *(struct.pack("<d", value) for value in (1e-9, 0.0, -1.0, math.nan, math.inf)),
    ),
}
_TYPES = {"integer": int, "steps": int, "real": float, "text": str}

#: JSON that is well formed and not what is expected.
PARTS = [
    *(None, True, False, 0, 1, -1, 2, 7, 64, 2**62, 0.5, 1e308, [], {}, [[]], "", "x", EVIL, "b0"),
    *("l1", "v2", "None", '"x"', CALL, '"define void @main() { ret void }"', {"a": 1}, [1] * 300),
    *("pragma_import_llvm", "pragma_import_c", "Annotate", "global", "shared.dyn"),
]

#: Instructions with a place for a block or a loop.
EVIL_STEPS = [
    ["Annotate", ["?", '"define void @main() { ret void }"'], ["pragma_import_llvm"], []],
    ["Annotate", ["?", '"/etc/passwd"'], ["pragma_import_c"], []],
    ["Annotate", ["?", '"x.ll"'], ["pragma_auto_unroll_max_step"], []],
    ["Annotate", ["?", {"pragma_import_llvm": "x"}], ["meta_schedule.unroll_explicit"], []],
    ["TransformLayout", ["?", CALL], [0, 1, None, True], []],
    ["TransformBlockLayout", ["?", CALL], [], []],
    ["UnsafeSetDType", ["?"], [0, "float16"], []],
    ["Tensorize", ["?"], ["../../evil.so", True], []],
    ["SetScope", ["?"], [0, EVIL], []],
    ["Bind", ["?"], [EVIL], []],
    ["ComputeInline", ["?"], [], []],
    ["Unannotate", ["?"], ["global_symbol"], []],
    ["NoSuchInstruction", ["?"], [], []],
    ["EnterPostproc", [], [], []],
]

#: Columns with JSON, by table.
DOCUMENTS = {
    "workload": "body",
    "target": "config",
    "args_info": "body",
    "context": "body",
    "session": "fingerprint",
    "feature_set": "columns",
    "counter_set": "counters",
    "measurement": "decisions",
}

#: Statements that make other tables of a file.
SCHEMA_CHANGES = [
    "DROP INDEX ix_measurement_top_k",
    "CREATE INDEX more ON measurement (mean)",
    "ALTER TABLE context ADD COLUMN evil TEXT",
    "ALTER TABLE source RENAME COLUMN note TO notes",
    "DROP TABLE foreign_feature",
    "PRAGMA application_id = 7",
    "PRAGMA user_version = 99",
    "UPDATE alembic_version SET version_num = '0005'",
    "DELETE FROM alembic_version",
    "CREATE VIEW evil AS SELECT * FROM measurement",
    "DELETE FROM meta",
    "UPDATE meta SET value = '' WHERE key = 'store'",
    *(f"UPDATE meta SET value = '{key}' WHERE key = 'store'" for key in (OURS, TEAM)),
]


# ---------------------------------------------------------------------- JSON and traces


def _nodes(value, path=()):
    """Yield the places in a document: path to it."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value)
    if isinstance(value, dict | list):
        for key, item in items:
            yield from _nodes(item, (*path, key))


def _at(value, path):
    for key in path:
        value = value[key]
    return value


def changed_json(rng, value):
    """Return a document with another value in one place."""
    value = copy.deepcopy(value)
    places = list(_nodes(value))
    path = rng.choice(places)
    other = copy.deepcopy(rng.choice([rng.choice(PARTS), _at(value, rng.choice(places))]))
    if not path:
        return other
    parent, key = _at(value, path[:-1]), path[-1]
    kind = rng.randrange(4)
    if kind == 0 and isinstance(parent, list):
        parent.insert(key, other)
    elif kind == 1:
        del parent[key]
    elif kind == 2 and type(parent[key]) is int:
        parent[key] += rng.choice([-1, 1, 2**31, -(2**31)])
    else:
        parent[key] = other
    return value


def changed_instructions(rng, instructions):
    """Return instructions among which a stranger put his own."""
    found = copy.deepcopy(instructions)
    names = [name for one in found for name in one[3]] or ["b0"]
    step = copy.deepcopy(rng.choice(EVIL_STEPS))
    step[1] = [rng.choice(names) if one == "?" else one for one in step[1]]
    at = rng.randrange(len(found) + 1)
    kind = rng.randrange(4)
    if kind == 0 and at < len(found):
        found[at] = step
    elif kind == 1:
        found = changed_json(rng, found)
    else:
        found.insert(at, step)
    return found


def _changed_part(rng, body):
    """Return the body of a sketch or tail with another instruction."""
    # A part that was changed before may be anything.
    with suppress(Exception):
        return identity.canonical_json(changed_instructions(rng, orjson.loads(body)))
    return body


def _changed_document(rng, value):
    """Return JSON, as text or bytes, with another value in one place."""
    body = value.encode(errors="replace") if isinstance(value, str) else value
    try:
        made = identity.canonical_json(changed_json(rng, orjson.loads(body)))
    except (ValueError, TypeError):
        return value
    return made.decode() if isinstance(value, str) else made


def _changed_features(rng, data):
    """Return a frame of features with values that no program has."""
    rows = np.frombuffer(decompress(data), "<f4").copy()
    if len(rows):
        rows[rng.randrange(len(rows))] = rng.choice([1e30, -1e30, 0.0, math.nan, math.inf, 1e-40])
    return compress(rows.tobytes())


# ---------------------------------------------------------------------- rows of a bundle


class Rows:
    """The rows that a database gives, to be changed in their order."""

    def __init__(self, path):
        with closing(DatabasePeer(path, own=True)) as peer:
            self.rows = [
                (chunk.table, dict(zip(COLUMNS[chunk.table], row, strict=True)))
                for chunk in peer.chunks(WITH_FEATURES)
                for row in chunk.rows
            ]
        for _, row in self.rows:
            row.update(dict.fromkeys({"digest", "program_digest"} & row.keys()))
        self.digests = sorted(_digests(path))

    def of(self, table):
        return [row for name, row in self.rows if name == table]

    def changed(self, rng):
        """Return the bytes of a bundle in which some rows are others."""
        mine = copy.copy(self)
        mine.rows = [(table, dict(row)) for table, row in self.rows]
        for _ in range(rng.choice([1, 1, 2, 3, 5, 8, 20])):
            # What an earlier change has broken or taken away may be beyond this one.
            with suppress(Exception):
                rng.choice(CHANGES)(rng, mine)
        chunks = []
        for table, found in groupby(mine.rows, lambda item: item[0]):
            rows = [tuple(row.values()) for _, row in found]
            chunks.append(Chunk(table, [row for row in rows if _fits(table, row)]))
        return bundle_of(chunk for chunk in chunks if chunk.rows)


def _digests(path):
    """Return the digests of all that a database can take back."""
    with closing(sqlite3.connect(path)) as db:
        for table in ("measurement", "source", "session"):
            yield from (digest for (digest,) in db.execute(f"SELECT digest FROM {table}"))


def _fits(table, row):
    try:
        encode(table, [row])
    except (FormatError, TuneDBError, OverflowError):
        return False
    return True


def _value(rng, mine, table, column):
    """Return a value for a column of a table: that of another row, or one at the edge."""
    kind = LAYOUT[table][COLUMNS[table].index(column)]
    if kind.endswith("?") and rng.random() < 0.2:
        return None
    if rng.random() < 0.6:
        return rng.choice(mine.of(table))[column]
    if column.endswith("digest"):
        return rng.choice(mine.digests)
    return rng.choice(EDGES[_TYPES.get(kind.removesuffix("?"), bytes)])


def set_value(rng, mine):
    table, row = rng.choice(mine.rows)
    column = rng.choice(COLUMNS[table])
    row[column] = _value(rng, mine, table, column)


def double(rng, mine):
    """Add a copy of a row under another number, with another value."""
    at = rng.randrange(len(mine.rows))
    table, row = mine.rows[at]
    row = dict(row)
    if "id" in row:
        row["id"] = rng.choice([row["id"], max(one["id"] for one in mine.of(table)) + 1])
    column = rng.choice(COLUMNS[table])
    row[column] = _value(rng, mine, table, column)
    mine.rows.insert(at + 1, (table, row))


def drop(rng, mine):
    del mine.rows[rng.randrange(len(mine.rows))]


def exchange(rng, mine):
    """Let two rows refer to what the other did."""
    table = rng.choice(sorted({name for name, _ in mine.rows}))
    one, other = (rng.choice(mine.of(table)) for _ in range(2))
    column = rng.choice(COLUMNS[table])
    one[column], other[column] = other[column], one[column]


def reorder(rng, mine):
    to = rng.randrange(len(mine.rows))
    mine.rows.insert(to, mine.rows.pop(rng.randrange(len(mine.rows) - 1)))


def change_trace(rng, mine):
    row = rng.choice(mine.of(rng.choice(["sketch", "sketch", "tail"])))
    row["body"] = _changed_part(rng, row["body"])


def change_document(rng, mine):
    table = rng.choice([name for name in DOCUMENTS if mine.of(name)])
    row = rng.choice(mine.of(table))
    row[DOCUMENTS[table]] = _changed_document(rng, row[DOCUMENTS[table]])


def claim(rng, mine):
    """Say that records are of another source: an own one of the victim, or the verified one."""
    row = rng.choice(mine.of("source"))
    row["name"], row["store"] = rng.choice(
        [("tuning", OURS), ("team", TEAM), ("stranger", STRANGER), ("new", OURS), ("x", "f" * 32)]
    )


def give_name(rng, mine):
    """Give a name of one workload to another one."""
    at = max(i for i, (table, _) in enumerate(mine.rows) if table == "workload_alias")
    row = dict(rng.choice(mine.of("workload_alias")))
    row["workload"] = rng.choice(mine.of("workload"))["id"]
    row["source"] = rng.choice([None, *(one["id"] for one in mine.of("source"))])
    if rng.random() < 0.1:
        row["scheme"] = "link"
    mine.rows.insert(at + 1, ("workload_alias", row))


def say(rng, mine):
    """Say something of a measurement, in the name of any source."""
    table = rng.choice(["failure", "launch"])
    row = dict(rng.choice(mine.of(table)))
    row["id"] = max(one["id"] for one in mine.of(table)) + 1
    row["measurement"] = rng.choice(mine.of("measurement"))["id"]
    row["source"] = rng.choice([None, *(one["id"] for one in mine.of("source"))])
    row["seconds"] = rng.choice([None, 1e-9, row["seconds"]])
    mine.rows.append((table, row))


def take_back(rng, mine):
    subject = rng.choice(["measurement", "source", "session", "aliases"])
    store = rng.choice([OURS, TEAM, STRANGER, "f" * 32])
    row = {"digest": rng.choice(mine.digests), "store": store, "subject": subject, "reason": "x"}
    mine.rows.append(("retraction", row))


def spoil_features(rng, mine):
    row = rng.choice(mine.of("feature"))
    row["data"] = _changed_features(rng, row["data"])


def hurry(rng, mine):
    """Say of a program that it takes a nanosecond, in any session."""
    row = rng.choice(mine.of("measurement"))
    row.update(status=0, run_secs=struct.pack("<d", 1e-9))
    row["session"] = rng.choice(mine.of("session"))["id"]
    row["source"] = rng.choice(mine.of("source"))["id"]
    row["occurrence"] = rng.choice([0, 11, 2**40, row["occurrence"]])


CHANGES = [
    *(set_value, double, drop, exchange, reorder, change_trace, change_trace, change_document),
    *(claim, give_name, give_name, say, take_back, spoil_features, hurry),
]


def changed_bundle(rng, rows):
    """Return a bundle whose rows, or in some whose bytes, are others; its digest is right."""
    data = rows.changed(rng)
    kind = rng.randrange(10)
    if kind > 2:
        return data
    head, unpacked = take_apart(data)
    if kind == 0:
        return put_together(head, test_mutations.mutated(rng, unpacked, rng.randint(1, 8)))
    if kind == 1:
        return put_together(test_mutations.mutated(rng, head, 2), unpacked)
    return seal(head, test_mutations.mutated(rng, zstd.compress(unpacked), 2))


# ---------------------------------------------------------------------- rows of a file


def _columns(db, table):
    return {name: kind for _, name, kind, *_ in db.execute(f"PRAGMA table_info({table})")}


_SQL_TYPES = {"INTEGER": int, "REAL": float, "TEXT": str, "BLOB": bytes}


def _changed_cell(rng, db, table, column, kind):
    """Return another value for a cell of a file."""
    values = [value for (value,) in db.execute(f"SELECT {column} FROM {table}")]
    old = rng.choice(values)
    if rng.random() < 0.4:
        return rng.choice([None, *EDGES[_SQL_TYPES.get(kind, str)]])
    if column not in ("body", "data", "decisions") and column != DOCUMENTS.get(table):
        return old
    if table in ("sketch", "tail"):
        return compress(_changed_part(rng, decompress(old)))
    if table == "feature":
        return _changed_features(rng, old)
    if table == "workload":
        return compress(_changed_document(rng, decompress(old)))
    return _changed_document(rng, old)


def _change_row(rng, db):
    tables = [table.name for table in schema.metadata.sorted_tables]
    table = rng.choice(tables)
    columns = _columns(db, table)
    (n_rows,) = db.execute(f"SELECT count(*) FROM {table}").fetchone()
    if not n_rows:
        return
    where = f"rowid = {rng.randint(1, n_rows)}"
    if table in ("workload_alias", "feature", "foreign_feature", "retraction"):
        key = next(iter(columns))
        where = f"{key} = (SELECT {key} FROM {table} LIMIT 1 OFFSET {rng.randrange(n_rows)})"
    column, kind = rng.choice(list(columns.items()))
    how = rng.randrange(10)
    if how == 0:
        db.execute(f"DELETE FROM {table} WHERE {where}")
    elif how == 1:
        names = ", ".join(name for name in columns if name != "id")
        db.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM {table} WHERE {where}")
    else:
        value = _changed_cell(rng, db, table, column, kind)
        db.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (value,))


def change_file(rng, path):
    """Change a database, row by row, and make its digests right again."""
    with closing(sqlite3.connect(path)) as db:
        # An attack may have put a view without end in the place of a table.
        calls = itertools.count()
        db.set_progress_handler(lambda: next(calls) > 5_000, 10_000)
        db.execute("PRAGMA foreign_keys = OFF")
        for _ in range(rng.choice([1, 1, 2, 3, 5, 8])):
            # STRICT tables and unique columns refuse some values; an earlier change may have broken
            # the value that this one begins with.
            with suppress(Exception), db:
                _change_row(rng, db)
        # Digests of what cannot be read stay.
        with suppress(Exception), db:
            make_right(path, db)
        if rng.random() < 0.15:
            with suppress(sqlite3.Error), db:
                db.execute(rng.choice(SCHEMA_CHANGES))
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    if rng.random() < 0.1:
        data = bytearray(path.read_bytes())
        for _ in range(rng.randint(1, 8)):
            test_mutations.overwrite(rng, data)
        path.write_bytes(data)


_PROGRAMS = """
    SELECT p.id, w.digest, t.digest, s.digest, e.digest, p.decisions FROM program p
    JOIN workload w ON w.id = p.workload_id JOIN target t ON t.id = p.target_id
    JOIN sketch s ON s.id = p.sketch_id LEFT JOIN tail e ON e.id = p.tail_id"""
_MEASUREMENTS = """
    SELECT m.id, p.digest, m.status, m.run_secs, m.measured_at, m.occurrence, n.digest, a.body,
           coalesce(m.origin, 'unknown'), m.donor, m.all_cost, c.body, m.extra
    FROM measurement m JOIN program p ON p.id = m.program_id
    LEFT JOIN session n ON n.id = m.session_id LEFT JOIN args_info a ON a.id = m.args_info_id
    LEFT JOIN context c ON c.id = m.context_id"""


def _encoded(value):
    return value.encode() if isinstance(value, str) else value


def make_right(path, db):
    """Compute all digests of a file anew, as its author would."""

    def state(table, id_, digest):
        db.execute(f"UPDATE OR IGNORE {table} SET digest = ? WHERE id = ?", (digest, id_))

    def content(tables):
        engine = make_engine(parse_url(path), read_only=True)
        with closing(engine.connect()) as connection:
            for table in tables:
                for row in connection.execute(check._statement(table)).all():
                    with suppress(TuneDBError, ValueError, TypeError, AttributeError):
                        state(table.name, row.id, check._CONTENT[table](row))
            db.commit()
        engine.dispose()

    said = {schema.failure, schema.launch}
    content([table for table in check._CONTENT if table not in said])
    for id_, *parts in db.execute(_PROGRAMS).fetchall():
        state("program", id_, identity.program_digest(*parts))
    for id_, program, status, *values in db.execute(_MEASUREMENTS).fetchall():
        with suppress(IndexError, struct.error, AttributeError):
            times, at, number, session, info, origin, donor, cost, context, extra = values
            told = (_encoded(info), origin, donor, cost, _encoded(context), _encoded(extra))
            digest = identity.measurement_digest(program, status, times, at, number, session, *told)
            state("measurement", id_, digest)
    db.commit()
    content(sorted(said, key=str))


def attack_file(rng, path):
    """Do to a database what one of the known attacks does."""
    changes = [one.change for one in hostile.ATTACKS.values() if one.change is not None]
    with closing(sqlite3.connect(path)) as db:
        source, measurement = (
            db.execute(f"SELECT digest FROM {table} ORDER BY id LIMIT 1").fetchone()[0]
            for table in ("source", "measurement")
        )
        with suppress(sqlite3.Error), db:
            db.execute("PRAGMA foreign_keys = OFF")
            rng.choice(changes)(db, hostile.Ours(OURS, source, measurement))


# ---------------------------------------------------------------------- lines of a log


def records_log(path):
    """Return the records of a database as MetaSchedule's files."""
    workloads, records = {}, []
    with closing(sqlite3.connect(path)) as db:
        found = db.execute(
            "SELECT w.body, s.body, e.body, p.decisions, m.run_secs, t.config, a.body "
            "FROM measurement m JOIN program p ON p.id = m.program_id "
            "JOIN workload w ON w.id = p.workload_id JOIN sketch s ON s.id = p.sketch_id "
            "JOIN tail e ON e.id = p.tail_id JOIN target t ON t.id = p.target_id "
            "JOIN args_info a ON a.id = m.args_info_id ORDER BY m.id"
        ).fetchall()
    for body, sketch, tail, decisions, times, target, info in found:
        number = workloads.setdefault(decompress(body), len(workloads))
        trace = join_trace(Trace(decompress(sketch), decompress(tail), decisions))
        seconds = list(identity.unpack_floats(times))
        records.append([number, [trace, seconds, json.loads(target), json.loads(info)]])
    return {
        "database_tuning_record.json": b"\n".join(map(dump_value, records)) + b"\n",
        "database_workload.json": "".join(
            json.dumps(small_logs.workload_line(body)) + "\n" for body in workloads
        ).encode(),
    }


def changed_log(rng, own):
    """Return the files of a log in which some lines are others."""
    files = dict(rng.choice([own, own, *small_logs.LOGS.values()]))
    if rng.random() < 0.3:
        return test_mutations.mutated_files(rng, files)
    name = rng.choice([name for name in files if not name.endswith("sqlite")] or [None])
    if name is None:
        return test_mutations.mutated_files(rng, files)
    lines = files[name].split(b"\n")
    for _ in range(rng.randint(1, 10)):
        at = rng.randrange(len(lines))
        with suppress(Exception):  # a line that was changed before may be anything
            value = orjson.loads(lines[at])
            if name == "database_tuning_record.json" and rng.random() < 0.5:
                value[1][0][0] = changed_instructions(rng, value[1][0][0])
            else:
                value = changed_json(rng, value)
            lines[at] = orjson.dumps(value)
    return files | {name: b"\n".join(lines)}
