"""Extraction of features, on SQLite and PostgreSQL."""

import json
from dataclasses import replace

import numpy as np
import orjson
import pytest
from builders import FOREIGN, OWN, make_measurement, make_program, make_workload
from fake_sets import Rebuilder, Scheduled, Steps

from tunedb import limits
from tunedb.errors import FormatError, StorageError, UsageError
from tunedb.extraction.extract import ExtractReport, extract, quarantine_name
from tunedb.maintenance.check import check
from tunedb.records import Source, SourceKind, Trust
from tunedb.storage import schema
from tunedb.storage.store import Store


def workload(number=0, **fields):
    """A workload that TVM 0.27 reads."""
    return make_workload(number, **{"tvm_version": "0.27.0", **fields})


def fill(store, count=10, source=OWN, first=0, **fields):
    """Add programs with these numbers; return their ids."""
    fields.setdefault("workload", workload())
    batch = [make_measurement(i, **fields) for i in range(first, first + count)]
    store.batches.add(batch, source)
    return store.programs.ids([m.program.digest for m in batch])


def rows_of(store, feature_set, ids):
    found = store.features.rows(feature_set, ids)
    return [None if rows is None else rows.tolist() for rows in found]


def missing(store, **where):
    """Return the ids of programs without features."""
    feature_set = where.pop("feature_set", Steps())
    return [program.id for program in store.programs.without_features(feature_set, **where)]


def counts_of(found):
    """Return the numbers of a coverage."""
    return found.programs, found.able, found.known


def test_add_stores_features_of_a_program_once(store):
    ids = fill(store, 3)
    steps = Steps()
    assert store.features.add(steps, [(id_, np.array([[id_, 1.5]])) for id_ in ids[:2]]) == 2
    assert store.features.add(steps, [(id_, np.array([[0.0, 0.0]])) for id_ in ids]) == 1
    assert store.features.add(steps, []) == 0
    assert rows_of(store, steps, [ids[2], ids[0], 10**6]) == [[[0, 0]], [[ids[0], 1.5]], None]
    assert rows_of(store, Steps(version=2), ids) == [None] * 3
    (stored,) = store.features.sets()
    assert (stored.name, stored.version, stored.columns) == ("fake.steps", 1, steps.columns)
    assert (stored.programs, stored.rows) == (3, 3)
    assert 3 * 9 < stored.bytes < 3 * 40
    assert rows_of(store, stored, ids[:1]) == [[[ids[0], 1.5]]]


def test_add_stores_versions_separately_and_rejects_other_columns(store):
    (id_,) = fill(store, 1)
    store.features.add(Steps(), [(id_, np.ones((1, 2)))])
    store.features.add(Steps(version=2, columns=("a",)), [(id_, np.zeros((2, 1)))])
    found = [(s.version, s.columns) for s in store.features.sets()]
    assert found == [(1, ("id", "decisions")), (2, ("a",))]
    other = Steps(columns=("id", "other"))
    for _ in range(2):
        with pytest.raises(UsageError, match=r"version 1 of .* is stored with other col"):
            store.features.add(other, [(id_, np.ones((1, 2)))])
    assert rows_of(store, Steps(), [id_]) == [[[1, 1]]]


def test_add_rejects_whole_batch_with_invalid_rows_and_skips_unknown_programs(store):
    ids = fill(store, 2)
    with pytest.raises(FormatError, match="nan"):
        store.features.add(Steps(), [(ids[0], np.ones((1, 2))), (ids[1], [[1, np.nan]])])
    assert rows_of(store, Steps(), ids) == [None, None]
    # A program that was removed meanwhile (tunedb prune) is skipped.
    assert store.features.add(Steps(), [(ids[0], np.ones((1, 2))), (10**6, np.ones((1, 2)))]) == 1


