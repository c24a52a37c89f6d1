"""The allow-list accepts all that TVM writes, and nothing else."""

import re
from dataclasses import replace
from unittest import mock

import orjson
import pytest
from builders import make_trace
from effort import EFFORT, examples, long
from hypothesis import given, settings
from hypothesis import strategies as st
from public_logs import DATA, needs_logs

from tunedb import limits
from tunedb.errors import FormatError
from tunedb.formats.find import find_logs
from tunedb.formats.reading import read_log
from tunedb.programs import allowlist
from tunedb.programs.ansor import split_steps
from tunedb.programs.autotvm import split_knobs
from tunedb.programs.metaschedule import allowlist as of_metaschedule
from tunedb.programs.metaschedule.allowlist import KINDS
from tunedb.programs.metaschedule.instructions import INSTRUCTIONS
from tunedb.programs.metaschedule.trace import split_trace
from tunedb.records import Measurement, Trace, WorkloadFormat

GRAPH, ANSOR, AUTOTVM = WorkloadFormat.GRAPH, WorkloadFormat.ANSOR, WorkloadFormat.AUTOTVM
FOLDERS = ("metaschedule", "tenset", *map(long, ("measured_cpu", "ansor", "autotvm")))

MAP = (
    '{"metadata":{"tvm_version":"0.27.0"},"nodes":[{"type":"None"},{"data":"i","type":"ffi.String"},'
    '{"data":"int32","type":"dtype"},{"data":{"dtype":2},"type":"ir.PrimType"},'
    '{"data":{"name":1,"span":0,"ty":3},"type":"ir.Var"},{"data":[4],"type":"ffi.Array"},'
    '{"data":7,"type":"int"},{"data":{"span":0,"ty":3,"value":6},"type":"ir.IntImm"},'
    '{"data":{"a":4,"b":7,"span":0,"ty":3},"type":"prim.FloorDiv"},{"data":[8],"type":"ffi.Array"},'
    '{"data":{"final_indices":9,"initial_indices":5,"inverse_index_map":0},"type":"tirx.IndexMap"}],'
    '"root_index":10}'
)

#: One instruction of each form that an allow-list must know, over b0 (block), l1 and l2 (loops).
BEGIN = [["GetSBlock", [], ["T_matmul_NT", "main"], ["b0"]], ["GetLoops", ["b0"], [], ["l1", "l2"]]]
GOOD = [
    ["SamplePerfectTile", ["l1"], [2, 64], ["v3", "v4"]],
    ["SampleCategorical", [], [[0, 16, 64], [0.25, 0.25, 0.5]], ["v5"]],
    ["SampleComputeLocation", ["b0"], [], ["l6"]],
    ["Split", ["l1", "v3", "v4"], [1, 0], ["l7", "l8"]],
    ["Split", ["l2", "None", 4], [1, 0], ["l9", "l10"]],
    ["Fuse", ["l7", "l9"], [1], ["l11"]],
    ["Bind", ["l11"], ["threadIdx.x"], []],
    ["Bind", ["l8"], ["vthread.x"], []],
    ["CacheRead", ["b0", ["b0"]], [1, "shared.dyn"], ["b12"]],
    ["CacheWrite", ["b0", []], [0, "wmma.accumulator"], ["b13"]],
    ["SetScope", ["b12"], [0, "m16n8k8.matrixA"], []],
    ["StorageAlign", ["b12"], [0, -2, 32, 8], []],
    ["ReIndex", ["b0"], [0, 1], ["b14"]],
    ["TransformLayout", ["b14", MAP], [0, 1, None, True], []],
    ["TransformBlockLayout", ["b14"], [MAP], []],
    ["Tensorize", ["l10"], ["mma_ldmatrix_f16_a_trans_dyn", True], []],
    ["Annotate", ["b0", '"SSSRRSRS"'], ["meta_schedule.tiling_structure"], []],
    ["Annotate", ["b0", "v5"], ["meta_schedule.unroll_explicit"], []],
    ["Annotate", ["b0", 1024], ["meta_schedule.thread_extent_high_inclusive"], []],
    ["Annotate", ["b0", True], ["meta_schedule.layout_rewrite_preproc"], []],
    ["Annotate", ["l10", [0, 0, 3]], ["software_pipeline_stage"], []],
    ["Annotate", ["b12", '""'], ["meta_schedule.auto_tensorize"], []],
    ["Annotate", ["b12", '"g2s_A"'], ["permuted_layout"], []],
    ["Unannotate", ["b0"], ["schedule_rule"], []],
    ["EnterPostproc", [], [], []],
    ["Unannotate", ["b0"], ["meta_schedule.unroll_explicit"], []],
    ["Annotate", ["l11", 512], ["pragma_auto_unroll_max_step"], []],
    ["Annotate", ["l11", 1], ["pragma_unroll_explicit"], []],
]
DECISIONS = [[2, [4, 16]], [3, 1], [4, -1]]
TRACE = split_trace(BEGIN + GOOD, DECISIONS)

