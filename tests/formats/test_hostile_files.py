"""Files that were made to fill the memory: their import takes less than 300 MB."""

import gzip
import lzma
import subprocess
import sys
from pathlib import Path

import pytest
from effort import long

from tunedb.storage.store import Store
from tunedb.system.compression import zstd

TESTS = Path(__file__).parents[1]
MOST = 300 * 10**6
SIZE = 320 * 2**20

#: The command line in a process of its own, which then says how much memory it took.
CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
from memory import peak_bytes
from tunedb.cli import main
try:
    main(sys.argv[2:])
finally:
    print("peak", peak_bytes(), flush=True)
"""

ANSOR = b'{"i": [["[\\"f\\"]", "llvm"], [[], [%s]]], "r": [[0.5], 0, 1, 2], "v": "v0.6"}\n'


def zeros():
    """Yield :data:`SIZE` zero bytes."""
    block = bytes(2**20)
    for _ in range(SIZE // len(block)):
        yield block


def gzip_bomb(path):
    with gzip.open(path, "wb", 1) as file:
        file.writelines(zeros())


def xz_bomb(path):
    with lzma.open(path, "wb", preset=0) as file:
        file.writelines(zeros())


def one_line(path):
    with path.open("wb") as file:
        file.truncate(2 * SIZE)  # sparse


def good_and(make):
    """Return what writes a good line and more."""
    return lambda path: path.write_bytes(ANSOR % b"" + make())


HOSTILE = {
    "gzip_bomb.json.gz": gzip_bomb,
    "xz_bomb.json.xz": xz_bomb,
    "zstd_bomb.json.zst": lambda path: path.write_bytes(zstd.compress(bytes(SIZE))),
    "one_line.json": one_line,
    "deep_lists.json": good_and(lambda: b"[" * (15 * 2**20) + b"\n"),
    "many_values.json": good_and(lambda: ANSOR % (b"[]," * 5_000_000 + b"[]")),
    "a_million_steps.json": good_and(lambda: ANSOR % (b'["CI",1],' * 1_000_000 + b'["CI",1]')),
    "much_junk.json": good_and(lambda: b"".join(b"junk %d\n" % n for n in range(300_000))),
}

FEW = ["zstd_bomb.json.zst", "many_values.json"]


@pytest.mark.parametrize("name", [*FEW, *(long(name) for name in HOSTILE if name not in FEW)])
def test_import_of_hostile_file_takes_less_than_300_mb(name, sqlite_file, tmp_path):
    path = tmp_path / name
    HOSTILE[name](path)
    arguments = ["--db", sqlite_file, "import", "logs", path, "--trust", "foreign"]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, TESTS, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode in (0, 1), done.stderr
    peak = int(done.stdout.split("peak ")[-1])
    assert peak < MOST, f"{peak / 10**6:.0f} MB\n{done.stderr}"
    with Store(sqlite_file) as store:
        assert store.records.count() <= 1
