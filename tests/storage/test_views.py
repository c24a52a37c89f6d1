"""SQL views, compared with the store itself, on SQLite and PostgreSQL."""

import json
import sqlite3
from contextlib import closing

import pytest
from builders import FOREIGN, OWN, make_measurement
from every_kind import measurements, rows_of

from tunedb import identity
from tunedb.launches import Launch
from tunedb.records import Status
from tunedb.storage.store import Store

#: Nesting that exceeds the stack of a server.
DEEP = 1_000_000

VIEWS = ("v_best", "v_failures", "v_launches", "v_records", "v_sessions", "v_tasks")


@pytest.fixture
def filled(store_url):
    with Store(store_url) as store:
        store.records.add(measurements(), OWN)
        store.trust.retract([5], "throttled")
        strange = make_measurement(9, (1e-9,), workload=1, launches=(Launch("evil", 1),))
        store.records.add([strange], FOREIGN)
    return store_url


def parsed(value):
    """Return a JSON value, which PostgreSQL's driver has parsed."""
    return json.loads(value) if isinstance(value, str) else value


def test_v_records_agrees_with_the_records_of_the_store(filled):
    rows = rows_of(filled, "SELECT * FROM v_records ORDER BY record_id")
    with Store(filled) as store:
        records = list(store.records.iterate())
    assert len(rows) == len(records) == 9
    for row, record in zip(rows, records, strict=True):
        measured = record.measurement
        is_ok = measured.status is Status.OK
        assert row["record_id"] == record.id
        assert row["digest"] == measured.digest.hex()
        assert row["program"] == measured.program.digest.hex()
        assert row["donor"] == (None if measured.donor is None else measured.donor.hex())
        assert row["workload"] == measured.program.workload.name
        assert row["target"] == measured.program.target.label
        assert row["status"] == measured.status.name.lower()
        assert row["mean_seconds"] == (record.mean if is_ok else None)
        assert (row["repeats"] or 0) == len(measured.run_secs or ())
        assert row["trust"] == record.source.trust.name.lower()
        assert row["source"] == record.source.name
        assert bool(row["retracted"]) == record.retracted
        assert row["origin"] == measured.origin
    assert [bool(row["served"]) for row in rows] == [
        *(True, True, False, False, False),
        *(True, True, False, False),
    ]
    assert "2026-01-01 00:00:00.123456" in str(rows[0]["measured_at"])
    assert [row["measured_at"] for row in rows[1:]] == [None] * 8
    decisions = [parsed(row["decisions"]) for row in rows]
    assert decisions[:2] == [[[2, [0, 4]]], [[2, [1, 4]]]]
    assert decisions[5:7] == [[64, 300, 0], []]


def test_v_best_and_v_tasks_agree_with_the_store(filled):
    with Store(filled) as store, store._db.transaction() as connection:
        connection.exec_driver_sql("UPDATE workload SET flops = 5e8 WHERE id = 2")
    best = rows_of(filled, "SELECT * FROM v_best ORDER BY workload_id, target_id")
    tasks = rows_of(filled, "SELECT * FROM v_tasks ORDER BY workload_id, target_id")
    with Store(filled) as store:
        for row in best:
            record = store.records.best(row["workload_id"], row["target_id"])
            assert (row["record_id"], row["mean_seconds"]) == (record.id, record.mean)
    assert [(row["workload_id"], row["best_seconds"]) for row in tasks] == [
        (row["workload_id"], row["mean_seconds"]) for row in best
    ]
    counted = [(t["records"], t["failed"], t["served"], t["foreign_records"]) for t in tasks]
    assert counted == [(7, 2, 2, 1), (2, 0, 2, 0)]
    assert [row["gflops"] for row in best] == [t["best_gflops"] for t in tasks] == [None, 1.0]


def test_views_count_records_cut_short_and_never_call_them_best(filled):
    """Its repeats are the fastest of all."""
    (row,) = rows_of(filled, "SELECT * FROM v_records WHERE status = 'cut_short'")
    assert (row["record_id"], row["mean_seconds"], row["repeats"]) == (8, None, 1)
    assert not row["served"]
    assert not rows_of(filled, "SELECT * FROM v_best WHERE record_id = 8 OR mean_seconds < 1e-8")
    assert not rows_of(filled, "SELECT * FROM v_failures WHERE record_id = 8")
    (task,) = rows_of(filled, "SELECT * FROM v_tasks WHERE workload_id = 1")
    assert task["records"] - task["failed"] - task["served"] - task["foreign_records"] == 2
    assert task["best_seconds"] == 0.125