def test_features_without_rows_or_columns_are_stored(store):
    ids = fill(store, 3)
    empty = Steps("fake.empty", columns=())
    rows = [np.zeros((0, 5)), np.zeros((2, 0)), np.zeros((0, 0))]
    store.features.add(empty, zip(ids, rows, strict=True))
    assert [r.shape for r in store.features.rows(empty, ids)] == [r.shape for r in rows]
    assert missing(store, feature_set=empty) == []


def test_read_only_store_rejects_features(sqlite_file):
    with Store(sqlite_file, read_only=True) as store, pytest.raises(StorageError, match="read-on"):
        store.features.add(Steps(), [(1, np.ones((1, 2)))])


def test_programs_share_objects_of_equal_parts(store):
    fill(store, 4)
    fill(store, 4, workload=workload(1), target=1)
    programs = store.programs.without_features(Steps())
    assert [p.id for p in programs] == sorted(p.id for p in programs)
    assert len(programs) == 8
    for name, count in (("workload", 2), ("target", 2), ("signature", 2)):
        assert len({id(getattr(p, name)) for p in programs}) == count
    assert len({id(p.trace.sketch) for p in programs}) == 1
    assert len({id(p.trace.tail) for p in programs}) == 1
    expected = make_program(2, workload=workload(1), target=1)
    (found,) = [p for p in programs if p.trace == expected.trace and p.target == expected.target]
    assert found.workload == expected.workload
    assert store.programs.get([found.id, 10**6, programs[0].id])[1].trace == programs[0].trace
    assert store.programs.ids([expected.digest, b"x" * 16]) == [found.id, None]


def test_programs_without_features_are_paged_and_filtered(store):
    first = fill(store, 5)
    second = fill(store, 5, workload=workload(1))
    third = fill(store, 5, target=1)
    everything = sorted(first + second + third)
    steps = Steps()
    assert missing(store) == everything
    assert missing(store, limit=4) == everything[:4]
    assert missing(store, limit=4, after=everything[3]) == everything[4:8]
    one = [store.programs.get(second)[0].workload_id]
    two = [store.programs.get(third)[0].target_id]
    assert missing(store, workload_ids=one) == sorted(second)
    assert missing(store, target_ids=two) == sorted(third)
    assert missing(store, workload_ids=one, target_ids=two) == []
    assert missing(store, workload_ids=[]) == []
    assert missing(store, workload_ids=[*range(40_000)]) == everything
    store.features.add(steps, [(i, np.ones((1, 2))) for i in second])
    assert missing(store) == sorted(first + third)
    assert missing(store, workload_ids=one) == []
    coverage = store.features.coverage
    assert counts_of(coverage(steps)) == (15, 15, 5)
    assert counts_of(coverage(steps, workload_ids=one)) == (5, 5, 5)
    assert counts_of(coverage(Steps(version=3), target_ids=two)) == (5, 5, 0)


def test_for_tvm_selects_trusted_programs_that_tvm_can_load(store):
    """A trusted source measured them, and their module is of this TVM or has a script."""
    foreign = replace(FOREIGN, name="f")
    verified = Source("v", SourceKind.FILE, Trust.VERIFIED)
    own = fill(store, 2)
    chosen = {"feature_set": Scheduled(), "for_tvm": True}
    fill(store, 2, workload=make_workload(5, tvm_version="0.26.0"))
    fill(store, 2, workload=make_workload(6))
    assert missing(store, **chosen) == own
    lost = fill(store, 2, source=foreign, first=20)
    both = fill(store, 2, source=foreign, first=30)
    fill(store, 2, source=verified, first=30)
    scripted = fill(store, 1, workload=make_workload(7, tvm_version="0.26.0", script="def f(): …"))
    assert missing(store, **chosen) == sorted([*own, *both, *scripted])
    trusted = [store.provenance.is_trusted_program(i) for i in (own[0], lost[0], both[0])]
    assert trusted == [True, False, True]
    assert counts_of(store.features.coverage(Scheduled(), for_tvm=True)) == (11, 5, 0)


