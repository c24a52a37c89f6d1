"""Many processes that merge overlapping databases and bundles into one, while another reads."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from builders import OWN, make_measurement, make_session
from exchanges import bundled
from kills import end_of, started
from unions import launch

from tunedb.maintenance.check import check
from tunedb.records import Failure, FailureKind, Phase
from tunedb.storage import schema
from tunedb.storage.store import Store

WORKER = Path(__file__).with_name("union_worker.py")
TIMEOUT = Failure(FailureKind.TIMEOUT, Phase.RUN, "30 s")


def make(number):
    """Return a record with a launch; equal numbers make equal ones. Every fifth failed."""
    failed = number % 5 == 4
    return make_measurement(
        number,
        None if failed else (1e-3 + 1e-6 * number,),
        workload=number % 3,
        target=number % 2,
        session=make_session(number % 4),
        measured_at=1_700_000_000_000_000 + number,
        failure=TIMEOUT if failed else None,
        launches=(launch(number % 4),),
    )


def digests(url):
    with Store(url, read_only=True) as store:
        return sorted(record.measurement.digest for record in store.records.iterate())


def make_peers(folder, count, size):
    """Make databases of which each shares half of its records with the next; bundles of some.

    No copies of one: that would be one database.
    """
    peers = []
    for number in range(count):
        path = folder / f"team{number}.db"
        first = number * size // 2
        with Store(path) as store:
            batch = [make(n) for n in range(first, first + size)]
            store.batches.add(batch, OWN)
            store.trust.retract([1 + number], "a busy machine")
        peers.append(bundled(path) if number % 2 else path)
    return peers


def merge_at_once(url, peers, processes):
    """Let processes merge while one reads; return how many records each found new."""
    with ExitStack() as stack:
        reader = stack.enter_context(started(WORKER, "read", url))
        assert reader.stdout.readline() == "ready\n"
        writers = [
            stack.enter_context(started(WORKER, "merge", url, seed, *peers))
            for seed in range(processes)
        ]
        new = [int(end_of(writer)) for writer in writers]
        end_of(reader)
        return new


@pytest.mark.stress
def test_eight_processes_that_merge_at_once_store_the_union(store_url, tmp_path):
    url, count, size = store_url, 6, 4000
    peers = make_peers(tmp_path, count, size)
    union = sorted({make(n).digest for n in range((count + 1) * size // 2)})
    new = merge_at_once(url, peers, 8)
    # Each record was new to one process only.
    assert sum(new) == len(union)
    assert digests(url) == union
    assert check(url).problems == []
    with Store(url) as store:
        # All retractions are stored; whether one counts depends on the owner of its record.
        assert len(store._db.select(schema.retraction.select())) == count
        # Each peer has launches of its own records.
        assert store.counts().launches == count * size
        assert len(store._db.select(schema.counter_set.select())) == 2
    assert merge_at_once(url, peers, 2) == [0, 0]
