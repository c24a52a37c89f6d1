"""Launches and their counters from one database to another."""

import re
from contextlib import closing

import pytest
from builders import make_measurement
from bundle_bytes import bundle_of, seal, take_apart
from exchanges import OWN, Given, bundled, changed, given_by
from unions import Makes, launch, pool

from tunedb import identity, limits
from tunedb.errors import FormatError
from tunedb.exchange import bundle as framing
from tunedb.exchange.bundle import BundlePeer
from tunedb.exchange.database_peer import DatabasePeer
from tunedb.exchange.merge import merge
from tunedb.exchange.sync import pull, push
from tunedb.launches import CounterSet, Launch
from tunedb.maintenance.check import check
from tunedb.storage import schema
from tunedb.storage.exchange_types import COLUMNS, Chunk, Selection
from tunedb.storage.store import Store

#: The records of kernels, and another one.
KERNELS = pool()[-3:]
RECORDS = (*KERNELS, make_measurement(1))


@pytest.fixture
def theirs(makes):
    """A database of others with launches of profiled kernels."""
    return makes.holding(OWN, *RECORDS)


@pytest.fixture(scope="module")
def chunks(sqlite_template, tmp_path_factory):
    """The chunks of such a database."""
    makes = Makes(sqlite_template, tmp_path_factory.mktemp("theirs"))
    return given_by(makes.holding(OWN, *RECORDS))


def launches(store):
    """Return the digests of the launches of a database."""
    return {row.launch.digest(row.digest) for row in store.launches.iterate()}


EXPECTED = {one.digest(record.digest) for record in KERNELS for one in record.launches}


def test_selection_gives_only_launches_of_its_records(store, theirs):
    """A database selects by SQL, a bundle by numbers; both leave out other sets of counters."""
    rocprof = CounterSet("rocprof", None, None, (("other", ""),))
    with Store(theirs) as there:
        profiled = Launch("x", 1, counter_set=rocprof, values=(1.0,))
        there.launches.add([(make_measurement(1), profiled)])
    wanted = Selection(workloads=("matmul",))
    for peer in (DatabasePeer(theirs), BundlePeer(bundled(theirs))):
        with closing(peer):
            tables = [chunk for chunk in peer.chunks(wanted) if chunk.table == "counter_set"]
            assert {row[2] for chunk in tables for row in chunk.rows} == {"ncu"}
            report = merge(store, peer, selection=wanted)
        assert (report.rejected, launches(store)) == (0, EXPECTED)


def test_later_launches_come_with_the_next_exchange(here, theirs):
    with Store(theirs) as there:
        pull(here, theirs)
        assert launches(here) == EXPECTED
        added = launch(2, number=5), Launch("later", 7)
        there.launches.add([(KERNELS[0], added[0]), (make_measurement(1), added[1])])
        report = pull(here, theirs)
        assert (report.launches, report.read, report.rejected) == (2, 0, 0)
        assert launches(here) == launches(there)
        assert pull(here, theirs).launches == 0
        # A push transfers launches that were added here.
        here.launches.add([(KERNELS[1], Launch("ours", 3))])
        assert push(here, theirs).launches == 1
        assert launches(here) == launches(there)


def test_pull_compares_all_launches_if_some_were_lost(here, theirs):
    """New launches have the numbers of lost ones, so the position of the last pull is invalid."""
    with Store(theirs) as there:
        there.launches.add([(KERNELS[0], launch(0, number=n)) for n in range(2, 9)])
        pull(here, theirs)
        with there._db.transaction() as connection:
            connection.exec_driver_sql("DELETE FROM launch WHERE id > 6")
        there.launches.add([(KERNELS[0], Launch("new", 7))])
    assert pull(here, theirs).launches == 1
    assert here.counts().launches == 14


def test_bundles_of_the_first_version_are_read(store, chunks, tmp_path):
    """They have numbers and counts only of the tables up to retractions."""
    path = tmp_path / "old.tunedb"
    old = [c for c in chunks if c.table not in ("launch", "counter_set")]
    head, unpacked = take_apart(bundle_of(old))
    older = unpacked.replace(b'"counter_set":0,', b"").replace(b'"launch":0,', b"")
    shorter = len(unpacked) - len(older)
    assert shorter > 20
    at = older.rindex(b'{"args_info"')
    length = int.from_bytes(older[at - 8 : at], "little") - shorter
    older = older[: at - 8] + length.to_bytes(8, "little") + older[at:]
    path.write_bytes(seal(head, framing.zstd.compress(older), version=1))
    with closing(BundlePeer(path)) as peer:
        assert peer.info.counts["launch"] == 0
        report = merge(store, peer)
    assert (report.new, report.launches, report.rejected) == (4, 0, 0)
    # A bundle of the first version with launches is rejected.
    head, unpacked = take_apart(bundle_of(chunks))
    path.write_bytes(seal(head, framing.zstd.compress(unpacked), version=1))
    with pytest.raises(FormatError, match="unknown table number"):
        BundlePeer(path)


