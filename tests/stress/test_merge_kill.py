"""A merge that is killed at any moment and made again ends as one that was left alone."""

from contextlib import closing
from pathlib import Path

import pytest
from builders import make_measurement, make_session
from kills import lines_of
from unions import Makes, contents, launch

from tunedb.exchange.database_peer import DatabasePeer
from tunedb.exchange.merge import merge
from tunedb.maintenance.check import check
from tunedb.records import Alias, Failure, FailureKind, Phase, Source
from tunedb.storage.store import Store

WORKER = Path(__file__).with_name("merge_worker.py")
CRASH = Failure(FailureKind.CRASH, Phase.RUN, "Segmentation fault")
RECORDS = 300


@pytest.fixture
def theirs(sqlite_template, tmp_path):
    """A database of another team."""
    path = Makes(sqlite_template, tmp_path).empty("b" * 32)
    records = [
        make_measurement(
            n,
            None if n % 7 == 0 else (1e-3 * (n + 1),),
            workload=n % 5,
            session=make_session(n % 3),
            measured_at=n,
            failure=CRASH if n % 7 == 0 else None,
            launches=(launch(n % 4),),
        )
        for n in range(RECORDS)
    ]
    with Store(path) as store:
        store.records.add(records[::2], Source("nightly"))
        store.records.add(records[1::2], Source("board"))
        store.workloads.add(records[0].program.workload, [Alias("script", "ab" * 16)])
        store.trust.retract([3, 5], "the clock was wrong")
    return path


@pytest.fixture
def alone(theirs, sqlite_template, tmp_path):
    """What one merge stores."""
    (tmp_path / "alone").mkdir()
    path = Makes(sqlite_template, tmp_path / "alone").empty()
    with Store(path) as store, closing(DatabasePeer(theirs)) as peer:
        assert merge(store, peer).new == RECORDS
    return contents(path)


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(7))
def test_killed_merges_store_the_same_as_one_merge(store_url, theirs, alone, seed):
    sizes = lines_of(WORKER, store_url, theirs, 10, seed)
    assert [size for size, _ in sizes] == sorted(size for size, _ in sizes)
    if seed % 2:
        # Rows and watermark are one transaction: never one without the other.
        assert all(size == reached for size, reached in sizes)
    assert contents(store_url) == alone
    assert check(store_url).problems == []
