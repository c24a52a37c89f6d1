"""The temporary folder of a test run, which must be empty at its end.

Each process of a run (pytest-xdist has several) gets a folder of its own, because other programs
use the system's at the same time. Files of ``tmp_path`` are pytest's, which keeps those of the last
runs elsewhere.
"""

import gc
import os
import tempfile
from pathlib import Path

import pytest

from tunedb.system.temporary import TemporaryFolder, sweep

#: Ours, and one that ONNX Runtime writes where it is installed: onnxsim loads it.
_EXPECTED = {".lock", ".ses"}

#: Where pytest makes the folders of ``tmp_path``.
_PYTEST_ROOT = "PYTEST_DEBUG_TEMPROOT"

_folders = []

#: Name of a file or folder → the test after which it was there first.
_seen = {}


def use_own_folder():
    """Let this process and those that it starts put temporary files into a new folder."""
    # Beside those of the processes around this one, not inside: paths of sockets are short.
    root = os.environ.setdefault(_PYTEST_ROOT, tempfile.gettempdir())
    folder = TemporaryFolder("tests", Path(root))
    # A PostgreSQL that root starts runs as another user.
    folder.path.chmod(0o755)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder.path)
    _folders.append(folder)


def remove_own_folder():
    """Remove the folder."""
    _folders.pop().close()


def _left():
    return sorted(path.name for path in _folders[-1].path.iterdir() if path.name not in _EXPECTED)


def note(test):
    """Remember which test left what is there now."""
    for name in _left():
        _seen.setdefault(name, test)


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_behind():
    """Fail a run whose tests leave temporary files or folders behind, and name them."""
    yield
    gc.collect()
    # What a killed process left goes when the next one makes a folder.
    sweep(_folders[-1].path)
    left = [f"{name} (after {_seen.get(name, 'the last test')})" for name in _left()]
    assert not left, f"left behind in {Path(tempfile.gettempdir())}: {', '.join(left)}"
