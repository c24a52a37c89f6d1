"""Stored steps of auto_scheduler: hand-computed forms, and the kernel against a plain reference."""

from __future__ import annotations

import re

import orjson
import pytest
from builders import leb128
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from tool_steps import ANSOR_STEPS

from tunedb import limits
from tunedb.errors import FormatError
from tunedb.programs.ansor import CODES, join_steps, split_steps, steps_of
from tunedb.programs.base import Step
from tunedb.records import Trace

INT64_MAX = 2**63 - 1

# ---- the reference: what docs of tunedb.programs.ansor say, step by step and in plain Python -----

#: Fields behind the code: i index, z integer, l list of indexes, s text, or the numbers allowed.
PLAIN = {
    "AN": ["i", "i", range(12)],
    "FU": ["i", "l"],
    "RE": ["i", "l"],
    "FSP": ["i", "i", "i", "i"],
    "FFSP": ["i", "i", "l", "i", range(2)],
    "SA": ["i", "i", "i", "z"],
    "CA": ["i", "i", "i"],
    "CI": ["i"],
    "CR": ["i"],
    "CHR": ["i", "s", "l"],
    "CHW": ["i", "s"],
    "RF": ["i", "i", "i"],
}


def is_index(value):
    return type(value) is int and 0 <= value <= INT64_MAX


def is_indexes(value):
    return type(value) is list and all(map(is_index, value))


def is_field(kind, value):
    if kind == "s":
        return type(value) is str
    if kind == "l":
        return is_indexes(value)
    if kind == "z":
        return type(value) is int and -INT64_MAX - 1 <= value <= INT64_MAX
    return is_index(value) and (kind == "i" or value in kind)


def reference_step(step):
    """Return the step of the sketch and its numbers; None for an invalid step."""
    if type(step) is not list or not step or type(step[0]) is not str:
        return None
    code, *fields = step
    if code == "SP":
        if len(fields) != 5 or type(fields[3]) is not list:
            return None
        stage, loop, extent, lengths, inner = fields
        known = [length for length in lengths if length is not None]
        flag = type(inner) is int and inner in (0, 1)
        if not (all(map(is_index, [stage, loop, extent])) and is_indexes(known) and flag):
            return None
        if len(known) < len(lengths):
            return step, []
        return ["SP", stage, loop, None, [None] * len(lengths), inner], [extent, *lengths]
    if code == "PR":
        if len(fields) != 3 or not all(map(is_index, fields[:2])) or type(fields[2]) is not str:
            return None
        found = re.fullmatch(r"auto_unroll_max_step\$(0|[1-9][0-9]*)", fields[2], re.ASCII)
        if found is None or fields[2].endswith("\n") or int(found[1]) > INT64_MAX:
            return step, []
        return [*step[:3], "auto_unroll_max_step$", None], [int(found[1])]
    kinds = PLAIN.get(code)
    if kinds is None or len(kinds) != len(fields) or not all(map(is_field, kinds, fields)):
        return None
    return step, []


def split_steps_reference(steps, layout_rewrite):
    """Return the stored form of steps; None for invalid steps."""
    if layout_rewrite is not None and layout_rewrite not in (0, 1, 2):
        return None
    if type(steps) is not list:
        return None
    parts = [reference_step(step) for step in steps]
    if None in parts:
        return None
    sketch = {"layout_rewrite": layout_rewrite, "steps": [part[0] for part in parts]}
    numbers = [number for part in parts for number in part[1]]
    return Trace(orjson.dumps(sketch), None, b"".join(map(leb128, numbers)))


def split_step(step, layout_rewrite=None):
    return split_steps([step], layout_rewrite)


def sketch_of(step):
    return b'{"layout_rewrite":null,"steps":[' + step + b"]}"


