"""Databases whose contents are compared as sets, without ids, labels and times of storing."""

import math
import shutil
import sqlite3
from contextlib import closing
from functools import cache
from itertools import product

from builders import make_session, make_target, make_trace
from exchanges import THEIRS, rename
from sqlalchemy import select

from tunedb.exchange.database_peer import DatabasePeer
from tunedb.exchange.merge import merge
from tunedb.formats.gpu.kernels import gpu_target, kernel_workload
from tunedb.launches import CounterSet, Launch
from tunedb.programs.autotvm import split_knobs
from tunedb.programs.kernel import split_parameters
from tunedb.records import (
    NO_TARGET,
    Failure,
    FailureKind,
    Measurement,
    Origin,
    Phase,
    Program,
    Status,
    Trace,
    Workload,
)
from tunedb.storage import schema
from tunedb.storage.store import Store

TIMEOUT = Failure(FailureKind.TIMEOUT, Phase.RUN, "killed after 10 s", 10.0)
CRASH = Failure(FailureKind.CRASH, Phase.BUILD, "Segmentation fault (é)")

#: Columns that are local, labels, or derived from who is trusted.
LABELS = {
    *("id", "created_at", "tunedb_version", "note", "name", "text", "tvm_version", "script"),
    "trust",
}

#: Tables that a merge makes equal; the others are local.
TABLES = (
    *("workload", "workload_alias", "target", "sketch", "tail", "args_info", "context"),
    *("session", "program", "measurement", "failure", "feature_set", "feature", "retraction"),
    *("counter_set", "launch"),
)


def _programs(number):
    """Return a program of each format."""
    graph = Workload("tvm-graph", b'{"nodes":[%d]}' % (number % 2), f"matmul_{number}")
    nodes = Workload("tvm-nodes", b'{"nodes":[[]]}', "old", "0.8.0")
    arguments = Workload("metaschedule-arguments", b'[0,[["TENSOR","float32",[4]]]]')
    ansor = Workload("ansor-key", b'["matmul", 64, 64, 64]', "matmul")
    autotvm = Workload(
        "autotvm-task", b'["dense.x86",[["TENSOR",[128,256],"float32"]],{}]', "dense.x86"
    )
    steps = b'{"layout_rewrite":0,"steps":[["SP",2,0,null,[null,null],1]]}'
    knobs = split_knobs(
        [["tile_x", "sp", [-1, number + 1]], ["unroll", "ot", True]], {"index": number}
    )
    return [
        Program(graph, make_target(number % 2), make_trace(number + 1)),
        Program(nodes, make_target(), make_trace(number + 1, tail=None)),
        Program(arguments, NO_TARGET, Trace(b"[]", None, b"[[],[],[]]")),
        Program(ansor, make_target(), Trace(steps, None, bytes([64, 4, number % 100 + 1]))),
        Program(autotvm, make_target(), knobs),
    ]


def launch(block, **fields):
    """Return a launch; some have counters."""
    counters = CounterSet("ncu", None, "3.5", (("gld_request", ""), ("ipc", "%"))[: 1 + block % 2])
    if block:
        fields |= {"counter_set": counters, "values": (1.5, math.nan)[: 1 + block % 2]}
    threads = 32 << block
    return Launch("matmul<int>", threads, (threads, 1, 1), (8, 1, 1), registers=block, **fields)


@cache
def pool():
    """Return records of every kind; equal numbers are equal records."""
    found = []
    for number, program in product(range(2), range(5)):
        one = _programs(number)[program]
        seconds = (1e-3 * (number + program + 1),)
        context = b'{"log":"ansor","version":"v0.6"}'
        found += [
            Measurement(one, seconds),
            Measurement(one, (0.5, 0.25), session=make_session(number), measured_at=number),
            Measurement(
                one, (1e10,), Status.FAILED, occurrence=number, failure=(None, TIMEOUT)[number]
            ),
            Measurement(
                one,
                seconds,
                occurrence=program + 1,
                session=make_session(),
                args_info=b'[["TENSOR","float32",[128,128]]]',
                origin=Origin.MUTATED,
                donor=one.digest,
                all_cost=1.5,
                context=context,
                extra=b'{"timestamp":1767225600.1234567}',
            ),
        ]
    found.append(Measurement(_programs(0)[0], None, Status.UNMEASURED))
    found.append(Measurement(_programs(0)[0], (1e-9, 2e-9), Status.CUT_SHORT))
    workload, target = kernel_workload("matmul", [64, 64]), gpu_target("cuda", "Tesla K40c")
    for number in range(3):
        program = Program(workload, target, split_parameters({"block_size_x": 32 << number}))
        fields = {"launches": (launch(number), launch(number + 1, number=1))}
        found.append(Measurement(program, (1e-3,), context=b'{"log":"ktt"}', **fields))
    return tuple(found)


def contents(url, *, owners=True):
    """Return table → sorted rows; foreign keys are replaced by the rows that they point to.

    Without `owners` they lack the sources of records, and whether these are served.
    """
    with Store(url, create=False) as store:
        rows = {
            table.name: [dict(row._mapping) for row in store._db.select(select(table))]
            for table in schema.metadata.sorted_tables
        }
    names = {
        table: {row["id"]: _identity(row) for row in found if "id" in row}
        for table, found in rows.items()
    }
    left_out = LABELS if owners else LABELS | {"source_id", "served"}

    def shown(table, row):
        kept = [(name, value) for name, value in row.items() if name not in left_out]
        return repr([(name, _pointed(table, name, value, names)) for name, value in kept])

    return {table: sorted(shown(table, row) for row in rows[table]) for table in TABLES}


def _identity(row):
    return row.get("digest") or (row["name"], row["version"])


def _pointed(table, column, value, names):
    for key in schema.metadata.tables[table].c[column].foreign_keys:
        return value and names[key.column.table.name][value]
    return value


class Makes:
    """Makes databases in a folder, each with a key of its own, and merges them."""

    def __init__(self, template, folder):
        self._template = template
        self._folder = folder
        self._count = 0

    def empty(self, key=None):
        """Return the path of a new database."""
        self._count += 1
        path = self._folder / f"{self._count}.db"
        shutil.copyfile(self._template, path)
        return rename(path, key or f"{self._count:032x}")

    def holding(self, source, *records):
        """Return the path of another team's database with records of a source."""
        path = self.empty(THEIRS)
        with Store(path) as store:
            store.records.add(records, source)
        return path

    def copy(self, path):
        """Return the path of a copy, which is the same database."""
        self._count += 1
        copied = self._folder / f"{self._count}.db"
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copied)) as target:
            source.backup(target)
        return copied

    def merged(self, path, *others, **options):
        """Return the path of a copy with others merged into it; assert that no row is rejected."""
        path = self.copy(path)
        with Store(path) as store:
            for other in others:
                report = merge_from(store, other, **options)
                assert report.rejected == 0, report.reasons
        return path


def take(path, other, **options):
    """Merge a database into another; return the report."""
    with Store(path) as store:
        return merge_from(store, other, **options)


def merge_from(store, path, **options):
    """Merge a database into a store; return the report."""
    with closing(DatabasePeer(path, own=True)) as peer:
        return merge(store, peer, **options)
