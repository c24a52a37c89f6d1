"""A pruning that is killed at any moment leaves a whole database, and the next one ends it."""

from pathlib import Path

import numpy as np
import pytest
from builders import OWN, make_measurement
from kills import lines_of
from prune_worker import WANTED

from tunedb.features.base import feature_set
from tunedb.maintenance.check import check
from tunedb.maintenance.prune import plan
from tunedb.records import Failure, FailureKind, Phase
from tunedb.storage.store import Store

WORKER = Path(__file__).with_name("prune_worker.py")

RECORDS = 400
BEST = WANTED.selection.best
TIMEOUT = Failure(FailureKind.TIMEOUT, Phase.RUN, "30 s")


def make(number):
    """Return a record of one of four workloads; every seventh failed."""
    failed = number % 7 == 6
    return make_measurement(
        number,
        None if failed else (1e-3 + 1e-6 * (number * 37 % RECORDS),),
        workload=number % 4,
        failure=TIMEOUT if failed else None,
    )


@pytest.fixture
def url(store_url):
    steps = feature_set("steps")
    with Store(store_url) as store:
        ids, _ = store.batches.add([make(number) for number in range(RECORDS)], OWN)
        store.trust.retract(ids[::10], "a busy machine")
        row = np.ones((1, len(steps.columns)))
        store.features.add(steps, [(id_, row) for id_ in range(1, RECORDS + 1)])
    return store_url


def tops(url):
    """Return the best of each workload."""
    with Store(url, read_only=True) as store:
        return [store.answers.best_ids([workload], [1], BEST) for workload in range(1, 5)]


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(6))
def test_killed_prunings_keep_the_best_records_and_complete_when_repeated(url, seed):
    before = tops(url)
    sizes = lines_of(WORKER, url, 10, seed)
    assert sizes == sorted(sizes, reverse=True)
    assert tops(url) == before
    with Store(url) as store:
        assert plan(store, WANTED).rows == 0
        # As many of each workload as one pruning leaves, and the last records.
        assert 4 * 2 * BEST <= store.records.count() <= 4 * 2 * BEST + 3
        assert store.features.sets()[0].programs == 0
    assert check(url).problems == []
