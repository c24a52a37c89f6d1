"""Training from disk takes less memory than the rows would."""

from pathlib import Path

import numpy as np
import pytest
from builders import OWN
from external_worker import WIDE
from kills import output_of
from small_data import WORKLOADS, make_tiled, measure

from tunedb.storage.store import Store

pytestmark = pytest.mark.stress

WORKER = Path(__file__).with_name("external_worker.py")

PROGRAMS, ROWS = 48_000, 16
MATRIX_BYTES = PROGRAMS * ROWS * len(WIDE.columns) * 4


@pytest.fixture
def url(sqlite_file):
    """A database of 768,000 rows: 504 MB of numbers."""
    rng = np.random.default_rng(0)
    kinds = rng.random((64, ROWS, len(WIDE.columns))).astype(np.float32)
    seconds = (1e-3 * (1 + kinds[:, :, 0].sum(1))).tolist()
    each = PROGRAMS // len(WORKLOADS)
    with Store(sqlite_file) as store:
        for workload in WORKLOADS:
            store.records.add(
                [
                    measure(make_tiled(workload, number), number, (seconds[number % 64],))
                    for number in range(each)
                ],
                OWN,
            )
        for first in range(0, PROGRAMS, 1000):
            ids = range(first + 1, first + 1001)
            rows = [(id_, kinds[(id_ - 1) % each % 64] + np.float32(id_)) for id_ in ids]
            store.features.add(WIDE, rows)
    return str(sqlite_file)


def train(url, where):
    grown, digest = output_of(WORKER, url, where, timeout=600).split()
    return int(grown), digest


def test_training_from_disk_takes_less_than_a_quarter_of_the_rows_in_memory(url):
    in_memory, expected = train(url, "memory")
    on_disk, found = train(url, "disk")
    assert found == expected
    assert in_memory > MATRIX_BYTES
    # It was 57 MB: a page, its bins, labels and gradients, and room to find the bounds of bins in.
    assert on_disk < MATRIX_BYTES / 4