def test_extract_computes_missing_features_in_batches(store, monkeypatch):
    monkeypatch.setattr(limits, "FEATURE_PROGRAMS", 4)
    ids = fill(store, 10)
    store.features.add(Steps(), [(ids[3], np.zeros((1, 2)))])
    steps, begun, seen = Steps(), [], []
    report = extract(
        store,
        steps,
        on_begin=lambda r: begun.append((r.missing, r.known)),
        on_program=lambda: seen.append(len(missing(store, limit=100))),
    )
    assert begun == [(9, 1)]
    assert steps.calls == [4, 4, 1]
    assert (report.programs, report.known, report.done, report.failed) == (10, 1, 9, 0)
    # What was computed before is stored when the next batch begins.
    assert seen == [9, 9, 9, 9, 5, 5, 5, 5, 1]
    decisions = len(make_program(1).trace.decisions)
    assert rows_of(store, steps, [ids[3], ids[0]]) == [[[0, 0]], [[ids[0], decisions]]]
    again = extract(store, steps)
    assert (again.programs, again.known, again.done) == (10, 10, 0)
    assert steps.calls == [4, 4, 1]


def test_extract_follows_limit_and_workload_filter(store):
    fill(store, 6)
    other = fill(store, 6, workload=workload(1))
    (wanted,) = {p.workload_id for p in store.programs.get(other)}
    report = extract(store, Steps(), workload_ids=[wanted], limit=4)
    assert (report.programs, report.done, report.missing) == (6, 4, 6)
    stored = [rows is not None for rows in store.features.rows(Steps(), other)]
    assert stored == [True] * 4 + [False] * 2
    assert extract(store, Steps(), limit=0).done == 0
    assert extract(store, Steps()).done == 8


def test_extract_skips_failed_programs_until_retry(store):
    ids = fill(store, 5)
    steps = Steps(fails=frozenset(ids[1:3]))
    report = extract(store, steps)
    assert (report.done, report.failed, report.passed) == (3, 2, 0)
    assert report.reasons == {f"ValueError: no rows of {id_}": 1 for id_ in ids[1:3]}
    rows = {row.item.line: row.item for row in store.quarantine.rows()}
    assert set(rows) == set(ids[1:3])
    assert rows[ids[1]].file == quarantine_name(steps) == "features fake.steps version 1"
    kept = orjson.loads(rows[ids[1]].data)
    assert kept["program"] == make_program(1, workload=workload()).digest.hex()
    assert kept["error"] == f"no rows\nof {ids[1]}"

    steps.calls.clear()
    again = extract(store, steps)
    assert (again.done, again.failed, again.passed, again.known) == (0, 0, 2, 3)
    assert steps.calls == []
    # Another version is another set.
    assert extract(store, Steps(version=2)).done == 5

    still = extract(store, steps, retry=True)
    assert (still.done, still.failed, still.passed) == (0, 2, 0)
    assert len(store.quarantine.rows()) == 2
    cured = extract(store, Steps(), retry=True)
    assert (cured.done, cured.failed, store.quarantine.rows()) == (2, 0, [])
    assert extract(store, Steps()).known == 5


def test_extract_counts_invalid_rows_as_failures(store):
    ids = fill(store, 3)
    steps = Steps()
    bad = {ids[0]: [[np.nan, 1]], ids[1]: [[1.0, 2.0, 3.0]]}
    steps.rows = lambda programs: [np.array(bad.get(p.id, [[1.0, 2.0]])) for p in programs]
    report = extract(store, steps)
    assert (report.done, report.failed) == (1, 2)
    assert set(report.reasons) == {"fake.steps: id is nan in row 0", "fake.steps: 3 columns, not 2"}


def test_broken_batch_fails_only_the_program_at_fault(store):
    ids = fill(store, 6)
    steps = Steps()
    original = steps.rows

    def rows(programs):
        if any(p.id == ids[2] for p in programs):
            raise SystemError("boom")
        found = original(programs)
        return found[:-1] if len(programs) > 1 else found

    steps.rows = rows
    report = extract(store, steps)
    assert (report.done, report.failed) == (5, 1)
    assert report.reasons == {"SystemError: boom": 1}


