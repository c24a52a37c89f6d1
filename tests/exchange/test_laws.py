"""A merge is a union of sets: idempotent, commutative and associative, for any records."""

from contextlib import closing

import numpy as np
from effort import EFFORT
from exchanges import bundled, rename
from fake_sets import Steps
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import select
from unions import CRASH, Makes, contents, launch, pool, take

from tunedb.exchange.bundle import BundlePeer
from tunedb.exchange.merge import merge
from tunedb.maintenance.check import check
from tunedb.records import Alias, Source, SourceKind, Status, Trust
from tunedb.storage import schema
from tunedb.storage.exchange_types import Selection
from tunedb.storage.store import Store

EACH = settings(max_examples=1 if EFFORT == "few" else 40)

RECORDS = st.lists(st.integers(0, len(pool()) - 1), max_size=12)

#: Data of one team: records under two sources, later failures, retractions.
TEAMS = st.tuples(
    RECORDS,
    RECORDS,
    st.lists(st.integers(0, 11), max_size=2),
    st.lists(st.integers(0, 11), max_size=2),
    st.sampled_from([None, "source", "session"]),
)

#: Records of all formats that the teams share in part, and of each kind of retraction.
RICH = (
    ([0, 5, 9, 13, 40], [1, 5, 19], [0, 3], [1], None),
    ([5, 9, 1, 22], [0, 8, 42], [1], [0], "source"),
    ([2, 5, 13], [22, 43, 0], [], [3], "session"),
)

KEYS = [letter * 32 for letter in "abc"]
EMPTY = "e" * 32


def fill(path, team, trust):
    """Store the data of a team; its sources have the same names as those of other teams."""
    first, second, later, taken_back, whole = team
    with Store(path) as store:
        ids = []
        for name, numbers in (("nightly", first), ("logs/a.json", second)):
            if numbers:
                records = [pool()[number] for number in numbers]
                ids += store.batches.add(records, Source(name, SourceKind.FILE, trust))[0]
        if not ids:
            return path
        failed = [pool()[number] for number in first]
        store.batches.add_failures([(failed[n % len(failed)], CRASH) for n in later if failed])
        # Programs of any kind may have been profiled later.
        store.launches.add([(failed[n % len(failed)], launch(n % 3)) for n in later if failed])
        store.trust.retract(sorted({ids[n % len(ids)] for n in taken_back}), f"wrong ({path.name})")
        if whole == "source":
            store.trust.retract_source(1, f"bad clock ({path.name})")
        sessions = [row[0] for row in store._db.select(select(schema.session.c.id))]
        if whole == "session" and sessions:
            store.trust.retract_session(sessions[0], f"throttled ({path.name})")
        if first:
            store.workloads.add(pool()[first[0]].program.workload, [Alias("script", path.stem)])
    return path


def teams(makes, known, trust=Trust.OWN):
    return [fill(makes.empty(key), team, trust) for key, team in zip(KEYS, known, strict=True)]


@EACH
@given(known=st.tuples(TEAMS, TEAMS, TEAMS))
@example(known=RICH)
def test_merge_is_idempotent_commutative_and_associative(known, sqlite_template, tmp_path_factory):
    """In all tables except the owners of records, which depend on the trust of each side."""
    makes = Makes(sqlite_template, tmp_path_factory.mktemp("laws"))
    a, b, c = teams(makes, known)

    def same(one, other):
        assert contents(one, owners=False) == contents(other, owners=False)

    ab = makes.merged(a, b)
    same(makes.merged(ab, b), ab)
    same(makes.merged(ab, a, b), ab)
    # A database with equal rows that is another one.
    same(makes.merged(a, rename(makes.copy(a), "f" * 32)), a)
    same(makes.merged(b, a), ab)
    same(makes.merged(ab, c), makes.merged(a, makes.merged(b, c)))
    assert check(ab).problems == []


