"""An example of each error class: bad input, the whole message and the exit code."""

import hashlib
import inspect
import re
import sqlite3
import struct
import sys
from contextlib import closing

import pytest
from builders import sql
from twice import TWICE

import tunedb.storage.engine
from tunedb import errors, limits
from tunedb.report import page

SERVER = "postgresql://bob@127.0.0.1:1/team"

#: Class → command, exit code and message. The commands run in an empty folder beside `inputs`.
EXAMPLES = {
    errors.UsageError: (
        *("explain model --record 1 --program 1", 2),
        "give --record or --program, not both",
    ),
    errors.ApprovalError: (
        *("pull", 2),
        f"{{folder}}/work/tunedb.toml names {SERVER}: you have not approved it; "
        f"check it and run: tunedb db trust {SERVER}",
    ),
    errors.TargetError: (
        *("tune {folder}/module.py --target abacus", 2),
        "unknown target 'abacus' (Target kind \"abacus\" is not defined. Target creation from "
        "string failed: abacus); give one that tvm.target.Target accepts, "
        "e.g. {{'kind': 'llvm', 'num-cores': 4}}",
    ),
    errors.NotFoundError: (
        *("show 999", 3),
        "no record '999'; give an id or four and more digits of a digest, as tunedb top lists them",
    ),
    errors.SchemaError: (
        *("--db {folder}/bookmarks.db top", 4),
        "{folder}/bookmarks.db: a database of another program; give another path",
    ),
    errors.BusyError: (
        *("retract 1 --reason clock --yes", 5),
        "{folder}/filled.db: another process is writing; try again later (database is locked)",
    ),
    errors.StorageError: (
        *("bundle -o {folder}/none/a.tunedb", 1),
        "{folder}/none/a.tunedb: cannot be written (No such file or directory)",
    ),
    errors.UnreachableError: (
        *(f"--db {SERVER} top", 5),
        "postgresql+psycopg://bob@127.0.0.1:1/team: the database did not answer "
        "(connection failed); check that it runs",
    ),
    errors.FormatError: (
        *("merge {folder}/notes.tunedb", 1),
        "{folder}/notes.tunedb: not a bundle of tunedb; give another file",
    ),
    errors.IntegrityError: (
        *("bundle --info {folder}/changed.tunedb", 1),
        "{folder}/changed.tunedb: truncated or changed (its digest does not match); get it again",
    ),
    errors.LimitError: (
        *("bundle --info {folder}/large.tunedb", 1),
        f"{{folder}}/large.tunedb: a manifest of {limits.MAX_MANIFEST_BYTES + 1} bytes is over "
        f"{limits.MAX_MANIFEST_BYTES}",
    ),
    errors.PluginError: (
        *("report -o {folder}/report.html", 1),
        "Jinja does not load (import of jinja2 halted; None in sys.modules); "
        "run: pip install 'tunedb[report]'",
    ),
}


def test_every_error_class_has_an_example():
    classes = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    ours = {kind for kind in classes if issubclass(kind, errors.TuneDBError)}
    assert ours == {*EXAMPLES, errors.TuneDBError}


@pytest.fixture
def inputs(run, filled, tmp_path):
    """A folder with the files that the examples name."""
    (tmp_path / "work" / "tunedb.toml").write_text(f'server = "{SERVER}"')
    (tmp_path / "module.py").write_text(TWICE)
    (tmp_path / "notes.tunedb").write_text("notes, and not what the name promises")
    sql(tmp_path / "bookmarks.db", "CREATE TABLE bookmark (url TEXT)")
    run("--db", filled, "bundle", "-o", tmp_path / "whole.tunedb")
    whole = (tmp_path / "whole.tunedb").read_bytes()
    (tmp_path / "changed.tunedb").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    large = bytearray(whole[:-32])
    struct.pack_into("<I", large, whole.index(b"{") - 4, limits.MAX_MANIFEST_BYTES + 1)
    digest = hashlib.blake2b(large, digest_size=32).digest()
    (tmp_path / "large.tunedb").write_bytes(large + digest)
    return tmp_path


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_command_prints_whole_message_and_returns_exit_code(kind, inputs, run, filled, monkeypatch):
    command, code, text = EXAMPLES[kind]
    words = ["--db", filled, *command.format(folder=inputs).split()]
    monkeypatch.setattr(tunedb.storage.engine, "BUSY_TIMEOUT_S", 0.1)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    page._environment.cache_clear()
    with closing(sqlite3.connect(filled, isolation_level=None)) as connection:
        if kind is errors.BusyError:
            connection.execute("BEGIN IMMEDIATE")
        done = run(*words, code=code)
        traced = run("--debug", *words, code=code).stderr
    assert kind.exit_code == code
    assert done.stdout == ""
    # What libpq adds depends on its version.
    shown = re.sub(r"\(connection failed: .*\)", "(connection failed)", done.stderr)
    assert shown == f"Error: {text.format(folder=inputs)}\n"
    assert f"\ntunedb.errors.{kind.__name__}: " in traced
