from __future__ import annotations

import hashlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tunedb import identity
from tunedb._digest import digest
from tunedb.records import Measurement, Program, Status, Target, Trace, Workload, WorkloadFormat

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
def test_digest_equals_the_reference(version, size, kind, fields):
    # The code caches the first bytes of a message, version included, by kind.
    if version != identity.VERSION:
        kind = f"{kind}/{version}"
    assert digest(version, size, kind, tuple(fields)) == reference(version, size, kind, fields)


def test_digest_uses_all_bytes_of_a_field_length():
    for length in (65_535, 65_536, 2**24 - 1, 2**24, 2**24 + 258):
        fields = (b"a", b"x" * length, b"b")
        assert digest(1, 16, "body", fields) == reference(1, 16, "body", fields)


class _Bytes(bytes):
    pass


def test_digest_rejects_arguments_of_other_types():
    for field in (None, "text", 1, bytearray(b"x"), memoryview(b"x"), _Bytes(b"x"), [b"x"]):
        with pytest.raises(TypeError, match=type(field).__name__):
            digest(1, 16, "row", (b"x", field))
        with pytest.raises(TypeError, match="bytes"):
            identity.digest("row", field)
    for kind, fields in ((b"row", (b"x",)), ("row", [b"x"])):
        with pytest.raises(TypeError):
            digest(1, 16, kind, fields)


WORKLOAD = Workload(WorkloadFormat.ANSOR, b'["matmul",128,128]', "matmul")
TARGET = Target.from_config({"kind": "llvm", "mcpu": "skylake", "num-cores": 4}, "llvm ...")
PROGRAM = Program(WORKLOAD, TARGET, Trace(b'[["SP",2,0,{},[{}],1]]', None, b"\x01\x02\xff"))
LEGACY = Measurement(
    PROGRAM, (1e10,), Status.FAILED, all_cost=1.5, context=b'{"log":"ansor"}', extra=b'{"a":1}'
)


def test_measurement_digest_equals_one_computed_by_hand():
    """The layout of a measurement from a log, written out once."""
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
