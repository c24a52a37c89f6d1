"""Bundles: the reader returns the written rows, and rejects damaged and hostile bundles."""

import io
import json
import os
import random
import struct
import sys
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from builders import make_measurement, make_session
from bundle_bytes import MANIFEST, block, bundle_of, end, put_together, seal, take_apart
from effort import examples, long
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import printed
from raising import raises_line
from test_column_codec import rows_of

from tunedb import limits
from tunedb.errors import (
    FormatError,
    IntegrityError,
    LimitError,
    NotFoundError,
    StorageError,
    TuneDBError,
    UsageError,
)
from tunedb.exchange import bundle
from tunedb.exchange.bundle import BundlePeer, new_manifest, write_bundle, zstd
from tunedb.exchange.column_codec import LAYOUT, encode
from tunedb.exchange.database_peer import DatabasePeer
from tunedb.records import Failure, FailureKind, Phase, Source
from tunedb.storage import exchange_types
from tunedb.storage.columns import BUNDLE_VERSION
from tunedb.storage.exchange_types import EVERYTHING, Chunk, Selection
from tunedb.storage.store import Store

WITH_FEATURES = Selection(features=True)


def without_digests(chunks):
    """Return the rows of chunks in order, each with its table, without digests."""
    return [
        (chunk.table, tuple(v if kind else None for v, kind in zip(row, kinds, strict=True)))
        for chunk in chunks
        for kinds in [LAYOUT[chunk.table]]
        for row in chunk.rows
    ]


