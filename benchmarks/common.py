"""Shared parts of the benchmark scripts: options, the table, the bars."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tunedb.plugins.metaschedule.threads import runtime_threads, use_threads
from tunedb.system.host import cpu_model

# An empty database knows nothing.
os.environ.setdefault("TUNEDB_PRIOR", "none")


@dataclass(frozen=True)
class Row:
    """One line of a benchmark's table.

    ``ratio`` is baseline / ours (times faster or smaller); ``bar`` is the condition, and ``ok``
    whether it holds (None without a bar).
    """

    name: str
    unit: str
    ours: float
    baseline: float | None = None
    bar: str = ""
    ok: bool | None = None

    @property
    def ratio(self) -> float | None:
        """Baseline / ours."""
        if self.baseline is None or not self.ours:
            return None
        return self.baseline / self.ours


def number(value: float | None) -> str:
    """Return a number with three significant digits."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def show(title: str, rows: list[Row], baseline: str) -> None:
    """Print the table."""
    table = Table(title=title)
    for name in ("", "unit", baseline, "tunedb", f"{baseline} / tunedb", "bar", ""):
        table.add_column(name, justify="left" if name in ("", "unit", "bar") else "right")
    for row in rows:
        mark = {None: "", True: "ok", False: "MISSED"}[row.ok]
        cells = (number(row.baseline), number(row.ours), number(row.ratio))
        table.add_row(row.name, row.unit, *cells, row.bar, mark)
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(table)


def machine() -> dict[str, Any]:
    """Return the machine and the versions of the figures."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": runtime_threads().as_json(),
        "os": platform.platform(),
        "python": platform.python_version(),
    }


def approve(path: Path) -> Path:
    """Approve a database that another run made, or a copy of one, so that TVM gets it."""
    from tunedb.storage import approval
    from tunedb.storage.store import Store

    with Store(path, create=False, read_only=True) as store:
        approval.approve(path, store.key)
    return path


def onnx_session(model: Any) -> Any:
    """Return a session of ONNX Runtime for an ONNX model, with as many threads as TVM's runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = runtime_threads().count
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def random_arguments(mod: Any) -> list[Any]:
    """Return random tensors of float32 for the function ``main`` of a module, equal each time."""
    import numpy as np
    import tvm

    from tunedb.plugins.metaschedule.compat import arguments_of

    rng = np.random.default_rng(0)
    return [
        tvm.runtime.tensor(rng.random(tuple(map(int, each.shape)), "float32"))
        for each in arguments_of(mod["main"])
    ]


def local_builder() -> Any:
    """Return TVM's ``LocalBuilder`` with time enough for its workers to import TVM's intrinsics.

    They do so before their first program; on a busy or slow machine that takes longer than the
    default of 30 s, and every candidate fails.
    """
    from tvm.s_tir.meta_schedule.builder import LocalBuilder

    return LocalBuilder(timeout_sec=120)


def run(
    description: str,
    baseline: str,
    measure: Callable[[argparse.Namespace], list[Row]],
    add_options: Callable[[argparse.ArgumentParser], None] | None = None,
) -> None:
    """Parse options, measure, print and write the table; exit 1 with --check and a missed bar."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table as JSON")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    if add_options is not None:
        add_options(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tunedb-benchmark-") as folder:
        # The databases of a run are gone when it ends; so are their approvals.
        os.environ["XDG_CONFIG_HOME"] = folder
        # The same threads for TVM's arms and ours, here and in all processes that are started.
        use_threads()
        rows = measure(options)
    show(description, rows, baseline)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        content = {"machine": machine(), "rows": [{**asdict(r), "ratio": r.ratio} for r in rows]}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    missed = [row.name for row in rows if row.ok is False]
    if missed:
        print(f"missed: {', '.join(missed)}", file=sys.stderr)
    if options.check and missed:
        raise SystemExit(1)
