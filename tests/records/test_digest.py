"""The compiled digest, and that identities never change unnoticed."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tunedb import identity
from tunedb._digest import digest
from tunedb.records import (
    NO_TARGET,
    Failure,
    FailureKind,
    Measurement,
    Origin,
    Phase,
    Program,
    Session,
    Status,
    Target,
    Trace,
    Workload,
    WorkloadFormat,
)

#: SQLite and PostgreSQL keep text in UTF-8, so a kind never holds lone surrogates.
KINDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def reference(version, size, kind, fields):
    """BLAKE2b over version, kind, NUL and each field after its length (docs/design.md)."""
    message = bytes([version]) + kind.encode() + b"\0"
    for field in fields:
        message += len(field).to_bytes(4, "little") + field
    return hashlib.blake2b(message, digest_size=size).digest()


@given(st.integers(0, 255), st.integers(1, 64), KINDS, st.lists(st.binary(max_size=400)))
@example(1, 16, "measurement", [])
@example(1, 16, "measurement", [b""])
@example(1, 16, "", [b"\0" * 255, b"\xff" * 256, b"\1" * 257])
def test_as_the_reference(version, size, kind, fields):
    # The first bytes of a message are kept by kind: version must not be taken from another call.
    if version != identity.VERSION:
        kind = f"{kind}/{version}"
    assert digest(version, size, kind, tuple(fields)) == reference(version, size, kind, fields)


@pytest.mark.parametrize("length", [65_535, 65_536, 2**24 - 1, 2**24, 2**24 + 258])
def test_all_bytes_of_a_length_count(length):
    fields = (b"a", b"x" * length, b"b")
    assert digest(1, 16, "body", fields) == reference(1, 16, "body", fields)


@given(st.lists(st.binary(max_size=8), max_size=5), st.lists(st.binary(max_size=8), max_size=5))
def test_fields_do_not_run_into_each_other(first, second):
    same = digest(1, 16, "row", tuple(first)) == digest(1, 16, "row", tuple(second))
    assert same == (first == second)


class _Bytes(bytes):
    pass


@pytest.mark.parametrize(
    "field", [None, "text", 1, bytearray(b"x"), memoryview(b"x"), _Bytes(b"x"), [b"x"]]
)
def test_only_bytes(field):
    with pytest.raises(TypeError, match=type(field).__name__):
        digest(1, 16, "row", (b"x", field))
    with pytest.raises(TypeError, match="bytes"):
        identity.digest("row", field)


def test_other_arguments_are_refused():
    with pytest.raises(TypeError):
        digest(1, 16, b"row", (b"x",))
    with pytest.raises(TypeError):
        digest(1, 16, "row", [b"x"])


# ------------------------------------------------------------------ identities
#
# Digests are in every database and must stay what they are; a change needs a new
# identity.VERSION and a migration.

WORKLOAD = Workload(WorkloadFormat.ANSOR, b'["matmul",128,128]', "matmul")
TARGET = Target.from_config({"kind": "llvm", "mcpu": "skylake", "num-cores": 4}, "llvm ...")
PROGRAM = Program(WORKLOAD, TARGET, Trace(b'[["SP",2,0,{},[{}],1]]', None, b"\x01\x02\xff"))
WITH_TAIL = Program(
    Workload(WorkloadFormat.GRAPH, b'{"nodes":[],"root_index":0}'),
    NO_TARGET,
    Trace(b'[["GetSBlock",[],["C","main"],["b0"]]]', b'[["EnterPostproc",[],[],[]]]', b"[]"),
)
SESSION = Session("0123", 1_700_000_000_000_000, b'{"cpu":"x"}')
FAILURE = Failure(FailureKind.TIMEOUT, Phase.BUILD, "BUILD_TIMEOUT")

PLAIN = Measurement(PROGRAM, (0.5, 0.25))
FULL = Measurement(
    WITH_TAIL,
    (1e-3,),
    Status.OK,
    measured_at=1_600_000_000_000_001,
    occurrence=3,
    session=SESSION,
    args_info=b'[["TENSOR","float32",[4]]]',
    origin=Origin.MUTATED,
    donor=b"\x07" * 16,
)
FAILED = Measurement(PROGRAM, None, Status.FAILED, failure=FAILURE)
LEGACY = Measurement(
    PROGRAM, (1e10,), Status.FAILED, all_cost=1.5, context=b'{"log":"ansor"}', extra=b'{"a":1}'
)

IDENTITIES = {
    "workload": (WORKLOAD.digest, "a9f1ec4d7cb69a22ba4c5c80e5c990b0"),
    "target": (TARGET.digest, "d696eb291142aaaac69d013c4957e6d3"),
    "no target": (NO_TARGET.digest, "455c2b1b0c02935febd36a7f817ba213"),
    "program": (PROGRAM.digest, "f7bdc2257ab0cd5b26e728fdc56917b0"),
    "program with a tail": (WITH_TAIL.digest, "fbc14ffa13994965d10c3781f0e5edc0"),
    "session": (SESSION.digest, "1f36450dc2b427226b3c65ce93202bc3"),
    "measurement": (PLAIN.digest, "f0c1be67941ea4b2fe0cb187ffdf835c"),
    "measurement with all of a tuning run": (FULL.digest, "8ed6be0a5c724e2cb8a1659a33673715"),
    "failed measurement": (FAILED.digest, "7132ca322a065d9fd8b93589f6d88815"),
    "measurement of a log": (LEGACY.digest, "eef5536a1e6b13a6aa3c4c2ee5170905"),
    "failure": (FAILURE.digest(FAILED.digest), "46a88af99a94ef248aebb5e0a7a56424"),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_identities_stay(name):
    found, expected = IDENTITIES[name]
    assert found.hex() == expected


def test_what_is_no_part_of_an_identity():
    named = Workload(WORKLOAD.format, WORKLOAD.body, "other", "0.9.dev0", "def main(): ...")
    assert named.digest == WORKLOAD.digest
    assert Target(TARGET.kind, TARGET.config, None).digest == TARGET.digest
    assert Measurement(PROGRAM, None, Status.FAILED).digest == FAILED.digest


@pytest.mark.parametrize(
    "changed",
    [
        {"all_cost": 1.5},
        {"all_cost": 0.0},
        {"context": b'{"log":"ansor"}'},
        {"extra": b'{"log":"ansor"}'},
        {"args_info": b'{"log":"ansor"}'},
        {"occurrence": 1},
        {"measured_at": 1},
        {"status": Status.FAILED},
        {"status": Status.UNMEASURED},
    ],
    ids=str,
)
def test_each_field_counts(changed):
    others = {PLAIN.digest, LEGACY.digest, FULL.digest, FAILED.digest}
    assert Measurement(PROGRAM, (0.5, 0.25), **changed).digest not in others


def test_a_digest_by_hand():
    """The layout of a measurement of a log, spelled out once."""
    body = b'["matmul",128,128]'
    workload = reference(1, 16, "workload", [b"ansor-key", body])
    target = reference(1, 16, "target", [b"llvm", TARGET.config])
    sketch = reference(1, 16, "sketch", [b'[["SP",2,0,{},[{}],1]]'])
    program = reference(1, 16, "program", [workload, target, sketch, b"", b"\x01\x02\xff"])
    assert program == PROGRAM.digest
    seconds = bytes.fromhex("000000205fa00242")  # 1e10 as float64, little-endian
    zero = bytes(8)
    half = bytes.fromhex("000000000000f83f")  # 1.5
    fields = [program, b"\1", b"+" + seconds, zero, zero, b"", b"", b"unknown", b""]
    fields += [half, b'{"log":"ansor"}', b'{"a":1}']
    assert reference(1, 16, "measurement", fields) == LEGACY.digest
