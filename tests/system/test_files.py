"""Only regular files are read, and new files appear whole or not at all."""

import os
import signal
import socket
from contextlib import contextmanager
from pathlib import Path

import pytest

from tunedb.errors import StorageError
from tunedb.system import files
from tunedb.system.files import (
    new_file,
    open_regular,
    read_regular,
    require_regular_logs,
    write_whole,
)


def make_socket(path):
    # The path of a socket must be short.
    with socket.socket(socket.AF_UNIX) as one:
        before = Path.cwd()
        os.chdir(path.parent)
        try:
            one.bind(path.name)
        finally:
            os.chdir(before)


SPECIAL = [
    *((os.mkfifo, "a named pipe"), (make_socket, "a socket")),
    (lambda path: path.symlink_to("/dev/zero"), "a device"),
]


@contextmanager
def child():
    """Run a block in a fork, which must end by SIGKILL."""
    process = os.fork()
    if process == 0:
        try:
            yield True
        finally:
            os._exit(1)
    yield False
    assert os.waitpid(process, 0)[1] == signal.SIGKILL


@pytest.mark.parametrize(("make", "kind"), SPECIAL, ids=[kind for _, kind in SPECIAL])
def test_open_regular_and_read_regular_reject_special_files(make, kind, tmp_path):
    path = tmp_path / "x"
    make(path)
    message = f"x: {kind}, but tunedb reads only regular files; give -"
    with pytest.raises(StorageError, match=message):
        open_regular(path, advice="give -")
    with pytest.raises(StorageError, match=f"{kind}.*; copy its data to a file first"):
        read_regular(path, 10)


def test_open_regular_and_read_regular_follow_links_to_files(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    with open_regular(tmp_path / "link", buffering=0) as file:
        assert file.read() == b"content"
    assert read_regular(str(tmp_path / "link"), 4) == b"cont"
    os.truncate(tmp_path / "file", 2**40)  # sparse
    assert len(read_regular(tmp_path / "link", 1000)) == 1000


def test_open_regular_keeps_errors_for_directories_and_missing_files(tmp_path):
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")


def test_open_regular_rejects_pipe_that_appears_after_the_check(tmp_path, monkeypatch):
    """A plain open() of the pipe would wait forever."""
    path = tmp_path / "x"
    os.mkfifo(path)
    monkeypatch.setattr(files, "require_regular", lambda *_, **__: None)
    with pytest.raises(StorageError, match="a named pipe"):
        open_regular(path)
    open_now = [target(one) for one in Path("/proc/self/fd").iterdir()]
    assert path not in open_now


def target(descriptor):
    try:
        return descriptor.readlink()
    except OSError:  # the descriptor of the listing itself
        return None


def test_require_regular_logs_rejects_pipes_named_like_sqlite_logs(tmp_path):
    path = tmp_path / "x.db"
    require_regular_logs(path)
    for suffix in ("-journal", "-wal", "-shm"):
        os.mkfifo(tmp_path / f"x.db{suffix}")
        with pytest.raises(StorageError, match=f"x.db{suffix}: a named pipe.*remove it"):
            require_regular_logs(path)
        (tmp_path / f"x.db{suffix}").unlink()


def test_new_file_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), new_file(path, force=True) as made:
        made.write_text("half")
        assert made.suffix == ".txt"
        raise ZeroDivisionError
    assert path.read_text() == "old"
    with pytest.raises(FileExistsError), new_file(path) as made:
        raise AssertionError
    with new_file(path, force=True):
        pass  # nothing was written
    assert path.read_text() == "old"
    write_whole(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_new_file_does_not_overwrite_file_created_meanwhile(tmp_path):
    path = tmp_path / "x"
    with pytest.raises(FileExistsError), new_file(path) as made:
        made.write_text("mine")
        path.write_text("theirs")
    assert path.read_text() == "theirs"
    assert list(tmp_path.iterdir()) == [path]


def test_new_file_works_on_file_system_without_hard_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "x"
    write_whole(path, b"first", force=False)
    assert path.read_bytes() == b"first"
    with pytest.raises(FileExistsError), new_file(tmp_path / "y") as made:
        made.touch()
        (tmp_path / "y").touch()


def test_write_whole_writes_through_links_and_accepts_names_of_255_bytes(tmp_path):
    path = tmp_path / ("x" * 255)
    (tmp_path / "link").symlink_to(path)
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert path.read_text() == "new"


def test_write_whole_keeps_devices_and_rejects_invalid_paths(tmp_path):
    (tmp_path / "null").symlink_to("/dev/null")
    write_whole(tmp_path / "null", "text")
    assert Path("/dev/null").is_char_device()
    for path in (tmp_path, tmp_path / "none" / "x"):
        with pytest.raises(StorageError, match="cannot be written"):
            write_whole(path, "text")


@pytest.mark.parametrize("step", ["write", "_sync", "_place"])
def test_killed_writer_leaves_the_old_file(step, tmp_path, monkeypatch):
    """The next writer removes the hidden folder that it leaves."""
    path = tmp_path / "x"
    path.write_text("old")

    def die(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    with child() as inside:
        if inside:
            if step != "write":
                monkeypatch.setattr(files, step, die)
            with new_file(path, force=True) as made:
                made.write_text("ne")
                if step == "write":
                    die()
    assert path.read_text() == "old"
    left = [one for one in tmp_path.iterdir() if one != path]
    assert [one.name.startswith(".tunedb-new-") for one in left] == [True]
    write_whole(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]
