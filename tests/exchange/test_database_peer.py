"""Peers of databases: all rows, page by page, or those after a position."""

import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from builders import OWN, make_measurement, make_program, make_session, make_workload
from exchanges import bundled
from fake_sets import Steps
from gathering import digests, gather, measurements
from raising import raises_line

from tunedb import limits
from tunedb.errors import NotFoundError, SchemaError, StorageError
from tunedb.exchange.bundle import BundlePeer
from tunedb.exchange.database_peer import DatabasePeer
from tunedb.exchange.peers import open_peer
from tunedb.launches import CounterSet, Launch
from tunedb.records import Alias, Failure, FailureKind, Origin, Phase, Source
from tunedb.storage.engine import parse_url
from tunedb.storage.exchange_types import COLUMNS, EVERYTHING, Selection
from tunedb.storage.store import Store

FROZEN = sorted((Path(__file__).parents[1] / "migrations" / "frozen").glob("*.db"))
TIMEOUT = Failure(FailureKind.TIMEOUT, Phase.RUN, "killed after 10 s", 10.0)
CRASH = Failure(FailureKind.CRASH, Phase.BUILD, "Segmentation fault (é)")


def some_of_everything():
    """Return records that use every column."""
    session = make_session()
    batch = [make_measurement(n, (1e-3 * (n + 1),), workload=n % 3, target=n % 2) for n in range(9)]
    return [
        *batch,
        make_measurement(20, None, failure=TIMEOUT, session=session, measured_at=7),
        make_measurement(21, (0.5, -0.0, 5e-324), session=session, origin=Origin.MUTATED),
        make_measurement(22, (), args_info=b'[["TENSOR","float32",[4]]]', extra=b"[1]"),
        make_measurement(23, (1.0,), donor=make_program(1).digest, all_cost=0.25, context=b"{}"),
        make_measurement(0, (1e-3,), empty=True),
    ]


@pytest.fixture
def filled(store_url):
    """The URL of a database with rows in all exchanged tables."""
    with Store(store_url) as store:
        store.batches.add(some_of_everything(), OWN)
        store.batches.add([make_measurement(0, (2.0,), workload=0, target=0)], Source("other"))
        store.trust.retract([3], "measured under load")
        counters = CounterSet("ncu", "2026.1", "7.5", (("dram__bytes.sum", "byte"),))
        launch = Launch("k", 64, (64, 1, 1), counter_set=counters, values=(2.0,))
        store.launches.add([(some_of_everything()[0], launch)])
        store.workloads.add(make_workload(1), [Alias("script", "ab" * 16), Alias("link", "x")])
        store.features.add(Steps("x", columns=("a", "b")), [(1, np.ones((2, 2)))])
    return store_url


@pytest.mark.parametrize("own", [True, False])
def test_peer_gives_all_exchanged_rows(filled, own):
    with DatabasePeer(filled, own=own) as peer:
        found = gather(peer, Selection(features=True))
        assert peer.total == 15
    with Store(filled, create=False) as store:
        assert peer.store_key == store.key
        expected = {r.measurement.digest: r.measurement for r in store.records.iterate()}
    made = {m.digest: m for m in measurements(found)}
    assert made.keys() == expected.keys()
    for digest, measurement in made.items():
        assert measurement.run_secs == expected[digest].run_secs
        assert measurement.program.trace == expected[digest].program.trace
    assert all(found[table] for table in COLUMNS), [t for t in COLUMNS if not found[t]]
    (failure,) = found["failure"]
    assert (failure["kind"], failure["phase"], failure["seconds"]) == ("timeout", "run", 10.0)
    assert failure["digest"] == TIMEOUT.digest(some_of_everything()[9].digest)
    aliases = {(alias["scheme"], alias["key"]) for alias in found["workload_alias"]}
    assert aliases == {("script", "ab" * 16), ("link", "x")}
    (launch,) = found["launch"]
    assert (launch["kernel"], launch["block_x"], launch["grid_x"]) == ("k", 64, None)
    assert launch["measurement"] == found["measurement"][0]["id"]
    assert [row["counters"] for row in found["counter_set"]] == ['[["dram__bytes.sum","byte"]]']
    (retraction,) = found["retraction"]
    assert retraction["digest"] == found["measurement"][2]["digest"]
    assert retraction["store"] == peer.store_key
    # The source "tuning" has the aliases and the launch.
    assert {s["name"] for s in found["source"]} == {"own", "other", "tuning"}
    assert not any("script" in row for row in found["workload"])


def test_features_are_given_once_for_each_program(filled):
    with Store(filled) as store:
        store.records.add([make_measurement(0, (3.0,), workload=0, target=0, occurrence=5)], OWN)
    with DatabasePeer(filled) as peer:
        (feature,) = gather(peer, Selection(features=True))["feature"]
        assert (feature["n_rows"], feature["n_columns"]) == (2, 2)
        found = gather(peer)
    assert found["feature"] == found["feature_set"] == []


@pytest.mark.parametrize(
    ("name", "value"), [("BATCH_ROWS", 1), ("BATCH_ROWS", 4), ("CHUNK_BYTES", 300)]
)
@pytest.mark.parametrize("selection", [Selection(features=True), Selection((), ("llvm",))])
def test_pages_of_every_size_give_the_same_rows(filled, monkeypatch, name, value, selection):
    with DatabasePeer(filled) as peer:
        whole = gather(peer, selection)
        monkeypatch.setattr(limits, name, value)
        sizes = [len(chunk.rows) for chunk in peer.chunks(selection)]
        parts = gather(peer, selection)
    assert max(sizes) <= (value if name == "BATCH_ROWS" else 6)
    assert parts["measurement"] == whole["measurement"]
    for table in set(COLUMNS) - {"feature"}:
        key = sorted(map(repr, whole[table]))
        assert sorted(map(repr, parts[table])) == key, table


