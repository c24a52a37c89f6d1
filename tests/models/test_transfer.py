"""Evaluation between two databases: one side trains, the other is ranked, and nothing leaks."""

from collections import Counter

import numpy as np
import pytest
from builders import OWN, copied
from small_data import PROGRAMS, SMALL_STEPS, add_rows, conv2d, matmul, measure, trials
from small_data import make_tiled as tiled

from tunedb.errors import NotFoundError, UsageError
from tunedb.features.base import Needs
from tunedb.models import transfer
from tunedb.models.splits import SplitPlan
from tunedb.storage.store import Store

#: Programs beyond those of the training database that the test database has of `matmul(0)`.
NEW = 12


@pytest.fixture
def stores(sqlite_template, tmp_path):
    """Two databases that share matmul(0) and conv2d(0) on target 0."""
    paths = [copied(sqlite_template, tmp_path / f"{name}.db") for name in ("train", "test")]
    with Store(paths[0]) as train, Store(paths[1]) as test:
        train.records.add([m for w in (matmul(0), matmul(1), conv2d(0)) for m in trials(w)], OWN)
        shared = trials(conv2d(0)) + trials(matmul(0), count=PROGRAMS + NEW, size=3.0)
        elsewhere = trials(matmul(1), target=1) + trials(matmul(20))
        test.records.add(elsewhere + shared, OWN)
        yield train, test


def make(loaded, regime):
    """Return the splits, each as {digest of a workload: programs} of both sides."""
    examples = loaded.examples
    sides = []
    for split in loaded.regimes[regime](examples, SplitPlan()):
        digests = [
            [examples.workloads[i].digest for i in examples.workload[side]]
            for side in (split.train, split.test)
        ]
        assert not loaded.tested[split.train].any() and loaded.tested[split.test].all()
        sides.append((split.name, *map(Counter, digests)))
    return sides


def test_each_regime_trains_on_one_database_and_ranks_the_other(stores):
    loaded = transfer.load(*stores, SMALL_STEPS)
    m0, m1, m20, c0 = (w.digest for w in (matmul(0), matmul(1), matmul(20), conv2d(0)))
    everything = {m0: PROGRAMS, m1: PROGRAMS, c0: PROGRAMS}
    ((_, train, test),) = make(loaded, "same-workload")
    assert (train, test) == (everything, {m0: NEW})
    ((_, train, test),) = make(loaded, "new-workload")
    assert (train, test) == (everything, {m20: PROGRAMS})
    (name, train, test), (other, *_) = make(loaded, "new-family")
    assert (name, other) == ("conv2d", "matmul")
    assert (train, test) == ({m0: PROGRAMS, m1: PROGRAMS}, {c0: PROGRAMS})
    ((name, train, test),) = make(loaded, "new-hardware")
    assert (train, test) == (everything, {m1: PROGRAMS})
    assert len(loaded.noise) == 3 * (loaded.tested & ~loaded.examples.failed).sum()


def test_throughput_is_relative_to_the_best_of_its_own_database(stores):
    loaded = transfer.load(*stores, SMALL_STEPS)
    examples = loaded.examples
    for members in (examples.group == group for group in np.unique(examples.group)):
        assert examples.throughput[members].max() == 1.0
        assert len(set(loaded.tested[members].tolist())) == 1
    assert len(examples.rows) == examples.starts[-1]


def test_regimes_reject_databases_with_nothing_new_to_rank(stores):
    loaded = transfer.load(stores[0], stores[0], SMALL_STEPS)
    for regime, reason in {
        "same-workload": "no other programs of the workloads in common",
        "new-workload": "has all workloads of the test database",
        "new-hardware": "has all targets of the test database",
    }.items():
        with pytest.raises(UsageError, match=reason):
            make(loaded, regime)


class Stored:
    """A feature set without a function that computes rows."""

    name, version, columns, needs = "stored", 1, ("size", "tile", "vector", "noise"), Needs.STEPS


def test_stored_features_are_read_from_both_databases(stores):
    with pytest.raises(NotFoundError, match=r"train\.db.*tunedb extract --set stored"):
        transfer.load(*stores, Stored())
    computed = Stored()
    computed.rows = SMALL_STEPS.rows
    for store in stores:
        add_rows(store, computed)
    read = transfer.load(*stores, Stored()).examples
    assert np.array_equal(read.rows, transfer.load(*stores, SMALL_STEPS).examples.rows)


def test_same_workload_ranks_only_programs_of_common_targets(stores):
    train, test = stores
    test.records.add([measure(tiled(matmul(1), 99, 1), 1, (1e-3,))], OWN)
    ((_, _, ranked),) = make(transfer.load(train, test, SMALL_STEPS), "same-workload")
    assert matmul(1).digest not in ranked
