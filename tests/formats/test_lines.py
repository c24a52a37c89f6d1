import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunedb import limits
from tunedb.errors import FormatError
from tunedb.formats.base import Line, read_lines


def lines(data, position=lambda: 0):
    return list(read_lines(io.BytesIO(data), position))


@pytest.fixture
def short(monkeypatch):
    """Limit lines to ten bytes with their end; of longer ones four bytes are stored."""
    monkeypatch.setattr(limits, "MAX_LINE_BYTES", 10)
    monkeypatch.setattr(limits, "MAX_QUARANTINE_BYTES", 4)


def test_read_lines_numbers_all_lines_from_1_including_blank_ones():
    assert [(line.number, line.data) for line in lines(b"a\n\n \nb\n")] == [
        (1, b"a"),
        (2, b""),
        (3, b" "),
        (4, b"b"),
    ]


def test_read_lines_marks_last_line_without_line_feed_as_not_whole():
    assert [line.is_whole for line in lines(b"a\nb")] == [True, False]
    assert lines(b"a\nb")[1].data == b"b"


def test_read_lines_removes_windows_line_ends():
    assert [line.data for line in lines(b"a\r\nb\r\n\r\nc\r")] == [b"a", b"b", b"", b"c"]


@given(st.binary(max_size=300))
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


def test_read_lines_truncates_too_long_lines_and_reads_the_next_ones(short):
    found = lines(b"0123456789abcdef\n" + b"ok\n" + b"x" * 95 + b"\n" + b"fine\n")
    assert [(line.number, line.data, line.too_long) for line in found] == [
        (1, b"0123", True),
        (2, b"ok", False),
        (3, b"xxxx", True),
        (4, b"fine", False),
    ]
    assert all(line.is_whole for line in found)


@pytest.mark.parametrize("length", [1, 9, 10, 11, 12, 34])
def test_read_lines_marks_only_lines_over_the_limit_as_too_long(short, length):
    found = lines(b"x" * (length - 1) + b"\n" + b"next\n")
    assert [line.too_long for line in found] == [length > 10, False]
    assert [line.number for line in found] == [1, 2]
    assert len(found[0].data) == (4 if length > 10 else length - 1)
    assert found[1].data == b"next"


@pytest.mark.parametrize(
    ("data", "positions"),
    [(b"one\ntwo\nthree\n", [4, 8, 14]), (b"x" * 40 + b"\nb\n", [41, 43])],
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


def test_read_lines_yields_lines_before_an_error_of_the_stream():
    pieces = [b"one\n", b"two\n"]

    class Damaged:
        def readline(self, size):
            if not pieces:
                raise FormatError("cut off")
            return pieces.pop(0)

    found = read_lines(Damaged(), lambda: 0)
    assert [next(found).data, next(found).data] == [b"one", b"two"]
    with pytest.raises(FormatError, match="cut off"):
        next(found)