@EACH
@given(known=st.tuples(TEAMS, TEAMS, TEAMS), moved=st.booleans())
@example(known=RICH, moved=True)
def test_order_of_merges_does_not_change_owners_of_records(
    known, moved, sqlite_template, tmp_path_factory
):
    """If all sources have equal trust, the owners and served records are equal too."""
    makes = Makes(sqlite_template, tmp_path_factory.mktemp("owners"))
    a, b, c = teams(makes, known, Trust.FOREIGN)
    empty = makes.empty(EMPTY)
    ways = [
        makes.merged(empty, a, b, c),
        makes.merged(empty, c, b, a),
        makes.merged(empty, b, c, a, c),
        makes.merged(empty, makes.merged(a, b), c),
        makes.merged(empty, a, makes.merged(b, c)),
    ]
    first, *others = map(contents, ways)
    assert others == [first] * 4
    if not moved:
        return
    for way in ways[:3]:
        with Store(way) as store:
            for row in store.sources.summaries():
                store.trust.set(row.id, Trust.OWN)
    first, *others = map(contents, ways[:3])
    assert others == [first] * 2
    for way in ways[:2]:
        assert check(way).problems == []
        best_is_that_of_a_recomputation(way)


def best_is_that_of_a_recomputation(path):
    """Assert that the best record equals the one computed without derived columns."""
    with Store(path) as store:
        taken_back = {
            (row.digest, row.store) for row in store._db.select(select(schema.retraction))
        }
        sources = {row.id: row for row in store._db.select(select(schema.source))}
        m = schema.measurement.c
        best = {}
        for id_, source_id in store._db.select(select(m.id, m.source_id).order_by(m.id)):
            source, record = sources[source_id], store.records.get(id_)
            one = record.measurement
            subjects = (one.digest, source.digest, one.session and one.session.digest)
            said = {(subject, key) for subject in subjects for key in (store.key, source.store)}
            if not one.is_valid or said & taken_back:
                continue
            assert one.status is Status.OK
            key = record.workload_id, record.target_id
            best[key] = min(best.get(key, (float("inf"), 0)), (record.mean, id_))
        for workload in store.workloads.find():
            for target in store.lookup.targets():
                wanted = best.get((workload.id, target), ())[1:]
                assert store.answers.best_ids([workload.id], [target], 1) == [*wanted]


@EACH
@given(known=st.tuples(TEAMS, TEAMS, TEAMS))
@example(known=RICH)
def test_a_database_and_its_bundle_merge_equally(known, sqlite_template, tmp_path_factory):
    makes = Makes(sqlite_template, tmp_path_factory.mktemp("bundles"))
    a, b, _ = teams(makes, known)
    if not known[1][0] and not known[1][1]:
        return
    whole, through = makes.merged(a, b), makes.copy(a)
    with Store(through) as store, closing(BundlePeer(bundled(b))) as peer:
        report = merge(store, peer)
    assert report.rejected == 0
    assert contents(through) == contents(whole)


def test_merge_stores_features_only_if_selected(makes):
    a, b, c = (makes.empty(key) for key in KEYS)
    for path, row in ((b, [1.0, 2.0]), (c, [3.0, 4.0])):
        with Store(path) as store:
            store.records.add([pool()[0]], Source("nightly"))
            store.features.add(Steps("x", columns=("a", "b")), [(1, np.array([row]))])
    assert contents(makes.merged(a, b))["feature"] == []
    asked = Selection(features=True)
    ab = makes.merged(a, b, selection=asked)
    assert len(contents(ab)["feature"]) == 1
    # Stored rows stay: a version of a set gives each program the same rows.
    assert contents(makes.merged(ab, c, selection=asked))["feature"] == contents(ab)["feature"]
    assert contents(makes.merged(b, a, selection=asked)) == contents(b)


def test_contents_differ_for_databases_with_different_records(makes):
    a, b = (
        fill(makes.empty(key), (records, [3], [], [0], None), Trust.OWN)
        for key, records in (("a" * 32, [0, 1, 2]), ("b" * 32, [0, 1]))
    )
    assert contents(a, owners=False) != contents(b, owners=False)
    report = take(b, a)
    assert (report.new, report.known, report.retractions) == (1, 3, 1)


def test_record_of_equal_trust_belongs_to_source_with_smallest_digest(makes):
    paths = teams(makes, (([0], [], [], [], None),) * 3, Trust.FOREIGN)
    smallest = min(
        row.digest
        for path in paths
        for row in Store(path, read_only=True).sources.summaries()
        if row.records
    )
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        path = makes.merged(makes.empty(EMPTY), *(paths[n] for n in order))
        with Store(path) as store:
            assert [r.digest for r in store.sources.summaries() if r.records] == [smallest]
