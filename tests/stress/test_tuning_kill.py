"""A tuning run that is killed at any moment goes on, and measures nothing twice."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tvm")

from tunedb.maintenance.check import check
from tunedb.storage.store import Store

WORKER = Path(__file__).with_name("tuning_worker.py")
TRIALS, BATCH = 24, 4


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(3))
def test_killed_tuning_run_resumes_and_repeats_only_lost_batches(store_url, tmp_path, seed):
    url, log, kills = store_url, tmp_path / "log", 20
    done = subprocess.run(
        [sys.executable, WORKER, "kill", url, log, str(kills), str(seed)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    runs = [one for one in told if "ran" in one]
    states = [one for one in told if "stored" in one]
    assert len(states) == kills + 2
    stored = [one["stored"] for one in states]
    assert stored == sorted(stored)

    # The last run but one completed the killed ones, so the last one started anew.
    assert all(one["trials"] == TRIALS for one in runs)
    assert runs[-1]["resumed"] == 0
    lost = BATCH * sum(one["killed"] for one in states)
    for before, after in itertools.pairwise(stored):
        assert after - before <= TRIALS
    ran = [int(line) for line in Path(log).read_text().split()]
    assert stored[-1] <= len(ran) <= stored[-1] + lost
    assert len(ran) - len(set(ran)) <= lost
    assert check(url).problems == []
    with Store(url) as store:
        counts = store.counts()
        assert counts.measurements == counts.programs == stored[-1]
    assert any(one["resumed"] for one in runs)