STEPS = [
    ["CHW", 1, "local"],
    ["CHR", 0, "shared", [2]],
    ["SP", 2, 0, 512, [1, 32, 1, 4], 1],
    ["SP", 2, 5, 0, [None], 0],
    ["FU", 2, [0, 1]],
    ["AN", 2, 0, 5],
    ["PR", 2, 0, "auto_unroll_max_step$512"],
]
KNOBS = [
    ["tile_f", "sp", [-1, 2, 4]],
    ["order", "re", [0, 2, 1]],
    ["ann", "an", ["unroll", "vec"]],
    ["unroll_explicit", "ot", True],
    ["algorithm", "ot", "winograd"],
]
TEMPLATE = {"index": 70482, "template_key": "direct", "code_hash": None}
GOODS = {GRAPH: TRACE, ANSOR: split_steps(STEPS, 1), AUTOTVM: split_knobs(KNOBS, TEMPLATE)}


def rejection_of(trace, format=GRAPH):
    with pytest.raises(FormatError) as caught:
        allowlist.check_trace(trace, format)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


def rejection_of_instructions(*instructions, decisions=()):
    return rejection_of(split_trace([*BEGIN, *instructions], list(decisions)))


@needs_logs
@pytest.mark.examples
@pytest.mark.parametrize("folder", FOLDERS)
def test_allowlist_accepts_every_program_of_the_public_logs(folder):
    """A short run reads small logs alone."""
    parts, decisions = [], []
    for file in find_logs([DATA / folder]):
        if EFFORT == "few" and file.path.stat().st_size > 100_000:
            continue
        try:
            for found in read_log(file):
                if not isinstance(found.item, Measurement):
                    continue
                program = found.item.program
                allowlist.check_trace(program.trace, program.workload.format)
                parts += [len(program.trace.sketch), len(program.trace.tail or b"")]
                decisions.append(len(program.trace.decisions))
        except FormatError as error:
            # A companion of a log, or a file that is not a log.
            assert "not allowed" not in str(error), (file.name, error)
            assert "no tuning log" in str(error) or "empty" in str(error), (file.name, error)
    assert len(decisions) > 5
    assert max(parts) < limits.MAX_FOREIGN_PART_BYTES / 4
    assert max(decisions) < limits.MAX_FOREIGN_DECISION_BYTES / 8


def test_allowlist_accepts_small_programs_of_each_tool():
    for format, trace in GOODS.items():
        allowlist.check_trace(trace, format)
    allowlist.check_trace(TRACE, WorkloadFormat.NODES)
    allowlist.check_trace(make_trace(3), WorkloadFormat.ARGUMENTS)
    allowlist.check_trace(split_trace([], []), GRAPH)
    allowlist.check_trace(split_steps([], None), ANSOR)
    allowlist.check_trace(split_knobs([], {}), AUTOTVM)


def test_check_part_and_check_decisions_accept_single_parts():
    for format, trace in GOODS.items():
        allowlist.check_part("sketch", trace.sketch, format)
        allowlist.check_decisions(trace.decisions, format)
    allowlist.check_part("tail", TRACE.tail, GRAPH)
    for format in (ANSOR, AUTOTVM):
        sketch, decisions = GOODS[format].sketch, GOODS[format].decisions
        with pytest.raises(FormatError, match="has no tail"):
            allowlist.check_part("tail", sketch, format)
        assert "has no tail" in rejection_of(Trace(sketch, sketch, decisions), format)