@pytest.mark.parametrize(
    ("step", "stored", "decisions"),
    [
        (["AN", 8, 2, 6], b'["AN",8,2,6]', b""),
        (["FU", 8, [0, 1, 2, 3]], b'["FU",8,[0,1,2,3]]', b""),
        (["FU", 2, []], b'["FU",2,[]]', b""),
        (["RE", 3, [0, 2, 1]], b'["RE",3,[0,2,1]]', b""),
        (["SP", 3, 5, 512, [1, 64, 2, 1], 1], b'["SP",3,5,null,[null,null,null,null],1]',
         b"\x80\x04\x01\x40\x02\x01"),
        (["SP", 3, 5, 0, [], 0], b'["SP",3,5,null,[],0]', b"\x00"),
        (["SP", 3, 5, 127, [128], 1], b'["SP",3,5,null,[null],1]', b"\x7f\x80\x01"),
        (["SP", 3, 5, INT64_MAX, [16384], 1], b'["SP",3,5,null,[null],1]',
         b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x80\x80\x01"),
        (["SP", 3, 5, 512, [4, None], 1], b'["SP",3,5,512,[4,null],1]', b""),
        (["FSP", 6, 0, 1, 3], b'["FSP",6,0,1,3]', b""),
        (["FFSP", 4, 0, [4, 3, 2, 1], 1, 1], b'["FFSP",4,0,[4,3,2,1],1,1]', b""),
        (["SA", 1, 2, 32, -8], b'["SA",1,2,32,-8]', b""),
        (["SA", 1, 2, 32, -(2**63)], b'["SA",1,2,32,-9223372036854775808]', b""),
        (["CA", 3, 6, 11], b'["CA",3,6,11]', b""),
        (["CI", 5], b'["CI",5]', b""),
        (["CR", 10], b'["CR",10]', b""),
        (["CHR", 2, "shared", [3]], b'["CHR",2,"shared",[3]]', b""),
        (["CHW", 3, 'a"\u00e9\n'], '["CHW",3,"a\\"é\\n"]'.encode(), b""),
        (["RF", 5, 3, 2], b'["RF",5,3,2]', b""),
        (["PR", 5, 0, "auto_unroll_max_step$512"], b'["PR",5,0,"auto_unroll_max_step$",null]',
         b"\x80\x04"),
        (["PR", 5, 0, "auto_unroll_max_step$0"], b'["PR",5,0,"auto_unroll_max_step$",null]',
         b"\x00"),
        (["PR", 5, 0, "debug_skip_region"], b'["PR",5,0,"debug_skip_region"]', b""),
    ],
)  # fmt: skip
def test_each_kind_of_step_has_its_stored_form_and_survives_round_trip(step, stored, decisions):
    trace = split_step(step)
    assert (trace.sketch, trace.tail, trace.decisions) == (sketch_of(stored), None, decisions)
    assert join_steps(trace) == ([step], None)


PRAGMAS = [
    *(f"auto_unroll_max_step${end}" for end in ("", "007", "-1", "1 ", 2**63, "9" * 20, "\u0663")),
    *("auto_unroll_max_step", "other$5", ""),
]


@pytest.mark.parametrize("text", PRAGMAS)
def test_pragmas_that_no_number_reproduces_stay_text(text):
    step = ["PR", 1, 0, text]
    trace = split_step(step)
    assert (trace.sketch, trace.decisions) == (sketch_of(orjson.dumps(step)), b"")
    assert join_steps(trace) == ([step], None)


def test_programs_that_differ_in_numbers_share_a_sketch():
    first = split_steps([["SP", 2, 0, 64, [4, 2], 1], ["PR", 2, 0, "auto_unroll_max_step$16"]], 0)
    second = split_steps([["SP", 2, 0, 96, [8, 3], 1], ["PR", 2, 0, "auto_unroll_max_step$64"]], 0)
    assert first.sketch is second.sketch  # one object: its hash is computed once
    assert (first.decisions, second.decisions) == (b"\x40\x04\x02\x10", b"\x60\x08\x03\x40")


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([["CI", 5], ["XX", 1]], "step 1 has the unknown code 'XX'"),
        ([["SPLIT", 1]], "step 0 has the unknown code 'SPLIT'"),
        ([[""]], "step 0 has the unknown code ''"),
        ([["CI"]], "step 0 (CI) has 0 fields, not 1"),
        ([["CI", 1, 2]], "step 0 (CI) has 2 fields, not 1"),
        *(
            ([["CI", stage]], f"step 0 (CI): its stage is an index of 64 bits, not {stage}")
            for stage in (True, 1.0, -1, 2**63)
        ),
        ([["AN", 0, 0, 12]], "its annotation is an annotation from 0 to 11, not 12"),
        ([["SP", 0, 0, None, [2], 1]], "its extent is an extent of 64 bits, not None"),
        ([["SP", 0, 0, -1, [2], 1]], "its extent is an extent of 64 bits, not -1"),
        ([["SP", 0, 0, 8, [2, -1], 1]], "its lengths is a list of lengths, not [2, -1]"),
        ([["SP", 0, 0, 8, [None, 2.0], 1]], "its lengths is a list of lengths"),
        ([["SP", 0, 0, 8, 2, 1]], "its lengths is a list of lengths, not 2"),
        ([["SP", 0, 0, 8, [2], 2]], "its inner_to_outer is 0 or 1, not 2"),
        ([["SP", 0, 0, 8, [2], True]], "its inner_to_outer is 0 or 1, not True"),
        ([["FU", 0, [[1]]]], "its fused_iters is a list of indexes, not [[1]]"),
        ([["PR", 0, 0, 16]], "its pragma is text, not 16"),
        ([["CHW", 0, None]], "its scope is text, not None"),
        ([["CHW", 0, "\ud800"]], "its scope is text"),
        ([["\ud800", 0]], "step 0 has the unknown code"),
        ([[5, 0]], "step 0 is not [code, field, …]"),
        ([[]], "step 0 is not [code, field, …]"),
        (["CI"], "step 0 is not [code, field, …]"),
        ({"CI": 5}, "the steps are not a list"),
    ],
)  # fmt: skip
def test_split_steps_names_the_invalid_step(steps, message):
    with pytest.raises(FormatError, match=re.escape(message)):
        split_steps(steps, None)


