"""If a database fails while a run measures, the measurements are in a file to import."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from builders import copied, make_measurement, sql
from click.testing import CliRunner
from fake_measuring import FakeBuilder, FakeRunner, tune
from raising import raises_line
from tvm.s_tir import meta_schedule as ms

from tunedb.cli import main
from tunedb.errors import StorageError
from tunedb.plugins.metaschedule import Database
from tunedb.plugins.metaschedule.database.database import handle_of
from tunedb.plugins.metaschedule.database.handle import Candidate
from tunedb.plugins.metaschedule.database.spool import Spool
from tunedb.records import Failure, FailureKind, Phase, Status, Workload
from tunedb.storage.store import Store

TILES = [(16, 1), (8, 2), (4, 4), (2, 8), (1, 16)]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A working directory for the test alone."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


class Run:
    """A handle that records batches of two workloads."""

    def __init__(self, database, tools):
        self.tools, self.database, self.handle = tools, database, handle_of(database)
        mods = tools.matmul(16), tools.matmul(32)
        self.workloads = [(mod, self.handle.commit_workload(mod)) for mod in mods]

    def record(self, *numbers):
        """Record programs; every third one failed."""
        batch = []
        for number in numbers:
            mod, workload = self.workloads[number % 2]
            outer, inner = TILES[number // 2]
            made = self.tools.record(mod, workload, [1.0], tile=(outer * (1 + number % 2), inner))
            failure = Failure(FailureKind.CRASH, Phase.RUN, "x") if number % 3 == 2 else None
            times = (1e10,) if failure else (0.1 * (number + 1), 1 / 3)
            facts = (workload, made.trace, self.tools.llvm, made.args_info, times, failure)
            batch.append(Candidate(*facts))
        self.handle.record_batch(batch)

    def refuse(self, *numbers):
        """Record programs, which the database rejects; return the message."""
        with raises_line(StorageError) as caught:
            self.record(*numbers)
        return str(caught.value)


@pytest.fixture
def start(tools, opened):
    """A function that opens a handle."""
    return lambda url: Run(opened(url, target=tools.llvm), tools)


@pytest.fixture
def run(sqlite_file, start):
    return start(sqlite_file)


def stop_writes(path, words):
    """Let the database answer every measurement with an error of the driver."""
    sql(
        path,
        "CREATE TRIGGER stop BEFORE INSERT ON measurement "
        f"BEGIN SELECT RAISE(ABORT, '{words}'); END",
    )


def imported(path, quarantined=0):
    """Import a file by the command line into a new database; return its records."""
    target = path.with_name("imported.db")
    result = CliRunner().invoke(main, ["--db", str(target), "import", "logs", str(path)])
    assert result.exit_code == 0, result.output
    with Store(target) as store:
        assert store.counts().quarantined == quarantined
        return [record.measurement for record in store.records.iterate()]


def spooled(folder, name="store.db"):
    (path,) = folder.glob(f"{name}.spool-*.json")
    return path


def numbers_of(measurements):
    """Return the numbers of programs of :meth:`Run.record`; assert that they are complete."""
    numbers = []
    for one in measurements:
        times = one.run_secs
        if one.status is Status.FAILED:
            numbers.append("failed")
        else:
            assert times[1] == 1 / 3
            numbers.append(round(times[0] / 0.1) - 1)
        assert one.program.workload.format == "tvm-graph"
        assert one.program.target.kind == "llvm"
        assert one.args_info.startswith(b'[["TENSOR","float32",')
    return numbers


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("database or disk is full", "the disk is full"),
        ("attempt to write a readonly database", "it cannot be written"),
        ("disk I/O error", "the disk failed"),
    ],
)
def test_rejected_batch_is_spooled_beside_the_database(run, sqlite_file, words, reason):
    run.record(0, 1, 2)
    stop_writes(sqlite_file, words)
    message = run.refuse(3, 4, 5, 6)
    path = spooled(sqlite_file.parent)
    assert reason in message
    assert message.endswith(f"the measurements are kept; run: tunedb import logs {path}")
    found = imported(path)
    assert numbers_of(found) == [3, 4, "failed", 6]
    assert len(run.database) == 3
    known = {m.measurement.program.digest for m in run.database.store.records.iterate()}
    assert not known & {one.program.digest for one in found}


def test_spooled_programs_keep_their_digests(run, sqlite_file):
    """An import into the database of the run finds their workloads and programs there."""
    run.record(0, 1)
    stop_writes(sqlite_file, "database or disk is full")
    run.refuse(0, 1)
    digests = {m.measurement.program.digest for m in run.database.store.records.iterate()}
    assert {one.program.digest for one in imported(spooled(sqlite_file.parent))} == digests


@pytest.mark.parametrize("replaced", [False, True])
def test_all_batches_are_spooled_when_the_database_file_is_deleted_or_replaced(
    replaced, run, sqlite_file, sqlite_template
):
    """SQLite would go on writing into the deleted file; earlier batches are spooled too."""
    run.record(0, 1, 2)
    for suffix in [""] if replaced else ["", "-wal", "-shm"]:
        Path(f"{sqlite_file}{suffix}").unlink(missing_ok=True)
    if replaced:
        shutil.copyfile(sqlite_template, sqlite_file)
    assert "the file was deleted or replaced while it was in use" in run.refuse(3, 4)
    assert numbers_of(imported(spooled(sqlite_file.parent))) == [0, 1, "failed", 3, 4]


def test_batches_are_spooled_when_the_directory_is_gone(sqlite_template, start, folder, tmp_path):
    (tmp_path / "databases").mkdir()
    copied(sqlite_template, tmp_path / "databases" / "tune.db")
    run = start(tmp_path / "databases" / "tune.db")
    run.record(0)
    (tmp_path / "databases").rename(tmp_path / "elsewhere")
    run.refuse(1)
    assert numbers_of(imported(spooled(folder, "tune.db"))) == [0, 1]


def test_batch_is_spooled_to_working_directory_when_the_disk_is_full(mount, start, folder):
    """Nothing fits beside the database either."""
    disk = mount("1m")
    run = start(disk / "tune.db")
    run.record(0)
    with (
        (disk / "ballast").open("wb", buffering=0) as ballast,
        pytest.raises(OSError, match="No space left"),
    ):
        while ballast.write(b"\0" * 4096):
            pass
    message = ""
    for number in range(1, 8):
        try:
            run.record(number)  # pages of the log that are there already take some
        except StorageError as error:
            message = str(error)
            break
    assert "the disk is full" in message
    assert not list(disk.glob("*.json"))
    assert len(imported(spooled(folder, "tune.db"))) == 1


def test_batches_are_spooled_when_the_database_of_the_server_is_gone(
    postgres_server, start, folder
):
    url = postgres_server.new_database()
    run = start(url)
    run.record(0)
    postgres_server.drop(url)
    message = run.refuse(1, 3)
    path = spooled(folder, "test_*")
    assert str(path) in message
    assert numbers_of(imported(path)) == [1, 3]


def test_spool_leaves_out_records_without_a_module(run):
    run.record(0, 1)
    session, store = run.handle.session(), run.database.store
    one, other = (record.measurement for record in store.runs.records(session))
    odd = make_measurement(1, workload=Workload("ansor-key", b'["key"]'))
    path = Spool(store).write([one, odd, other], session)
    assert numbers_of(imported(path)) == [0, 1]


def test_spool_stays_unchanged_if_no_location_takes_a_batch(run, sqlite_file, monkeypatch):
    stop_writes(sqlite_file, "database or disk is full")
    run.refuse(0)
    path = spooled(sqlite_file.parent)
    before = path.read_bytes()

    def fail(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tunedb.plugins.metaschedule.database.spool.os.fsync", fail)
    message = run.refuse(1)
    assert "the disk is full" in message
    assert "the last batch is lost; no location could store it" in message
    assert path.read_bytes() == before
    assert list(Path.cwd().iterdir()) == []


def test_batches_of_a_run_share_a_file_and_start_a_line_after_a_truncated_one(run, sqlite_file):
    """A process that is killed while it writes leaves a truncated line."""
    stop_writes(sqlite_file, "database or disk is full")
    for batch in [(1, 3), (0,), (4, 9)]:
        run.refuse(*batch)
    path = spooled(sqlite_file.parent)
    path.write_bytes(path.read_bytes()[:-10])
    run.refuse(6, 7)
    assert numbers_of(imported(path, quarantined=1)) == [1, 3, 0, 4, 6, 7]


@pytest.mark.parametrize(
    ("what", "strategy"), [("deleted", "evolutionary"), ("refused", "replay-trace")]
)
def test_run_whose_database_fails_loses_no_measurement(
    sqlite_file, tools, tmp_path, what, strategy
):
    """Each measurement is in the database or in the file, and the error keeps its type."""
    database = Database(sqlite_file, target=tools.llvm)

    def fail(_):
        if len(runner.ran) == 10:
            if what == "deleted":
                sqlite_file.unlink()
            else:
                stop_writes(sqlite_file, "database or disk is full")

    runner = FakeRunner(on_run=fail)
    more = {} if strategy == "evolutionary" else {"strategy": strategy}
    options = {"builder": FakeBuilder(), "runner": runner, "trials": 32, **more}
    with pytest.raises(StorageError, match="tunedb import logs"):
        tune(tools.matmul(64), tools.llvm, database, tmp_path, **options)
    stored = len(database) if what == "refused" else 0
    database.close()
    assert len(runner.ran) == 16  # two batches
    path = spooled(sqlite_file.parent)
    found = imported(path)
    assert len(found) + stored == 16
    # TVM's own database reads the file's parts, too.
    workload, *records = path.read_bytes().splitlines(keepends=True)
    parts = tmp_path / "workload.json", tmp_path / "record.json"
    for part, content in zip(parts, (workload, b"".join(records)), strict=True):
        part.write_bytes(content)
    assert len(ms.database.JSONDatabase(*map(str, parts))) == len(found)
