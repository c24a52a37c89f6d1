import contextlib
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunedb import limits
from tunedb.errors import LimitError, StorageError
from tunedb.system.compression import compress, decompress

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


@given(st.binary(max_size=5000))
def test_decompress_restores_compressed_data(data):
    assert decompress(compress(data)) == data


def test_decompress_rejects_frame_that_expands_over_the_limit(monkeypatch):
    bomb = zstd.compress(bytes(200 * 2**20), level=3)
    assert len(bomb) < 20_000
    monkeypatch.setattr(limits, "MAX_BODY_BYTES", 2**20)
    with pytest.raises(LimitError, match="larger than 1048576 bytes"):
        decompress(bomb)


def test_decompress_accepts_data_of_exactly_the_limit(monkeypatch):
    monkeypatch.setattr(limits, "MAX_BODY_BYTES", 4096)
    assert decompress(compress(bytes(4096))) == bytes(4096)
    with pytest.raises(LimitError):
        decompress(zstd.compress(bytes(4097)))


def test_compress_rejects_data_over_the_limit(monkeypatch):
    monkeypatch.setattr(limits, "MAX_BODY_BYTES", 4096)
    with pytest.raises(LimitError, match="4097"):
        compress(bytes(4097))


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
