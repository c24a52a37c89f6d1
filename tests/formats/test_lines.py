import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tunedb import limits
from tunedb.formats.base import Line, read_lines


def lines(data, position=lambda: 0):
    return list(read_lines(io.BytesIO(data), position))


@pytest.fixture
def short(monkeypatch):
    """Limit lines to ten bytes with their end; of longer ones four bytes are stored."""
    monkeypatch.setattr(limits, "MAX_LINE_BYTES", 10)
    monkeypatch.setattr(limits, "MAX_QUARANTINE_BYTES", 4)


@given(st.binary(max_size=300))
@example(b"a\n\n \nb\n")
@example(b"a\r\nb\r\n\r\nc\r")
def test_only_a_line_feed_ends_a_line(data):
    # Not \r, \v, \f, NUL or what Unicode calls a line separator.
    found = lines(data)
    assert [line.data for line in found] == [
        part.rstrip(b"\r") for part in data.removesuffix(b"\n").split(b"\n") if data
    ]
    assert [line.number for line in found] == list(range(1, len(found) + 1))
    assert [line.is_whole for line in found[:-1]] == [True] * len(found[:-1])
    if data:
        assert found[-1].is_whole == data.endswith(b"\n")


@pytest.mark.parametrize("length", [1, 9, 10, 11, 12, 34, 96])
def test_read_lines_truncates_and_marks_only_lines_over_the_limit(short, length):
    found = lines(b"x" * (length - 1) + b"\n" + b"next\n")
    assert [line.too_long for line in found] == [length > 10, False]
    assert [line.number for line in found] == [1, 2]
    assert all(line.is_whole for line in found)
    assert len(found[0].data) == (4 if length > 10 else length - 1)
    assert found[1].data == b"next"


@pytest.mark.parametrize(
    ("data", "positions"), [(b"one\ntwo\nthree\n", [4, 8, 14]), (b"x" * 40 + b"\nb\n", [41, 43])]
)
def test_read_lines_returns_position_after_each_line(short, data, positions):
    stream = io.BytesIO(data)
    assert [line.position for line in read_lines(stream, stream.tell)] == positions


def test_read_lines_yields_a_line_before_reading_the_next():
    """The stream may be a pipe, whose next line does not exist yet."""
    waiting = io.BytesIO(b"one\ntwo\n")
    found = read_lines(waiting, waiting.tell)
    assert next(found) == Line(1, b"one", 4)
    assert waiting.tell() == 4
