"""Sweeps remove folders of killed processes, and keep those of living ones."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tunedb import limits
from tunedb.system import temporary
from tunedb.system.temporary import TemporaryFolder, sweep

HOLD = """
import subprocess, sys
from pathlib import Path
from tunedb.system.temporary import TemporaryFolder
folder = TemporaryFolder("known", Path(sys.argv[1]))
(folder.path / "sub").mkdir()
(folder.path / "sub" / "file").write_text("x")
worker = sys.argv[2] and subprocess.Popen(["sleep", "1000"], stdout=subprocess.DEVNULL).pid
print(folder.path, worker, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def hold(tmp_path):
    """A function that starts a process with a folder in `tmp_path`, and returns both."""
    started, workers = [], []

    def hold(worker=""):
        command = [sys.executable, "-c", HOLD, str(tmp_path), worker]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        started.append(process)
        path, _, number = process.stdout.readline().strip().partition(" ")
        workers.extend([int(number)] if number else [])
        return process, Path(path)

    yield hold
    for process in started:
        process.kill()
        process.communicate()
    for number in workers:
        os.kill(number, signal.SIGKILL)


@pytest.fixture
def killed(hold):
    """The folder of a killed process."""
    process, path = hold()
    kill(process)
    return path


#: Names as of folders of ours.
NAME, OTHER = "tunedb-known-0123456789abcdef", "tunedb-known-fedcba9876543210"


def kill(process):
    process.kill()
    process.wait()


def test_temporary_folder_is_private_and_removed_on_close(tmp_path):
    with TemporaryFolder("known", tmp_path) as folder:
        assert folder.path.parent == tmp_path
        assert folder.path.name.startswith("tunedb-known-")
        assert folder.path.stat().st_mode & 0o777 == 0o700
        (folder.path / "sub").mkdir()
        (folder.path / "sub" / "file").touch()
        (folder.path / "link").symlink_to(tmp_path)
    folder.close()
    assert list(tmp_path.iterdir()) == []
    assert TemporaryFolder("new", tmp_path, hidden=True).path.name.startswith(".tunedb-new-")


def test_folder_is_removed_with_its_object_or_process(tmp_path, hold):
    folder = TemporaryFolder("known", tmp_path)
    path = folder.path
    del folder
    assert not path.exists()
    process, path = hold()
    process.communicate("")
    assert not path.exists()


def test_new_folder_removes_only_folders_of_killed_processes(tmp_path, hold):
    process, path = hold()
    with TemporaryFolder("builder", tmp_path):
        assert path.is_dir()  # it lives
    kill(process)
    assert (path / "sub" / "file").exists()
    with TemporaryFolder("builder", tmp_path) as folder:
        assert list(tmp_path.iterdir()) == [folder.path]


def test_sweep_removes_folders_without_lock_only_if_empty_and_in_time(tmp_path, monkeypatch):
    """A process that is killed before it creates the lock leaves an empty folder."""
    (tmp_path / NAME).mkdir()
    (tmp_path / OTHER).mkdir()
    (tmp_path / OTHER / "file").touch()
    for most, removed in ((0, 0), (1000, 1)):
        monkeypatch.setattr(limits, "SWEEP_S", most)
        assert sweep(tmp_path) == removed
    assert [one.name for one in tmp_path.iterdir()] == [OTHER]


def test_next_sweep_finishes_a_failed_one(tmp_path, killed, monkeypatch):
    """The lock is removed last, so that the rest is still recognised as a left-over."""

    def refuse(*_, **__):
        raise PermissionError

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", refuse)
        assert sweep(tmp_path) == 0
    assert killed.is_dir()
    assert sweep(tmp_path) == 1
    assert list(tmp_path.iterdir()) == []


def test_sweep_keeps_folders_of_other_programs_and_users(tmp_path, hold, monkeypatch):
    names = ("tunedb-out", "tunedb-known-xyz", "other", "x-tunedb-known-0123456789abcdef")
    for name in (*names, "outside"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".lock").touch()
    (tmp_path / NAME).symlink_to(tmp_path / "outside")
    (tmp_path / OTHER).touch()
    before = sorted(tmp_path.rglob("*"))
    assert sweep(tmp_path) == 0
    assert sorted(tmp_path.rglob("*")) == before
    process, path = hold()
    kill(process)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert sweep(tmp_path) == 0
    assert path.is_dir()


def test_sweep_does_not_follow_links(tmp_path, killed):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    (killed / "link").symlink_to(outside)
    assert sweep(tmp_path) == 1
    assert (outside / "file").exists()


def test_sweep_does_not_wait_for_a_pipe_named_like_the_lock(tmp_path):
    (tmp_path / NAME).mkdir()
    os.mkfifo(tmp_path / NAME / ".lock")
    assert sweep(tmp_path) == 1
    assert not (tmp_path / NAME).exists()


def test_fork_neither_removes_nor_unlocks_folder_of_its_parent(tmp_path):
    folder = TemporaryFolder("known", tmp_path)
    child = os.fork()
    if child == 0:
        folder.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert folder.path.is_dir()
    assert sweep(tmp_path) == 0
    folder.close()
    assert not folder.path.exists()


def test_sweep_removes_folder_of_killed_process_with_living_worker(tmp_path, hold):
    """The owner of a folder is the process that created it, not one that it started."""
    process, _ = hold("with a worker")
    kill(process)
    assert sweep(tmp_path) == 1


@pytest.mark.parametrize(
    ("owner", "name", "is_before"), [(Path, "mkdir", False), (temporary.fcntl, "flock", True)]
)
def test_folder_is_created_again_if_a_sweep_removes_it(
    owner, name, is_before, tmp_path, monkeypatch
):
    """The sweep comes before the lock is created or taken."""
    real, swept = getattr(owner, name), []

    def with_sweeper(*args, **options):
        if not is_before:
            real(*args, **options)
        if not swept:
            swept.append(None)
            swept[0] = sweep(tmp_path)
        return real(*args, **options) if is_before else None

    monkeypatch.setattr(owner, name, with_sweeper)
    with TemporaryFolder("known", tmp_path) as folder:
        assert swept == [1]
        assert list(tmp_path.iterdir()) == [folder.path]


def test_folder_survives_sweeps_on_file_system_without_locks(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(temporary.fcntl, "flock", refuse)
    with TemporaryFolder("known", tmp_path) as folder:
        assert sweep(tmp_path) == 0
        assert folder.path.is_dir()


def test_several_sweeps_remove_a_large_folder(tmp_path, killed, monkeypatch):
    for number in range(5):
        (killed / str(number)).touch()
    seconds = iter(range(100))
    monkeypatch.setattr(temporary.time, "monotonic", lambda: next(seconds))
    monkeypatch.setattr(limits, "SWEEP_S", 4)
    assert sweep(tmp_path) == 0
    left = len(list(killed.iterdir()))
    assert 1 < left < 7
    assert (killed / ".lock").exists()
    monkeypatch.setattr(limits, "SWEEP_S", 1000)
    assert sweep(tmp_path) == 1


def test_sweep_ignores_missing_place_and_new_folder_rejects_it(tmp_path):
    assert sweep(tmp_path / "none") == 0
    with pytest.raises(FileNotFoundError):
        TemporaryFolder("known", tmp_path / "none")
