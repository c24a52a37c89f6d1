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
def test_round_trip(data):
    assert decompress(compress(data)) == data


def test_a_bomb_is_stopped_at_the_limit(monkeypatch):
    bomb = zstd.compress(bytes(200 * 2**20), level=3)
    assert len(bomb) < 20_000
    monkeypatch.setattr(limits, "MAX_BODY_BYTES", 2**20)
    with pytest.raises(LimitError, match="larger than 1048576 bytes"):
        decompress(bomb)


def test_the_limit_itself_is_allowed(monkeypatch):
    monkeypatch.setattr(limits, "MAX_BODY_BYTES", 4096)
    assert decompress(compress(bytes(4096))) == bytes(4096)
    with pytest.raises(LimitError):
        decompress(zstd.compress(bytes(4097)))


def test_data_over_the_limit_are_not_compressed(monkeypatch):
    monkeypatch.setattr(limits, "MAX_BODY_BYTES", 4096)
    with pytest.raises(LimitError, match="4097"):
        compress(bytes(4097))


@pytest.mark.parametrize("cut", [0, 1, 4, 8, -1])
def test_truncated_frames_are_damage(cut):
    with pytest.raises(StorageError, match="damaged"):
        decompress(compress(bytes(range(256)) * 40)[:cut])


@given(st.binary(max_size=200))
def test_garbage_never_escapes(data):
    try:
        decompress(data)
    except (StorageError, LimitError) as error:
        assert "\n" not in str(error)


def test_flipped_bytes_never_escape():
    frame = compress(bytes(range(256)) * 4)
    for place in range(len(frame)):
        with contextlib.suppress(StorageError, LimitError):
            decompress(frame[:place] + bytes([frame[place] ^ 0x55]) + frame[place + 1 :])