def test_extract_of_scheduled_features_needs_a_rebuilder(store):
    ids = fill(store, 6)
    fill(store, 2, workload=make_workload(3))
    with pytest.raises(UsageError, match=r"fake\.scheduled is computed from modules"):
        extract(store, Scheduled())
    rebuilder = Rebuilder(fails=[ids[4]])
    report = extract(store, Scheduled(), rebuilder=rebuilder)
    assert rebuilder.asked == ids
    assert (report.programs, report.unable, report.done, report.failed) == (8, 2, 5, 1)
    found = store.features.rows(Scheduled(), ids)
    shapes = [None if i == ids[4] else (i % 3, 1) for i in ids]
    assert [rows if rows is None else rows.shape for rows in found] == shapes
    rebuilder.asked.clear()
    report = extract(store, Scheduled(), rebuilder=rebuilder)
    assert (rebuilder.asked, report.passed, report.known) == ([], 1, 5)


def test_interrupted_extract_keeps_its_batches_and_closes_its_rebuilder(store, monkeypatch):
    monkeypatch.setattr(limits, "FEATURE_PROGRAMS", 3)
    fill(store, 10)
    closed = []

    class Interrupted(Rebuilder):
        def rows(self, programs):
            try:
                for number, pair in enumerate(super().rows(programs)):
                    if number == 7:
                        raise KeyboardInterrupt
                    yield pair
            finally:
                closed.append(True)

    report = ExtractReport("x", 1)
    with pytest.raises(KeyboardInterrupt):
        extract(store, Scheduled(), rebuilder=Interrupted(), report=report)
    assert report.done == 6
    assert closed == [True]
    again = extract(store, Scheduled(), rebuilder=Rebuilder())
    assert (again.known, again.done) == (6, 4)


def test_report_groups_reasons_over_the_limit(store, monkeypatch):
    monkeypatch.setattr(limits, "MAX_REASONS", 2)
    ids = fill(store, 5)
    report = extract(store, Steps(fails=frozenset(ids)))
    assert sorted(report.reasons.values()) == [1, 1, 3]
    assert report.reasons["other reasons"] == 3


def test_damaged_features_raise_errors_and_fail_the_check(store, store_url):
    ids = fill(store, 4)
    store.features.add(Steps(), [(i, np.ones((1, 2))) for i in ids])
    assert check(store_url).problems == []
    with store._db.transaction() as connection:
        feature = schema.feature
        for id_, change in ((ids[0], {"n_rows": 2}), (ids[1], {"data": b"junk"})):
            connection.execute(feature.update().where(feature.c.program_id == id_).values(**change))
        frame = store._db.select(feature.select().where(feature.c.program_id == ids[3]))[0].data
        change = {"n_rows": 2, "n_columns": 1, "data": bytes(frame)}
        connection.execute(feature.update().where(feature.c.program_id == ids[2]).values(**change))
    for id_ in ids[:2]:
        with pytest.raises(StorageError, match="damaged"):
            store.features.rows(Steps(), [id_])
    report = check(store_url)
    assert [(p.check, p.table, p.id) for p in report.problems] == [
        ("readable", "feature", ids[0]),
        ("readable", "feature", ids[1]),
        ("derived", "feature", ids[2]),
    ]
    assert "1 columns, not 2" in report.problems[2].message
    assert 0 < len(check(store_url, sample=3).problems) <= 3


def test_quarantine_stores_reasons_with_any_characters(store):
    """Messages of TVM may contain any character."""
    ids = fill(store, 1)
    steps = Steps()
    steps.rows = lambda programs: [ValueError("a\0b\ud800" + "x" * 50_000)] * len(programs)
    extract(store, steps)
    (row,) = store.quarantine.rows()
    assert row.item.line == ids[0]
    assert len(row.item.reason) < 400
    error = json.loads(row.item.data)["error"]
    assert limits.MAX_MESSAGE_CHARS <= len(error) < limits.MAX_MESSAGE_CHARS + 10