@pytest.mark.parametrize("layout_rewrite", [3, -1, True, 1.0, "0", 2**70])
def test_split_steps_rejects_unknown_layout_rewrite(layout_rewrite):
    with pytest.raises(FormatError, match="layout_rewrite_option is 0, 1 or 2"):
        split_steps([], layout_rewrite)


def test_split_steps_rejects_more_steps_than_the_limit(monkeypatch):
    monkeypatch.setattr(limits, "MAX_INSTRUCTIONS", 3)
    assert join_steps(split_steps([["CI", 1]] * 3, 0)) == ([["CI", 1]] * 3, 0)
    with pytest.raises(FormatError, match="4 steps are over the limit of 3"):
        split_steps([["CI", 1]] * 4, 0)


def test_steps_longer_than_buffers_survive_round_trip():
    steps = [["RE", 1, list(range(3000))], ["SP", 1, 0, 2**40, [2**20] * 1500, 1]] * 3
    trace = split_steps(steps, 1)
    assert trace == split_steps_reference(steps, 1)
    assert join_steps(trace) == (steps, 1)


READABLE = [
    (["CHW", 3, "local"], ("cache_write", 3, None), {"scope": "local"}),
    (["SP", 3, 5, 168, [2, 1], 1], ("split", 3, 5),
     {"extent": 168, "lengths": [2, 1], "inner_to_outer": True}),
    (["SP", 3, 9, 0, [None], 0], ("split", 3, 9),
     {"extent": None, "lengths": [None], "inner_to_outer": False}),
    (["FSP", 4, 0, 1, 3], ("follow_split", 4, 0), {"src_step": 1, "n_split": 3}),
    (["FFSP", 4, 1, [4, 3], 1, 0], ("follow_fused_split", 4, 1),
     {"src_steps": [4, 3], "level": 1, "factor_or_nparts": False}),
    (["CA", 3, 4, 11], ("compute_at", 3, None), {"target_stage": 4, "target_iter": 11}),
    (["FU", 6, [0, 1]], ("fuse", 6, None), {"fused_iters": [0, 1]}),
    (["RE", 6, [1, 0]], ("reorder", 6, None), {"after_iters": [1, 0]}),
    (["AN", 6, 0, 5], ("annotate", 6, 0), {"annotation": "blockIdx.x"}),
    (["CHR", 2, "shared", [3]], ("cache_read", 2, None), {"scope": "shared", "readers": [3]}),
    (["RF", 5, 3, 2], ("rfactor", 5, 3), {"factor_iter": 2}),
    (["SA", 1, 2, 32, 8], ("storage_align", 1, 2), {"factor": 32, "offset": 8}),
    (["PR", 5, 0, "auto_unroll_max_step$64"], ("pragma", 5, 0),
     {"pragma": "auto_unroll_max_step", "value": 64}),
    (["PR", 5, 1, "debug_skip_region"], ("pragma", 5, 1), {"pragma": "debug_skip_region"}),
    (["CI", 1], ("compute_inline", 1, None), {}),
    (["CR", 7], ("compute_root", 7, None), {}),
]  # fmt: skip


def test_steps_of_returns_readable_steps():
    assert steps_of(split_steps([step for step, _, _ in READABLE], 0)) == [
        Step(number, step[0], *place, arguments)
        for number, (step, place, arguments) in enumerate(READABLE)
    ]


def test_steps_of_names_every_annotation():
    trace = split_steps([["AN", 0, 0, number] for number in range(12)], 0)
    assert " ".join(step.arguments["annotation"] for step in steps_of(trace)) == (
        "none unroll vectorize parallel vthread blockIdx.x threadIdx.x blockIdx.y threadIdx.y "
        "blockIdx.z threadIdx.z tensorize"
    )


def test_steps_of_accepts_pragma_of_many_digits():
    text = "auto_unroll_max_step$" + "9" * 5000
    assert steps_of(split_step(["PR", 0, 0, text]))[0].arguments == {"pragma": text}


