"""The next run removes the temporary folders that a killed tuning run leaves behind."""

import os
import subprocess
import sys

from tunedb.system.temporary import TemporaryFolder

#: Makes one folder of each kind that a run makes.
CHILD = """\
import sys
from tunedb.plugins.metaschedule import WarmBuilder
from tunedb.plugins.metaschedule.measure.reuse import ReusingBuilder
from tunedb.plugins.metaschedule.deploy.revalidation import Revalidation
from tunedb.plugins.metaschedule.workers.worker_pool import WorkerPool
from tunedb.storage.store import Store
from tunedb.system.temporary import TemporaryFolder

WorkerPool.start = lambda *_: None
builder = WarmBuilder(max_workers=1)
known = ReusingBuilder(builder, None)
work = TemporaryFolder("tuning")
again = Revalidation(Store(":memory:"), max_workers=1)
print("made", flush=True)
sys.stdin.read()
"""

KINDS = ["builder", "known", "revalidation", "tuning"]


def test_attack_8_folders_of_a_killed_run_are_swept(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", CHILD], env=environment, **pipes) as process:
        assert process.stdout.readline() == "made\n"
        left = [path.name.split("-")[1] for path in tmp_path.glob("tunedb-*")]
        assert sorted(set(left)) == KINDS
        with TemporaryFolder("tuning", tmp_path):
            assert len(list(tmp_path.glob("tunedb-*"))) == len(left) + 1
        process.kill()
    assert len(list(tmp_path.glob("tunedb-*"))) == len(left)
    with TemporaryFolder("tuning", tmp_path) as folder:
        assert list(tmp_path.glob("tunedb-*")) == [folder.path]
