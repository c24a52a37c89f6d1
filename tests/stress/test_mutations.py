"""Hostile logs: whatever the bytes, a line is a record or it is quarantined."""

from __future__ import annotations

import base64
import json
import random
import struct

import pytest

from tunedb.errors import FormatError
from tunedb.logs.lines import Line
from tunedb.logs.metaschedule import _RecordReader, parse_workload

GRAPH = {
    "root_index": 2,
    "nodes": [
        {"type": "None"},
        {"type": "ffi.String", "data": "matmul"},
        {"type": "s_tir.SBlock", "data": {"name_hint": 1, "init": 0}},
    ],
    "metadata": {"tvm_version": "0.27.0"},
}
TEXT = json.dumps(GRAPH).encode()
WORKLOAD = json.dumps(
    ["123", base64.b64encode(struct.pack("<q", len(TEXT)) + TEXT).decode()]
).encode()
RECORD = json.dumps(
    [
        0,
        [
            [
                [
                    ["GetSBlock", [], ["matmul", "main"], ["b0"]],
                    ["GetLoops", ["b0"], [], ["l1", "l2"]],
                    ["SamplePerfectTile", ["l1"], [2, 16], ["v3", "v4"]],
                    ["Split", ["l1", "v3", "v4"], [1, 0], ["l5", "l6"]],
                    ["SampleCategorical", [], [[0, 16], [0.5, 0.5]], ["v7"]],
                    ["Annotate", ["b0", "v7"], ["meta_schedule.unroll_explicit"], []],
                    ["EnterPostproc", [], [], []],
                    ["Split", ["l6", "None", 4], [1, 0], ["l8", "l9"]],
                ],
                [[2, [4, 4]], [4, 1]],
            ],
            [0.001, 1e-3, 1],
            {"kind": "llvm", "keys": ["cpu"], "num-cores": 2},
            [["TENSOR", "float32", [16, 16]]],
        ],
    ]
).encode()


PIECES = [b"[", b"]", b"{}", b'"', b"-", b"1e999", b"NaN", b"\x00", b"null"]


def mutate(rng, seed):
    """Return bytes with some of them changed, removed, doubled or moved."""
    data = bytearray(seed)
    for _ in range(rng.randint(1, 6)):
        if not data:
            break
        at, kind = rng.randrange(len(data)), rng.randrange(5)
        if kind == 0:
            data[at] = rng.randrange(256)
        elif kind == 1:
            del data[at : at + rng.randint(1, 20)]
        elif kind == 2:
            data[at:at] = data[at : at + rng.randint(1, 40)]
        elif kind == 3:
            data[at:at] = rng.choice(
                [b"[", b"]", b"{}", b'"', b"-", b"1e999", b"NaN", b"\x00", b"null"]
            )
        else:
            other = rng.randrange(len(data))
            data[at], data[other] = data[other], data[at]
    return bytes(data)


@pytest.mark.parametrize("rounds", [2_000, pytest.param(100_000, marks=pytest.mark.stress)])
def test_mutated_lines(rounds):
    rng = random.Random(rounds)
    workload = parse_workload(WORKLOAD)
    assert workload.name == "matmul"
    understood = refused = 0
    for number in range(rounds):
        reader = _RecordReader([workload])
        data = mutate(rng, RECORD)
        try:
            reader.parse(Line(number, data, len(data), True, False))
            understood += 1
        except FormatError:
            refused += 1
        try:
            parse_workload(mutate(rng, WORKLOAD))
            understood += 1
        except FormatError:
            refused += 1
    assert understood + refused == 2 * rounds
    assert understood > rounds / 100
    assert refused > rounds / 2
