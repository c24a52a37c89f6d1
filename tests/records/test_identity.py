import math
import struct
from dataclasses import replace

import pytest
from builders import make_session, make_target, make_workload
from hypothesis import given
from hypothesis import strategies as st

from tunedb import identity
from tunedb.records import (
    NO_TARGET,
    Failure,
    FailureKind,
    Measurement,
    Origin,
    Phase,
    Program,
    Status,
    Target,
    Trace,
    Workload,
)


def make_trace(number=0, *, tail=b'[["EnterPostproc",[],[],[]]]'):
    """Return a trace whose bytes are part of the goldens below."""
    sketch = b'[["GetBlock",[],["matmul","main"],["b0"]]]'
    return Trace(sketch, tail, b"[[%d,[%d,4]]]" % (number, number))


def make_program(number=0, *, workload=0, target=0):
    return Program(make_workload(workload), make_target(target), make_trace(number))


def make_measurement(number=0, secs=(0.001,), *, workload=0, target=0, **fields):
    if secs is None:
        fields.setdefault("status", Status.FAILED)
    return Measurement(make_program(number, workload=workload, target=target), secs, **fields)


def full_measurement():
    fields = {"measured_at": 1_700_000_000_000_001, "occurrence": 2, "session": make_session()}
    fields |= {"args_info": b'[["TENSOR","float32",[128,128]]]', "origin": Origin.MUTATED}
    donor = make_program(2).digest
    return make_measurement(3, (0.5, 0.25), workload=1, target=1, donor=donor, **fields)


# Changing one of these breaks merging: equal rows of two versions of tunedb would differ. Whoever
# must change them raises identity.VERSION and writes a migration that recomputes all digests.
GOLDEN = {
    "workload": (lambda: make_workload(1).digest, "3296b791597e7881075d04fed7dadee9"),
    "target": (lambda: make_target(1).digest, "0d0d9e67fa16b464365e5f0ab61f1888"),
    "no target": (lambda: NO_TARGET.digest, "455c2b1b0c02935febd36a7f817ba213"),
    "sketch": (lambda: make_program(3).sketch_digest, "49a16aa1ea3dd1d8a3fc4684894e9589"),
    "tail": (lambda: make_program(3).tail_digest, "89785e1e22c0679f6356175d5087c6e8"),
    "program": (lambda: full_measurement().program.digest, "9c8931a4aa4a15a6ffc9c38ce822be2c"),
    "program without tail": (
        lambda: Program(make_workload(), make_target(), make_trace(tail=None)).digest,
        "4c389a04a3d9c26ec1ea34c97d7f7de8",
    ),
    "session": (lambda: make_session().digest, "d48104ebd1d6f925cde612424d36a999"),
    "measurement": (lambda: full_measurement().digest, "3db29e6c71afd6bd2c6ebfa06a7067e5"),
    "failed": (lambda: make_measurement(0, None).digest, "d74f01e9b0a91e45f6279f370aa7c469"),
    "no times": (
        lambda: make_measurement(0, (), status=Status.FAILED).digest,
        "a39691c261d4376c50037f7033e5e12c",
    ),
    "failure": (
        lambda: Failure(FailureKind.TIMEOUT, Phase.RUN, "killed after 10 s", 10.0).digest(
            full_measurement().digest
        ),
        "4344c9f9ca09e48aa5d075bbfa4e728e",
    ),
    "failure without seconds": (
        lambda: Failure(FailureKind.CRASH, Phase.BUILD, "é").digest(full_measurement().digest),
        "ce37a25c62364a536446b2504eddec17",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_digests_never_change(name):
    make, expected = GOLDEN[name]
    assert make().hex() == expected


def test_every_field_of_a_measurement_is_in_its_digest():
    old = full_measurement()
    for change in (
        *({"run_secs": (0.5, 0.26)}, {"status": Status.FAILED}, {"status": Status.UNMEASURED}),
        *({"measured_at": 5}, {"occurrence": 3}, {"session": make_session(1)}),
        *({"args_info": b"[]"}, {"origin": Origin.RANDOM}, {"donor": make_program(4).digest}),
        *({"all_cost": 0.0}, {"context": b'{"log":"ansor"}'}, {"extra": b'{"log":"ansor"}'}),
    ):
        assert replace(old, **change).digest != old.digest, change


def test_digests_ignore_labels_scripts_and_failures():
    plain = Workload("tvm-graph", b"x")
    assert Workload("tvm-graph", b"x", "name", "0.27", "script").digest == plain.digest
    assert Target("llvm", b"{}", "llvm").digest == Target("llvm", b"{}").digest
    failed = make_measurement(0, None)
    why = Failure(FailureKind.CRASH, Phase.RUN, "")
    assert make_measurement(0, None, failure=why).digest == failed.digest


def test_digest_distinguishes_negative_zero_times():
    assert make_measurement(0, (0.0,)).digest != make_measurement(0, (-0.0,)).digest


@given(st.lists(st.floats(), max_size=20))
def test_pack_floats_keeps_all_bits(values):
    data = identity.pack_floats(values)
    assert data == struct.pack(f"<{len(values)}d", *values)
    assert identity.pack_floats(identity.unpack_floats(data)) == data


@given(st.integers(-(2**63), 2**63 - 1))
def test_pack_int_packs_little_endian_int64(value):
    assert struct.unpack("<q", identity.pack_int(value)) == (value,)


def test_canonical_json_sorts_keys_and_omits_spaces():
    for value, expected in (
        ({"b": 1, "a": [True, None, "é"]}, '{"a":[true,null,"é"],"b":1}'),
        (0.1 + 0.2, "0.30000000000000004"),
        ({"a": {"d": 1, "c": 2}}, '{"a":{"c":2,"d":1}}'),
    ):
        assert identity.canonical_json(value) == expected.encode()
    for value in (object(), {1: 2}, "\ud800", {"a": b"x"}):
        with pytest.raises(TypeError):
            identity.canonical_json(value)


def test_canonical_numbers_turns_integral_floats_into_integers():
    value = {"a": [1.0, 2.5, {"b": -3.0}], "c": True, "d": "1.0", "e": 1e300}
    found = identity.canonical_numbers(value)
    assert found == {"a": [1, 2.5, {"b": -3}], "c": True, "d": "1.0", "e": 1e300}
    assert [type(x) for x in found["a"][:2]] == [int, float]
    assert found["c"] is True
    assert type(found["e"]) is float
    assert math.isinf(identity.canonical_numbers(math.inf))


@given(st.text(st.characters(codec=None)))
def test_clean_text_returns_encodable_text_without_nul(text):
    clean = identity.clean_text(text)
    assert "\0" not in clean
    clean.encode()
    assert identity.clean_text(clean) == clean


def test_clean_text_escapes_only_nul_and_surrogates():
    assert identity.clean_text("plain é \n 😀 \\") == "plain é \n 😀 \\"
    assert identity.clean_text("a\0b\udcff") == "a\\0b\\udcff"