@pytest.mark.parametrize("instruction", GOOD, ids=lambda one: f"{one[0]} {one[2]}"[:40])
def test_allowlist_checks_each_input_and_attribute_of_instructions(instruction):
    """A word in place of any attribute, and a text in place of any input, is rejected."""
    kind, inputs, attrs, _ = instruction
    for place in range(len(attrs)):
        evil = [*attrs[:place], "pragma_import_llvm\n", *attrs[place + 1 :]]
        text = rejection_of(changed(instruction, attrs=evil))
        assert f"{kind} at" in text, text
        assert "not allowed" in text or "for an index map" in text, text
    for place in range(len(inputs)):
        evil = [*inputs[:place], '"define void @main() {"', *inputs[place + 1 :]]
        assert f"{kind} at" in rejection_of(changed(instruction, inputs=evil))


def changed(instruction, **parts):
    """Return the good trace with another form of one of its instructions."""
    kind, inputs, attrs, outputs = instruction
    new = [kind, parts.get("inputs", inputs), parts.get("attrs", attrs), outputs]
    return split_trace([*BEGIN, *(new if one is instruction else one for one in GOOD)], DECISIONS)


@pytest.mark.parametrize(
    "key",
    [
        *("pragma_import_llvm", "pragma_import_c", "pragma_debug_skip_region", "schedule_rule"),
        *("", "x", "meta_schedule.", "meta_schedule.parallel ", "META_SCHEDULE.PARALLEL"),
        *("tir.noalias", "hand_threaded", "async_scope", "pragma_auto_unroll_max_step\0"),
    ],
)
def test_allowlist_rejects_unknown_annotations(key):
    for value in (1, '"x.ll"', "v5", [1]):
        text = rejection_of_instructions(
            GOOD[1], ["Annotate", ["l1", value], [key], []], decisions=[[2, 1]]
        )
        assert text.startswith(f"sketch: Annotate at 3: the annotation {key!r} is not allowed"[:50])


WRONG_VALUES = {
    "pragma_auto_unroll_max_step": ['"16"', [1]],
    "meta_schedule.parallel": ["None", {"a": 1}],
    "meta_schedule.tiling_structure": [5, '"SSRS; DROP"', f'"{"S" * 33}"', "SSRS", '"'],
    "meta_schedule.auto_tensorize": ['"../../evil.ll"', f'"{"a" * 257}"', '"define void"'],
    "software_pipeline_stage": [3, ['"x"'], [[1]]],
    "permuted_layout": ['"g2s A"'],
    "double_buffer_scope": [{}],
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in WRONG_VALUES.items() for value in values]
)
def test_allowlist_rejects_invalid_values_of_annotations(key, value):
    rejection_of_instructions(["Annotate", ["b0", value], [key], []])


def fuse(*inputs, attrs=(1,), output="l9"):
    return ["Fuse", list(inputs), list(attrs), [output]]


@pytest.mark.parametrize(
    "instruction",
    [
        ["UnsafeSetDType", ["b0"], [0, "float16"], []],
        ["UnsafeHideBufferAccess", ["b0", '"read"', [0]], [], []],
        ["AnnotateBufferAccess", ["b0", 0, '"read"', MAP], [], []],
        *([kind, [], [], []] for kind in ("Nonsense", "")),
        ["annotate", ["b0", 1], ["meta_schedule.parallel"], []],
        *(
            ["Annotate", inputs, ["meta_schedule.parallel"], []]
            for inputs in (["b0", 1, 2], [1, 1])
        ),
        *(["Tensorize", ["l1"], [name, True], []] for name in ("evil;intrinsic", "a" * 257)),
        *(["Bind", ["l1"], [thread], []] for thread in ("threadIdx.x\n", "blockIdx.w")),
        ["SetScope", ["b0"], [0, "local\"; system('x')"], []],
        ["SetScope", ["b0"], ["0", "local"], []],
        *(["GetSBlock", [], [name, "main"], ["b9"]] for name in ("a" * 257, "\x1b[2J", ["a"])),
        ["Unannotate", ["b0"], ["global_symbol"], []],
        fuse("l1", "l2", attrs=[2]),
        *(fuse("l1", other) for other in ('"l2"', "l3", {"a": 1}, None)),
        *(fuse("l1", "l2", output=output) for output in ("l1", "x9", "l" + "9" * 20)),
        fuse([[[["l1"]]]]),
        ["SampleCategorical", [], [[1, "x"], [0.5, 0.5]], ["v9"]],
        ["SampleCategorical", [], [[1, 2], [0.5, True]], ["v9"]],
    ],
)
def test_allowlist_rejects_unsafe_and_invalid_instructions(instruction):
    rejection_of_instructions(instruction)