def test_peer_of_empty_database_gives_nothing(store_url):
    with DatabasePeer(store_url) as peer:
        assert list(peer.chunks(EVERYTHING)) == []
        assert list(peer.chunks(Selection(best=3))) == []
        assert peer.position().measurement_id == peer.total == 0
        assert peer.digest_at(1) is None


def test_since_gives_only_rows_added_later(filled):
    with DatabasePeer(filled) as peer, Store(filled) as store:
        before = peer.position()
        assert before.measurement_id == 15
        assert before.measurement_digest == peer.digest_at(15)
        assert (before.failure_id, before.retractions) == (1, 1)
        assert list(peer.chunks(EVERYTHING, since=before)) == []

        new = make_measurement(50, (0.25,), workload=1)
        store.records.add([new], OWN)
        found = gather(peer, since=before)
        assert digests(found) == {new.digest}
        # The workload is given again, with its aliases.
        assert len(found["workload"]) == 1
        assert len(found["workload_alias"]) == 2
        assert found["retraction"] == found["failure"] == []
        assert list(peer.chunks(EVERYTHING, since=before, until=before)) == []
        # All retractions are given again if there are more.
        before = peer.position()
        store.trust.retract([4], "x")
        found = gather(peer, since=before)
        assert (len(found["retraction"]), found["measurement"]) == (2, [])


def test_since_gives_later_failures_of_known_records(filled):
    with DatabasePeer(filled) as peer, Store(filled) as store:
        before = peer.position()
        late = some_of_everything()[9]
        store.batches.add_failures([(late, CRASH)])
        new = make_measurement(51, None, failure=TIMEOUT)
        store.records.add([new], OWN)
        found = gather(peer, since=before)
        outside, inside = sorted(found["failure"], key=lambda row: row["measurement"] or 0)
        assert outside["measurement"] is None
        assert inside["measurement"] is not None
        assert inside["digest"] == TIMEOUT.digest(new.digest)
        assert outside["digest"] == CRASH.digest(late.digest)
        assert outside["measurement_digest"] == late.digest
        assert outside["program_digest"] == late.program.digest

        # Without `since`, each failure belongs to a measurement that is given.
        assert all(row["measurement"] for row in gather(peer)["failure"])
        # A selection of other workloads leaves it out.
        others = gather(peer, Selection(workloads=("matmul_1",)), since=before)
        assert others["failure"] == []
        same = gather(peer, Selection(workloads=("matmul_0",)), since=before)
        assert len(same["failure"]) == 2


def test_since_gives_late_failure_if_there_was_none_before(store_url):
    measurement = make_measurement(0, None)
    with Store(store_url) as store, DatabasePeer(store_url) as peer:
        store.records.add([measurement], OWN)
        before = peer.position()
        assert before.failure_id == 0
        store.batches.add_failures([(measurement, CRASH)])
        (row,) = gather(peer, since=before)["failure"]
        assert row["measurement_digest"] == measurement.digest


def test_records_added_during_reading_are_left_for_later(filled, monkeypatch):
    monkeypatch.setattr(limits, "BATCH_ROWS", 3)
    with DatabasePeer(filled) as peer, Store(filled) as store:
        ids = []
        for chunk in peer.chunks(EVERYTHING):
            if chunk.table == "measurement":
                ids += [row[0] for row in chunk.rows]
                store.records.add([make_measurement(100 + len(ids), (1.0,))], OWN)
        assert ids == list(range(1, 16))
        assert peer.position().measurement_id == 20


def test_cut_connection_raises_storage_error_in_one_line(
    postgres_url, postgres_server, monkeypatch
):
    with Store(postgres_url) as store:
        store.records.add([make_measurement(n, (1.0,)) for n in range(40)], OWN)
    monkeypatch.setattr(limits, "BATCH_ROWS", 10)
    with DatabasePeer(postgres_url) as peer:
        chunks = peer.chunks(EVERYTHING)
        seen = [next(chunks) for _ in range(8)]
        postgres_server.terminate(postgres_url)
        with raises_line(StorageError, match="the database did not answer"):
            seen += list(chunks)
        assert sum(len(c.rows) for c in seen if c.table == "measurement") < 40


def test_peer_can_be_closed_early_and_twice(filled):
    peer = DatabasePeer(filled)
    next(iter(peer.chunks(EVERYTHING)))
    peer.close()
    peer.close()
    with pytest.raises(StorageError, match="it was closed"):
        peer.position()


def test_passwords_are_not_shown(postgres_url):
    url = parse_url(postgres_url).update_query_dict({"password": "secret"})
    with DatabasePeer(url.render_as_string(hide_password=False)) as peer:
        assert "secret" not in peer.location


def test_open_peer_recognises_databases_and_bundles_by_their_bytes(sqlite_file, tmp_path):
    with Store(sqlite_file) as store:
        store.records.add([make_measurement(0)], OWN)
    path = bundled(sqlite_file).rename(tmp_path / "named.db")
    for url, kind in ((sqlite_file, DatabasePeer), (path, BundlePeer)):
        with closing(open_peer(url)) as peer:
            assert isinstance(peer, kind)
            assert digests(gather(peer)) == {make_measurement(0).digest}
    with pytest.raises(NotFoundError, match="no such file"):
        open_peer(tmp_path / "gone.db")
    with pytest.raises(StorageError, match="Is a directory"):
        open_peer(tmp_path)
    # Only the owner of an old file is to upgrade it.
    old = shutil.copyfile(FROZEN[0], tmp_path / "old.db")
    with pytest.raises(SchemaError, match="run: tunedb db upgrade"):
        DatabasePeer(old, own=True)
