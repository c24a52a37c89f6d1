import os
import subprocess
import sys

import pytest
from toy_gpu import wait_for_end

from tunedb import limits
from tunedb.advisor.collect.configuration import EnvironmentConfig
from tunedb.advisor.collect.runs import environment_of, run, tail


def start(tmp_path, *words, timeout=30.0):
    logs = tmp_path / "log"
    return run(words, folder=tmp_path, environment=dict(os.environ), timeout=timeout, logs=logs)


def python(tmp_path, text, **options):
    return start(tmp_path, sys.executable, "-c", text, **options)


def test_run_reports_the_signal_of_a_crash(tmp_path):
    text = "import os; os.kill(os.getpid(), 11)"
    shell = ("/bin/sh", "-c", f"{sys.executable} -c '{text}'; exit $?")
    for words in ((sys.executable, "-c", text), shell):
        ran = start(tmp_path, *words)
        assert ran.code == -11
        assert ran.reason.startswith("was ended by SIGSEGV")


@pytest.mark.stress
def test_run_kills_hung_command_with_its_children(tmp_path):
    """The command and its child ignore SIGTERM."""
    text = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open('pids', 'w').write(f'{os.getpid()} {child.pid}')\n"
        "time.sleep(600)\n"
    )
    ran = python(tmp_path, text, timeout=3)
    assert ran.code is None
    assert ran.reason.startswith("ran past its limit and was killed after ")
    wait_for_end((tmp_path / "pids").read_text().split())


def test_run_ends_remaining_children_of_a_command(tmp_path):
    """The command succeeds, and its child would hold the output open."""
    text = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open('pids', 'w').write(str(child.pid))\n"
    )
    assert python(tmp_path, text).is_ok
    wait_for_end((tmp_path / "pids").read_text().split())


def test_interrupt_ends_the_command(tmp_path, monkeypatch):
    seen = []

    def interrupted(process, timeout=None):
        seen.append(process.pid)
        if len(seen) == 1:
            raise KeyboardInterrupt
        return wait(process, timeout)

    wait = subprocess.Popen.wait
    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        python(tmp_path, "import time; time.sleep(600)")
    wait_for_end([str(seen[0])])


def test_tail_returns_the_end_of_a_long_output(tmp_path):
    path = tmp_path / "long"
    path.write_bytes(b"first\n" + b"x" * limits.MAX_TAIL_BYTES)
    assert tail(path) == "x" * limits.MAX_TAIL_BYTES
    path.write_bytes(b"\xff last \n")
    assert tail(path) == "\\xff last"
    assert tail(tmp_path / "none") == ""


def test_environment_of_extends_path_and_sets_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setenv("MINE", "1")
    given = EnvironmentConfig(("tools", "/opt/x"), {"A": "b", "CUDA_VISIBLE_DEVICES": "7"})
    made = environment_of(given, tmp_path, {"CUDA_VISIBLE_DEVICES": "1"})
    assert made["PATH"] == f"{tmp_path}/tools:/opt/x:/bin"
    assert (made["A"], made["MINE"], made["CUDA_VISIBLE_DEVICES"]) == ("b", "1", "1")
