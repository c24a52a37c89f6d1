from __future__ import annotations

import math

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunedb import limits
from tunedb.errors import FormatError
from tunedb.programs.kernel import join_parameters, split_parameters, steps_of
from tunedb.records import Trace

values = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.booleans(),
    st.none(),
)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.dictionaries(names, values))
def test_parameters_survive_round_trip(configuration):
    found = join_parameters(split_parameters(configuration))
    assert list(found.items()) == list(configuration.items())
    assert list(map(type, found.values())) == list(map(type, configuration.values()))


def test_sketch_holds_names_and_decisions_hold_values_of_parameters():
    trace = split_parameters({"x": 32, "kind": "a,b", "fast": True, "ratio": 0.5})
    assert trace.sketch == b'{"parameters":["x","kind","fast","ratio"]}'
    assert trace.decisions == b'[32,"a,b",true,0.5]'
    assert (trace.tail, trace.is_empty) == (None, False)
    # The names alone are what the configurations of a space share.
    assert split_parameters({"x": 64, "kind": "", "fast": 0, "ratio": 1}).sketch == trace.sketch
    assert split_parameters({"kind": 1, "x": 1, "fast": 0, "ratio": 1}).sketch != trace.sketch


@pytest.mark.parametrize(
    ("configuration", "reason"),
    [
        *((one, "expected a number or text") for one in ({"x": [1]}, {"x": {"y": 1}}, {1: 1})),
        *(({"x": number}, "not finite") for number in (math.nan, -math.inf)),
        ({"x": 2**63}, "beyond 64 bits"),
        *((one, "no JSON form") for one in ({"x\ud800": 1}, {"x": "\ud800"})),
        (dict.fromkeys(map(str, range(limits.MAX_INSTRUCTIONS + 1)), 1), "100001 parameters"),
    ],
)
def test_split_parameters_rejects_invalid_configurations(configuration, reason):
    with pytest.raises(FormatError, match=reason):
        split_parameters(configuration)


@pytest.mark.parametrize(
    ("sketch", "decisions"),
    [
        *((sketch, b"[]") for sketch in (b"{}", b"[]", b"null", b"{")),
        *((b'{"parameters":["x"]}', decisions) for decisions in (b"[]", b"[1,2]", b"1")),
        (b'{"parameters":[["x"]]}', b"[1]"),
    ],
)
def test_join_parameters_rejects_damaged_traces(sketch, decisions):
    with pytest.raises(FormatError, match="cannot read stored parameters"):
        join_parameters(Trace(sketch, None, decisions))


def test_steps_of_returns_one_step_per_parameter():
    first, second = steps_of(split_parameters({"x": 32, "kind": "a"}))
    assert (first.number, second.number) == (0, 1)
    assert orjson.dumps(second.arguments) == b'{"name":"kind","value":"a"}'
