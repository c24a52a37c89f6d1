"""Real public logs beside the repository; tests over them are skipped where they are not."""

from pathlib import Path

#: Their folder, which may be a link.
DATA = (Path(__file__).resolve().parents[2] / "shared" / "data").resolve()
