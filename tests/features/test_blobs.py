"""Rows of features as the database stores them, and hostile ones."""

import numpy as np
import pytest
from fake_sets import Steps
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tunedb import limits
from tunedb.errors import FormatError, LimitError, StorageError
from tunedb.features.blobs import checked, pack, unpack
from tunedb.system.compression import compress, decompress, zstd

ANY = Steps("any", columns=())


def packed(rows, feature_set=ANY):
    (row,) = pack(feature_set, [(7, rows)])
    return row


@given(
    arrays.arrays(
        np.float32,
        st.tuples(st.integers(0, 9), st.integers(0, 9)),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
    )
)
def test_unpack_restores_rows_bit_for_bit(rows):
    row = packed(rows)
    assert (row["program_id"], row["n_rows"], row["n_columns"]) == (7, *rows.shape)
    back = unpack(row["n_rows"], row["n_columns"], row["data"])
    assert (back.dtype, back.shape, back.tobytes()) == (np.float32, rows.shape, rows.tobytes())


def test_pack_stores_little_endian_float32_by_rows():
    row = packed(np.array([[1.0, 2.0], [3.0, 4.0]], ">f8").T)
    assert decompress(row["data"]) == np.array([1, 3, 2, 4], "<f4").tobytes()


def test_each_frame_of_a_batch_is_unpacked_alone():
    rows = pack(ANY, [(i, np.full((i, 2), i, np.float32)) for i in range(20)])
    for i in (19, 0, 7):
        assert unpack(i, 2, rows[i]["data"]).tolist() == [[i, i]] * i


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        *((rows, "fake") for rows in (np.zeros(3), np.zeros((1, 2, 2)), np.array([["a", "b"]]))),
        *((rows, "fake") for rows in (np.zeros((1, 2), complex), None)),
        (np.zeros((1, 3)), "3 columns, not 2"),
    ],
)
def test_checked_rejects_other_shapes_and_types(rows, reason):
    with pytest.raises(FormatError, match=reason):
        checked(Steps(), rows)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39, -1e300])
def test_checked_rejects_non_finite_values_and_names_their_column(value):
    rows = np.zeros((3, 2))
    rows[2, 1] = value
    with pytest.raises(FormatError, match=r"fake\.steps: decisions is .* in row 2"):
        checked(Steps(), rows)
    with pytest.raises(FormatError, match=r"any: 1 is .* in row 2"):
        checked(ANY, rows)


def test_checked_does_not_copy_float32_rows():
    rows = np.zeros((2, 2), np.float32)
    assert checked(Steps(), rows) is rows


def test_pack_rejects_rows_over_the_size_limit(monkeypatch):
    monkeypatch.setattr(limits, "MAX_FEATURE_BYTES", 400)
    row = packed(np.zeros((50, 2)))
    assert unpack(50, 2, row["data"]).shape == (50, 2)
    with pytest.raises(LimitError, match="any: 51 rows are over 400 bytes"):
        packed(np.zeros((51, 2)))


@pytest.mark.parametrize(
    ("n_rows", "n_columns"),
    [
        *((2**62, 2**62), (2**40, 0), (0, 2**40), (-1, 4), (4, -1), (-2, -2)),
        (limits.MAX_FEATURE_BYTES // 4 + 1, 1),
    ],
)
def test_unpack_rejects_hostile_sizes_before_decompression(n_rows, n_columns, monkeypatch):
    monkeypatch.setattr("tunedb.features.blobs.decompress", None)
    with pytest.raises(LimitError, match="are over"):
        unpack(n_rows, n_columns, b"")


def test_unpack_rejects_damaged_frames_and_wrong_sizes():
    good = packed(np.ones((4, 4), np.float32))["data"]
    for n_rows, n_columns in ((4, 5), (5, 4), (0, 0), (3, 4)):
        with pytest.raises((StorageError, LimitError)):
            unpack(n_rows, n_columns, good)
    for data in (b"", b"junk", good[:-1], good[: len(good) // 2], good + b"x" * 3):
        try:
            rows = unpack(4, 4, data)
        except StorageError:
            continue
        assert rows.tolist() == [[1.0] * 4] * 4  # bytes behind the frame


def test_unpack_rejects_decompression_bomb():
    """A frame that expands to 128 MB is not unpacked beyond its stated size."""
    bomb = zstd.compress(bytes(2**27))
    assert len(bomb) < 2**20
    with pytest.raises(LimitError, match="larger than 64 bytes"):
        unpack(4, 4, bomb)
    assert unpack(0, 4, compress(b"")).shape == (0, 4)