def test_trace_with_integer_of_more_than_64_bits_cannot_be_stored():
    with pytest.raises(FormatError, match="64-bit range"):
        split_trace([*BEGIN, ["SetScope", ["b0"], [2**70, "local"], []]], [])


def test_rejection_names_position_of_instruction():
    """Facts of an instruction are cached without its position."""
    good, bad = ["Unroll", ["l1"], [], []], ["Bind", ["l1"], ["blockIdx.w"], []]
    for position in range(3):
        reason = rejection_of(split_trace([*BEGIN, *[good] * position, bad], []))
        assert f"Bind at {len(BEGIN) + position} has the attribute 'blockIdx.w'" in reason
        again = [*BEGIN, *[good] * position, fuse("l1", "l2", output="l1")]
        reason = rejection_of(split_trace(again, []))
        assert f"Fuse at {len(BEGIN) + position} has the output 'l1', not a new" in reason


def test_allowlist_knows_all_instructions_but_three_unsafe_ones():
    unsafe = {"AnnotateBufferAccess", "UnsafeHideBufferAccess", "UnsafeSetDType"}
    assert set(INSTRUCTIONS) > unsafe
    assert set(INSTRUCTIONS) - unsafe == KINDS


@pytest.mark.parametrize(
    ("node", "change", "reason"),
    [
        *(
            (None, {"nodes": [{"type": kind, "data": {}}]}, f"an index map with the type '{kind}'")
            for kind in ("ir.Call", "ir.Op", "ir.StringImm", "tirx.BufferLoad", "ir.EnvFunc", "Map")
        ),
        *((None, {"root_index": value}, "index map") for value in (4, "10", 99)),
        *((None, {"nodes": value}, "index map") for value in ({}, [], [5])),
        (None, {"evil": 1}, "index map"),
        (8, {"data": {"a": 8, "b": 7, "span": 0, "ty": 3}}, "a reference cycle"),
        *((9, {"data": [number]}, "a reference cycle") for number in (99, -1)),
        *((0, change, "index map") for change in ({"evil": 1}, {"type": 5})),
    ],
)
def test_allowlist_rejects_graphs_that_are_not_index_maps(node, change, reason):
    graph = orjson.loads(MAP)
    (graph if node is None else graph["nodes"][node]).update(change)
    text = orjson.dumps(graph).decode()
    assert reason in rejection_of_instructions(
        ["TransformLayout", ["b0", text], [0, 1, None, True], []]
    )


def test_allowlist_rejects_too_long_index_maps():
    """MAX_INDEX_MAP_CHARS"""

    def with_map(text):
        return split_trace([*BEGIN, ["TransformBlockLayout", ["b0"], [text], []]], [])

    text = MAP + " " * (limits.MAX_INDEX_MAP_CHARS - len(MAP))
    allowlist.check_trace(with_map(text), GRAPH)
    assert "an index map of 65537 characters" in rejection_of(with_map(text + " "))
    assert "for an index map" in rejection_of(with_map("{"))


def test_allowlist_rejects_trace_of_a_million_steps_before_parsing_it(monkeypatch):
    """MAX_FOREIGN_PART_BYTES"""
    # A part that was checked before is not parsed again.
    allowlist.check_trace(Trace(make_trace().sketch, None, b"[[],[],[]]"), GRAPH)
    sketch = b"[" + b",".join([b'["GetSBlock",[],["a","main"],["b0"]]'] * 1_000_000) + b"]"
    monkeypatch.setattr(orjson, "loads", None)
    assert rejection_of(Trace(sketch, None, b"[[],[],[]]")) == (
        f"sketch of {len(sketch)} bytes, over the limit of {limits.MAX_FOREIGN_PART_BYTES}"
    )
    assert "tail of" in rejection_of(Trace(make_trace().sketch, sketch, b"[[],[],[]]"))
    for format in (ANSOR, AUTOTVM):
        assert "sketch of" in rejection_of(Trace(sketch, None, b""), format)


