"""Hostile databases and bundles of another team.

Each begins as a good database. Everything that an attacker can compute, such as digests of his
own programs, is right; so each attack reaches the check that is meant for it.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import orjson
from builders import make_program, make_session, make_target, make_workload
from bundle_bytes import block, bundle_of, end, put_together, take_apart
from exchanges import rename

from tunedb import identity
from tunedb.exchange.database_peer import DatabasePeer
from tunedb.records import Failure, FailureKind, Measurement, Phase, Program, Source, Status, Trace
from tunedb.storage.exchange_types import EVERYTHING
from tunedb.storage.store import Store
from tunedb.system.compression import zstd

THEIR_KEY = "bad0" * 8
EVIL = '\x1b]0;owned\x07<script>alert("1")</script>\x1b[2J'

BLOCK = ["GetSBlock", [], ["matmul", "main"], ["b0"]]
LOOPS = ["GetLoops", ["b0"], [], ["l1"]]
POSTPROC = b'[["EnterPostproc",[],[],[]]]'

CALL = orjson.dumps(
    {
        "root_index": 2,
        "nodes": [
            {"type": "None"},
            {"type": "ir.Call", "data": {"op": 0}},
            {"type": "tirx.IndexMap", "data": {"final_indices": 1}},
        ],
    }
).decode()


@dataclass(frozen=True)
class Ours:
    """Facts that an attacker may know of the database that he attacks."""

    key: str
    source: bytes
    measurement: bytes


@dataclass(frozen=True)
class Attack:
    """A hostile database.

    `sketch` makes the sketch of its records, `change` changes its file. `message` is a regular
    expression for the message of the command.
    """

    message: str
    sketch: Callable[[], bytes] | None = None
    change: Callable[[sqlite3.Connection, Ours], object] | None = None
    in_bundles: bool = True


def sketch_of(*instructions):
    return lambda: identity.canonical_json([BLOCK, LOOPS, *instructions])


def annotated(key, value):
    return sketch_of(["Annotate", ["l1", value], [key], []])


def million_steps(step):
    return lambda: b"[" + b",".join([identity.canonical_json(step)] * 1_000_000) + b"]"


def sql(*statements):
    def change(connection, _):
        for statement in statements:
            connection.execute(statement)

    return change


def forge_source(connection, ours):
    """State that the records are of a source of the attacked database."""
    digest = identity.digest("source", ours.key.encode(), b"nightly")
    connection.execute("UPDATE source SET store = ?, digest = ?", (ours.key, digest))


def forge_retractions(connection, ours):
    """Retract the records of the attacked database in its own name."""
    connection.execute("DELETE FROM failure")
    connection.execute("DELETE FROM measurement")
    connection.executemany(
        "INSERT INTO retraction VALUES (?, ?, ?, 'wrong results', 1)",
        [(ours.source, ours.key, "source"), (ours.measurement, ours.key, "measurement")],
    )


def bomb(connection, _):
    """Put 500 MB into a body of a few kilobytes."""
    body = zstd.compress(bytes(500 * 2**20))
    connection.execute("UPDATE sketch SET body = ?", (body,))


ATTACKS = {
    "an annotation that imports LLVM's code": Attack(
        r"the annotation 'pragma_import_llvm' is not allowed",
        annotated("pragma_import_llvm", '"define void @main() { ret void }"'),
    ),
    "an annotation that imports C": Attack(
        r"the annotation 'pragma_import_c' is not allowed",
        annotated("pragma_import_c", '"/etc/passwd"'),
    ),
    "a text in the place of a number": Attack(
        r"pragma_auto_unroll_max_step is .* not allowed",
        annotated("pragma_auto_unroll_max_step", '"x.ll"'),
    ),
    "an instruction without a check": Attack(
        r"'UnsafeSetDType', which is not allowed",
        sketch_of(["UnsafeSetDType", ["b0"], [0, "float16"], []]),
    ),
    "a call in an index map": Attack(
        r"an index map with the type 'ir.Call'",
        sketch_of(["TransformLayout", ["b0", CALL], [0, 1, None, True], []]),
    ),
    "a name with codes of a terminal in a trace": Attack(
        r"not allowed",
        sketch_of(["GetSBlock", [], [EVIL, "main"], ["b9"]]),
    ),
    "an intrinsic that is a path": Attack(
        r"not allowed",
        sketch_of(["Tensorize", ["l1"], ["../../evil.so", True], []]),
    ),
    "a trace of a million steps": Attack(
        r"over the limit|too large|over \d+", million_steps(["EnterPostproc", [], [], []])
    ),
    "a trace of a million short steps": Attack(
        r"over the limit|too large|over \d+", million_steps([])
    ),
    "times that are faster than the digest": Attack(
        r"digest",
        change=sql("UPDATE measurement SET run_secs = x'fca9f1d24d62503f', mean = 0.001"),
        in_bundles=False,
    ),
    "a failure of another record": Attack(
        r"digest",
        change=sql(
            "DELETE FROM measurement WHERE id NOT IN (SELECT measurement_id FROM failure)",
            "UPDATE failure SET message = 'it is the weather'",
            "UPDATE measurement SET occurrence = 99",
        ),
        in_bundles=False,
    ),
    "a program under the digest of another": Attack(
        r"digest", change=sql("UPDATE program SET decisions = x'00'"), in_bundles=False
    ),
    "a workload under the digest of another": Attack(
        r"workload",
        change=sql(f"UPDATE workload SET body = x'{zstd.compress(b'{}').hex()}'"),
        in_bundles=False,
    ),
    "a body that is a bomb": Attack(r"sketch", change=bomb, in_bundles=False),
    "a body that is no JSON": Attack(r"sketch|JSON", lambda: b"define void @main() { ret void }"),
    "a view in the place of a table": Attack(
        r"its measurement is a view",
        change=sql(
            "PRAGMA writable_schema = ON",
            "UPDATE sqlite_schema SET type = 'view', rootpage = 0, "
            "sql = 'CREATE VIEW measurement AS "
            "WITH RECURSIVE x(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM x) SELECT i FROM x' "
            "WHERE type = 'table' AND name = 'measurement'",
            "DELETE FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'measurement'",
        ),
        in_bundles=False,
    ),
    "a view of ours that computes for ever": Attack(
        r"its v_best is a view",
        change=sql(
            "DROP VIEW v_best",
            "CREATE VIEW v_best AS "
            "WITH RECURSIVE x(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM x) SELECT i FROM x",
        ),
        in_bundles=False,
    ),
    "a view of ours under another name": Attack(
        r"its v_evil is a view",
        change=sql(
            "PRAGMA writable_schema = ON",
            "UPDATE sqlite_schema SET name = 'v_evil', tbl_name = 'v_evil', "
            "sql = replace(sql, 'v_best', 'v_evil') WHERE name = 'v_best'",
        ),
        in_bundles=False,
    ),
    "a file without a view": Attack(
        r"v_best is missing", change=sql("DROP VIEW v_best"), in_bundles=False
    ),
    "a trigger": Attack(
        r"is a trigger",
        change=sql(
            "CREATE TRIGGER evil AFTER INSERT ON program BEGIN DELETE FROM measurement; END"
        ),
        in_bundles=False,
    ),
    "a generated column": Attack(
        r"do not match schema",
        change=sql("ALTER TABLE context ADD COLUMN evil TEXT AS (hex(zeroblob(1000000000)))"),
        in_bundles=False,
    ),
    "another program's tables": Attack(
        r"is not part of it", change=sql("CREATE TABLE evil (x)"), in_bundles=False
    ),
    "a newer schema": Attack(
        r"newer|upgrade",
        change=sql("UPDATE alembic_version SET version_num = '9999'"),
        in_bundles=False,
    ),
    "records in the name of our own store": Attack(r"--accept-trusted-names", change=forge_source),
    "retractions in the name of our own store": Attack(
        r"--accept-trusted-names", change=forge_retractions
    ),
}


def records(sketch):
    """Return measurements with a sketch, whose labels have terminal codes and markup."""
    workload = make_workload(7, name=EVIL)
    made = []
    for number in range(3):
        program = make_program(number, workload=workload)
        if sketch is not None:
            program = Program(workload, make_target(), Trace(sketch, POSTPROC, b"[[],[],[]]"))
        fields = {"session": make_session(9), "measured_at": number + 1}
        if number == 2:
            crash = Failure(FailureKind.CRASH, Phase.RUN, EVIL)
            fields |= {"status": Status.FAILED, "failure": crash}
        made.append(Measurement(program, None if number == 2 else (1e-9,), **fields))
    return made


def database(template, path: Path, attack: Attack, ours: Ours) -> Path:
    """Make the database of an attack from an empty one; it may know facts of ours."""
    rename(shutil.copyfile(template, path), THEIR_KEY)
    with Store(path) as store:
        sketch = None if attack.sketch is None else attack.sketch()
        store.records.add(records(sketch), Source("nightly" if attack.change else EVIL))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        if attack.change is not None:
            attack.change(connection, ours)
    return path


def bundle(template, path: Path, attack: Attack, ours: Ours) -> Path:
    """Make the bundle of an attack; parameters are those of :func:`database`."""
    source = database(template, path.with_suffix(".db"), attack, ours)
    # Read as by its owner: the attacker's own tools have no limits.
    with closing(DatabasePeer(source, own=True)) as peer:
        path.write_bytes(bundle_of(peer.chunks(EVERYTHING)))
    return path


def cut(data):
    return data[: len(data) * 2 // 3]


def flipped(data):
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def exploding(data):
    """Return the manifest of a good bundle with a frame of half a gigabyte of zeros."""
    head, _ = take_apart(data)
    return put_together(head, bytes(500 * 2**20))


def billions_of_rows(data):
    head, _ = take_apart(data)
    return put_together(head, block("measurement", 2**32 - 1, b"") + end(measurement=2**32 - 1))


def unknown_table(data):
    head, _ = take_apart(data)
    return put_together(head, block(200, 1, b"x") + end())


def no_manifest(data):
    _, frame = take_apart(data)
    return put_together(b"[" * 1000, frame)


#: Changes of the bytes of a good bundle.
BYTES = {
    one.__name__: one
    for one in (cut, flipped, exploding, billions_of_rows, unknown_table, no_manifest)
}
