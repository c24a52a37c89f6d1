"""Ten tuners and one server, which is killed and started again in the middle."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("tvm")

from postgres import running_postgres

from tunedb.maintenance.check import check
from tunedb.storage.store import Store

WORKER = Path(__file__).with_name("server_worker.py")
PROGRAM = (sys.executable, "-c", "from tunedb.cli import main; main()")


def stored(url):
    """Return (program, measurement) digests of a database, in hexadecimal."""
    with Store(url, read_only=True) as store:
        return {
            (one.measurement.program.digest.hex(), one.measurement.digest.hex())
            for one in store.records.iterate()
        }


def acknowledged(folder):
    path = folder / "acknowledged"
    text = path.read_text() if path.exists() else ""
    return {tuple(line.split()) for line in text.splitlines()}


def wait_for(folder, count, process, number):
    """Wait until as many measurements are acknowledged."""
    deadline = time.monotonic() + 240
    while len(acknowledged(folder)) < count:
        assert process.poll() is None, f"the tuners ended before kill {number}"
        assert time.monotonic() < deadline, f"kill {number}"
        time.sleep(0.05)


@pytest.fixture
def server():
    with running_postgres(durable=True) as server:
        yield server


@pytest.mark.stress
def test_ten_tuners_lose_no_record_when_the_server_is_killed_three_times(server, tmp_path):
    folder, workers, trials = tmp_path, 10, 48
    url = server.new_database()
    with (folder / "stderr").open("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, WORKER, url, folder, str(workers), str(trials)],
            # Records that the server does not accept go to files there.
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            for number in range(3):
                wait_for(folder, len(acknowledged(folder)) + workers * 2, process, number)
                server.kill()
                time.sleep(3)
                server.restart()
            out, _ = process.communicate(timeout=400)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        errors.seek(0)
        assert process.returncode == 0, errors.read()
    told = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert {one["number"] for one in told} == set(range(workers))
    assert {one["trials"] for one in told} == {trials}

    files = sorted(folder.glob("*.db"))
    assert len(files) == workers // 2
    for file in files:
        pushed = subprocess.run(
            [*PROGRAM, "--db", file, "push", url], capture_output=True, text=True, check=False
        )
        assert pushed.returncode == 0, pushed.stderr
        assert check(str(file)).problems == []
    assert check(url).problems == []
    union = set().union(*map(stored, files))
    there = stored(url)
    assert acknowledged(folder) <= there
    assert union <= there
    assert len(there) > 100
