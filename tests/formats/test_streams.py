import bz2
import gzip
import io
import lzma
import os
import subprocess
import sys
import tarfile
import textwrap
import zipfile
import zlib
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import printed

from tunedb import limits
from tunedb.errors import FormatError, NotFoundError, StorageError
from tunedb.formats.streams import HEAD_BYTES, open_log
from tunedb.system.compression import zstd

CODECS = {
    "gzip": gzip.compress,
    "bzip2": cache(lambda data: bz2.compress(data, 1)),  # blocks of 100 kB
    "xz": cache(lambda data: lzma.compress(data, preset=1)),
    "lzma": cache(lambda data: lzma.compress(data, format=lzma.FORMAT_ALONE, preset=1)),
    "zstd": cache(partial(zstd.compress, options={zstd.CompressionParameter.checksum_flag: 1})),
}
codecs = pytest.mark.parametrize("codec", CODECS)

#: Lines that still take some space when they are compressed, 0.5 MB.
LINES = [b'{"i":%d,"r":%d}\n' % (n, zlib.crc32(b"%d" % n)) for n in range(20_000)]
TEXT = b"".join(LINES)

#: Size of blocks that are only decompressed as a whole: 100 kB in bzip2, 128 in zstd.
BLOCK = 2**17


@pytest.fixture
def write(tmp_path):
    def write(data, name="log"):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


def read(path):
    with open_log(path) as (stream, position):
        return stream.read(), position()


def lines_until_error(path):
    """Return the lines that a log delivers, and the message that ends them."""
    lines = []
    with open_log(path) as (stream, _), pytest.raises(FormatError) as caught:
        while line := stream.readline():
            lines.append(line)
    return lines, str(caught.value)


@pytest.mark.parametrize("data", [b"", b"\n", b"x", b"\x1f", b"BZ", b"\x28\xb5\x2f"])
def test_open_log_reads_short_files_as_plain_data(write, data):
    assert read(write(data)) == (data, len(data))


SKIPPABLE = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"\x00\x01\x02\x03"


@pytest.mark.parametrize(
    ("codec", "padding"), [("gzip", bytes(20_000)), ("xz", bytes(20_000)), ("zstd", SKIPPABLE)]
)
def test_open_log_skips_padding_and_skippable_frames(write, codec, padding):
    packed = CODECS[codec](TEXT) + padding
    assert read(write(packed))[0] == TEXT
    assert read(write(packed + CODECS[codec](b"end")))[0] == TEXT + b"end"
    if codec == "zstd":
        assert read(write(padding + packed))[0] == TEXT


@settings(max_examples=examples(40))
@given(
    parts=st.lists(
        st.tuples(st.sampled_from(sorted(CODECS)), st.binary(max_size=6000)), min_size=1, max_size=5
    ),
    size=st.integers(1, 9000),
)
def test_open_log_joins_members_of_any_codecs_for_any_read_size(tmp_path_factory, parts, size):
    path = tmp_path_factory.mktemp("members") / "log"
    # Members may begin anywhere in a step, and begin with zeros of padding of the last one.
    parts = [("gzip", b"{"), *parts]  # an archive inside would be refused
    path.write_bytes(b"".join(CODECS[codec](data) for codec, data in parts))
    whole = b"".join(data for _, data in parts)
    with open_log(path) as (stream, position):
        pieces = list(iter(lambda: stream.read(size), b""))
        assert position() == path.stat().st_size
    assert b"".join(pieces) == whole


@codecs
def test_peek_returns_the_whole_head(write, codec):
    for text in (TEXT, b"", b"short"):
        for packed in (text, CODECS[codec](text)):
            with open_log(write(packed)) as (stream, _):
                assert stream.peek(1)[:HEAD_BYTES] == text[:HEAD_BYTES]
                assert stream.read() == text


@pytest.mark.parametrize("pack", [bytes, zstd.compress])
def test_position_grows_with_the_file_read(write, pack):
    data = pack(os.urandom(4_000_000))
    with open_log(write(data)) as (stream, position):
        seen = [position()]
        while stream.read(100_000):
            seen.append(position())
    assert seen == sorted(seen)
    assert len(set(seen)) >= 3
    assert seen[0] <= 2**20
    assert seen[-1] == len(data)


