"""XGBoost is imported late, in one place, with threads that do not spin."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import pytest
from effort import long
from processes import printed

from tunedb.errors import PluginError
from tunedb.models import _xgboost
from tunedb.models._xgboost import import_xgboost, interrupt_later, threads_to_use

ROOT = Path(__file__).parents[2]


#: In place of XGBoost: tells the policy when it is imported.
STUB = "import os; print(os.environ.get('OMP_WAIT_POLICY'))"

OURS = """
from tunedb.models._xgboost import import_xgboost, threads_to_use
threads = threads_to_use()
import_xgboost()
print(threads == threads_to_use(), threads)
"""


@pytest.mark.parametrize(
    ("before", "environment", "expected"),
    [
        ("", {}, ["PASSIVE", "True", str(len(os.sched_getaffinity(0)))]),
        long("", {"OMP_NUM_THREADS": "1,4"}, ["PASSIVE", "True", "1"]),
        # Threads that spin because of the user's policy are not used.
        long("", {"OMP_WAIT_POLICY": "active"}, ["active", "True", "1"]),
        # Too late for a policy: OpenMP reads the environment only once.
        long("import xgboost", {}, ["None", "True", "1"]),
    ],
)
def test_import_xgboost_sets_passive_waiting_or_uses_one_thread(
    before, environment, expected, tmp_path
):
    (tmp_path / "xgboost.py").write_text(STUB)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")}
    kept["PYTHONPATH"] = str(tmp_path)
    assert printed("-c", before + OURS, env=kept | environment).split() == expected


def test_process_of_ours_imports_xgboost_without_scikit_learn():
    code = """
import sys
from importlib.util import find_spec
from tunedb.models._xgboost import import_xgboost, leave_out_sklearn
leave_out_sklearn()
import_xgboost()
print("sklearn" in sys.modules, find_spec("sklearn").name)
"""
    assert printed("-c", code).split() == ["False", "sklearn"]


def test_threads_to_use_returns_requested_number_even_if_threads_spin(monkeypatch):
    assert threads_to_use(3) == 3
    assert threads_to_use(0) == 1
    monkeypatch.setattr(_xgboost, "_spins", lambda: True)
    assert threads_to_use(3) == 3
    assert threads_to_use() == 1


def test_import_xgboost_names_the_extra_to_install_if_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(PluginError, match=r"XGBoost does not load .*pip install 'tunedb\[train\]'"):
        import_xgboost()


def test_import_xgboost_rejects_two_installed_distributions(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda _name: "3.2.0")
    monkeypatch.delitem(sys.modules, "xgboost", raising=False)
    with pytest.raises(PluginError, match=r"both installed.*; run: pip uninstall -y xgboost xgb"):
        import_xgboost()
    assert "xgboost" not in sys.modules


def test_no_module_imports_xgboost_directly():
    wanted = re.compile(r"^\s*(import|from) xgboost\b", re.MULTILINE)
    users = [
        path.relative_to(ROOT).as_posix()
        for folder in ("tunedb", "cli", "plugins")
        for path in (ROOT / folder).rglob("*.py")
        if wanted.search(path.read_text(encoding="utf-8"))
    ]
    assert users == []


@pytest.mark.stress
def test_ctrl_c_during_a_callback_of_xgboost_interrupts_after_it():
    """The block that calls XGBoost ends first, and nothing is printed."""
    code = """
import os, signal
import numpy as np
from tunedb.models import boosting
from tunedb.models._xgboost import import_xgboost
core = import_xgboost("xgboost.core")
data = import_xgboost("xgboost.data")
once = data.SingleBatchInternalIter.next
def next_(self, input_data):
    os.kill(os.getpid(), signal.SIGINT)
    return once(self, input_data)
data.SingleBatchInternalIter.next = next_
rows = np.zeros((8, 3), np.float32)
try:
    boosting.Matrix.from_rows(rows, np.arange(9), threads=1, seed=0)
except KeyboardInterrupt:
    print("interrupted", signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""
    options = {"capture_output": True, "text": True, "check": False, "timeout": 300}
    done = subprocess.run([sys.executable, "-c", code], **options)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted True\n", "")


def test_interrupt_later_does_nothing_outside_of_the_main_thread():
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(interrupt_later().__enter__).result() == []
