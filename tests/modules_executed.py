"""How many modules of tunedb a log line, a candidate and a foreign record pass through.

    .venv/bin/python tests/modules_executed.py [--list] [--json FILE] [--check]

Each way runs through the command line in a process of its own: an Ansor log is imported and asked
for its best programs; a matrix product is tuned for one batch; another database is merged. A module
counts where code of one of its functions runs, in any thread of that process. Modules of the
command line and compiled modules are not counted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType

#: Way → the most modules that it may pass.
BARS = {"log line": 28, "candidate": 22, "foreign record": 18}

MATMUL = """
from tvm.script import ir as I
from tvm.script import tirx as T

@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((64, 64)), B: T.Buffer((64, 64)), C: T.Buffer((64, 64))):
        T.func_attr({"tirx.noalias": True})
        for i, j, k in T.grid(64, 64, 64):
            with T.sblock("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = T.float32(0)
                C[vi, vj] += A[vi, vk] * B[vk, vj]
"""


def tunedb(*words: str) -> None:
    """Run a command in this process."""
    from tunedb.cli import main

    main([*words], prog_name="tunedb", standalone_mode=False)


def commands(way: str, folder: Path) -> list[list[str]]:
    """Prepare a folder; return the commands that are watched."""
    import small_logs

    database, log = str(folder / "tune.db"), folder / "ansor.json"
    tunedb("db", "init", database)
    if way == "candidate":
        module = folder / "matmul.py"
        module.write_text(MATMUL)
        return [["tune", "--db", database, str(module), "--trials", "4"]]
    log.write_bytes(next(iter(small_logs.ansor("v0.6").values())))
    if way == "log line":
        return [["import", "logs", "--db", database, str(log)], ["top", "--db", database, "--json"]]
    other = str(folder / "other.db")
    tunedb("db", "init", other)
    tunedb("import", "logs", "--db", other, str(log))
    return [["merge", "--db", database, other]]


def executed(watched: list[list[str]]) -> list[str]:
    """Return the modules whose functions run while commands do."""
    import tunedb as package

    root = Path(package.__file__).parent
    roots = {str(root): "", **{str(root.parent / name): name for name in ("plugins", "migrations")}}
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            files.add(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    for words in watched:
        tunedb(*words)
    sys.setprofile(None)
    threading.setprofile(None)
    modules = set()
    for file in files:
        for place, name in roots.items():
            if file.startswith(place + "/") and f"{place}/cli/" not in file:
                modules.add(str(Path(name) / Path(file).relative_to(place).with_suffix("")))
    return sorted(modules)


def count(way: str) -> list[str]:
    """Return the modules of one way, watched in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--way", way], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Count, print a table, and compare with the bars."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="name the modules")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the modules to a file")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a bar is missed")
    parser.add_argument("--way", choices=BARS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        with tempfile.TemporaryDirectory() as folder:
            print(f"\n{json.dumps(executed(commands(options.way, Path(folder))))}")
        return
    ways = {way: count(way) for way in BARS}
    for way, modules in ways.items():
        print(f"{way:16}{len(modules):4} modules (at most {BARS[way]})")
        if options.list:
            print(*(f"    {module}" for module in modules), sep="\n")
    if options.json:
        options.json.write_text(json.dumps(ways, indent=1))
    if options.check and any(len(modules) > BARS[way] for way, modules in ways.items()):
        sys.exit(1)


if __name__ == "__main__":
    main()
