"""``tunedb sessions``."""

import builders
import numpy as np
import orjson
import pytest
from checks import has, row_has

import tunedb
from tunedb.records import Session, Source

DAY = 86_400_000_000
START = 1_700_000_000_000_000


def make_session(number, cpu="Xeon", **named):
    fingerprint = orjson.dumps({"cpu": cpu} | named)
    return Session(f"session-{number}", START + DAY * number, fingerprint)


def add(path, session, factor=1.0, numbers=range(8), source=builders.OWN, scatter=None):
    """Store records that take `factor` times as long, times `scatter` for each program."""

    def made(n):
        seconds = 1e-3 * (1 + n) * factor * (1 if scatter is None else scatter[n])
        return builders.make_measurement(n, (seconds,), session=session)

    with tunedb.open(path) as store:
        store.records.add([made(n) for n in numbers], source)


@pytest.fixture
def drifted(sqlite_file):
    """A database of two days on one machine; on the second, programs take 1.32 times as long."""
    add(sqlite_file, make_session(0))
    add(sqlite_file, make_session(9, gpu="T4"), 1.32)
    return sqlite_file


def test_a_slower_day_is_reported(run, run_json, drifted):
    first, second = run_json("--db", drifted, "sessions")
    row_has(first, subject="session", subject_id=1, factor=1.0, error=None, drift=False, machine=0)
    row_has(first, started_at="2023-11-14T22:13:20Z", hardware="Xeon")
    error = pytest.approx(1.32e-4, rel=0.01)
    row_has(second, factor=pytest.approx(1.32), error=error, drift=True)
    row_has(second, programs=8, stored=None, hardware="Xeon + T4")
    before = drifted.read_bytes()
    result = run("--db", drifted, "sessions")
    has(result.stdout, "1.320", "± 0.000")
    assert "tunedb sessions --update" in result.stderr
    assert drifted.read_bytes() == before


def test_an_update_stores_factors(run, run_json, drifted):
    assert "--update" not in run("--db", drifted, "sessions", "--update").stderr
    rows = run_json("--db", drifted, "sessions")
    assert [row["stored"] for row in rows] == pytest.approx([1.0, 1.32])
    # A new session is estimated and not stored.
    add(drifted, make_session(10), 0.9)
    assert "tunedb sessions --update" in run("--db", drifted, "sessions").stderr
    rows = run_json("--db", drifted, "sessions")
    assert [row["stored"] is None for row in rows] == [False, False, True]
    with tunedb.open(drifted) as store:
        store.records.add([builders.make_measurement(0, (1.0,), target=1)], builders.OWN)
    assert {row["target_id"] for row in run_json("--db", drifted, "sessions")} == {1, 2}
    assert {row["target_id"] for row in run_json("--db", drifted, "sessions", "--target", 2)} == {2}


def test_sessions_reports_two_machines_under_one_target(run, run_json, sqlite_file):
    scatter = np.exp(np.random.default_rng(0).normal(1.0, 0.3, 40))
    add(sqlite_file, None, numbers=range(40), source=Source("logs/gpus/v100"))
    add(sqlite_file, None, numbers=range(40), source=Source("logs/gpus/k80"), scatter=scatter)
    rows = run_json("--db", sqlite_file, "sessions")
    assert {row["machine"] for row in rows} == {0, 1}
    for row, name in zip(rows, ("logs/gpus/v100", "logs/gpus/k80"), strict=True):
        row_has(row, name=name, subject="source", hardware=None, started_at=None)
    pair = "logs/gpus/v100 and logs/gpus/k80 share 40 programs"
    message = run("--db", sqlite_file, "sessions").stderr
    has(message, f"Target 1: 2 machines; {pair}", "scatter by")


def test_sessions_that_cannot_be_compared_are_reported(run, run_json, sqlite_file):
    assert "no record yet" in run("--db", sqlite_file, "sessions").stderr
    add(sqlite_file, make_session(0))
    result = run("--db", sqlite_file, "sessions")
    assert result.stderr == "One session for each target: there is nothing to compare.\n"
    assert len(run_json("--db", sqlite_file, "sessions")) == 1
    run("--db", sqlite_file, "sessions", "--update")
    for day in (1, 2):
        add(sqlite_file, make_session(day), numbers=range(8 * day, 8 * day + 8))
    message = run("--db", sqlite_file, "sessions").stderr
    assert "3 sessions of 3 share too few programs with others for a comparison" in message