#: Table, values that are changed → reason of the refusal. What no launch may be is in
#: tests/storage/test_launches.py in full.
HOSTILE = [
    ("launch", {"digest": b"x" * 16}, "its digest does not match its contents"),
    ("launch", {"kernel": "other"}, "its digest does not match its contents"),
    ("launch", {"counters": b"\0" * 8}, "its digest does not match|values of"),
    ("launch", {"threads": -1}, "threads of a block: -1 is not from 1"),
    ("launch", {"block_x": None}, "without one of its extents|extent"),
    ("launch", {"grid_x": "8"}, "extent of a block or grid"),
    ("launch", {"kernel": "a\0b"}, "its kernel has NUL"),
    ("launch", {"kernel": b"bytes"}, "its kernel is not text"),
    ("launch", {"kernel": "k" * (limits.MAX_KERNEL_CHARS + 1)}, "its kernel is longer"),
    ("launch", {"seconds": float("nan")}, "its time is not a finite number"),
    ("launch", {"seconds": "soon"}, "its time is not a finite number"),
    ("launch", {"counters": "NaN"}, "its counters are not numbers"),
    ("launch", {"counters": b"\0" * 7}, "not float64 values"),
    ("launch", {"counter_set": 99}, "its set of counters was rejected or is missing"),
    ("launch", {"counter_set": "1"}, "its set of counters was rejected or is missing"),
    ("launch", {"measurement": 99}, "measurement that was rejected or is missing"),
    ("launch", {"measurement": None}, "it belongs to no measurement"),
    ("counter_set", {"digest": b"x" * 16}, "its digest does not match its contents"),
    ("counter_set", {"tool": ""}, "its tool is not text"),
    ("counter_set", {"tool": "t" * 257}, "its tool is longer"),
    ("counter_set", {"tool_version": 7}, "version is not text"),
    ("counter_set", {"counters": "[NaN]"}, "not JSON"),
    ("counter_set", {"counters": '{"a":1}'}, "not a list"),
    ("counter_set", {"counters": '[["a", ""]]'}, "not in the canonical form"),
    ("counter_set", {"counters": '[["a\\u0000",""]]'}, "canonical form|NUL"),
    ("counter_set", {"counters": "[" + " " * limits.MAX_COUNTER_SET_BYTES + "]"}, "longer than"),
]


@pytest.mark.parametrize(("table", "values", "message"), HOSTILE)
def test_hostile_rows_are_refused_and_counted(table, values, message, chunks, here):
    report = merge(here, Given(changed(chunks, table, **values)))
    assert report.new == 4
    assert here.counts().launches == report.launches < 6
    # The launches of a rejected set of counters are rejected too.
    assert report.rejected == 6 - report.launches + (table == "counter_set")
    assert any(re.search(message, reason) for reason in report.reasons)
    assert launches(here) < EXPECTED
    assert check(here.url).problems == []


def test_launches_of_a_measurement_that_is_not_here_are_left_out(chunks, here):
    """Launches that were added later name their measurement by digests."""
    (rows,) = (c.rows for c in chunks if c.table == "launch")
    row = dict(zip(COLUMNS["launch"], rows[0], strict=True))
    absent = {"measurement": None, "program_digest": b"p" * 16, "measurement_digest": b"m" * 16}
    later = Chunk("launch", [tuple((row | absent | {"digest": None}).values())])
    report = merge(here, Given([*chunks, later]))
    assert (report.launches, report.rejected) == (6, 0)
    assert check(here.url).problems == []


def test_merge_normalises_nan_in_counters(chunks, here):
    """Bundles have no digests, so other bytes of a NaN would make another launch."""
    strange = b"\x01" + b"\0" * 5 + b"\xf8\xff"
    (rows,) = (c.rows for c in chunks if c.table == "launch")
    at = COLUMNS["launch"].index("counters")
    number = next(n for n, row in enumerate(rows) if row[at] and row[at][8:])
    data = rows[number][at][:8] + strange
    silent = changed(chunks, "launch", row=number, counters=data, digest=None)
    assert merge(here, Given(silent)).rejected == 0
    assert launches(here) == EXPECTED


def test_merge_rejects_launches_of_a_rejected_source(here, theirs):
    """Records in the name of this store are rejected, and their launches too."""
    digest = identity.digest("source", here.key.encode(), b"nightly")
    with Store(theirs) as there, there._db.transaction() as connection:
        connection.execute(schema.source.update().values(store=here.key, digest=digest))
    with closing(DatabasePeer(theirs)) as peer:
        report = merge(here, peer)
        # The launches come from the same source.
        assert (report.new, report.launches, report.rejected) == (0, 0, 4 + 6)
        assert here.counts().launches == 0
        assert merge(here, peer, accept_trusted_names=True).launches == 6
    assert check(here.url).problems == []
