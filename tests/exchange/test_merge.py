"""Merges: rows that are stored, rows that are rejected with a reason, rows that never change.

What is decided before the database is asked runs on SQLite alone.
"""

import struct
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import make_measurement, make_session, make_target, make_workload
from exchanges import THEIRS, Given, changed, given_by, rename
from fake_sets import Steps
from processes import printed
from unions import Makes, contents, merge_from, pool, take

from tunedb import limits
from tunedb.errors import LimitError, StorageError, UsageError
from tunedb.exchange import receive
from tunedb.exchange.database_peer import DatabasePeer
from tunedb.exchange.merge import merge
from tunedb.exchange.verify import Bodies
from tunedb.features.base import load_feature_sets
from tunedb.maintenance.check import check
from tunedb.records import Alias, Source, SourceKind, Trace, Trust
from tunedb.storage.exchange_types import COLUMNS, Chunk, ForeignSource, Selection
from tunedb.storage.store import Store

WITH_FEATURES = Selection(features=True)
FEATURES = Steps("x", columns=("a", "b"))


@pytest.fixture(scope="module")
def theirs(sqlite_template, tmp_path_factory):
    """A database of another team, with a record of each kind; no test changes it."""
    path = Makes(sqlite_template, tmp_path_factory.mktemp("theirs")).empty(THEIRS)
    with Store(path) as store:
        store.batches.add(pool(), Source("nightly", SourceKind.FILE))
        store.workloads.add(pool()[0].program.workload, [Alias("script", "ab" * 16)])
        store.trust.retract([1], "the clock was wrong")
    return path


@pytest.fixture(scope="module")
def chunks(theirs):
    """The chunks of that database; :func:`exchanges.changed` returns others."""
    return given_by(theirs, WITH_FEATURES)


def value_of(chunks, table, column):
    """Return a value in the first row of a table."""
    row = next(row for chunk in chunks if chunk.table == table for row in chunk.rows)
    return row[COLUMNS[table].index(column)]


def test_merge_stores_all_rows_once(store, store_url, theirs, chunks):
    report = merge(store, Given(chunks))
    assert (report.new, report.known, report.reasons) == (len(pool()), 0, {})
    assert report.programs == len({r.program.digest for r in pool()})
    assert report.workloads == len({r.program.workload.digest for r in pool()})
    assert report.failures == sum(r.failure is not None for r in pool())
    assert report.launches == sum(len(r.launches) for r in pool())
    assert (report.aliases, report.retractions) == (1, 1)
    tallies = {(t.name, t.store): (t.new, t.aliases) for t in report.sources.values()}
    assert tallies == {("nightly", THEIRS): (len(pool()), 0), ("tuning", THEIRS): (0, 1)}
    again = merge(store, Given(chunks))
    assert (again.new, again.known, again.moved) == (0, len(pool()), 0)
    assert (again.workloads, again.programs, again.failures, again.launches) == (0, 0, 0, 0)
    assert (again.aliases, again.retractions, again.rejected) == (0, 0, 0)
    rows = {row.name: row for row in store.sources.summaries()}
    # The other source has aliases alone.
    assert rows.keys() == {"nightly", "tuning"}
    row = rows["nightly"]
    assert (row.trust, row.store, row.served) == (Trust.FOREIGN, THEIRS, 0)
    # The order is that of the other database.
    assert [r.measurement.digest for r in store.records.iterate()] == [r.digest for r in pool()]
    assert contents(store_url, owners=False) == contents(theirs, owners=False)
    assert check(store_url).problems == []


def test_dry_run_reports_the_same_and_writes_nothing(store, store_url, chunks, monkeypatch):
    dry = [merge(store, Given(chunks), dry_run=True)]
    with Store(store_url, read_only=True) as reader, monkeypatch.context() as patched:
        # In many batches it counts a program once.
        patched.setattr(limits, "IMPORT_BYTES", 1)
        dry.append(merge(reader, Given(chunks), dry_run=True))
    assert store.counts().measurements == store.counts().sources == 0
    wet = merge(store, Given(chunks))
    for report in dry:
        for name in (
            *("new", "known", "rejected", "workloads", "programs", "failures", "aliases"),
            *("retractions", "moved", "read", "launches"),
        ):
            assert getattr(report, name) == getattr(wet, name), name
        assert report.dry_run


