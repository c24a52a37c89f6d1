"""Small records for tests. Equal numbers make equal records."""

import shutil
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

from tunedb.identity import canonical_json
from tunedb.records import (
    Measurement,
    Program,
    Session,
    Source,
    SourceKind,
    Status,
    Target,
    Trace,
    Trust,
    Workload,
    WorkloadFormat,
)
from tunedb.storage import approval
from tunedb.storage.store import Store

OWN = Source("own")
FOREIGN = Source("foreign", SourceKind.FILE, Trust.FOREIGN)


@cache
def key_of(url):
    """Return the store key of a database whose key stays as it is."""
    with Store(url, create=False, read_only=True) as store:
        return store.key


def sql(path, statement, *values):
    """Run a statement on a SQLite file as no command of tunedb would; return its rows."""
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(statement, values).fetchall()


def add(store, *measurements, source=OWN):
    """Add records; return their ids."""
    ids, _ = store.batches.add(measurements, source)
    return ids


def copied(source, place):
    """Return the path of a copy of a template, which is approved as if it were made there."""
    copy = Path(shutil.copyfile(source, place))
    approval.approve(copy, key_of(source))
    return copy


def make_workload(number=0, **fields):
    fields.setdefault("name", f"matmul_{number}")
    return Workload("tvm-graph", b'{"nodes":[%d]}' % number, **fields)


def make_graph(shape, *, salt=0, extents=None, **fields):
    """Return a workload whose graph says its structure.

    Parameters
    ----------
    shape : tuple of int
        Of its one argument.
    salt : int
        What tells it from others of equal structure.
    extents : tuple of int or None
        Of the iterators of its one block; those of the shape where None.
    """
    nodes = [{"type": "tirx.PrimFunc", "data": {"params": 1, "body": 2}}, {"type": "ffi.Array"}]
    nodes.append({"type": "tirx.SBlock", "data": {"iter_vars": 3}})

    def add(kind, **data):
        nodes.append({"type": kind, "data": data} if data else {"type": kind})
        return len(nodes) - 1

    def integer(value):
        nodes.append({"type": "int", "data": value})
        return add("ir.IntImm", value=len(nodes) - 1)

    nodes.append({"type": "ffi.Array", "data": []})
    for extent in extents or shape:
        domain = add("ir.Range", extent=integer(extent))
        nodes[3]["data"].append(add("tirx.IterVar", iter_type=0, dom=domain))
    dimensions = [integer(extent) for extent in shape]
    nodes.append({"type": "ffi.Array", "data": dimensions})
    buffer = add("tirx.BufferType", dtype="float32", shape=len(nodes) - 1)
    nodes[1]["data"] = [add("tirx.Var", ty=buffer, name=f"x{salt}")]
    fields.setdefault("name", "graph")
    value = {"root_index": 0, "nodes": nodes}
    return Workload(WorkloadFormat.GRAPH, canonical_json(value), **fields)


def make_target(number=0, **fields):
    config = {"kind": "llvm", "mcpu": "skylake", "num-cores": number + 1}
    return Target.from_config(config, **fields)


#: Instructions that TVM could have written, so that a merge takes them from a foreign source.
SKETCH = (
    b'[["GetBlock",[],["matmul","main"],["b0"]],["GetLoops",["b0"],[],["l1"]],'
    b'["SamplePerfectTile",["l1"],[2,16],["v2","v3"]]]'
)


def make_trace(number=0, *, empty=False, tail=b'[["EnterPostproc",[],[],[]]]'):
    return Trace(b"[]" if empty else SKETCH, tail, b"[[[2,[%d,4]]],[],[]]" % number)


def make_program(number=0, *, workload=0, target=0, empty=False):
    if isinstance(workload, int):
        workload = make_workload(workload)
    if isinstance(target, int):
        target = make_target(target)
    return Program(workload, target, make_trace(number, empty=empty))


def make_session(number=0):
    return Session(f"session-{number}", 1_700_000_000_000_000 + number, b'{"cpu":"x","cores":2}')


def make_measurement(number=0, secs=(0.001,), *, workload=0, target=0, empty=False, **fields):
    """Return the measurement of the program with that number; ``secs=None`` makes a failed one."""
    program = make_program(number, workload=workload, target=target, empty=empty)
    if secs is None:
        fields.setdefault("status", Status.FAILED)
    return Measurement(program, secs, **fields)


def make_batch(marker, size):
    """Return `size` unique measurements, all with ``measured_at == marker``."""
    return [
        make_measurement(i % 7, (1e-3 + 1e-6 * i,), measured_at=marker, occurrence=i)
        for i in range(size)
    ]


def leb128(number):
    """Return a number as a varint."""
    groups = []
    while number >= 128:
        groups.append(number % 128 + 128)
        number //= 128
    return bytes([*groups, number])


class EntryPoint:
    """An entry point of another package; an error in place of its object is raised."""

    dist = None

    def __init__(self, name, found, value="other:OBJECT"):
        self.name, self.value, self._found = name, value, found

    def load(self):
        if isinstance(self._found, Exception):
            raise self._found
        return self._found