def test_allowlist_rejects_more_steps_than_the_limit():
    """MAX_FOREIGN_STEPS"""
    most = limits.MAX_FOREIGN_STEPS
    empty = ["EnterPostproc", [], [], []]
    allowlist.check_trace(split_trace([empty] * most, []), GRAPH)
    assert "4097 instructions" in rejection_of(split_trace([empty] * (most + 1), []))
    halves = Trace(orjson.dumps([empty] * 3000), orjson.dumps([empty] * 3000), b"[[],[],[]]")
    assert "6000 instructions" in rejection_of(halves)
    step = ["CI", 1]
    allowlist.check_trace(split_steps([step] * most, None), ANSOR)
    assert "4096 steps" in rejection_of(split_steps([step] * (most + 1), None), ANSOR)
    knob = ["a", "ot", 1]
    allowlist.check_trace(split_knobs([knob] * most, {}), AUTOTVM)
    assert "4096 knobs" in rejection_of(split_knobs([knob] * (most + 1), {}), AUTOTVM)


def test_check_decisions_rejects_too_long_decisions():
    """MAX_FOREIGN_DECISION_BYTES"""
    body = b" " * (limits.MAX_FOREIGN_DECISION_BYTES + 1)
    for format in (GRAPH, ANSOR, AUTOTVM):
        with pytest.raises(FormatError, match="decisions of 65537 bytes"):
            allowlist.check_decisions(body, format)


def test_allowlist_rejects_too_long_names():
    """MAX_FOREIGN_NAME_CHARS"""
    name = "n" * limits.MAX_FOREIGN_NAME_CHARS
    allowlist.check_trace(split_trace([["GetSBlock", [], [name, "main"], ["b0"]]], []), GRAPH)
    rejection_of(split_trace([["GetSBlock", [], [name + "n", "main"], ["b0"]]], []))
    allowlist.check_trace(split_knobs([[name, "ot", 1]], {}), AUTOTVM)
    rejection_of(split_knobs([[name + "n", "ot", 1]], {}), AUTOTVM)


def test_parts_of_allowed_instructions_are_not_parsed():
    stored = orjson.loads(TRACE.sketch)
    plain = [each for each in stored if b']],["' not in orjson.dumps(each)]
    assert len(plain) > 20
    body = orjson.dumps(plain)
    assert of_metaschedule._facts_of_known(body) == of_metaschedule._facts_of_all(body)


@settings(max_examples=examples(300))
@given(
    st.lists(st.sampled_from(orjson.loads(TRACE.sketch)), max_size=6).map(orjson.dumps),
    st.integers(0, 99),
    st.sampled_from([b"", b'"', b"[", b"]", b",", b" ", b']],["', b'["', b"]]", b"7"]),
)
def test_facts_of_a_part_that_is_cut_are_those_of_the_parsed_part(body, place, text):
    at = len(body) * place // 100
    for changed in (body, body[:at] + text + body[at + len(text) :], body[:at] + text + body[at:]):
        known = of_metaschedule._facts_of_known(changed)
        assert known is None or known == of_metaschedule._facts_of_all(changed)


def test_allowlist_caches_rejected_parts():
    """A hostile database refers to one bad sketch a million times."""
    bad = split_trace([["Nonsense", [], [], []]], [])
    rejection_of(bad)
    before = allowlist._cached_facts.cache_info().hits
    rejection_of(bad)
    assert allowlist._cached_facts.cache_info().hits == before + 1


@pytest.mark.parametrize(
    "decisions",
    [
        *(b"", b"null", b"{}", b"[]", b"[[],[]]", b"[[[2,[4,16]]],[],[],[]]"),
        *(b"[[[2,[4,16]]],[1],[]]", b"[[[2,[4,16]]],[],[1]]", b"[[[2,4]],[],[]]"),
        *(b"[[[0,[4,16]]],[],[]]", b"[[[7,[4,16]]],[],[]]", b"[[[-1,[4,16]]],[],[]]"),
        *(b"[[[2,[4,true]]],[],[]]", b'[[[2,[4,"16"]]],[],[]]', b"[[[2,[4,1.5]]],[],[]]"),
        *(b"[[[2,[4,[16]]]],[],[]]", b"[[[2,null]],[],[]]", b"[[[2.0,[4,16]]],[],[]]"),
        *(b"[[[2,[4,18446744073709551615]]],[],[]]", b"[[[2,[4,16]],[2,[4,16]]],[],[]]"),
        *(b"[[[2,[4,16],1]],[],[]]", b"[[2],[],[]]", b'[[],["x"],[]]', b"[[],[{}],[]]"),
        *(b"[[],{},[]]", b"[[],null,[]]", b"[" * 2000, b"\xff"),
    ],
)
def test_allowlist_rejects_invalid_decisions(decisions):
    good = make_trace()
    assert rejection_of(Trace(good.sketch, good.tail, decisions)).startswith("decisions: ")


NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = (
    st.integers(-3, 99)
    | NUMBERS
    | st.booleans()
    | st.none()
    | st.lists(st.integers(-3, 99) | NUMBERS | st.lists(NUMBERS, max_size=1), max_size=3)
)


@settings(max_examples=examples(500))
@given(
    st.lists(st.tuples(st.integers(-1, 5) | NUMBERS, VALUES).map(list), max_size=3),
    st.lists(st.integers(-5, 5) | NUMBERS | VALUES, max_size=3),
    st.lists(st.integers(-5, 5), max_size=2),
)
def test_fast_check_of_decisions_agrees_with_the_full_check(chosen, first, second):
    decisions = orjson.dumps([chosen, first, second])

    def verdict():
        try:
            allowlist.check_decisions(decisions, GRAPH)
        except FormatError:
            return False
        return True

    quick = verdict()
    with mock.patch.object(of_metaschedule, "_PLAIN", re.compile(b"(?!)")):
        assert verdict() == quick


def test_allowlist_rejects_parts_with_undefined_or_redefined_variables():
    tail = split_trace([*BEGIN, ["EnterPostproc", [], [], []]], []).tail
    uses = b'[["EnterPostproc",[],[],[]],["Unroll",["l99"],[],[]]]'
    again = b'[["EnterPostproc",[],[],[]],["GetLoops",["b0"],[],["l1"]]]'
    good = make_trace()
    allowlist.check_trace(Trace(good.sketch, tail, good.decisions), GRAPH)
    assert "tail: 'l99' is used before" in rejection_of(Trace(good.sketch, uses, good.decisions))
    assert "defines a variable of the sketch" in rejection_of(
        Trace(good.sketch, again, good.decisions)
    )
    assert "sketch: 'l99' is used" in rejection_of(Trace(uses, None, b"[[],[],[]]"))


@pytest.mark.parametrize(
    "sketch",
    [
        *(b"", b"{", b"{}", b"5", b'"x"', b"[5]", b"[[]]", b"[[5,[],[],[]]]", b"[" * 1500),
        *(b'[["Unroll",["l1"],[]]]', b'[["Unroll","l1",[],[]]]', b'[["EnterPostproc",[],[],[]] ]'),
        b'[["EnterPostproc",[],[],["b0","b0"]]]',
        b'[["PadEinsum",["b0"],[' + b"[" * 500 + b"]" * 500 + b"],[]]]",
    ],
)
def test_allowlist_rejects_malformed_sketches(sketch):
    for format in (GRAPH, ANSOR, AUTOTVM):
        rejection_of(Trace(sketch, None, b"[[],[],[]]"), format)


@pytest.mark.parametrize(
    "step",
    [
        *(["PR", 2, 0, f"auto_unroll_max_step${end}"] for end in ("", "1\n")),
        *(["PR", 2, 0, pragma] for pragma in ("import_llvm$1", "debug_skip_region", "")),
        ["CHW", 1, "local;"],
        ["CHR", 0, "a" * 100, [2]],
    ],
)
def test_allowlist_rejects_forbidden_text_in_steps_of_ansor(step):
    assert "is not allowed" in rejection_of(split_steps([*STEPS, step], 1), ANSOR)


@pytest.mark.parametrize(
    ("knobs", "template"),
    [
        *(([["a", "ot", value]], {}) for value in ({"a": 1}, [[1]], "x" * 65, "rm -rf /")),
        ([["a", "an", ["evil"]]], {}),
        ([["\x1b[2J", "ot", 1]], {}),
        *(([], template) for template in ({"template_key": "x y"}, {"code_hash": "x" * 65})),
    ],
)
def test_allowlist_rejects_forbidden_knobs_of_autotvm(knobs, template):
    rejection_of(split_knobs(knobs, template), AUTOTVM)