def test_report_counts_each_source_separately(makes, here):
    path = makes.empty(THEIRS)
    with Store(path) as other:
        other.records.add([make_measurement(1), make_measurement(2)], Source("a"))
        other.records.add([make_measurement(2), make_measurement(3)], Source("b"))
    report = merge_from(here, path)
    tallies = {tally.name: (tally.new, tally.known) for tally in report.sources.values()}
    assert tallies == {"a": (2, 0), "b": (1, 0)}


def test_a_watermark_is_written_with_each_batch(store, theirs, monkeypatch):
    monkeypatch.setattr(limits, "IMPORT_BYTES", 500)
    seen = []
    key = ("pull", THEIRS, "everything")

    def note(_):
        seen.append(store.exchange.watermark(*key))

    with closing(DatabasePeer(theirs, own=True)) as peer:
        end = peer.position()
        merge(store, peer, until=end, watermark=key, on_committed=note)
        assert seen[-1] == end == store.exchange.watermark(*key)
        numbers = [mark.measurement_id for mark in seen]
        assert numbers == sorted(numbers)
        assert len(set(numbers)) > 3
        for mark in seen:
            assert peer.digest_at(mark.measurement_id) == mark.measurement_digest
    assert store.exchange.watermark("pull", THEIRS, "something else") is None


