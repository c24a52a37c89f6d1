"""Verification of features: a sample of rows is computed again."""

import random

import numpy as np
import pytest
from builders import OWN, make_graph, make_measurement
from fake_sets import Steps

from tunedb import limits
from tunedb.extraction.verify import Sample, computing, differing
from tunedb.features import base
from tunedb.features.steps import STEPS
from tunedb.storage.store import Store


@pytest.fixture
def programs(sqlite_file):
    batch = [make_measurement(number, workload=make_graph((8, 8))) for number in range(1, 6)]
    with Store(sqlite_file) as store:
        store.batches.add(batch, OWN)
        return store.programs.get(range(1, 6))


def test_differing_returns_programs_with_changed_rows_and_tolerates_rounding_errors(programs):
    rows = [one.copy() for one in STEPS.rows(programs)]
    assert differing(STEPS, programs, rows) == []
    (column,) = np.flatnonzero(rows[0][0] % 1)[:1]
    rows[0][0, column] = np.nextafter(rows[0][0, column], np.float32(np.inf))
    rows[1][0, 3] = 1e30
    rows[2][0, column] *= np.float32(1 + 1e-5)
    rows[3] = rows[3][:, :-1]
    assert differing(STEPS, programs, rows) == [1, 2, 3]


def test_differing_returns_programs_whose_features_cannot_be_computed(programs):
    fake = Steps(fails=frozenset({2}))
    assert differing(fake, programs, Steps().rows(programs)[:1] * 5) == [1, 2, 3, 4]
    said = [np.array([[one.id, 15]], np.float32) for one in programs]
    assert differing(fake, programs[1:2], said[1:2]) == [0]


def test_computing_returns_only_installed_step_sets():
    assert computing("steps", STEPS.version) is STEPS
    assert computing("steps", STEPS.version + 1) is None
    assert computing("tunedb.scheduled", base.feature_set("tunedb.scheduled").version) is None
    assert computing("nobody's", 1) is None


def test_sample_ignores_order_and_differs_between_databases():
    digests = [b"%d" % number for number in range(5_000)]
    shuffled = random.Random(1).sample(digests, len(digests))

    def drawn(store_key, offered):
        sample = Sample(store_key, limits.FEATURE_SAMPLE)
        for digest in offered:
            sample.offer(digest)
        assert len(sample) == limits.FEATURE_SAMPLE
        return {digest for digest in digests if digest in sample}

    mine = drawn("a" * 32, digests)
    assert mine == drawn("a" * 32, shuffled + shuffled)
    assert len(mine) == limits.FEATURE_SAMPLE
    assert len(mine & drawn("b" * 32, digests)) < 20
    # The sample is spread evenly: half of the programs have about half of it.
    assert 40 < len(mine & set(digests[:2_500])) < 90


def test_sample_contains_all_of_few_digests():
    sample = Sample("a" * 32, most=3)
    for digest in (b"1", b"2", b"2"):
        sample.offer(digest)
        assert digest in sample
    assert len(sample) == 2
    assert b"1" in sample
