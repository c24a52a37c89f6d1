"""Tunes a small matmul with the installed TVM into ``tuned/RELEASE.db.gz``, for test_versions.py.

Run it once for a release that a later one reads: ``python tests/plugins/make_tuned.py``, with the
folder ``tests/plugins`` on ``PYTHONPATH``.
"""

from __future__ import annotations

import gzip
import platform
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import matmuls
import tvm

from tunedb.plugins.metaschedule import tune


def main():
    """Write the file of the installed release."""
    platform.platform = lambda *_: "Linux"
    release = ".".join(tvm.__version__.split(".")[:2])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tuned.db")
        tune(matmuls.matmul(), matmuls.llvm, database=path, max_trials_global=4, prior="none")
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("VACUUM")
        packed = gzip.compress(path.read_bytes(), 9, mtime=0)
    (Path(__file__).parent / "tuned" / f"{release}.db.gz").write_bytes(packed)


if __name__ == "__main__":
    main()
