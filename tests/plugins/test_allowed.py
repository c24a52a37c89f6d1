"""The allowlist for foreign sources accepts all programs that TVM makes, and no changed ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest
import te_programs
import test_trace_kinds as kinds
import tvm
from tvm import s_tir
from tvm.script import tirx as T
from tvm.tirx import IndexMap

from tunedb import limits
from tunedb.errors import FormatError
from tunedb.plugins.metaschedule import trace_codec
from tunedb.programs import allowlist
from tunedb.programs.metaschedule import trace as traces
from tunedb.programs.metaschedule.allowlist import KINDS, REMOVABLE, check_index_map
from tunedb.records import Trace, WorkloadFormat

GRAPH = WorkloadFormat.GRAPH

#: Workloads whose spaces take all of TVM's rules, for each kind of device.
CASES = [
    ("llvm", ["matmul", "CBR-1", "SFM-0", "NRM-0", "DEP-0", "winograd", "attention", "max-pool"]),
    ("vnni", ["vnni-dense", "matmul-i8"]),
    ("cuda", ["matmul-relu", "conv2d-nchw-bn", "SFM-0", "NRM-0", "winograd", "attention"]),
    ("tensorcore", ["matmul-f16", "matmul-relu-f16", "conv2d-f16"]),
]


@pytest.fixture(scope="module", autouse=True)
def _intrinsics() -> None:
    s_tir.TensorIntrin.register(kinds._INTRIN, kinds.dot_desc, kinds.dot_impl, override=True)


def annotations(trace: Trace) -> set[str]:
    parts = [trace.sketch, trace.tail or b"[]"]
    return {
        attrs[0] for part in parts for kind, _, attrs, _ in orjson.loads(part) if kind == "Annotate"
    }


@pytest.mark.parametrize(("kind", "names"), CASES, ids=[kind for kind, _ in CASES])
def test_allowlist_accepts_traces_of_tvm(kind: str, names: list[str]) -> None:
    found: set[str] = set()
    for name in names:
        _, candidates = te_programs.sample(name, kind, 4)
        assert candidates, name
        for candidate in candidates:
            trace = trace_codec.encode(candidate.sch.trace)
            allowlist.check_trace(trace, GRAPH)
            assert len(trace.sketch) < limits.MAX_FOREIGN_PART_BYTES / 2
            found |= annotations(trace)
    assert "meta_schedule.unroll_explicit" in found
    if kind in ("vnni", "tensorcore"):
        assert "meta_schedule.auto_tensorize" in found


@pytest.mark.parametrize("number", range(len(kinds.CASES)), ids=kinds._IDS)
def test_allowlist_rejects_kinds_without_a_check_and_unknown_annotations(number: int) -> None:
    """It also rejects annotations with words that no rule of TVM writes."""
    function, steps = kinds.CASES[number]
    trace = trace_codec.encode(kinds.schedule_of(function, steps).trace)
    used = {kind for kind, *_ in orjson.loads(trace.sketch)}
    expected = used - KINDS or annotations(trace) - REMOVABLE
    if not expected:
        allowlist.check_trace(trace, GRAPH)
        return
    with pytest.raises(FormatError, match="not allowed"):
        allowlist.check_trace(trace, GRAPH)


def mutants(instructions: list[Any]) -> Iterator[list[Any]]:
    """Yield the trace with one kind, input or attribute replaced by a forbidden one."""
    for index, (kind, inputs, attrs, outputs) in enumerate(instructions):
        changed = [["X" + kind, inputs, attrs, outputs]]
        for place in range(len(inputs)):
            evil = [*inputs[:place], '"define void"', *inputs[place + 1 :]]
            changed.append([kind, evil, attrs, outputs])
        for place in range(len(attrs)):
            evil = [*attrs[:place], "pragma_import_llvm\n", *attrs[place + 1 :]]
            changed.append([kind, inputs, evil, outputs])
        for one in changed:
            yield [*instructions[:index], one, *instructions[index + 1 :]]


def test_allowlist_rejects_mutated_instructions_of_every_kind() -> None:
    mutated: set[str] = set()
    for function, steps in kinds.CASES:
        trace = trace_codec.encode(kinds.schedule_of(function, steps).trace)
        instructions, decisions = traces.join_trace(trace)
        try:
            allowlist.check_trace(trace, GRAPH)
        except FormatError:
            continue
        mutated |= {kind for kind, *_ in instructions}
        for mutant in mutants(instructions):
            with pytest.raises(FormatError):
                allowlist.check_trace(traces.split_trace(mutant, decisions), GRAPH)
    # The other kinds are only in schedules with annotations that no rule of TVM writes.
    assert len(mutated) > 35
    assert mutated <= KINDS


def test_allowlist_rejects_index_map_with_a_call() -> None:
    """TVM would build the call into the module; it calls a function by its name."""
    evil = T.call_extern("int32", "system", "true")
    good = str(tvm.ir.save_json(IndexMap.from_func(lambda i, j: [j * 4 + i % 3, i + 1])))
    bad = str(tvm.ir.save_json(IndexMap.from_func(lambda i, j: [j, i + evil])))
    check_index_map("TransformLayout at 1", good)
    assert "system" in bad
    with pytest.raises(FormatError, match=r"TransformLayout at 1 has an index map with the type"):
        check_index_map("TransformLayout at 1", bad)
