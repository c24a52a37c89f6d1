"""A package of another name with a feature set, as an installed one lies on the path."""

SOURCE = '''
import os
import time

import numpy as np

from tunedb.features.base import Needs


class Loops:
    """The extents of a program's loops, one row; 13 crashes, 17 hangs, 19 raises."""

    name = "other.loops"
    version = 1
    columns = ("loops", "product", "gpu")
    needs = Needs.SCHEDULED

    def nest_rows(self, nest, *, gpu):
        extents = [loop["extent"] for loop in nest.dump()["loops"]]
        if 13 in extents:
            print("about to crash", flush=True)
            os.abort()
        if 17 in extents:
            time.sleep(1000)
        if 19 in extents:
            raise ValueError("nineteen")
        return np.array([[len(extents), np.prod(extents), gpu]], np.float64)


LOOPS = Loops()
'''


def install(folder, monkeypatch):
    """Make the package importable here and in processes started from here."""
    (folder / "other.py").write_text(SOURCE)
    info = folder / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tunedb.features]\nother.loops = other:LOOPS\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