class TestDamage:
    @codecs
    @pytest.mark.parametrize("part", [0.5, 0.99])
    def test_truncated_stream_delivers_lines_before_the_error(self, write, codec, part):
        packed = CODECS[codec](TEXT)
        lines, message = lines_until_error(write(packed[: int(len(packed) * part)], "cut.x"))
        assert lines == LINES[: len(lines)]
        assert sum(map(len, lines)) > 0.95 * part * len(TEXT) - BLOCK
        assert "truncated" in message
        assert codec in message

    @codecs
    def test_truncated_second_member_delivers_the_first_one(self, write, codec):
        # The second member is cut off in its header, or right behind it.
        for end in (1, 2, 3, 8):
            packed = CODECS[codec](b"one\ntwo\n") + CODECS[codec](b"three\n")[:end]
            lines, message = lines_until_error(write(packed))
            assert lines == [b"one\n", b"two\n"]
            assert "truncated" in message or "other bytes follow" in message

    @codecs
    def test_open_log_rejects_stream_cut_after_six_bytes(self, write, codec):
        path = write(CODECS[codec](TEXT)[:6])
        with pytest.raises(FormatError, match="truncated"), open_log(path) as (stream, _):
            stream.read()

    @codecs
    def test_damaged_stream_delivers_lines_before_the_damage(self, write, codec):
        packed = bytearray(CODECS[codec](TEXT) + CODECS[codec](b"behind\n"))
        middle = len(packed) // 2
        packed[middle : middle + 64] = bytes(64)
        lines, message = lines_until_error(write(bytes(packed), "bad.x"))
        # A checksum may find the damage after some changed lines; those before are unchanged.
        same = next((n for n, line in enumerate(lines) if line != LINES[n]), len(lines))
        assert sum(map(len, lines[:same])) > 0.45 * len(TEXT) - BLOCK
        assert b"behind\n" not in lines
        assert "cannot be unpacked further" in message or "truncated" in message
        assert codec in message

    @pytest.mark.parametrize(("codec", "at"), [("gzip", -6), ("bzip2", -3), ("xz", -20)])
    def test_wrong_checksum_raises_error_after_the_lines(self, write, codec, at):
        packed = bytearray(CODECS[codec](TEXT))
        packed[at] ^= 0x55
        lines, message = lines_until_error(write(bytes(packed)))
        assert sum(map(len, lines)) > 0.95 * len(TEXT) - BLOCK
        assert "cannot be unpacked further" in message

    @codecs
    def test_junk_after_compressed_data_raises_error_after_the_lines(self, write, codec):
        lines, message = lines_until_error(write(CODECS[codec](TEXT) + b"no such thing"))
        assert lines == LINES
        assert f"other bytes follow the end of the {codec} data" in message

    def test_truncated_stream_raises_the_error_on_every_read(self, write):
        packed = gzip.compress(TEXT)
        with open_log(write(packed[: len(packed) // 2])) as (stream, _):
            for _ in range(3):
                with pytest.raises(FormatError, match="truncated"):
                    while stream.readline():
                        pass

    @codecs
    @settings(max_examples=examples(40))
    @given(data=st.data())
    def test_open_log_reads_or_rejects_stream_with_changed_bytes(
        self, tmp_path_factory, codec, data
    ):
        packed = bytearray(CODECS[codec](TEXT[:5000]))
        for _ in range(data.draw(st.integers(1, 3))):
            packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
        path = tmp_path_factory.mktemp("changed") / "log"
        path.write_bytes(bytes(packed[: data.draw(st.integers(0, len(packed)))]))
        try:
            read(path)
        except FormatError as error:
            assert len(str(error)) < 250


def bomb(codec, megabytes):
    """Return `megabytes` of zeros, compressed piece by piece."""
    packer = {
        "gzip": lambda: zlib.compressobj(9, wbits=31),
        "bzip2": bz2.BZ2Compressor,
        "xz": lzma.LZMACompressor,
        "lzma": lambda: lzma.LZMACompressor(format=lzma.FORMAT_ALONE),
        "zstd": zstd.ZstdCompressor,
    }[codec]()
    piece = bytes(2**20)
    return b"".join([packer.compress(piece) for _ in range(megabytes)] + [packer.flush()])


class TestBombs:
    @codecs
    def test_stream_that_expands_too_much_raises_error(self, write, monkeypatch, codec):
        monkeypatch.setattr(limits, "MAX_EXPANSION", 500)
        monkeypatch.setattr(limits, "MIN_EXPANDED_BYTES", 2**21)
        packed = bomb(codec, 8)
        # The lines before it are delivered.
        path = write(CODECS[codec](b"one\n") + packed, "bomb.x")
        read_bytes = 0
        with (
            open_log(path) as (stream, _),
            pytest.raises(FormatError, match=r"expands more than 500 times.*unpack it"),
        ):
            assert stream.readline() == b"one\n"
            while data := stream.read(2**16):
                read_bytes += len(data)
        # Two MiB are allowed, or 500 times the file if that is more.
        assert read_bytes <= max(2**21, 500 * len(packed)) + 2**20

    def test_small_log_of_equal_lines_is_not_rejected(self, write):
        data = b"the same line\n" * 150_000
        packed = zstd.compress(data)
        assert len(data) > limits.MAX_EXPANSION * len(packed)
        assert read(write(packed))[0] == data

    def test_expansion_is_counted_over_all_members(self, write, monkeypatch):
        monkeypatch.setattr(limits, "MAX_EXPANSION", 10)
        monkeypatch.setattr(limits, "MIN_EXPANDED_BYTES", 1000)
        packed = b"".join(zstd.compress(bytes(900)) for _ in range(2000))
        with pytest.raises(FormatError, match="expands"):
            read(write(packed))

    def test_expansion_up_to_the_limit_is_allowed(self, write, monkeypatch):
        data = bytes(2**20)
        packed = zstd.compress(data)
        ratio = len(data) / len(packed)
        monkeypatch.setattr(limits, "MIN_EXPANDED_BYTES", 0)
        monkeypatch.setattr(limits, "MAX_EXPANSION", ratio)
        assert read(write(packed))[0] == data
        monkeypatch.setattr(limits, "MAX_EXPANSION", ratio - 1e-6)
        with pytest.raises(FormatError, match="expands"):
            read(write(packed))

    def test_zstd_window_over_the_limit_is_rejected(self, write, monkeypatch):
        # xz -9 has a dictionary of 64 MiB, zstd --ultra -22 and --long a window of 128.
        assert limits.MAX_WINDOW_BYTES >= 2**27
        compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 24})
        packed = compressor.compress(TEXT) + compressor.flush()  # the size is not known before
        assert read(write(packed))[0] == TEXT
        monkeypatch.setattr(limits, "MAX_WINDOW_BYTES", 2**23)
        with pytest.raises(FormatError, match=r"zstd: .*If it is not damaged, unpack it"):
            read(write(packed))

    @pytest.mark.parametrize(
        ("codec", "kind", "filter_"),
        [("xz", lzma.FORMAT_XZ, lzma.FILTER_LZMA2), ("lzma", lzma.FORMAT_ALONE, lzma.FILTER_LZMA1)],
    )
    def test_lzma_dictionary_over_the_limit_is_rejected(
        self, write, monkeypatch, codec, kind, filter_
    ):
        filters = [{"id": filter_, "dict_size": 2**21}]
        packed = lzma.compress(TEXT[:20_000], format=kind, filters=filters)
        assert read(write(packed))[0] == TEXT[:20_000]
        monkeypatch.setattr(limits, "MAX_WINDOW_BYTES", 2**20)
        with pytest.raises(FormatError, match=rf"{codec}: .*If it is not damaged, unpack it"):
            read(write(packed))

    def test_reading_a_line_of_60_mib_takes_less_than_30_mib(self, tmp_path):
        """A line in a few kB of zstd; in a process of its own, whose peak is its own."""
        path = tmp_path / "log.zst"
        path.write_bytes(zstd.compress(b'["' + b"x" * 60 * 2**20 + b'"]\nnext\n'))
        script = """
            import sys
            from pathlib import Path
            from memory import peak_bytes
            from tunedb import limits
            from tunedb.formats.base import read_lines
            from tunedb.formats.streams import open_log
            limits.MAX_LINE_BYTES = 2**20
            limits.MAX_EXPANSION = 10**6
            before = peak_bytes()
            with open_log(Path(sys.argv[1])) as (stream, position):
                lines = [(x.number, len(x.data), x.too_long) for x in read_lines(stream, position)]
            print(peak_bytes() - before)
            print(lines)
        """
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
        done = printed("-c", textwrap.dedent(script), path, env=environment)
        grown, lines = done.splitlines()
        assert lines == f"[(1, {limits.MAX_QUARANTINE_BYTES}, True), (2, 4, False)]"
        assert int(grown) < 30 * 2**20


class TestRefused:
    @pytest.mark.parametrize("names", [["log.json"], []])
    def test_open_log_rejects_zip_archives(self, tmp_path, names):
        path = tmp_path / "dataset_cpu_v3.3"
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(name, TEXT)
        self.refuse(path, "a zip archive; unpack it")

    @pytest.mark.parametrize("mode", ["w", "w:gz"])
    @pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT])
    def test_open_log_rejects_tar_archives(self, tmp_path, mode, kind):
        path = tmp_path / "logs.tar"
        with tarfile.open(path, mode, format=kind) as archive:
            archive.add(__file__, "log.json")
        self.refuse(path, "a tar archive; unpack it")

    def refuse(self, path, message, error=FormatError):
        with pytest.raises(error, match=message), open_log(path):
            pass

    def test_open_log_rejects_files_compressed_twice_and_other_archives(self, write):
        for codec, pack in CODECS.items():
            message = f"{codec} inside a compressed file; unpack the"
            self.refuse(write(gzip.compress(pack(TEXT))), message)
        self.refuse(write(b"7z\xbc\xaf\x27\x1c\0\4"), "a 7z archive")
        self.refuse(write(b"Rar!\x1a\x07\x01"), "a rar archive")

    def test_open_log_rejects_missing_files_directories_and_codecs(
        self, write, tmp_path, monkeypatch
    ):
        self.refuse(tmp_path / "gone", "gone: no such file", NotFoundError)
        self.refuse(tmp_path, "cannot be opened", StorageError)
        monkeypatch.setitem(sys.modules, "bz2", None)
        self.refuse(write(CODECS["bzip2"](TEXT)), "this Python cannot unpack bzip2")

    def test_read_error_of_medium_raises_storage_error(self):
        # /proc/self/mem begins with a page that no process has.
        path = Path("/proc/self/mem")
        if not path.exists():
            pytest.skip("there is no /proc")
        self.refuse(path, "mem: cannot be read", StorageError)


