import pytest

from tunedb.errors import FormatError
from tunedb.programs import steps_of
from tunedb.programs.ansor import split_steps
from tunedb.programs.autotvm import split_knobs
from tunedb.programs.base import Step
from tunedb.programs.metaschedule.steps import steps_of as instructions_of
from tunedb.programs.metaschedule.trace import split_trace
from tunedb.records import Program, Target, Trace, Workload, WorkloadFormat

INSTRUCTIONS = [
    ["GetSBlock", [], ["C", "main"], ["b0"]],
    ["GetLoops", ["b0"], [], ["l1"]],
    ["SamplePerfectTile", ["l1"], [2, 64], ["v2", "v3"]],
    ["Split", ["l1", "v2", "None", 4], [1, 0], ["l4", "l5"]],
    ["SampleCategorical", [], [[0, 16], [0.5, 0.5]], ["v6"]],
    ["Annotate", ["b0", '"SSRS"'], ["meta"], []],
    ["EnterPostproc", [], [], []],
    ["Unroll", ["l5"], [], []],
]
DECISIONS = [[2, [16, 8]], [4, 1]]


def test_steps_of_converts_every_instruction_to_a_step():
    expected = [
        ("GetSBlock", "get_sblock", {"outputs": ["b0"], "name": "C", "func_name": "main"}),
        ("GetLoops", "get_loops", {"outputs": ["l1"], "inputs": ["b0"]}),
        (
            *("SamplePerfectTile", "sample_perfect_tile"),
            {"outputs": ["v2", "v3"], "inputs": ["l1"], "n": 2, "max_innermost_factor": 64}
            | {"decision": [16, 8]},
        ),
        (
            *("Split", "split"),
            {"outputs": ["l4", "l5"], "inputs": ["l1", "v2", "None", 4]}
            | {"preserve_unit_iters": 1, "disable_predication": 0},
        ),
        (
            *("SampleCategorical", "sample_categorical"),
            {"outputs": ["v6"], "candidates": [0, 16], "probs": [0.5, 0.5], "decision": 1},
        ),
        ("Annotate", "annotate", {"inputs": ["b0", '"SSRS"'], "ann_key": "meta"}),
        ("EnterPostproc", "enter_postproc", {}),
        ("Unroll", "unroll", {"inputs": ["l5"]}),
    ]
    assert instructions_of(split_trace(INSTRUCTIONS, DECISIONS)) == [
        Step(number, code, name, None, None, arguments)
        for number, (code, name, arguments) in enumerate(expected)
    ]


@pytest.mark.parametrize(
    ("instruction", "name", "arguments"),
    [
        # What releases before 0.27 wrote, and attributes without names.
        (["GetBlock", [], ["C", "main"], ["b0"]], "get_block", {"name": "C", "func_name": "main"}),
        (["Fuse", [], [], ["b0"]], "fuse", {}),
        (["Split", [], [1], ["b0"]], "split", {"attrs": [1]}),
        (["ReIndex", [], [0, 1], ["b0"]], "reindex", {"attrs": [0, 1]}),
        (["RFactor", [], [2], ["b0"]], "rfactor", {"factor_axis": 2}),
    ],
)
def test_steps_of_names_old_instructions_and_unnamed_attributes(instruction, name, arguments):
    (step,) = instructions_of(split_trace([instruction], []))
    assert step == Step(0, instruction[0], name, None, None, {"outputs": ["b0"], **arguments})


def program(format_, trace):
    return Program(Workload(format_, b"[]"), Target.from_config({"kind": "llvm"}), trace)


def test_steps_of_reads_programs_of_every_known_format():
    trace = split_trace(INSTRUCTIONS, DECISIONS)
    for format_ in (WorkloadFormat.GRAPH, WorkloadFormat.NODES, WorkloadFormat.ARGUMENTS):
        assert steps_of(program(format_, trace)) == instructions_of(trace)
    (step,) = steps_of(program(WorkloadFormat.ANSOR, split_steps([["CI", 3]], None)))
    assert (step.code, step.name, step.stage) == ("CI", "compute_inline", 3)
    knobs = split_knobs([["tile_y", "sp", [-1, 8]]], {"index": 5})
    (step,) = steps_of(program(WorkloadFormat.AUTOTVM, knobs))
    assert (step.code, step.arguments) == ("sp", {"knob": "tile_y", "size": [-1, 8]})
    with pytest.raises(FormatError, match=r"'tensor-ir'.*upgrade"):
        steps_of(program("tensor-ir", Trace(b"{}", None, b"")))


@pytest.mark.parametrize(
    ("sketch", "decisions"),
    [
        (b"[]", b"{"),
        (b'[["GetLoops",["b0"],[]]]', b"[[],[],[]]"),
        (b'[["GetLoops",["b0"],null,[]]]', b"[[],[],[]]"),
        (b'[[7,["b0"],[],[]]]', b"[[],[],[]]"),
        (b'[["GetLoops",["b0"],[],[]]]', b"[[1],[],[]]"),
        (b'[["GetLoops",["b0"],[],[]]]', b"[[[[],1]],[],[]]"),
    ],
)
def test_steps_of_rejects_damaged_traces(sketch, decisions):
    with pytest.raises(FormatError):
        instructions_of(Trace(sketch, None, decisions))
