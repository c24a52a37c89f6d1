"""Work directories of MetaSchedule and other logs, written by hand and read back."""

import base64
import json
import struct
import sys
from pathlib import Path

import orjson
import pytest

from tunedb.errors import FormatError
from tunedb.formats.base import LogFile
from tunedb.formats.importer import import_log
from tunedb.formats.reading import read_log
from tunedb.identity import canonical_numbers
from tunedb.storage.store import Store

#: The command line as a process of its own.
PROGRAM = [sys.executable, "-c", "from tunedb.cli import main; main(prog_name='tunedb')"]

LLVM = {"kind": "llvm", "keys": ["cpu"], "mcpu": "znver4", "num-cores": 2, "tag": ""}
CUDA = {"kind": "cuda", "keys": ["cuda", "gpu"], "arch": "sm_90", "tag": ""}
ARGS = [["TENSOR", "float32", [128, 64]], ["TENSOR", "float32", [64]]]


def graph(name="matmul", extent=16):
    """A graph of an IRModule, as far as tunedb looks at it."""
    return {
        "root_index": 1,
        "nodes": [
            {"type": "None"},
            {"type": "s_tir.SBlock", "data": {"name_hint": 2, "init": 3}},
            {"type": "ffi.String", "data": name},
            {"type": "ir.IntImm", "data": {"value": extent}},
        ],
        "metadata": {"tvm_version": "0.27.0"},
    }


def node_list(name="matmul", init="0", **attrs):
    """A module in the encoding before TVM 0.22, as far as tunedb looks at it."""
    return {
        "root": 1,
        "nodes": [
            {"type_key": ""},
            {"type_key": "IRModule", "attrs": {"functions": "0"}},
            {"type_key": "tir.Block", "attrs": {"name_hint": "3", "init": init}},
            {"type_key": "runtime.String", "repr_str": name},
        ],
        "b64ndarrays": [],
        "attrs": {"tvm_version": "0.13.dev0", **attrs},
    }


def workload_line(graph_):
    """A line of a workload file; a graph that is bytes is its text."""
    text = graph_ if isinstance(graph_, bytes) else json.dumps(graph_).encode()
    body = base64.b64encode(struct.pack("<q", len(text)) + text).decode()
    return json.dumps(["0", body])


def trace(first=4, second=16):
    """A trace of seven instructions with one decision."""
    return [
        [
            ["GetSBlock", [], ["matmul", "main"], ["b0"]],
            ["GetLoops", ["b0"], [], ["l1", "l2"]],
            ["SamplePerfectTile", ["l1"], [2, 64], ["v3", "v4"]],
            ["Split", ["l1", "v3", "v4"], [1, 0], ["l5", "l6"]],
            ["EnterPostproc", [], [], []],
            ["GetSBlock", [], ["matmul", "main"], ["b7"]],
            ["Annotate", ["b7", 1], ["pragma_unroll_explicit"], []],
        ],
        [[2, [first, second]]],
    ]


def old_trace():
    """A trace as TVM 0.9 to 0.16 wrote it."""
    return [
        [
            ["GetBlock", [], ["root", "main"], ["b0"]],
            ["GetBlock", [], ["matmul", "main"], ["b1"]],
            ["GetLoops", ["b1"], [], ["l2", "l3"]],
            ["SamplePerfectTile", ["l2"], [2, 64], ["v4", "v5"]],
            ["Split", ["l2", "v4", "v5"], [1], ["l6", "l7"]],
            ["CacheWrite", ["b1"], [0, "local"], ["b8"]],
            ["EnterPostproc", [], [], []],
            ["Fuse", ["l6", "l7"], [1], ["l9"]],
        ],
        [[3, [4, 16]]],
    ]


def record(times=(1e-3, 1.1e-3), *, workload=0, target=LLVM, tile=(4, 16), args=ARGS):
    times = None if times is None else list(times)
    return [workload, [trace(*tile), times, target, args]]


def write_lines(path, *lines, end=b"\n"):
    """Write a file of any lines; one that is no text or bytes is written as JSON."""
    path.write_bytes(b"\n".join(encode(line) for line in lines) + end)
    return path


def bring(store, path, **options):
    """Import a file."""
    options.setdefault("source", "mine")
    return import_log(store, LogFile(Path(path), str(path)), **options)


def write(folder, records, graphs=None, *, end="\n"):
    """Write a work directory; a record that is text or bytes is written as it is.

    A graph that is text is a line of the workload file.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    workloads = [g if isinstance(g, str) else workload_line(g) for g in graphs or [graph()]]
    (folder / "database_workload.json").write_text("\n".join(workloads) + "\n")
    write_lines(folder / "database_tuning_record.json", *records, end=end.encode())
    return folder


def encode(line):
    if isinstance(line, bytes):
        return line
    return (line if isinstance(line, str) else json.dumps(line)).encode()


def items_and_error(path):
    """Return the items before the error of a file, and its message."""
    found = []
    with pytest.raises(FormatError) as caught:
        for item in read_log(LogFile(path, "name")):
            found.append(item)
    assert "\n" not in str(caught.value)
    return found, str(caught.value)


def canonical(line):
    """Return a line as text that is equal for equal lines: 1.0 is 1, and true is not."""
    value = orjson.loads(line) if isinstance(line, bytes | str) else line
    return json.dumps(canonical_numbers(value), sort_keys=True)


def graph_of(body):
    """Return the graph in the base64 of a workload, with the version that wrote it."""
    return canonical(base64.b64decode(body)[8:])


def pairs(records):
    """Return each record of a work directory with its workload, by the path of the records."""
    beside = records.with_name(records.name.replace("tuning_record", "workload"))
    workloads, lines = (
        [orjson.loads(line) for line in path.read_bytes().splitlines()]
        for path in (beside, records)
    )
    graphs = [graph_of(body) for _, body in workloads]
    return [(graphs[index], canonical(fields)) for index, fields in lines]


def digests_in_order(store):
    """Return the digests of all measurements in order of insertion."""
    return [row.measurement.digest for row in store.records.iterate()]


def digests(store):
    return sorted(digests_in_order(store))


def ansor(cost=0.001, error=0, *, tile=8, target="llvm", time=1700000000, key='["add", 64]'):
    """Return a line of auto_scheduler."""
    costs = cost if isinstance(cost, list) else [cost]
    state = [[], [["SP", 2, 0, 64, [tile], 1]]]
    return json.dumps({"i": [[key, target], state], "r": [costs, error, 1.0, time], "v": "v0.2"})


def autotvm(cost=0.001, error=0, *, tile=8, target="cuda", time=1600000000.5):
    """Return a line of AutoTVM."""
    costs = cost if isinstance(cost, list) else [cost]
    args = [["TENSOR", [64, 64], "float32"], None]
    line = {
        "input": [target, "dense", args, {}],
        "config": {"index": tile, "code_hash": None, "entity": [["tile_x", "sp", [-1, tile]]]},
        "result": [costs, error, 1.0, time],
        "version": 0.2,
        "tvm_version": "0.8.0",
    }
    return json.dumps(line)


def contents(path):
    """The digests of all measurements of a database."""
    with Store(path, create=False, read_only=True) as store:
        return digests(store)
