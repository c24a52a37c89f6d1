"""Thread blocks read from stored traces and features equal those of the scheduled programs.

Nothing is measured: candidates of TVM's own rules for CUDA, whose loops are read from their
TVMScript text (no GPU is needed).
"""

import re

import numpy as np
import pytest
import te_programs

from tunedb.advisor.tvm_launches import agreed, launches_of_rows, launches_of_trace
from tunedb.features.ansor import NAMES
from tunedb.plugins.metaschedule import trace_codec

WORKLOADS = ["matmul-relu", "SFM-0", "NRM-0", "C2D-0", "DEP-0", "attention", "winograd"]

#: Kernels that store nothing but constants: the matrices of Winograd's transforms.
CONSTANTS = {"winograd": 3}

_LOOP = re.compile(r"^( *)for .* in .*:$")
_BINDING = re.compile(r'T\.thread_binding\((\d+), thread="(\w+)\.([xyz])"')
_BLOCK = re.compile(r'T\.sblock\("(\w+)"\)')


def kernels_of(mod):
    """Return block and grid of each outermost loop nest of a scheduled module."""
    nests, outermost = [], None
    for line in mod["main"].script().splitlines():
        found = _LOOP.match(line)
        if found is None:
            continue
        depth = len(found[1])
        outermost = depth if outermost is None else outermost
        if depth == outermost:
            nests.append({})
        for extent, kind, axis in _BINDING.findall(line):
            # TVM unifies loops of one axis; different extents would be an error.
            assert nests[-1].setdefault((kind, axis), int(extent)) == int(extent)
    kinds = ("threadIdx", "blockIdx")
    return [tuple(tuple(n.get((kind, axis), 1) for axis in "xyz") for kind in kinds) for n in nests]


@pytest.mark.parametrize("name", WORKLOADS)
def test_launches_from_traces_and_features_equal_those_of_the_program(name):
    context, candidates = te_programs.sample(name, "cuda", 8)
    order = _BLOCK.findall(context.mod["main"].script())
    features = te_programs.per_store(context, candidates)
    compared = 0
    for one, rows in zip(candidates, features, strict=True):
        actual = kernels_of(one.sch.mod)
        found = launches_of_trace(trace_codec.encode(one.sch.trace), "main", order)
        if found:
            compared += 1
            assert [launch.block for launch in found] == [block for block, _ in actual]
            grids = [launch.grid for launch in found]
            assert all(a in (None, b) for a, (_, b) in zip(grids, actual, strict=True))
        by_rows = launches_of_rows(np.asarray(rows, np.float32), NAMES, "main")
        # Equal neighbours count as one, and kernels that store only constants have no rows.
        runs = [k for at, k in enumerate(actual) if at == 0 or actual[at - 1] != k]
        known = [(launch.block, launch.grid) for launch in by_rows]
        assert [kernel for kernel in runs if kernel in known] == known
        assert len(runs) - len(known) <= CONSTANTS.get(name, 0)
        assert agreed(found, [by_rows]) == (by_rows if len(by_rows) >= len(found) else found)
    assert len(candidates) >= 4
    assert compared >= len(candidates) / 2
