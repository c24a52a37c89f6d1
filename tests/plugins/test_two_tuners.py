import json
import subprocess
import sys
from pathlib import Path

import pytest

from tunedb.maintenance.check import check
from tunedb.storage.store import Store

WORKER = Path(__file__).parents[1] / "stress" / "tuning_worker.py"
TRIALS, BATCH = 24, 4


@pytest.mark.stress
def test_second_run_serves_what_the_first_one_measures(store_url):
    """Two runs tune at once, and no program is measured twice."""
    command = [sys.executable, WORKER, "pair", store_url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    first, second = sorted(told, key=lambda one: one["trials"])
    assert (first["trials"], second["trials"]) == (TRIALS, TRIALS + BATCH)
    assert (first["resumed"], second["resumed"]) == (0, 0)
    # Two batches at least were stored before the second one began.
    assert len(first["ran"]) == TRIALS
    assert BATCH <= len(second["ran"]) <= TRIALS - BATCH
    for one in (first, second):
        assert len(set(one["ran"])) == len(one["ran"])
    assert check(store_url).problems == []
    with Store(store_url) as store:
        counts = store.counts()
    assert counts.measurements == len(first["ran"]) + len(second["ran"])
    assert counts.programs == len({*first["ran"], *second["ran"]})
    assert (counts.workloads, counts.sessions) == (1, 2)