class Slate:
    """A file to rewrite thousands of times; truncating one by its name waits for the disk."""

    def __init__(self, path):
        self._file = path.open("wb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def write(self, data):
        self._file.seek(0)
        self._file.write(data)
        self._file.truncate()
        self._file.flush()


@pytest.fixture(scope="module")
def filled(sqlite_template, tmp_path_factory):
    """The path of a database with failures, sessions, contexts and a retraction."""
    path = tmp_path_factory.mktemp("filled") / "filled.db"
    path.write_bytes(sqlite_template.read_bytes())
    failure = Failure(FailureKind.TIMEOUT, Phase.RUN, "took too long \x1b[31m", 1.5)
    batch = [
        make_measurement(i, (1e-3 * (i + 1), 2e-3), workload=i % 3, target=i % 2, occurrence=i)
        for i in range(12)
    ]
    batch += [
        make_measurement(20, None, failure=failure),
        make_measurement(21, (1e-3,), session=make_session(), measured_at=1_700_000_000_000_000),
        make_measurement(22, (), workload=1, args_info=b'[["TENSOR","float32",[4]]]', extra=b"[1]"),
        make_measurement(23, (1e-3,), donor=bytes(16), all_cost=0.25, context=b'{"v":1}'),
    ]
    with Store(path) as store:
        store.batches.load(batch, Source("nightly"))
        store.trust.retract([3], "measured under load")
    return path


@pytest.fixture(scope="module")
def small(filled):
    """The bytes of a bundle of that database."""
    with own(filled) as peer:
        return bundle_of(peer.chunks(EVERYTHING))


@pytest.fixture
def whole(small, tmp_path):
    """The path of that bundle."""
    path = tmp_path / "whole.tunedb"
    path.write_bytes(small)
    return path


ONE = [Chunk("sketch", [(1, None, b"[]")])]


def own(path):
    return closing(DatabasePeer(str(path), own=True))


def test_bundle_gives_the_same_rows_as_its_database(filled, tmp_path):
    path = tmp_path / "all.tunedb"
    seen = []
    with own(filled) as peer:
        expected = without_digests(peer.chunks(EVERYTHING))
        manifest = new_manifest(peer.store_key, EVERYTHING)
        info = write_bundle(path, peer.chunks(EVERYTHING), manifest, on_progress=seen.append)
    assert seen[-1] == 16
    assert {table for table, _ in expected} >= {"failure", "session", "context", "retraction"}
    with BundlePeer(path) as peer:
        assert (peer.total, peer.store_key) == (16, manifest.store)
        assert (peer.manifest, peer.info) == (manifest, info)
        assert info.size == path.stat().st_size
        with pytest.raises(UsageError, match="no positions"):
            peer.chunks(EVERYTHING, exchange_types.Position(3))
        # A bundle can be read several times, also at once.
        first, second = peer.chunks(EVERYTHING), peer.chunks(EVERYTHING)
        assert [*without_digests(first)] == [*without_digests(second)] == expected
    assert [file.name for file in tmp_path.iterdir()] == ["all.tunedb"]


def test_bundle_preserves_any_rows_of_all_tables(tmp_path):
    """Bundles check neither the order of tables nor the meaning of rows."""

    @settings(max_examples=examples(40))
    @given(
        st.lists(
            st.sampled_from(sorted(exchange_types.COLUMNS)).flatmap(
                lambda table: rows_of(table, 6).map(lambda rows: Chunk(table, rows))
            ),
            max_size=6,
        )
    )
    def run(chunks):
        path = tmp_path / "any.tunedb"
        path.write_bytes(bundle_of(chunks))
        with BundlePeer(path) as peer:
            assert [(c.table, row) for c in peer._all() for row in c.rows] == [
                (c.table, row) for c in chunks for row in c.rows
            ]

    run()


def test_bundles_of_one_database_differ_only_in_their_time(filled, tmp_path):
    def make(created_at):
        with own(filled) as peer:
            manifest = replace(new_manifest(peer.store_key, EVERYTHING), created_at=created_at)
            return bundle_of(peer.chunks(EVERYTHING), manifest)

    first, again, later = make(1), make(1), make(2)
    assert first == again
    assert [i for i in range(len(first) - 32) if first[i] != later[i]] == [
        first.index(b'"created_at":1') + len('"created_at":')
    ]


def test_writer_splits_large_chunks_into_blocks(tmp_path, monkeypatch):
    path = tmp_path / "x.tunedb"
    rows = [(i, None, bytes(100)) for i in range(2 * limits.BATCH_ROWS + 1)]
    monkeypatch.setattr(limits, "BLOCK_BYTES", 100_000)
    write_bundle(path, [Chunk("sketch", rows)], MANIFEST)
    with BundlePeer(path) as peer:
        found = list(peer._all())
    assert [row for chunk in found for row in chunk.rows] == rows
    assert max(len(encode("sketch", chunk.rows)) for chunk in found) <= 100_000


def test_writer_gives_large_rows_own_blocks_and_rejects_too_large_ones(tmp_path, monkeypatch):
    path = tmp_path / "x.tunedb"
    monkeypatch.setattr(limits, "BLOCK_BYTES", 1_000)
    monkeypatch.setattr(limits, "MAX_BLOCK_BYTES", 2_000)
    write_bundle(path, [Chunk("sketch", [(i, None, bytes(1_500)) for i in range(3)])], MANIFEST)
    with BundlePeer(path) as peer:
        assert [len(chunk.rows) for chunk in peer._all()] == [1, 1, 1]
    with pytest.raises(LimitError, match="merge the database itself"):
        write_bundle(tmp_path / "y.tunedb", [Chunk("sketch", [(1, None, bytes(2_000))])], MANIFEST)
    assert [file.name for file in tmp_path.iterdir()] == ["x.tunedb"]


def test_reader_rejects_bundle_truncated_at_any_byte(small, tmp_path):
    """It also rejects one with bytes after the end."""
    path = tmp_path / "cut.tunedb"
    with Slate(path) as slate:
        for size in range(len(small)):
            slate.write(small[:size])
            with raises_line((FormatError, IntegrityError)) as caught:
                BundlePeer(path)
            assert str(caught.value).startswith(f"{path}: ")
        slate.write(small + b"\n")
        with pytest.raises(IntegrityError, match="get it again"):
            BundlePeer(path)


@pytest.mark.parametrize("bits", [1, long(8)])
def test_reader_rejects_bundle_with_any_flipped_bit(small, tmp_path, bits):
    path = tmp_path / "flipped.tunedb"
    with Slate(path) as slate:
        for at in range(len(small)):
            for bit in range(at % 8, at % 8 + bits):
                changed = bytearray(small)
                changed[at] ^= 1 << bit % 8
                slate.write(changed)
                with pytest.raises((FormatError, IntegrityError)):
                    BundlePeer(path)


HEAD, UNPACKED = take_apart(bundle_of(ONE))
SKETCH = encode("sketch", [(1, None, b"[]")])


def manifest(**values):
    return json.dumps(json.loads(HEAD) | values).encode()


def nested(depth):
    return b'{"a":' * depth + b"1" + b"}" * depth


def sketches(rows, counted):
    return put_together(HEAD, block("sketch", rows, SKETCH) + end(sketch=counted))


HOSTILE = {
    "newer": (seal(HEAD, zstd.compress(UNPACKED), version=BUNDLE_VERSION + 1), "upgrade tunedb"),
    "no version": (seal(HEAD, zstd.compress(UNPACKED), version=0), "a bundle of version 0"),
    "manifest too long": (seal(HEAD, b"", length=2**32 - 1), "a manifest of 4294967295 bytes"),
    "manifest over the end": (seal(HEAD, b"", length=len(HEAD) + 1), "longer than the"),
    "manifest is a list": (put_together(b"[]", UNPACKED), "the manifest is not an object"),
    "manifest is not JSON": (put_together(b"{", UNPACKED), "not JSON"),
    "manifest is nested": (put_together(nested(40), UNPACKED), "nested deeper"),
    "manifest is deep": (put_together(nested(20_000), UNPACKED), "not JSON|nested deeper"),
    "another format": (put_together(manifest(format="zip"), UNPACKED), "not belong to a bundle"),
    "no store": (put_together(manifest(store=None), UNPACKED), "has no store"),
    "empty store": (put_together(manifest(store=""), UNPACKED), "invalid store"),
    "long store": (put_together(manifest(store="x" * 1000), UNPACKED), "invalid store"),
    "time of day is true": (put_together(manifest(created_at=True), UNPACKED), "no created_at"),
    "time of day is huge": (put_together(manifest(created_at=2**70), UNPACKED), "64 bits"),
    "no frame": (seal(HEAD, b""), "end too early"),
    "junk": (seal(HEAD, b"junk" * 10), "cannot be unpacked"),
    "cut frame": (seal(HEAD, zstd.compress(UNPACKED)[:-3]), "end too early"),
    "two frames": (seal(HEAD, zstd.compress(UNPACKED) * 2), "follow its end"),
    "more in the frame": (put_together(HEAD, UNPACKED + b"x"), "follow its end"),
    "no end": (put_together(HEAD, block("sketch", 1, SKETCH)), "end too early"),
    "unknown table": (put_together(HEAD, block(99, 1, b"") + end()), "unknown table number 99"),
    "no rows": (put_together(HEAD, block("sketch", 0, b"") + end()), "a block of 0 rows"),
    "too many rows": (put_together(HEAD, block("sketch", 10**6, b"") + end()), "of 1000000 rows"),
    "too long": (put_together(HEAD, struct.pack("<BIQ", 0, 1, 2**63)), "is over"),
    "longer than there is": (put_together(HEAD, struct.pack("<BIQ", 0, 1, 999)), "end too early"),
    "no columns": (put_together(HEAD, block("sketch", 1, b"\0")), "table sketch, column id"),
    "rows that are not there": (sketches(2, 2), "table sketch"),
    "counts lie": (sketches(1, 2), "does not hold the rows"),
    "counts are text": (sketches(1, "1"), "does not hold the rows"),
    "counts are too long": (put_together(HEAD, struct.pack("<BIQ", 255, 0, 2**40)), "is|are over"),
    "counts are a list": (put_together(HEAD, block(255, 0, b"[]")), "is not an object"),
    "nothing": (b"", "not a bundle"),
    "an archive": (b"PK\3\4", "not a bundle"),
    "a database": (b"SQLite format 3\0" + bytes(100), "not a bundle"),
    "other ends of lines": (bundle.MAGIC.replace(b"\r\n", b"\n") + bytes(100), "not a bundle"),
    "the first bytes alone": (bundle.MAGIC, "truncated"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bundles_are_refused(name, whole):
    data, message = HOSTILE[name]
    whole.write_bytes(data)
    with raises_line((FormatError, LimitError), match=message):
        BundlePeer(whole)


def test_reader_rejects_large_compression_window(whole):
    options = {int(zstd.CompressionParameter.window_log): 27}
    compressor = zstd.ZstdCompressor(options=options)
    # In two steps: a frame whose size is known asks for no more than that.
    frame = compressor.compress(UNPACKED) + compressor.flush()
    whole.write_bytes(seal(HEAD, frame))
    with pytest.raises(FormatError, match="cannot be unpacked"):
        BundlePeer(whole)


def bombs(*paths):
    """Return the errors of reading bundles, and the peak memory that it takes."""
    code = (
        "import sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "from memory import peak_bytes\n"
        "from tunedb.exchange.bundle import BundlePeer\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n        BundlePeer(path)\n"
        "    except Exception as error:\n        print(type(error).__name__, error)\n"
        "print(peak_bytes())\n"
    )
    *messages, peak = printed("-c", code, *paths).splitlines()
    return messages, int(peak)


def test_reader_rejects_decompression_bombs_in_little_memory(tmp_path, monkeypatch):
    """A small frame unpacks to 400 MiB of zeros; another one to endless blocks."""
    compressor = zstd.ZstdCompressor(level=1)
    parts = [compressor.compress(struct.pack("<BIQ", 5, 1, limits.MAX_BLOCK_BYTES))]
    parts += [compressor.compress(bytes(2**24)) for _ in range(25)]
    zeros, endless = tmp_path / "zeros.tunedb", tmp_path / "endless.tunedb"
    zeros.write_bytes(seal(HEAD, b"".join([*parts, compressor.flush()])))
    data = b"\0" + bytes(8) + bytes(9) + b"\0" + bytes(9)
    unpacked = block("sketch", limits.BATCH_ROWS, data) * 100_000
    endless.write_bytes(seal(HEAD, zstd.compress(unpacked)))
    (of_zeros, of_endless), peak = bombs(zeros, endless)
    assert of_zeros.startswith("LimitError") and "as a decompression bomb does" in of_zeros
    assert of_endless.startswith("LimitError") and "8 rows for each byte" in of_endless
    assert peak < 300 * 2**20
    monkeypatch.setattr(limits, "MAX_ROWS_PER_BYTE", 10**9)
    monkeypatch.setattr(limits, "MIN_EXPANDED_BYTES", 2**14)
    with pytest.raises(LimitError, match="as a decompression bomb does"):
        BundlePeer(endless)


def test_reader_and_writer_reject_long_manifests(tmp_path):
    """A selection of hundreds of workloads fits, and a longer one does not."""
    path = tmp_path / "x.tunedb"
    words = ["x" * 100] * (limits.MAX_MANIFEST_BYTES // 100)
    path.write_bytes(put_together(manifest(selection={"workloads": words}), UNPACKED))
    with pytest.raises(LimitError, match=r"a manifest of \d+ bytes is over"):
        BundlePeer(path)
    with pytest.raises(LimitError, match=r"a manifest of \d+ bytes is over"):
        bundle_of(ONE, replace(MANIFEST, selection={"workloads": words}))


def test_unreadable_bundles_are_not_written(monkeypatch):
    monkeypatch.setattr(limits, "MIN_BUNDLE_ROWS", 10_000)
    rows = [(1, None, b"")] * limits.BATCH_ROWS
    with pytest.raises(LimitError, match="rows for each byte"):
        bundle_of([Chunk("sketch", rows)] * 50)


@pytest.mark.parametrize("amount", [400, long(100_000)])
def test_reader_reads_or_rejects_mutated_bundles(small, amount, tmp_path):
    """The digest fits the changed bytes; the reader raises errors of tunedb only."""
    rng = random.Random(f"bundle {amount}")
    path, kept = tmp_path / "changed.tunedb", 0
    path.write_bytes(small)
    with BundlePeer(path) as peer:
        chunks = list(peer.chunks(WITH_FEATURES))
    # The reader stops at the first error, so most seeds have one block.
    seeds = [take_apart(small), *(take_apart(bundle_of([chunk])) for chunk in chunks)]
    with Slate(path) as slate:
        for number in range(amount):
            head, unpacked = map(bytearray, rng.choice(seeds))
            frame = bytearray(zstd.compress(unpacked)) if number % 8 == 7 else None
            for _ in range(rng.randint(1, 3)):
                changed = head if rng.random() < 0.1 else unpacked if frame is None else frame
                change(rng, changed)
            frame = zstd.compress(unpacked) if frame is None else bytes(frame)
            slate.write(seal(bytes(head), frame))
            try:
                with BundlePeer(path) as peer:
                    for chunk in peer.chunks(WITH_FEATURES):
                        kept += len(chunk.rows)
            except TuneDBError as error:
                assert "\n" not in str(error)
    assert kept > amount / 4


def change(rng, data):
    """Change, remove, repeat or replace a few bytes."""
    at, kind = rng.randrange(len(data)), rng.randrange(4)
    if kind == 0:
        data[at] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
    elif kind == 1:
        del data[at : at + rng.randint(1, 20)]
    elif kind == 2:
        data[at:at] = data[at : at + rng.randint(1, 40)]
    else:
        size = rng.choice([1, 2, 4, 8])
        data[at : at + size] = rng.choice([b"\xff" * size, bytes(size), rng.randbytes(size)])


def test_invalid_paths_are_refused(tmp_path):
    with pytest.raises(NotFoundError, match="no such file"):
        BundlePeer(tmp_path / "missing")
    with pytest.raises(UsageError, match="a directory"):
        BundlePeer(tmp_path)
    with pytest.raises(UsageError, match="a directory"):
        write_bundle(tmp_path, [], MANIFEST)
    with pytest.raises(StorageError, match="cannot be written"):
        write_bundle(tmp_path / "missing" / "x.tunedb", [], MANIFEST)


def test_reader_and_writer_reject_path_of_a_database(filled):
    with pytest.raises(FormatError, match="a database, not a bundle"):
        BundlePeer(filled)
    before = filled.read_bytes()
    with pytest.raises(UsageError, match="a database, which a bundle would replace"):
        write_bundle(filled, ONE, MANIFEST, force=True)
    assert filled.read_bytes() == before


def failing(error):
    yield from ONE
    raise error


@pytest.mark.parametrize(
    ("chunks", "force", "error", "message"),
    [
        (ONE, False, UsageError, "--force"),
        ([], True, NotFoundError, "nothing was written"),
        (failing(StorageError("the connection was lost")), True, StorageError, "was lost"),
        (failing(KeyboardInterrupt()), True, KeyboardInterrupt, None),
    ],
    ids=["no force", "no rows", "an error", "Ctrl-C"],
)
def test_writer_keeps_existing_file_unless_all_is_well(chunks, force, error, message, tmp_path):
    path = tmp_path / "x.tunedb"
    path.write_bytes(b"mine")
    with pytest.raises(error, match=message):
        write_bundle(path, chunks, MANIFEST, force=force)
    assert path.read_bytes() == b"mine"
    assert [file.name for file in tmp_path.iterdir()] == ["x.tunedb"]
    write_bundle(path, ONE, MANIFEST, force=True)
    assert path.read_bytes() == bundle_of(ONE)


def test_writer_keeps_a_file_that_appears_during_the_write(tmp_path):
    path = tmp_path / "x.tunedb"

    def chunks():
        yield from ONE
        path.write_bytes(b"mine")

    with pytest.raises(UsageError, match="--force"):
        write_bundle(path, chunks(), MANIFEST)
    assert path.read_bytes() == b"mine"
    assert [file.name for file in tmp_path.iterdir()] == ["x.tunedb"]


def test_writer_leaves_no_file_on_a_full_disk(mount):
    folder = mount("64k")
    rows = [(i, None, os.urandom(1_000)) for i in range(200)]
    with pytest.raises(StorageError, match="No space left") as caught:
        write_bundle(folder / "x.tunedb", [Chunk("sketch", rows)], MANIFEST)
    assert str(caught.value).startswith(f"{folder / 'x.tunedb'}: ")
    assert list(folder.iterdir()) == []


def test_reader_accepts_bundle_from_standard_input_with_unknown_keys(monkeypatch):
    data = put_together(manifest(colour="red"), UNPACKED)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    with BundlePeer("-") as peer:
        assert peer.manifest == MANIFEST
        assert [chunk.rows for chunk in peer._all()] == [ONE[0].rows]


def test_reader_rejects_standard_input_that_does_not_fit_on_the_disk(mount, monkeypatch, tmp_path):
    folder = mount("64k")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    path = tmp_path / "large"
    path.write_bytes(bundle.MAGIC + bytes(200_000))
    with path.open("rb") as file:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
        with pytest.raises(StorageError, match="<stdin>: cannot be kept in"):
            BundlePeer("-")
    assert list(folder.iterdir()) == []


def test_closed_bundle_raises_storage_error(whole):
    with BundlePeer(whole) as peer:
        chunks = peer.chunks(EVERYTHING)
    with pytest.raises(StorageError, match="it was closed"):
        next(chunks)


def test_writer_accepts_stream_that_cannot_seek():
    class Pipe(io.RawIOBase):
        def __init__(self):
            self.data = b""

        def write(self, data):
            self.data += bytes(data)
            return len(data)

    pipe = Pipe()
    write_bundle(pipe, ONE, MANIFEST)
    assert pipe.data == bundle_of(ONE)
