"""Names (aliases) of workloads: their sources, those that a merge stores, and their effect."""

from contextlib import closing

import pytest
from builders import make_graph, make_measurement, sql
from exchanges import Given, changed, given_by
from unions import merge_from

import tunedb.migrations
from tunedb.exchange.database_peer import DatabasePeer
from tunedb.exchange.merge import merge
from tunedb.maintenance.check import check
from tunedb.records import Alias, Source, SourceKind, Trust
from tunedb.storage.engine import make_engine, parse_url
from tunedb.storage.exchange_types import COLUMNS, Chunk, ForeignSource
from tunedb.storage.names import AliasTrust
from tunedb.storage.store import Store

SCRIPT, HASH = Alias("script", "ab" * 16), Alias("tvm:0.27.0:structural", "17")
NIGHTLY = Source("nightly", SourceKind.FILE)

#: The victim's workload, and that of the stranger, which is faster because of its shape.
LARGE, SMALL = make_graph((256, 256)), make_graph((64, 64))


@pytest.fixture
def small(makes):
    """A database of others with a fast record of the small workload, and no name."""
    return makes.holding(NIGHTLY, make_measurement(1, (1e-6,), workload=SMALL))


def numbered(chunks, table):
    """Return the number of the only row of a table."""
    (row,) = [row for chunk in chunks if chunk.table == table for row in chunk.rows]
    return row[0]


def named(chunks, *names, source=None):
    """Return chunks with names of their workload, from `source` or from their own source."""
    workload, said_by = numbered(chunks, "workload"), numbered(chunks, "source")
    more = []
    if source is not None:
        said_by = 99
        row = {"id": 99, "digest": None, "name": source.name, "kind": "file", "store": source.store}
        more = [Chunk("source", [tuple(row[column] for column in COLUMNS["source"])])]
    rows = [(workload, name.scheme, name.key, said_by) for name in names]
    return [*chunks, *more, Chunk("workload_alias", rows)]


def trust(store, name, level=Trust.VERIFIED):
    """Set the trust of a source; return its id."""
    (id_,) = [row.id for row in store.sources.summaries() if row.name == name]
    store.trust.set(id_, level)
    return id_


@pytest.fixture
def victim(store, small):
    """A store with an own record of the large workload; the small one's source is verified."""
    (own,), _ = store.batches.add([make_measurement(0, (1e-3,), workload=LARGE)], Source("own"))
    large = store.workloads.add(LARGE, [SCRIPT, HASH])
    merge(store, Given(given_by(small)))
    trust(store, "nightly")
    assert store.records.top_k(store.workloads.equivalent(large))[0].id == own
    return store


STRANGER = ForeignSource("stranger", SourceKind.FILE, "e" * 32)


@pytest.mark.parametrize("believe", [False, True])
@pytest.mark.parametrize("source", [STRANGER, None], ids=["stranger", "verified"])
def test_attack_1_names_of_known_records_do_not_replace_the_own_best_one(
    victim, small, source, believe
):
    """A stranger, or a database in the name of the verified source, gives them the names."""
    large, other = (victim.workloads.id_of(one.digest) for one in (LARGE, SMALL))
    equivalent = victim.workloads.equivalent
    before = [one.id for one in victim.records.top_k(equivalent(large))]
    given = Given(named(given_by(small), SCRIPT, HASH, source=source))
    report = merge(victim, given, accept_trusted_names=believe)
    taken = 2 if source is STRANGER or believe else 0
    assert (report.new, report.aliases, report.rejected) == (0, taken, 2 - taken)
    assert equivalent(large) == equivalent(large, foreign=True) == [large]
    assert equivalent(other) == [other]
    assert [one.id for one in victim.records.top_k(equivalent(large))] == before


@pytest.mark.parametrize("believe", [False, True])
def test_attack_1_names_do_not_make_workloads_of_other_shapes_equal(victim, believe):
    """The other way round: the large workload gets a name of the small one."""
    name = Alias("script", "cd" * 16)
    large, other = (victim.workloads.id_of(one.digest) for one in (LARGE, SMALL))
    victim.names.add(other, [name], Source("own"))
    chunks = given_by(victim.url)
    sources = [row for chunk in chunks if chunk.table == "source" for row in chunk.rows]
    (nightly,) = [row[0] for row in sources if row[2] == "nightly"]
    lie = Chunk("workload_alias", [(large, name.scheme, name.key, nightly)])
    report = merge(victim, Given([*chunks, lie]), accept_trusted_names=believe)
    assert (report.new, report.aliases, report.rejected) == (0, believe, not believe)
    assert [victim.workloads.equivalent(one) for one in (other, large)] == [[other], [large]]