NAN = struct.pack("<d", float("nan"))
REJECTED = {
    "a wrong digest": ({"digest": bytes(16)}, "does not match"),
    "a wrong program": ({"program_digest": bytes(16)}, "does not match"),
    "another time": ({"run_secs": struct.pack("<d", 1e-9)}, "does not match"),
    "NaN": ({"run_secs": NAN}, "not finite"),
    "infinity": ({"run_secs": struct.pack("<d", float("inf"))}, "not finite"),
    "a negative time": ({"run_secs": struct.pack("<d", -1.0)}, "negative"),
    "no time": ({"run_secs": None}, "has no time"),
    "TVM's word for no time": ({"run_secs": struct.pack("<d", 1e10)}, "has no time"),
    "cut short without a time": ({"status": 3, "run_secs": None}, "has no time"),
    "half a number": ({"run_secs": b"abc"}, "out of bounds"),
    "text as a number": ({"measured_at": "now"}, "measured_at has another type"),
    "a number beyond 64 bits": ({"occurrence": 2**63}, "out of bounds"),
    "an unknown status": ({"status": 9}, "status is unknown"),
    "an unknown origin": ({"origin": "<script>"}, "origin is unknown"),
    "a short donor": ({"donor": b"x"}, "out of bounds"),
    "no source": ({"source": 99}, "a source that is missing"),
    "no workload": ({"workload": 99}, "a workload that is missing"),
    "no tail": ({"tail": 99}, "a tail that is missing"),
    "no session": ({"session": 99}, "a session that is missing"),
    "infinite cost": ({"all_cost": float("inf")}, "out of bounds"),
    "extra with spaces": ({"extra": '{"a": 1}'}, "canonical"),
    "extra that is not JSON": ({"extra": "{"}, "JSON"),
    "other decisions": ({"decisions": b"[[[2,[9,4]]],[],[1]]"}, "decisions"),
    "decisions with spaces": ({"decisions": b"[[[2,[1,4]]], [],[]]"}, "canonical"),
    "decisions that are none": ({"decisions": b"\xff"}, "decisions"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_merge_rejects_invalid_measurement_and_stores_the_others(name, here, chunks):
    """The report has the reason and an example."""
    values, words = REJECTED[name]
    # Stated digests would already show the change.
    stated = {} if words == "does not match" else {"digest": None, "program_digest": None}
    report = merge(here, Given(changed(chunks, "measurement", **(stated | values))))
    (reason,) = [r for r in report.reasons if not r.startswith("failure")]
    assert words in reason
    example = report.reasons[reason]
    assert example.count == 1
    assert "nightly" in example.example or "no known" in example.example
    (tally,) = [t for t in report.sources.values() if t.name == "nightly"]
    assert report.new == tally.new == len(pool()) - 1


DEEP = '{"a":' * 40 + "1" + "}" * 40
SHARED = {
    "source digest": ("source", {"digest": bytes(16)}, "does not match"),
    "source name": ("source", {"name": "a\0b", "digest": None}, "NUL"),
    "source kind": ("source", {"kind": "evil"}, "kind is unknown"),
    "source store": ("source", {"store": "\x1b[31m" * 6, "digest": None}, "control characters"),
    "workload digest": ("workload", {"digest": bytes(16)}, "does not match"),
    "workload body": ("workload", {"body": b'{"nodes": [0]}', "digest": None}, "canonical"),
    "no body": ("workload", {"body": None}, "body is missing"),
    "workload format": ("workload", {"format": "tvm-future"}, "newer tunedb"),
    "target config": ("target", {"config": '{"kind": "llvm"}', "digest": None}, "canonical"),
    "target kind": ("target", {"kind": "cuda", "digest": None}, "differs from its"),
    "target list": ("target", {"config": "[]", "digest": None}, "not an object"),
    "sketch digest": ("sketch", {"digest": bytes(16)}, "does not match"),
    "tail type": ("tail", {"body": "text"}, "body is missing"),
    "arguments": ("args_info", {"body": '{"b":1,"a":2}', "digest": None}, "canonical"),
    "deep context": ("context", {"body": DEEP, "digest": None}, "nested deeper"),
    "session": ("session", {"fingerprint": "[]", "digest": None}, "not an object"),
    "session start": ("session", {"started_at": 2**70, "digest": None}, "64 bits"),
}


@pytest.mark.parametrize("name", SHARED)
def test_merge_rejects_records_of_a_rejected_shared_row(name, here, chunks):
    table, values, words = SHARED[name]
    number, at = value_of(chunks, table, "id"), COLUMNS["measurement"].index(table)
    affected = sum(r[at] == number for c in chunks if c.table == "measurement" for r in c.rows)
    report = merge(here, Given(changed(chunks, table, **values)))
    assert affected
    assert report.new == len(pool()) - affected
    assert any(words in reason for reason in report.reasons)
    assert report.reasons[f"its {table} was rejected"].count == affected


def test_merge_rejects_malformed_rows(here):
    chunks = [
        Chunk("source", [(), (None,) * 5, (1, 2)]),
        Chunk("measurement", [(), (1, 2), (None,) * 20]),
        Chunk("failure", [(1,), (None,) * 9]),
        Chunk("launch", [(1,)]),
        Chunk("feature", [(1, 2, 3, 4, 5)]),
        Chunk("retraction", [(b"x", "s", "measurement", "r"), (bytes(16), "s", "all", "r")]),
        Chunk("workload_alias", [(1, "a", "b", None), ([], 1, 2, None)]),
        Chunk("model", [(1,)]),
    ]
    report = merge(here, Given(chunks))
    assert (report.new, report.rejected) == (0, 15)
    assert "launch: it has other columns or types" in report.reasons
    assert here.counts().measurements == here.counts().sources == 0


def test_merge_rejects_two_rows_with_the_same_number(here, chunks):
    first = next(c for c in chunks if c.table == "target")
    report = merge(here, Given([first, *chunks]))
    assert any("two rows have the same number" in reason for reason in report.reasons)


def test_merge_rejects_invalid_failures(here, chunks):
    for values, words in (
        ({"digest": bytes(16)}, "does not match"),
        ({"kind": "evil", "digest": None}, "unknown"),
        ({"message": "a\0b", "digest": None}, "NUL"),
        ({"message": "x" * (limits.MAX_MESSAGE_CHARS + 1), "digest": None}, "longer"),
        ({"seconds": float("nan"), "digest": None}, "finite"),
        ({"measurement": 10**6}, "is missing"),
    ):
        report = merge(here, Given(changed(chunks, "failure", **values)), dry_run=True)
        (reason,) = report.reasons
        assert reason.startswith("failure: ")
        assert words in reason


def test_merge_rejects_too_many_shared_rows(here, chunks, monkeypatch):
    monkeypatch.setattr(limits, "MAX_SHARED_ROWS", 3)
    with pytest.raises(LimitError, match="split it"):
        merge(here, Given(chunks))


@pytest.mark.parametrize("table", ["workload_alias", "failure"])
def test_merge_writes_many_short_rows_in_batches(table, here, chunks, monkeypatch):
    """One record may have millions of them, so that they do not wait for its end."""
    if table == "failure":
        number = value_of(chunks, "failure", "measurement")
        of = {"measurement": number, "kind": "timeout", "phase": "run", "message": ""}
        empty = dict.fromkeys(COLUMNS[table])
        rows = [tuple((empty | of | {"seconds": float(n)}).values()) for n in range(1_000)]
    else:
        number = value_of(chunks, "workload_alias", "workload")
        rows = [(number, "x", str(n), None) for n in range(1_000)]
    monkeypatch.setattr(limits, "IMPORT_BYTES", 20_000)
    sizes, once = [], here.exchange.merge

    def counting(incoming, **fields):
        sizes.append(len(incoming.aliases) + len(incoming.failures))
        return once(incoming, **fields)

    monkeypatch.setattr(here.exchange, "merge", counting)
    parts = [Chunk(table, rows[at : at + 100]) for at in range(0, 1_000, 100)]
    merge(here, Given([*chunks, *parts]))
    assert sum(sizes) >= 1_000 and max(sizes) <= 200


def test_merge_rejects_too_many_long_aliases_of_unused_workloads(here, chunks, monkeypatch):
    monkeypatch.setattr(limits, "MAX_SHARED_BYTES", 5_000)
    number = value_of(chunks, "workload", "id")
    rows = [(number, "x", "y" * 1_000 + str(n), None) for n in range(6)]
    shared = [chunk for chunk in chunks if chunk.table == "workload"]
    with pytest.raises(LimitError, match="too many long aliases"):
        merge(here, Given([*shared, Chunk("workload_alias", rows)]))


def test_merge_rejects_too_many_long_workload_names(here, monkeypatch):
    monkeypatch.setattr(limits, "MAX_SHARED_BYTES", 1_000)
    rows = [(n, None, "tvm-graph", b"[%d]" % n, "x" * 100, None) for n in range(20)]
    report = merge(here, Given([Chunk("workload", rows)]))
    assert report.rejected == 10
    assert any("too many long targets" in reason for reason in report.reasons)


def test_merge_rejects_values_over_the_limits(here, chunks, monkeypatch):
    for name, words in (
        ("MAX_FOREIGN_EXTRA_BYTES", "longer than 3 bytes"),
        ("MAX_FOREIGN_LABEL_CHARS", "longer than 3 characters"),
        ("MAX_SHARED_BYTES", "too many long targets"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(limits, name, 3)
            report = merge(here, Given(chunks), dry_run=True)
            assert any(words in reason for reason in report.reasons), name


def test_merge_rejects_forged_own_source_unless_accepted(store, makes):
    """A stranger writes our key into a source: none of its records is stored or served."""
    mine = make_measurement(1, (0.5,))
    store.records.add([mine], Source("nightly"))
    path = makes.holding(Source("nightly"), mine, make_measurement(2, (1e-9,)))
    given = changed(given_by(path), "source", store=store.key, digest=None)
    report = merge(store, Given(given))
    (reason,) = report.reasons
    assert "source 'nightly' is trusted here; give --accept-trusted-names" in reason
    assert (report.new, report.known, report.rejected) == (0, 1, 1)
    assert store.records.count() == 1
    dry = merge(store, Given(given), dry_run=True)
    assert (dry.new, dry.known, dry.reasons.keys()) == (0, 1, report.reasons.keys())
    unknown = changed(given, "source", name="other name")
    assert merge(store, Given(unknown)).new == 0
    assert [row.name for row in store.sources.summaries()] == ["nightly"]
    report = merge(store, Given(given), accept_trusted_names=True)
    assert (report.new, report.rejected) == (1, 0)
    assert [r.measurement.run_secs for r in store.records.top_k([1], [1], 9)] == [(1e-9,), (0.5,)]


def test_merge_rejects_new_rows_of_trusted_source_unless_accepted(store, makes):
    path = makes.holding(Source("nightly"), make_measurement(1))
    merge_from(store, path)
    (row,) = store.sources.summaries()
    assert store.trust.set(row.id, Trust.VERIFIED) == 1
    with Store(path) as other:
        other.records.add([make_measurement(2)], Source("nightly"))
        other.trust.retract([1], "no good")
    with closing(DatabasePeer(path, own=True)) as peer:
        report = merge(store, peer)
        assert (report.new, report.known, report.retractions, report.rejected) == (0, 1, 0, 2)
        assert store.sources.summaries()[0].served == 1
        wrong_key = merge(store, peer, accept_trusted_names=frozenset({"c" * 32}))
        assert wrong_key.rejected == 2
        report = merge(store, peer, accept_trusted_names=frozenset({THEIRS}))
        assert (report.new, report.retractions, report.rejected) == (1, 1, 0)
    assert store.sources.summaries()[0].served == 1


def test_own_records_keep_their_source(store, makes):
    """A source of a stranger that claims and retracts them changes nothing."""
    mine = make_measurement(1)
    store.records.add([mine], Source("zzz"))
    before = store.sources.summaries()
    path = makes.holding(Source("a"), mine)
    with Store(path) as other:
        other.trust.retract([1], "not mine to say")
    report = merge_from(store, path)
    assert (report.known, report.moved, report.retractions) == (1, 0, 1)
    assert store.sources.summaries() == before
    assert store.records.best([1]) is not None


@pytest.fixture
def thief(theirs, makes):
    """A database with the records of `theirs`, under a source with a smaller digest."""
    key = "c" * 32
    path = makes.empty(key)
    with Store(theirs, read_only=True) as other:
        robbed = other.sources.numbered([1])[0][1]
    names = map(str, range(10_000))
    name = next(n for n in names if ForeignSource(n, SourceKind.FILE, key).digest < robbed)
    with Store(path) as other:
        other.batches.add(pool(), Source(name, SourceKind.FILE))
        other.trust.retract_source(1, "hidden")
    return path


@pytest.mark.parametrize("first", ["theirs", "thief"])
def test_accepted_source_gets_its_records_back_from_a_thief(first, store, store_url, theirs, thief):
    """The user trusts the real source and accepts the names of its database."""
    for path in (theirs, thief) if first == "theirs" else (thief, theirs):
        merge_from(store, path)
    rows = {row.store: row for row in store.sources.summaries()}
    assert rows["c" * 32].records == rows["c" * 32].retracted == len(pool())
    robbed = rows[THEIRS].id
    assert store.trust.set(robbed, Trust.VERIFIED) == 0
    with closing(DatabasePeer(theirs, own=True)) as peer:
        assert merge(store, peer).moved == 0, "anybody could say so"
        assert merge(store, peer, accept_trusted_names=True).moved == len(pool())
    rows = {row.store: row for row in store.sources.summaries()}
    # The retraction by their own database counts.
    assert (rows[THEIRS].records, rows[THEIRS].retracted) == (len(pool()), 1)
    assert rows[THEIRS].served == sum(one.is_valid for one in pool()[1:])
    # The thief does not claim or hide them again.
    assert merge_from(store, thief).moved == 0
    assert {row.store: row for row in store.sources.summaries()} == rows
    assert check(store_url).problems == []


def nightly(store):
    """Return the number of the source that has the records."""
    (row,) = (row for row in store.sources.summaries() if row.name == "nightly")
    return row.id


def test_merge_rejects_retraction_in_the_name_of_a_trusted_source(store, makes, theirs):
    """It would hide the records for good; a database that trusts their source rejects it."""
    forged = [(ForeignSource("nightly", SourceKind.FILE, THEIRS).digest, THEIRS, "source", "no")]
    old = makes.empty("d" * 32)
    with Store(old) as other, closing(DatabasePeer(theirs, own=True)) as peer:
        assert merge(other, Given([Chunk("retraction", forged)])).retractions == 1
        merge(other, peer)
        assert other.trust.set(nightly(other), Trust.VERIFIED) == 0
        merge(other, peer, accept_trusted_names=True)
        assert not any(row.served for row in other.sources.summaries())
    merge_from(store, theirs)
    served = store.trust.set(nightly(store), Trust.VERIFIED)
    assert served == sum(one.is_valid for one in pool()[1:])
    report = merge_from(store, old)
    assert (report.retractions, report.rejected) == (0, 1)
    assert sum(row.served for row in store.sources.summaries()) == served


def test_merge_does_not_move_forbidden_trace_to_trusted_source(store, makes):
    """An earlier release stored any trace; accepted names do not bypass the lists."""
    evil = b'[["Annotate",["b0","\\"x.ll\\""],["pragma_import_llvm"],[]]]'
    program = make_measurement(1).program
    program = replace(program, trace=Trace(evil, None, b"[[],[],[]]"))
    one = replace(make_measurement(1), program=program)
    store.records.add([one], Source("old", SourceKind.FILE, Trust.FOREIGN))
    path = makes.holding(Source("nightly"), make_measurement(2))
    merge_from(store, path)
    assert store.trust.set(2, Trust.VERIFIED) == 1
    with Store(path) as other:
        other.records.add([one], Source("nightly"))
    report = merge_from(store, path, accept_trusted_names=True)
    assert report.moved == 0
    assert any("pragma_import_llvm" in reason for reason in report.reasons)
    assert [row.served for row in store.sources.summaries()] == [0, 1]


def test_forged_retractions_do_not_hide_own_record(store, store_url):
    """A stranger's retraction calls the record a source or aliases; another has our name."""
    (own,), _ = store.batches.add([make_measurement()], Source("own"))
    digest = store.records.get(own).measurement.digest
    rows = [(digest, "e" * 32, "source", "no"), (digest, "f" * 32, "aliases", "no")]
    report = merge(
        store, Given([Chunk("retraction", [*rows, (digest, store.key, "measurement", "forged")])])
    )
    assert (report.retractions, report.rejected) == (2, 1)
    assert "is trusted here" in next(iter(report.reasons))
    assert [one.id for one in store.records.top_k([1], [1])] == [own]
    assert check(store_url).problems == []


def test_merge_does_not_change_known_rows(store, store_url, makes):
    workload = make_workload(0, tvm_version="0.27.0", script="# mine")
    mine = make_measurement(1, workload=workload, target=make_target(0, text="mine"))
    store.records.add([mine], Source("nightly"))
    before = contents(store_url)
    labels = store.workloads.get(1), store.targets.get(1)
    theirs = make_measurement(
        1,
        workload=make_workload(0, name="evil", tvm_version="0.1", script="evil()"),
        target=make_target(0, text="theirs"),
    )
    assert merge_from(store, makes.holding(Source("a"), theirs)).known == 1
    assert contents(store_url) == before
    with Store(store_url) as again:
        assert (again.workloads.get(1), again.targets.get(1)) == labels


def test_merge_rejects_the_database_itself(store, store_url):
    with (
        closing(DatabasePeer(store_url, own=True)) as peer,
        pytest.raises(UsageError, match="is the database itself"),
    ):
        merge(store, peer)


def test_merge_keeps_different_targets_with_equal_labels(store, makes):
    """A label does not identify a target."""
    path = makes.holding(Source("nightly"), make_measurement(1, target=make_target(1, text="llvm")))
    store.records.add([make_measurement(1, target=make_target(0, text="llvm"))], Source("nightly"))
    assert merge_from(store, path).new == 1
    assert len({row.target.label for row in store.targets.find()}) == 1
    assert len(store.targets.find()) == len(store.sources.summaries()) == 2


def test_merge_does_not_depend_on_the_clock(here, makes, monkeypatch):
    """Positions are row numbers; times of measurement and of storing may run backwards."""
    path = makes.empty(THEIRS)
    start = time.time_ns()
    with Store(path) as other:
        for step in range(3):
            monkeypatch.setattr("time.time_ns", lambda step=step: start - step * 10**15)
            session = replace(make_session(step), started_at=-step)
            made = make_measurement(step, measured_at=10 - step, session=session)
            other.records.add([made], Source("a"))
    since = None
    with closing(DatabasePeer(path, own=True)) as peer:
        for last in (1, 2, 3):
            reached = {"measurement_id": last, "measurement_digest": peer.digest_at(last)}
            until = replace(peer.position(), **reached)
            report = merge(here, peer, since=since, until=until)
            assert (report.new, report.known) == (1, 0)
            since = until
    assert [r.measurement.measured_at for r in here.records.iterate()] == [10, 9, 8]


def test_second_merge_completes_one_that_filled_the_disk(mount, makes, monkeypatch):
    monkeypatch.setattr(limits, "IMPORT_BYTES", 50_000)
    records = [make_measurement(n, (1e-3,), extra=b'"%s"' % (b"x" * 10_000)) for n in range(300)]
    path = makes.holding(Source("a"), *records)
    full = mount("2m") / "full.db"
    with Store(full) as store, closing(DatabasePeer(path, own=True)) as peer:
        with pytest.raises(StorageError, match="full"):
            merge(store, peer)
        stored = store.records.count()
        assert 0 < stored < len(records)
    assert check(full).problems == []
    bigger = makes.copy(full)
    report = take(bigger, path)
    assert (report.known, report.new) == (stored, len(records) - stored)
    assert check(bigger).problems == []


def test_merge_in_many_batches_stores_all_records_and_reports_progress(store, theirs, monkeypatch):
    """Batches may end anywhere, also between a record and its failures."""
    monkeypatch.setattr(limits, "IMPORT_BYTES", 1)
    monkeypatch.setattr(receive, "_RECENT", 4)
    seen = []
    report = merge_from(store, theirs, on_progress=lambda r: seen.append((r.read, r.total)))
    assert (report.new, seen[-1]) == (len(pool()), (len(pool()), len(pool())))
    assert store.counts().failed == sum(r.status == 1 for r in pool())
    assert report.seconds > 0 and report.bytes > 1_000


def test_records_that_another_process_adds_meanwhile_are_known(
    store, store_url, chunks, monkeypatch
):
    """They or their source come after this process has read the known ones."""
    merge(store, Given(chunks))
    before = contents(store_url)
    for name, nothing in (("known_measurements", ({}, set())), ("sources", {})):
        with monkeypatch.context() as patched:
            patched.setattr(type(store.exchange), name, lambda *_, nothing=nothing: nothing)
            report = merge(store, Given(chunks))
        assert (report.new, report.known, report.rejected, report.moved) == (0, len(pool()), 0, 0)
        assert contents(store_url) == before


def test_record_of_two_sources_belongs_to_the_smaller_digest(store, makes):
    """A hostile bundle may give a record twice."""
    first, second = (
        given_by(makes.holding(Source(name, SourceKind.FILE), pool()[0])) for name in ("one", "two")
    )
    digests = [value_of(given, "source", "digest") for given in (first, second)]
    other = changed(second, "source", id=99)
    source = next(chunk for chunk in other if chunk.table == "source")
    again = changed(other, "measurement", id=98, source=99)
    rows = [c.rows[0] for c in (*first, *again) if c.table == "measurement"]
    stream = [c for c in first if c.table != "measurement"]
    report = merge(store, Given([*stream, source, Chunk("measurement", rows)]))
    assert (report.new, report.known, report.rejected) == (1, 1, 0)
    assert [row.digest for row in store.sources.summaries() if row.records] == [min(digests)]


def with_features(makes, features, *rows):
    """Return a database whose programs have rows of a feature set."""
    path = makes.holding(Source("a"), *(make_measurement(n) for n, _ in enumerate(rows, 1)))
    with Store(path) as other:
        other.features.add(features, list(enumerate(rows, 1)))
    return path


def test_merge_rejects_features_with_other_columns(store, makes):
    """Columns change with the version only, so one side is wrong; our rows stay."""
    path = with_features(makes, FEATURES, np.ones((2, 2)), np.ones((1, 2)))
    store.records.add([make_measurement(1)], Source("nightly"))
    store.features.add(Steps("x", columns=("a", "b", "c")), [(1, np.ones((2, 3)))])
    report = merge_from(store, path, selection=WITH_FEATURES)
    assert (report.new, report.known, report.features) == (1, 1, 0)
    assert report.reasons["feature: x version 1 has other columns here"].count == 1


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"n_rows": 3}, "damaged"),
        ({"n_columns": 3, "n_rows": 0}, "larger than 0 bytes"),
        ({"n_rows": 2**40}, "over"),
        ({"n_rows": -1}, "over"),
        ({"data": b"no frame"}, "damaged"),
        ({"data": None}, "no rows"),
        ({"measurement": 99}, "is missing"),
        ({"feature_set": 99}, "is missing"),
    ],
)
def test_merge_rejects_invalid_features(here, makes, values, words):
    given = given_by(with_features(makes, FEATURES, np.ones((2, 2))), WITH_FEATURES)
    report = merge(here, Given(changed(given, "feature", **values)))
    (reason,) = report.reasons
    assert reason.startswith("feature: ") and words in reason
    assert (report.new, report.features) == (1, 0)
    assert [merge(here, Given(given)).features for _ in range(2)] == [1, 0]


