import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunedb import limits
from tunedb.errors import LimitError, StorageError
from tunedb.system.compression import compress, decompress, zstd


@given(st.binary(max_size=5000))
def test_decompress_restores_compressed_data(data):
    assert decompress(compress(data)) == data


def test_compress_and_decompress_take_data_up_to_the_limit(monkeypatch):
    """MAX_BODY_BYTES"""
    monkeypatch.setattr(limits, "MAX_BODY_BYTES", 4096)
    assert decompress(compress(bytes(4096))) == bytes(4096)
    with pytest.raises(LimitError, match="a body of 4097 bytes is over 4096"):
        compress(bytes(4097))
    with pytest.raises(LimitError, match="larger than 4096 bytes"):
        decompress(zstd.compress(bytes(4097)))


@pytest.mark.parametrize("cut", [0, 1, 4, 8, -1])
def test_decompress_rejects_truncated_frames_as_damaged(cut):
    with pytest.raises(StorageError, match="damaged"):
        decompress(compress(bytes(range(256)) * 40)[:cut])


@given(st.binary(max_size=200))
def test_decompress_raises_only_one_line_errors_for_garbage(data):
    try:
        decompress(data)
    except (StorageError, LimitError) as error:
        assert "\n" not in str(error)


def test_decompress_raises_only_own_errors_for_flipped_bytes():
    frame = compress(bytes(range(256)) * 4)
    for place in range(len(frame)):
        with contextlib.suppress(StorageError, LimitError):
            decompress(frame[:place] + bytes([frame[place] ^ 0x55]) + frame[place + 1 :])