GOOD = split_steps([["SP", 3, 5, 512, [4, 2], 1], ["PR", 5, 0, "auto_unroll_max_step$16"]], 0)


def changed(old, new):
    assert old in GOOD.sketch
    return Trace(GOOD.sketch.replace(old, new, 1), None, GOOD.decisions)


def of_steps(steps, decisions=b""):
    return Trace(b'{"layout_rewrite":0,"steps":' + steps + b"}", None, decisions)


@pytest.mark.parametrize(
    "trace",
    [
        *(Trace(GOOD.sketch, None, GOOD.decisions + more) for more in (b"\x01", b"\x80")),
        Trace(GOOD.sketch, None, GOOD.decisions[:-1]),
        Trace(GOOD.sketch, None, GOOD.decisions[:-1] + b"\x90\x00"),  # not the shortest form
        Trace(GOOD.sketch, None, b"\xff" * 10 + GOOD.decisions),
        Trace(GOOD.sketch, None, b"\xff" * 8 + b"\x80\x01" + GOOD.decisions),
        *(changed(b"null", b"1"), changed(b'step$",null', b'stop$",null')),
        changed(b'"SP"', b'"ZZ"'),
        Trace(GOOD.sketch[:-1], None, GOOD.decisions),
        *(Trace(sketch, None, b"") for sketch in (b"{}", b"[]")),
        *(of_steps(steps) for steps in (b"[[]]", b'[["SP",1,2]]', b"[7]", b"{}")),
        of_steps(b'[["SP",1,2,null,5,1]]', b"\x01"),
        Trace(b'{"layout_rewrite":9,"steps":[]}', None, b""),
        Trace(b'{"steps":[],"layout_rewrite":0}', None, b""),
        of_steps(b'[["PR",1,2,' + b"[" * 990 + b"]" * 990 + b",null]]", b"\x01"),
        of_steps(b"[" * 900 + b"]" * 900),
    ],
)
def test_join_steps_and_steps_of_reject_damaged_parts(trace):
    for read in (join_steps, steps_of):
        with pytest.raises(FormatError, match="stored steps"):
            read(trace)


layouts = st.sampled_from([None, 0, 1, 2])
junk = st.one_of(
    st.none(),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(2**63), 2**64 - 1),
    st.text(max_size=5),
    st.lists(st.none() | st.integers(-3, 2**64 - 1) | st.floats(0, 9) | st.booleans(), max_size=4),
    st.just({}),
    st.sampled_from(list(CODES)),
)


@settings(max_examples=examples(300))
@given(ANSOR_STEPS, layouts)
def test_kernel_equals_reference_and_steps_survive_round_trip(steps, layout_rewrite):
    trace = split_steps(steps, layout_rewrite)
    assert trace == split_steps_reference(steps, layout_rewrite)
    assert join_steps(trace) == (steps, layout_rewrite)
    assert len(steps_of(trace)) == len(steps)


@settings(max_examples=examples(600))
@given(ANSOR_STEPS.filter(bool), layouts, st.data())
def test_kernel_accepts_and_rejects_the_same_steps_as_the_reference(steps, layout_rewrite, data):
    step = data.draw(st.integers(0, len(steps) - 1))
    what = data.draw(st.sampled_from(["replace", "insert", "delete", "nest", "step"]))
    place = data.draw(st.integers(0, len(steps[step]) - 1))
    lists = [value for value in steps[step] if isinstance(value, list)]
    if what == "replace":
        steps[step][place] = data.draw(junk)
    elif what == "insert":
        steps[step].insert(place, data.draw(junk))
    elif what == "delete":
        del steps[step][place]
    elif what == "nest" and lists:
        lists[0].append(data.draw(junk))
    elif what == "step":
        steps[step] = data.draw(junk)
    expected = split_steps_reference(steps, layout_rewrite)
    if expected is None:
        with pytest.raises(FormatError) as caught:
            split_steps(steps, layout_rewrite)
        assert "cannot be stored" not in str(caught.value)  # the reason was found
    else:
        assert split_steps(steps, layout_rewrite) == expected


@settings(max_examples=examples(300))
@given(ANSOR_STEPS, layouts, st.binary(max_size=12), st.integers(0, 200))
def test_damaged_decisions_give_other_steps_or_an_error(steps, layout_rewrite, noise, place):
    trace = split_steps(steps, layout_rewrite)
    decisions = trace.decisions[:place] + noise + trace.decisions[place + len(noise) :]
    try:
        found = join_steps(Trace(trace.sketch, None, decisions))
    except FormatError:
        assert decisions != trace.decisions
    else:
        assert split_steps(*found) == Trace(trace.sketch, None, decisions)