def test_merge_rejects_features_unlike_the_installed_set(here, makes):
    """If they were stored first, the installed set could not store its own."""
    installed = next(s for s in load_feature_sets()[0].values() if s.columns)
    forged = Steps(installed.name, installed.version, ("a", "b"))
    path = with_features(makes, forged, np.ones((2, 2)))
    report = merge_from(here, path, selection=WITH_FEATURES)
    assert (report.new, report.features) == (1, 0)
    assert any("installed feature set" in reason for reason in report.reasons)


@pytest.mark.stress
def test_merge_keeps_unused_bodies_out_of_memory():
    """A quarter of a gigabyte of sketches is kept in a file."""
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from memory import peak_bytes
from tunedb.exchange.merge import merge
from tunedb.storage.exchange_types import Chunk
from tunedb.storage.store import Store

class Endless:
    location, store_key, total = "given", "b" * 32, 0
    def chunks(self, selection, since=None, until=None):
        for start in range(0, 16_000, 500):
            numbers = range(start, start + 500)
            yield Chunk("sketch", [(n, None, b"[%d" % n + b" " * 16_000 + b"]") for n in numbers])

with Store(":memory:") as store:
    assert merge(store, Endless()).rejected == 0
print(peak_bytes())
"""
    assert int(printed("-c", code, Path(__file__).parents[1])) < 250 * 2**20


def test_bodies_returns_those_that_do_not_fit_into_memory():
    bodies = Bodies(max_bytes=10)
    kept = {number: bytes([number]) * (number + 1) for number in range(20)}
    for number, body in kept.items():
        bodies.put("sketch", number, body)
        bodies.put("tail", number, body * 2)
    for _ in range(2):
        for number, body in reversed(kept.items()):
            found = [bodies.get(table, number) for table in ("sketch", "tail")]
            assert found == [body, body * 2]
    bodies.put("sketch", 3, b"other")
    bodies.put("sketch", 3, b"another")
    assert [bodies.get("sketch", n) for n in (3, 4, 5, 3)] == [
        *(b"another", kept[4], kept[5], b"another")
    ]
    bodies.close()


def test_merge_stores_records_of_a_backup_only_if_accepted(sqlite_file, makes):
    """A backup has our key; the user has to confirm that its additional records are ours."""
    backup = makes.copy(sqlite_file)
    with Store(backup) as other:
        other.records.add([make_measurement(1)], Source("nightly"))
    refused = take(sqlite_file, backup)
    assert (refused.new, refused.rejected) == (0, 1)
    assert take(sqlite_file, backup, accept_trusted_names=True).new == 1
    assert take(sqlite_file, rename(backup, THEIRS)).known == 1
