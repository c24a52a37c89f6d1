"""Several processes or threads on one database, and killed ones; in full by `make stress`."""

import os
import random
import signal
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
import workers
from builders import OWN, make_batch
from effort import long
from kills import output_of, started

from tunedb.storage.store import Store

WORKERS = Path(__file__).with_name("workers.py")
BATCH = 64


def sizes_of_batches(url):
    """Return how many records there are of each batch."""
    with Store(url) as store:
        return workers.sizes_of_batches(store)


def check_whole(url):
    """Check that a database is in order: keys, digests, programs and served records."""
    if "://" not in url:
        with closing(sqlite3.connect(url)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    with Store(url) as store:
        counts = store.counts()
        assert len(store.records.history([1])) == counts.measurements
        for record in store.records.top_k([1], None, 50):
            assert store.records.get(record.id).measurement.digest == record.measurement.digest


def many_writers(url, processes, batches, size):
    """Let processes write while another reads all the time."""
    output_of(WORKERS, "share", url, processes, batches, size)
    assert sizes_of_batches(url) == dict.fromkeys(range(1, processes * batches + 1), size)
    check_whole(url)


@pytest.mark.stress
def test_processes_that_write_single_records_lose_none(store_url):
    many_writers(store_url, processes=4, batches=500, size=1)


@pytest.mark.parametrize(("processes", "batches"), [(2, 4), long(4, 100)])
def test_reader_sees_only_complete_batches_of_many_writers(store_url, processes, batches):
    many_writers(store_url, processes, batches, BATCH)


@pytest.mark.parametrize("size", [300, long(5000)])
def test_threads_that_write_the_same_records_store_the_union(store_url, size):
    """Each thread has its own store, and writes the records in another order."""
    batch = make_batch(1, size)
    results, errors = [], []

    def work(seed):
        order = batch[:]
        random.Random(seed).shuffle(order)
        try:
            with Store(store_url) as store:
                for start in range(0, size, 50):
                    results.append(store.batches.add(order[start : start + 50], OWN)[1])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sum(results) == size
    assert sizes_of_batches(store_url) == {1: size}
    check_whole(store_url)


# ---------------------------------------------------------------------- kill


@pytest.mark.parametrize("rounds", [1, long(50)])
def test_killed_writers_lose_no_acknowledged_batch(store_url, rounds):
    """Each batch is complete or missing."""
    url, moments = store_url, random.Random(2)
    acknowledged = []
    for round_ in range(rounds):
        first = round_ * 1_000_000 + 1
        with started(WORKERS, "write", url, first, 1_000_000, BATCH) as writer:
            lines = [writer.stdout.readline()]
            time.sleep(moments.uniform(0, 0.3))
            os.kill(writer.pid, signal.SIGKILL)
            # The pipe still has the lines that it had printed.
            lines += writer.stdout.read().splitlines()
            assert writer.wait() == -signal.SIGKILL
        acknowledged += [int(line) for line in lines if line.strip()]
        sizes = sizes_of_batches(url)
        assert set(acknowledged) <= sizes.keys()
        assert set(sizes.values()) == {BATCH}
        check_whole(url)
    # Each kill leaves at most one batch that was stored and not yet acknowledged.
    assert len(sizes) - len(acknowledged) <= rounds
    assert len(acknowledged) >= rounds
    with Store(url) as store:
        store.batches.add(make_batch(0, BATCH), OWN)
        assert store.records.count() == BATCH * (len(sizes) + 1)


@pytest.mark.parametrize("rounds", [2, long(50)])
def test_writer_with_cut_connections_loses_no_acknowledged_batch(
    postgres_server, postgres_url, rounds
):
    """The writer continues without gaps."""
    server, url, moments = postgres_server, postgres_url, random.Random(2)
    with started(WORKERS, "write", url, 1, 1_000_000, BATCH) as writer:
        lines, losses = [], []
        collecting = [
            threading.Thread(target=lambda: lines.extend(writer.stdout)),
            threading.Thread(target=lambda: losses.extend(writer.stderr)),
        ]
        for thread in collecting:
            thread.start()
        cut = 0
        for _ in range(rounds):
            before = len(lines)
            deadline = time.monotonic() + 300
            while len(lines) < before + 2:
                assert time.monotonic() < deadline, losses[-3:]
                assert writer.poll() is None, losses[-3:]
                time.sleep(0.005)
            time.sleep(moments.uniform(0, 0.05))
            cut += server.terminate(url) > 0
        os.kill(writer.pid, signal.SIGKILL)
        for thread in collecting:
            thread.join()
    assert cut == rounds
    assert losses
    assert [line for line in losses if not line.startswith("lost ")] == []
    acknowledged = [int(line) for line in lines if line.strip()]
    assert acknowledged == list(range(1, len(acknowledged) + 1))
    # A killed client's backend may still be at its last statement.
    deadline = time.monotonic() + 300
    while server.terminate(url):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    sizes = sizes_of_batches(url)
    assert set(sizes.values()) == {BATCH}
    assert set(acknowledged) <= sizes.keys()
    assert len(sizes) <= len(acknowledged) + 1
    check_whole(url)