BAD_STEPS = (
    *(b'[["XX",1]]', b'[["AN",1,0,99]]', b"{}", b'[["SP",2,0,null,["x"],1]]'),
    b'[["SP",2,0,null,null,1]]',
)
BAD_KNOBS = (b'"xx",1', b'"sp",-1', b'"sp",null', b'"ot",5', b'"sp",99999999', b'"sp"')


@pytest.mark.parametrize(
    ("body", "format"),
    [
        *((b'{"layout_rewrite":null,"steps":%s}' % steps, ANSOR) for steps in BAD_STEPS),
        (b'{"layout_rewrite":9,"steps":[]}', ANSOR),
        (b'{"layout_rewrite":null,"steps":[],"x":1}', ANSOR),
        (b'{"steps":[],"layout_rewrite":null}', ANSOR),
        *((b'{"knobs":[["a",%s]],"template":{}}' % knob, AUTOTVM) for knob in BAD_KNOBS),
        *(
            (b'{"knobs":[],"template":%s}' % template, AUTOTVM)
            for template in (b'{"evil":1}', b'{"index":5}', b"[]")
        ),
        (b'{"knobs":{},"template":{}}', AUTOTVM),
        (b'{"template":{},"knobs":[]}', AUTOTVM),
    ],
)
def test_allowlist_rejects_malformed_sketches_of_other_tools(body, format):
    rejection_of(Trace(body, None, b"[null]" if format == AUTOTVM else b""), format)


def test_allowlist_rejects_decisions_that_do_not_match_sketches_of_other_tools():
    good = split_steps(STEPS, 1)
    for decisions in (b"", good.decisions + b"\1", good.decisions[:-1], good.decisions + b"\x80"):
        assert "decisions" in rejection_of(Trace(good.sketch, None, decisions), ANSOR)
    assert "63 bits" in rejection_of(Trace(good.sketch, None, b"\xff" * 9 + b"\1"), ANSOR)
    good = split_knobs([["a", "sp", [1, 2]]], {})
    few = (b"[1]", b"[1,1,2,3]", b'["x",1,2]', b"[]", b"{}", b"", b'[1,1,"x"]', b"[1,1,1.5]")
    for decisions in few:
        assert "decisions" in rejection_of(Trace(good.sketch, None, decisions), AUTOTVM)


def test_allowlist_rejects_unknown_formats():
    assert "unknown format 'new-tool'" in rejection_of(make_trace(), "new-tool")
    with pytest.raises(FormatError, match="unknown format"):
        allowlist.check_decisions(b"[]", "x" * 1000)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=examples(300))
@given(
    st.sampled_from(list(GOODS)),
    st.sampled_from(["sketch", "tail", "decisions"]),
    st.integers(0, 10_000),
    st.integers(0, 8),
    st.binary(max_size=8),
)
def test_changed_bytes_are_accepted_or_raise_only_format_error(format, field, place, length, data):
    good = GOODS[format]
    old = getattr(good, field) or b""
    place %= len(old) + 1
    new = old[:place] + data + old[place + length :]
    try:
        allowlist.check_trace(replace(good, **{field: new}), format)
    except FormatError as error:
        assert "\n" not in str(error)


@settings(max_examples=examples(200))
@given(st.sampled_from([GRAPH, ANSOR, AUTOTVM]), JSON, JSON)
def test_any_json_is_accepted_or_raises_only_format_error(format, sketch, decisions):
    try:
        trace = Trace(orjson.dumps(sketch), None, orjson.dumps(decisions))
    except TypeError:
        return  # integers of more than 64 bits
    try:
        allowlist.check_trace(trace, format)
    except FormatError as error:
        assert "\n" not in str(error)


@settings(max_examples=examples(200))
@given(st.sampled_from([*INSTRUCTIONS]), st.lists(JSON, max_size=4), st.lists(JSON, max_size=4))
def test_accepted_instructions_contain_no_free_text(kind, inputs, attrs):
    """Accepted instructions have only words of the lists, except names of blocks."""
    try:
        trace = split_trace([*BEGIN, [kind, inputs, attrs, []]], [])
        allowlist.check_trace(trace, GRAPH)
    except FormatError:
        return
    if kind not in ("GetBlock", "GetSBlock"):
        words = [value for value in (*inputs, *attrs) if isinstance(value, str)]
        assert all(word in ("None", "b0", "l1", "l2") or allowlist.is_text(word) for word in words)