def test_dry_run_counts_names_by_source(victim, small):
    chunks = named(given_by(small), SCRIPT, source=STRANGER)
    dry = merge(victim, Given(chunks), dry_run=True)
    assert (dry.new, dry.aliases) == (0, 1)
    assert [t.aliases for t in dry.sources.values() if t.name == "stranger"] == [1]
    assert merge(victim, Given(chunks)).aliases == 1
    assert merge(victim, Given(chunks)).aliases == 0


def test_names_of_a_verified_source_count_where_structures_agree(store, makes):
    """The graph of another release has another digest, and the same structure."""
    theirs = make_graph((256, 256), salt=1)
    path = makes.holding(NIGHTLY, make_measurement(1, (1e-6,), workload=theirs))
    with Store(path) as other:
        other.workloads.add(theirs, [SCRIPT], NIGHTLY)
    large = store.workloads.add(LARGE, [SCRIPT])
    assert merge_from(store, path).aliases == 1
    id_ = store.workloads.id_of(theirs.digest)
    assert store.names.aliases(id_) == [(SCRIPT, AliasTrust.FOREIGN)]
    assert store.workloads.equivalent(large) == [large]
    assert store.workloads.equivalent(large, foreign=True) == sorted([large, id_])
    source = trust(store, "nightly")
    assert store.workloads.equivalent(large) == sorted([large, id_])
    store.trust.retract_aliases(source, "their hashes are wrong")
    assert store.workloads.equivalent(large) == [large]
    assert store.records.top_k([id_])[0].measurement.program.workload == theirs


def test_retracting_a_source_takes_its_names_back(store):
    large = store.workloads.add(LARGE, [SCRIPT])
    id_ = store.workloads.add(make_graph((256, 256), salt=1), [SCRIPT], Source("other"))
    assert store.workloads.equivalent(large) == [large, id_]
    (source,) = [row.id for row in store.sources.summaries() if row.name == "other"]
    store.trust.retract_source(source, "nobody knows who that is")
    assert [store.workloads.equivalent(one) for one in (large, id_)] == [[large], [id_]]


@pytest.mark.parametrize("table", ["workload", "source"])
def test_merge_rejects_name_whose_workload_or_source_is_missing(store, small, table):
    chunks = given_by(small)
    numbers = {one: numbered(chunks, one) for one in ("workload", "source")} | {table: 77}
    rows = [(numbers["workload"], "script", "x", numbers["source"])]
    report = merge(store, Given([*chunks, Chunk("workload_alias", rows)]))
    assert (report.new, report.aliases, report.rejected) == (1, 0, 1)
    (reason,) = report.reasons
    assert reason == f"workload_alias: its {table} was rejected or is missing"


def test_names_without_source_belong_to_the_source_of_the_records(store, small, store_url):
    chunks = named(given_by(small), SCRIPT)
    report = merge(store, Given(changed(chunks, "workload_alias", source=None)))
    assert report.aliases == 1
    (row,) = store.sources.summaries()
    assert (row.name, row.aliases) == ("nightly", 1)
    assert check(store_url).problems == []


def test_names_keep_their_source_across_two_merges(store, makes):
    """A name of a third database still has its source after two merges."""
    first, second = makes.empty("c" * 32), makes.empty("d" * 32)
    with Store(first) as other:
        other.records.add([make_measurement(1, (1e-6,), workload=SMALL)], NIGHTLY)
        other.workloads.add(SMALL, [SCRIPT], NIGHTLY)
    with Store(second) as other, closing(DatabasePeer(first, own=True)) as peer:
        merge(other, peer)
        other.workloads.add(SMALL, [HASH])
    assert merge_from(store, second).aliases == 2
    aliases = {(row.name, row.store): row.aliases for row in store.sources.summaries()}
    assert aliases == {("nightly", "c" * 32): 1, ("tuning", "d" * 32): 1}


def test_the_upgrade_keeps_old_names(tmp_path):
    """Names of workloads with own records alone keep counting; the others become foreign."""
    path = tmp_path / "old.db"
    with Store(path) as store:
        store.records.add([make_measurement(0, (1e-3,), workload=LARGE)], Source("own"))
        large = store.workloads.add(LARGE, [SCRIPT])
        alone = store.workloads.add(SMALL, [HASH])
    engine = make_engine(parse_url(path))
    for migrate, revision in (
        (tunedb.migrations.downgrade, "0005"),
        (tunedb.migrations.upgrade, "head"),
    ):
        with engine.begin() as connection:
            migrate(connection, revision)
        assert sql(path, "SELECT count(*) FROM workload_alias") == [(2,)]
    engine.dispose()
    with Store(path) as store:
        assert store.names.aliases(large) == [(SCRIPT, AliasTrust.TRUSTED)]
        assert store.names.aliases(alone) == [(HASH, AliasTrust.FOREIGN)]
    assert check(path).problems == []