class TestFailingLater:
    class Failing(io.RawIOBase):
        """Delivers some data and then an error of the medium."""

        def __init__(self, data):
            self.pieces = [data[:10], data[10:]]

        def readable(self):
            return True

        def readinto(self, buffer):
            if not self.pieces:
                raise OSError(5, "Input/output error")
            piece = self.pieces.pop(0)
            buffer[: len(piece)] = piece
            return len(piece)

    @pytest.mark.parametrize("pack", [bytes, gzip.compress])
    def test_lines_before_a_read_error_are_delivered(self, monkeypatch, pack):
        buffer = io.BufferedReader(self.Failing(pack(b"one\ntwo\n")))
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=buffer))
        lines = []
        with (
            open_log(None) as (stream, _),
            pytest.raises(StorageError, match="<stdin>: cannot be read"),
        ):
            while line := stream.readline():
                lines.append(line)
        assert lines == [b"one\n", b"two\n"]


class TestStandardInput:
    SCRIPT = (
        "import sys; from tunedb.formats.streams import open_log\n"
        "with open_log(None) as (s, p): print(len(s.read()), p())\n"
        "print(sys.stdin.closed)"
    )

    @pytest.mark.parametrize("pack", [bytes, zstd.compress])
    def test_open_log_reads_standard_input_from_a_pipe(self, pack):
        data = pack(TEXT)
        done = printed("-c", self.SCRIPT, input=data, text=False)
        assert done.decode().split() == [str(len(TEXT)), str(len(data)), "False"]

    def test_open_log_recognises_gzip_from_a_slow_writer(self):
        """The first bytes may come one at a time."""
        process = subprocess.Popen(
            [sys.executable, "-c", self.SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        packed = gzip.compress(b"one\ntwo\n")
        with process:
            for byte in packed:
                process.stdin.write(bytes([byte]))
                process.stdin.flush()
            process.stdin.close()
            assert process.stdout.read().split() == [b"8", str(len(packed)).encode(), b"False"]

    def test_open_log_raises_not_found_without_standard_input(self, monkeypatch):
        monkeypatch.setattr(sys, "stdin", None)
        with pytest.raises(NotFoundError, match="no standard input"), open_log(None):
            pass
