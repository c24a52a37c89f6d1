"""An extraction that is killed at any moment and run again ends as one that was left alone."""

from pathlib import Path

import pytest
from builders import OWN, make_measurement
from extract_worker import FAILS, SET
from kills import lines_of

from tunedb.extraction.extract import extract
from tunedb.maintenance.check import check
from tunedb.storage.store import Store

WORKER = Path(__file__).with_name("extract_worker.py")

PROGRAMS = 150


@pytest.fixture
def url(store_url):
    with Store(store_url) as store:
        store.records.add([make_measurement(number) for number in range(PROGRAMS)], OWN)
    return store_url


def contents(store):
    """Return the rows of each program, and what stands in quarantine."""
    rows = store.features.rows(SET, range(1, PROGRAMS + 1))
    kept = sorted((row.item.line, row.item.reason) for row in store.quarantine.rows())
    return [None if found is None else found.tolist() for found in rows], kept


@pytest.fixture(scope="module")
def alone():
    """What one run stores."""
    with Store(":memory:") as store:
        store.records.add([make_measurement(number) for number in range(PROGRAMS)], OWN)
        report = extract(store, SET)
        failed = sum(number in FAILS for number in range(1, PROGRAMS + 1))
        assert (report.done, report.failed) == (PROGRAMS - failed, failed)
        return contents(store)


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(20))
def test_killed_extractions_store_the_same_as_one_run(url, alone, seed):
    sizes = lines_of(WORKER, url, 15, seed)
    assert sizes == sorted(sizes)
    with Store(url, read_only=True) as store:
        assert contents(store) == alone
    assert check(url).problems == []
