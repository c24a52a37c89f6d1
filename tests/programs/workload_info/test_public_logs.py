"""Signatures of every workload of the public logs."""

import base64
import json
import lzma
import re
import sqlite3
from collections import Counter
from contextlib import closing
from itertools import chain

import orjson
import pytest
from public_logs import DATA, MEASURED, needs_logs

from tunedb.identity import canonical_json
from tunedb.programs.workload_info import signature_of
from tunedb.records import Workload, WorkloadFormat

pytestmark = needs_logs

_FIRST_TEXT = re.compile(rb'\{"i": ?\[\[("(?:[^"\\]|\\.)*")')


def _lines(files):
    for file in sorted(files):
        with lzma.open(file) if file.suffix == ".xz" else file.open("rb") as stream:
            yield from (line for line in stream if line.startswith(b"{"))


def _tasks():
    """Return the distinct AutoTVM tasks."""
    tasks = set()
    for line in _lines((DATA / "autotvm").rglob("*.log*")):
        value = json.loads(line)
        tasks.add(canonical_json((value.get("input") or value["i"])[1:4]))
    return [Workload(WorkloadFormat.AUTOTVM, task) for task in tasks]


def _keys():
    """Return the distinct keys of auto_scheduler."""
    files = chain(
        (DATA / "ansor").rglob("*.json"),
        (DATA / "ansor").rglob("*.log"),
        (DATA / "tenset").rglob("*.json"),
        (DATA / "costmodel" / "roller_ansor").glob("*.jsonl.xz"),
    )
    keys = {_key(line) for line in _lines(files)}
    return [Workload(WorkloadFormat.ANSOR, key) for key in keys]


def _key(line):
    # Parsing 180,000 lines would take long, and a key is the first text of most.
    found = _FIRST_TEXT.match(line)
    return (orjson.loads(found[1]) if found else json.loads(line)["i"][0][0]).encode()


def _graph(text):
    """Return the workload of MetaSchedule's base64."""
    graph = orjson.loads(base64.b64decode(text)[8:])
    if "root" in graph:
        del graph["attrs"]
        return Workload(WorkloadFormat.NODES, canonical_json(graph))
    del graph["metadata"]
    return Workload(WorkloadFormat.GRAPH, canonical_json(graph))


def _graphs(folder):
    files = sorted(folder.rglob("*_workload.json"))
    lines = (line for file in files for line in file.read_bytes().splitlines())
    return [_graph(orjson.loads(line)[1]) for line in lines]


def _families(workloads):
    return Counter(signature_of(workload).family for workload in workloads)


def _unknown(workloads):
    """Return how many workloads lack each of a signature's parts."""
    signatures = [signature_of(workload) for workload in workloads]
    fields = ("function", "arguments", "family", "flops")
    counts = {f: sum(getattr(s, f) is None for s in signatures) for f in fields}
    return {field: count for field, count in counts.items() if count}


def test_all_autotvm_tasks_have_complete_signatures():
    tasks = _tasks()
    assert _unknown(tasks) == {}
    assert _families(tasks) == {
        "conv2d": 2045, "depthwise_conv2d": 253, "conv2d_winograd": 153, "matmul": 39,
        "conv2d_transpose": 32, "batch_matmul": 20, "group_conv2d": 9, "conv1d_transpose": 1,
    }  # fmt: skip


@pytest.mark.stress
def test_all_named_ansor_keys_have_complete_signatures():
    keys = _keys()
    hashed = [key for key in keys if len(orjson.loads(key.body)[0]) == 32]
    named = [key for key in keys if len(orjson.loads(key.body)[0]) != 32]
    assert _unknown(named) == {}
    assert _families(named) == {
        "conv2d": 45, "elementwise": 28, "depthwise_conv2d": 23, "pooling": 18, "matmul": 9,
        "reduction": 4, "sparse_dense": 1,
    }  # fmt: skip
    # Hashes: 59 alone, 47 with flat dimensions, 56 with shapes.
    assert _unknown(hashed) == {
        "function": 162, "arguments": 59 + 47, "family": 162, "flops": 162,
    }  # fmt: skip


def test_all_metaschedule_json_graphs_have_complete_signatures():
    graphs = _graphs(DATA / "metaschedule")
    assert _unknown(graphs) == {}
    assert _families(graphs) == {
        "data_movement": 39, "matmul": 26, "elementwise": 20, "normalization": 9,
        "batch_matmul": 4, "reduction": 3, "softmax": 3,
    }  # fmt: skip


def test_all_metaschedule_sqlite_graphs_have_complete_signatures():
    file = DATA / "metaschedule" / "mshr-h_sqlite_v0.15" / "database_workload.sqlite"
    with closing(sqlite3.connect(f"file:{file}?immutable=1", uri=True)) as database:
        rows = database.execute("SELECT mod FROM workload ORDER BY rowid").fetchall()
    graphs = [_graph(row[0]) for row in rows]
    assert _unknown(graphs) == {}
    assert _families(graphs) == {"conv2d": 15, "data_movement": 12, "pooling": 2, "matmul": 1}


#: Families by the beginning of the folder's name. "norm" is the root of a sum of squares: no name
#: of its blocks shows it, and its loops are those of a sum.
_MEASURED = {
    **{name: name for name in ("conv1d", "conv2d", "conv3d", "matmul", "softmax")},
    **{"bmm": "batch_matmul", "dense": "matmul", "dep": "depthwise_conv2d", "norm": "reduction"},
}


def test_signatures_of_measured_workloads_match_their_records():
    folders = sorted(MEASURED.iterdir())
    assert len(folders) == 24
    for folder in folders:
        (workload,) = _graphs(folder)
        signature = signature_of(workload)
        record = orjson.loads((folder / "database_tuning_record.json").read_bytes().split(b"\n")[0])
        said = tuple((dtype, tuple(shape)) for _, dtype, shape in record[1][3])
        assert signature.arguments == said, folder.name
        assert signature.family == _MEASURED[folder.name.split("_")[0]], folder.name
