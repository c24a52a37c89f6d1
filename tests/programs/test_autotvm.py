import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tool_steps import INT64, knobs

from tunedb import limits
from tunedb.errors import FormatError
from tunedb.programs import autotvm
from tunedb.programs.autotvm import join_knobs, split_knobs, steps_of
from tunedb.programs.base import Step
from tunedb.records import Trace

ENTITY = [
    ["tile_f", "sp", [-1, 2, 8, 4]],
    ["tile_rc", "sp", [-1, 8]],
    ["reorder_0", "re", [0, 2, 1]],
    ["ann_spatial", "an", ["unroll", "vec"]],
    ["auto_unroll_max_step", "ot", 1500],
    ["unroll_explicit", "ot", True],
]
TEMPLATE = {"index": 70482, "template_key": "direct", "code_hash": None}

TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = st.none() | st.booleans() | INT64 | st.floats(allow_nan=False, allow_infinity=False)
ANYTHING = st.recursive(SCALARS | TEXT, lambda inner: st.lists(inner, max_size=3), max_leaves=5)
KNOBS = knobs(TEXT, ANYTHING)
MAYBE = st.none() | TEXT
TEMPLATES = st.fixed_dictionaries(
    {}, optional={"index": st.none() | INT64, "template_key": MAYBE, "code_hash": MAYBE}
)


def test_sketch_holds_names_and_decisions_hold_values_of_knobs():
    trace = split_knobs(ENTITY, TEMPLATE)
    assert json.loads(trace.sketch) == {
        "knobs": [
            ["tile_f", "sp", 4],
            ["tile_rc", "sp", 2],
            ["reorder_0", "re", 3],
            ["ann_spatial", "an", 2],
            ["auto_unroll_max_step", "ot", None],
            ["unroll_explicit", "ot", None],
        ],
        "template": {"index": None, "template_key": "direct", "code_hash": None},
    }
    assert trace.decisions == b'[70482,-1,2,8,4,-1,8,0,2,1,"unroll","vec",1500,true]'
    assert (trace.tail, trace.is_empty) == (None, False)
    # The configurations of a task share their sketch.
    other = [["tile_f", "sp", [-1, 16, 1, 4]], *ENTITY[1:5], ["unroll_explicit", "ot", False]]
    again = split_knobs(other, TEMPLATE | {"index": 3})
    assert again.sketch == trace.sketch
    assert again.decisions != trace.decisions


def test_sketch_depends_on_order_of_knobs_and_template():
    sketches = {
        split_knobs(entity, template).sketch
        for entity, template in [
            (ENTITY, TEMPLATE),
            (ENTITY[::-1], TEMPLATE),
            (ENTITY, TEMPLATE | {"template_key": "winograd"}),
            (ENTITY, TEMPLATE | {"template_key": None}),
            (ENTITY, TEMPLATE | {"code_hash": "direct"}),
            (ENTITY, {"index": 70482, "code_hash": None}),
            (ENTITY, {"template_key": "direct", "code_hash": None}),
        ]
    }
    assert len(sketches) == 7


def test_split_knobs_accepts_an_empty_list():
    trace = split_knobs([], {"index": 0, "code_hash": None})
    assert not trace.is_empty
    assert join_knobs(trace) == ([], {"index": 0, "code_hash": None})
    assert steps_of(trace) == []


