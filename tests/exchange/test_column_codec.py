"""Rows encoded as columns: decoding returns equal rows, or raises FormatError."""

import math
import struct

import pytest
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tunedb.errors import FormatError
from tunedb.exchange.column_codec import LAYOUT, decode, encode
from tunedb.storage import exchange_types
from tunedb.storage.columns import MEASUREMENT
from tunedb.system.compression import compress_all

INTEGERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.integers(-3, 300), st.sampled_from([-(2**63), 2**63 - 1])
)
FLOATS = st.floats(allow_nan=False)
FRAME = compress_all([b"1234"])[0]
VALUES = {
    "integer": INTEGERS,
    "steps": INTEGERS,
    "real": FLOATS,
    "bytes": st.binary(max_size=20),
    "text": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    "times": st.lists(FLOATS, max_size=4).map(lambda times: struct.pack(f"<{len(times)}d", *times)),
    "frames": st.binary(max_size=20).map(lambda data: compress_all([data])[0]),
}


def column(kind):
    if not kind:
        return st.none()
    values = VALUES[kind.removesuffix("?")]
    return st.none() | values if kind.endswith("?") else values


def rows_of(table, most=12):
    return st.lists(st.tuples(*map(column, LAYOUT[table])), min_size=1, max_size=most)


def test_layout_covers_every_column_and_omits_only_digests():
    assert LAYOUT.keys() == exchange_types.COLUMNS.keys()
    for table, names in exchange_types.COLUMNS.items():
        left_out = {name for name, kind in zip(names, LAYOUT[table], strict=True) if not kind}
        # The digest of a retraction is kept, as it alone names the retracted row.
        expected = set() if table == "retraction" else {"digest"} & set(names)
        assert left_out == expected | ({"program_digest"} if table == "measurement" else set())


@pytest.mark.parametrize("table", exchange_types.COLUMNS)
def test_decode_returns_encoded_rows(table):
    @settings(max_examples=examples(60))
    @given(rows_of(table))
    def run(rows):
        found = decode(table, len(rows), encode(table, rows))
        assert found == rows
        assert [list(map(type, row)) for row in found] == [list(map(type, row)) for row in rows]

    run()


@given(st.lists(INTEGERS, min_size=1, max_size=30))
@example([0, 2**63 - 1, -(2**63)])
@example([-(2**63), 2**63 - 1, -(2**63), 0])
@example([7])
def test_integers_of_every_size_survive_round_trip(values):
    rows = [(value, "scheme", "key", None) for value in values]
    assert decode("workload_alias", len(rows), encode("workload_alias", rows)) == rows
    rows = [(0, value, 1, 1, FRAME) for value in values]
    assert decode("feature", len(rows), encode("feature", rows)) == rows


def test_trailing_zeros_and_missing_values_survive_round_trip():
    rows = [(b"a\0", "", "", ""), (b"", "\0", "ä\u202e", "")]
    assert decode("retraction", 2, encode("retraction", rows)) == rows
    failures = [
        (1, None, None, b"a\0\0", b"\0", "kind", "phase", "", -0.0, 7),
        (2, None, 9, None, None, "", "", "", None, None),
    ]
    found = decode("failure", 2, encode("failure", failures))
    assert found == failures
    assert math.copysign(1, found[0][-2]) == -1


def test_run_times_keep_every_bit_and_are_float64():
    def row(times):
        rest = (None,) * (len(MEASUREMENT) - 14)
        return (1, None, None, 1, 1, 1, None, b"[]", 0, times, 0, 0, None, 1, *rest)

    odd = struct.pack("<4d", math.nan, -0.0, 5e-324, math.inf)
    rows = [row(odd), row(None), row(b"")]
    assert decode("measurement", 3, encode("measurement", rows)) == rows
    with pytest.raises(FormatError, match="run_secs: run times that are not float64"):
        encode("measurement", [row(b"1234567")])


@pytest.mark.parametrize(
    ("table", "row", "message"),
    [
        ("sketch", (1.0, None, b""), "id: a value that is not of type int"),
        ("sketch", (True, None, b""), "id: a value that is not of type int"),
        ("sketch", (1, None, "text"), "body: a value that is not of type bytes"),
        ("sketch", (1, None, None), "body: a value is missing"),
        ("sketch", (2**63, None, b""), "id: an integer beyond 64 bits"),
        ("context", (1, None, "\ud800"), "body: a text with an incomplete character"),
        ("feature", (1, 1, 1, 1, b"x"), "data: a compressed body is damaged"),
    ],
)
def test_encode_rejects_invalid_values(table, row, message):
    with pytest.raises(FormatError, match=message):
        encode(table, [row])


def integers(base, width, data=b""):
    return struct.pack("<qB", base, width) + data


ID = b"\0" + struct.pack("<q", 1) + integers(0, 0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "id: it ends too early"),
        (b"\0", "id: it ends too early"),
        (b"\1", "id: a value is missing"),
        (b"\2\0", "id: a value is missing"),
        (b"\7", "id: a value is missing"),
        (b"\0" + bytes(8) + integers(0, 3), "id: integers of 3 bytes"),
        (ID + b"\0" + integers(2**40, 0), "body: a value is longer"),
        (ID + b"\0" + integers(-1, 0), "body: a value is longer"),
        (ID + b"\0" + integers(2**62, 8, bytes(8)), "body: a value is longer"),
        (ID + b"\0" + integers(3, 0) + b"ab", "body: a value is longer"),
        (ID + b"\0" + integers(1, 0) + b"ab", "1 bytes follow its columns"),
        (ID + b"\0" + integers(1, 0) + b"\xff", "body: a text that is not UTF-8"),
    ],
)
def test_decode_rejects_malformed_bytes(data, message):
    with pytest.raises(FormatError, match=message):
        decode("context", 1, data)


def test_decode_rejects_texts_that_share_a_character():
    """The bytes of both texts together are UTF-8, and those of each are not."""
    data = b"\0" + struct.pack("<q", 1) + integers(1, 0) + b"\0" + integers(1, 0)
    with pytest.raises(FormatError, match="a text that is not UTF-8"):
        decode("context", 2, data + "ä".encode())


def test_decode_rejects_bitmap_in_which_all_values_are_missing():
    """If all values are missing, a single byte says so instead of a bitmap."""
    failure = (1, None, None, b"m", b"p", "kind", "phase", "message", None, None)
    data = encode("failure", [failure] * 3)
    assert data.endswith(b"\1\1")
    with pytest.raises(FormatError, match="seconds: a value is missing"):
        decode("failure", 3, data[:-2] + b"\2" + b"\xe0" + b"\1")


@settings(max_examples=examples(300))
@given(st.data())
def test_decode_of_changed_bytes_returns_rows_or_raises_format_error(data):
    table = data.draw(st.sampled_from(sorted(exchange_types.COLUMNS)))
    rows = data.draw(rows_of(table, 5))
    changed = bytearray(encode(table, rows))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at] = data.draw(st.integers(0, 255))
    try:
        found = decode(table, len(rows), bytes(changed))
    except FormatError:
        return
    assert len(found) == len(rows)
    kinds = [type(value) for row in found for value in row]
    assert set(kinds) <= {int, float, str, bytes, type(None)}