def test_views_omit_foreign_failures_and_launches_of_own_records(filled):
    with Store(filled) as store, store._db.transaction() as connection:
        for columns, values in (
            ("failure (digest, measurement_id, kind, phase, message", "1, 'crash', 'run', 'a lie'"),
            ("launch (digest, measurement_id, number, kernel, threads", "1, 0, 'a lie', 1"),
        ):
            connection.exec_driver_sql(
                f"INSERT INTO {columns}, source_id) "
                f"SELECT digest, {values}, id FROM source WHERE trust = 0"
            )
    rows = rows_of(filled, "SELECT * FROM v_failures ORDER BY record_id")
    assert [(row["record_id"], row["kind"], row["phase"], row["seconds"]) for row in rows] == [
        (3, "timeout", "run", 10.0),
        (4, "unknown", "unknown", None),
    ]
    rows = rows_of(filled, "SELECT * FROM v_launches ORDER BY record_id")
    assert [(r["record_id"], r["kernel"], r["trust"], bool(r["retracted"])) for r in rows] == [
        (5, "gemm", "own", True),
        (9, "evil", "foreign", False),
    ]
    assert (parsed(rows[0]["block"]), rows[0]["grid"]) == ([32, 2, 2], None)
    assert (rows[0]["tool"], parsed(rows[0]["counters"])) == ("ncu", [["warps", "%"]])


def test_v_sessions_shows_machine_and_numbers_of_records(filled):
    (row,) = rows_of(filled, "SELECT * FROM v_sessions")
    assert (row["cpu"], row["cores"], row["gpu"]) == ('a "b"', 4, None)
    assert (row["records"], row["failed"], row["foreign_records"]) == (2, 1, 0)
    assert "2026-01-01 00:00:00.123456" in str(row["last_measured_at"])


def test_views_are_read_only_and_have_the_same_columns_in_both_dialects(filled, sqlite_file):
    """PostgreSQL would write with the rights of the owner."""
    for view in VIEWS:
        (first, *_) = rows_of(filled, f"SELECT * FROM {view}")
        with closing(sqlite3.connect(sqlite_file)) as connection:
            columns = connection.execute(f"SELECT * FROM {view}").description
            with pytest.raises(sqlite3.OperationalError, match="because it is a view"):
                connection.execute(f"DELETE FROM {view}")
        assert list(first) == [column[0] for column in columns]
    if "://" in filled:
        query = "SELECT relname, pg_relation_is_updatable(oid, true) AS u FROM pg_class"
        rows = rows_of(filled, f"{query} WHERE relkind = 'v' AND relname LIKE 'v\\_%'")
        assert {row["relname"]: row["u"] for row in rows} == dict.fromkeys(VIEWS, 0)


def test_extreme_and_damaged_values_break_no_view(filled):
    """A writer of a server can put any bytes into its rows."""
    digest = identity.digest("x").hex()
    with Store(filled) as store, store._db.transaction() as connection:
        blob = f"'\\x{digest}'" if "://" in filled else f"x'{digest}'"
        # A file has no other writers.
        bad = [
            "UPDATE program SET decisions = '\\xff5b' WHERE id = 1",
            f"UPDATE program SET decisions = convert_to(repeat('[', {DEEP}), 'UTF8') WHERE id = 2",
            "UPDATE program SET decisions = convert_to('[[\"\\ud800\"]]', 'UTF8') WHERE id = 3",
        ]
        last, first = 2**63 - 1, -(2**63)
        for statement in (
            "INSERT INTO session (digest, key, started_at, fingerprint) "
            f"VALUES ({blob}, 'k', {last}, '[]')",
            *(bad if "://" in filled else []),
            'UPDATE session SET fingerprint = \'{"cpu":"\\u0000","cores":1e999}\' WHERE id = 1',
            f"UPDATE measurement SET measured_at = {last}, mean = 5e-324 WHERE id = 2",
            f"UPDATE measurement SET measured_at = {first} WHERE id = 3",
            "UPDATE measurement SET measured_at = 253402300799999999 WHERE id = 4",
            "UPDATE workload SET flops = 1e308",
            "UPDATE target SET config = 'null'",
        ):
            connection.exec_driver_sql(statement)
    for view in VIEWS:
        assert rows_of(filled, f"SELECT * FROM {view}")


def test_a_reader_of_a_server_reads_views_and_tables(team):
    with Store(team("tunedb_owner")) as store:
        store.records.add(measurements(), OWN)
    for view in VIEWS:
        assert rows_of(team("bob"), f"SELECT * FROM {view}")
    with Store(team("bob"), create=False, read_only=True) as store:
        assert len(store.table("records")) == len(measurements())
        assert len(store.table("best")) == 2