def same(left, right):
    """Return whether two JSON values are equal and of equal types, so that True is not 1."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


@given(st.lists(KNOBS, max_size=5), TEMPLATES)
def test_split_and_join_keep_knobs(entity, template):
    found = join_knobs(split_knobs(entity, template))
    assert same(found[0], entity)
    assert same(found[1], template)


@pytest.mark.parametrize("value", [None, 0.5, 1.0, False, 0, "", "NCHW", [1, [2]], {"a": 1}])
def test_other_knobs_accept_any_json_value(value):
    entity = [["before", "sp", [1]], ["it", "ot", value], ["after", "re", [0]]]
    assert same(join_knobs(split_knobs(entity, {}))[0], entity)


def test_steps_of_names_each_type_of_knob():
    trace = split_knobs([*ENTITY[1:5], ["cache", "an", [0, 2]]], TEMPLATE)
    assert steps_of(trace) == [
        Step(0, "sp", "split", None, None, {"knob": "tile_rc", "size": [-1, 8]}),
        Step(1, "re", "reorder", None, None, {"knob": "reorder_0", "perm": [0, 2, 1]}),
        Step(2, "an", "annotate", None, None, {"knob": "ann_spatial", "anns": ["unroll", "vec"]}),
        Step(3, "ot", "other", None, None, {"knob": "auto_unroll_max_step", "val": 1500}),
        Step(4, "an", "annotate", None, None, {"knob": "cache", "anns": [0, 2]}),
    ]


DEEP = json.loads("[" * 900 + "]" * 900)


@pytest.mark.parametrize(
    "knob",
    [
        *(None, "tile", [], ["tile", "sp"], ["tile", "sp", [1], 2], [1, "sp", [1]], DEEP),
        *(["tile", kind, [1]] for kind in ("xx", None, ["sp"])),
        *(["tile", "sp", value] for value in (4, None, {"1": 2}, DEEP)),
        *(["tile", "sp", [value]] for value in ("4", 4.0, True, None, 2**63, -(2**63) - 1)),
        ["order", "re", ["0"]],
        *(["ann", "an", value] for value in (["vec", 1], [["vec"]])),
        *(["val", "ot", value] for value in (2**63, float("nan"), float("inf"), {1, 2}, DEEP)),
    ],
    ids=lambda knob: json.dumps(knob, default=str)[:30],
)
def test_split_knobs_rejects_invalid_knobs(knob):
    with pytest.raises(FormatError):
        split_knobs([*ENTITY, knob], TEMPLATE)


@pytest.mark.parametrize(
    "template",
    [
        *({"index": value} for value in (1.0, True, "1", 2**63)),
        *({"template_key": 1}, {"code_hash": ["x"]}, {"other": 1}),
    ],
)
def test_split_knobs_rejects_invalid_templates(template):
    with pytest.raises(FormatError):
        split_knobs(ENTITY, template)


def test_knobs_must_be_a_list_within_the_limit(monkeypatch):
    for entity in (None, {}, "sp", 1):
        with pytest.raises(FormatError, match="a list of knobs"):
            split_knobs(entity, TEMPLATE)
    monkeypatch.setattr(limits, "MAX_INSTRUCTIONS", 5)
    split_knobs(ENTITY[:5], TEMPLATE)
    with pytest.raises(FormatError):
        split_knobs(ENTITY, TEMPLATE)


def test_cache_of_sketches_is_bounded():
    for number in range(autotvm._MAX_SKETCHES + 10):
        split_knobs([[f"knob {number}", "ot", 1]], {})
    split_knobs([["n" * 100_000, "ot", 1]], {})
    assert len(autotvm._sketches) <= autotvm._MAX_SKETCHES
    assert max(map(len, autotvm._sketches.values())) <= autotvm._MAX_SKETCH_BYTES


GOOD = split_knobs(ENTITY, TEMPLATE)


@pytest.mark.parametrize(
    ("sketch", "decisions"),
    [
        *((sketch, GOOD.decisions) for sketch in (b"[]", b"{}", GOOD.sketch[:-1])),
        (b'{"knobs":1,"template":{}}', GOOD.decisions),
        (b'{"knobs":[["a","sp"]],"template":{}}', GOOD.decisions),
        (b'{"knobs":[["a","sp","4"]],"template":{}}', GOOD.decisions),
        (b'{"knobs":[],"template":"index"}', b"[0]"),
        *((GOOD.sketch, decisions) for decisions in (b"", b"[]", b"3")),
        (GOOD.sketch, GOOD.decisions[:-6] + b"]"),
        (GOOD.sketch, GOOD.decisions[:-1] + b",1]"),
        (b"\xff", b"\xff"),
    ],
)
def test_join_knobs_rejects_damaged_traces(sketch, decisions):
    with pytest.raises(FormatError):
        join_knobs(Trace(sketch, None, decisions))


def test_steps_of_rejects_unknown_type_of_knob():
    with pytest.raises(FormatError, match="unknown type 'xx'"):
        steps_of(Trace(b'{"knobs":[["a","xx",1]],"template":{}}', None, b"[null,1]"))
