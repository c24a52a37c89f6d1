"""Approvals: TVM uses only databases that the user has created or approved."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys

import pytest
from builders import key_of
from sqlalchemy import update

import tunedb
from tunedb.errors import ApprovalError, StorageError
from tunedb.storage import approval, schema
from tunedb.storage import store as store_module
from tunedb.storage.engine import canonical_location, parse_url, shell_word
from tunedb.storage.store import Store

STRANGER = 12345


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder of approvals, which does not exist yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    return tmp_path / "configuration" / "tunedb" / "approved"


@pytest.fixture
def theirs(sqlite_template, tmp_path):
    """A database that the user has not approved."""
    return shutil.copyfile(sqlite_template, tmp_path / "theirs.db")


@pytest.fixture
def mine(tmp_path, folder):
    """A database that the user created."""
    path = tmp_path / "mine.db"
    tunedb.open(path).close()
    return path


def require(url):
    with Store(url, create=False, read_only=True) as store:
        store.require_approved()


def refused(url):
    """Return the only line of the error that rejects a database."""
    with pytest.raises(ApprovalError) as caught:
        require(url)
    (line,) = str(caught.value).splitlines()
    return line


def entry(folder):
    (path,) = folder.glob("*.json")
    return path


def test_created_databases_are_approved(tmp_path, folder):
    path = tmp_path / "new.db"
    with tunedb.open(path) as store:
        key = store.key
        store.require_approved()
    require(path)
    require(f"sqlite:///{path}")
    (known,) = approval.approvals()[0]
    assert (known.location, known.store, known.owner) == (str(path), key, os.geteuid())
    modes = [stat.S_IMODE(one.stat().st_mode) for one in (folder, entry(folder))]
    assert modes == [0o700, 0o600]


def test_created_databases_on_a_server_are_approved(bare_postgres_url):
    with pytest.raises(tunedb.SchemaError):
        require(bare_postgres_url)
    tunedb.open(bare_postgres_url).close()
    require(bare_postgres_url)
    (known,) = approval.approvals()[0]
    assert known.owner is None
    assert approval.forget(bare_postgres_url)
    assert "tunedb db trust" in refused(bare_postgres_url)


def test_a_database_in_memory_needs_no_approval():
    with Store(":memory:") as store:
        store.require_approved()
    assert approval.approvals() == ([], [])


def test_require_approved_rejects_foreign_database_until_it_is_approved(theirs):
    """`tunedb.open` approves a database only if it creates it."""
    tunedb.open(theirs).close()
    line = refused(theirs)
    assert line.startswith(f"{theirs}: you have not approved it; ")
    assert line.endswith(f"run: tunedb db trust {theirs}")
    approval.approve(theirs, key_of(theirs))
    require(theirs)
    assert approval.forget(theirs)
    assert not approval.forget(theirs)
    refused(theirs)


def test_moved_or_copied_database_needs_a_new_approval(tmp_path):
    old, new = tmp_path / "old.db", tmp_path / "a name" / "new.db"
    tunedb.open(old).close()
    new.parent.mkdir()
    shutil.copyfile(old, new)
    assert refused(new).endswith(f"run: tunedb db trust '{new}'")
    old.replace(new)
    refused(new)


def test_file_that_replaces_an_approved_database_is_rejected(theirs, mine):
    shutil.copyfile(theirs, mine)
    line = refused(mine)
    assert "it is not the database that you approved there" in line
    assert line.endswith(f"run: tunedb db trust {mine}")


def test_server_database_whose_store_key_changed_is_rejected(bare_postgres_url):
    tunedb.open(bare_postgres_url).close()
    with Store(bare_postgres_url) as store, store._db.transaction() as connection:
        key = update(schema.meta).where(schema.meta.c.key == "store")
        connection.execute(key.values(value="f" * 32))
    assert "it is not the database that you approved there" in refused(bare_postgres_url)


def test_file_with_the_approved_key_but_another_owner_is_rejected(folder, mine):
    """Store keys are not secret: bundles contain them."""
    values = json.loads(entry(folder).read_text())
    entry(folder).write_text(json.dumps(values | {"owner": STRANGER}))
    assert "its file does not belong to the user who had it" in refused(mine)


def test_database_created_in_a_file_of_another_user_is_not_approved(tmp_path, monkeypatch):
    path = tmp_path / "empty.db"
    path.touch()
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    with Store(path) as store, pytest.raises(ApprovalError):
        store.require_approved()


def test_symbolic_link_is_approved_only_if_its_target_is(tmp_path, theirs, mine):
    link = tmp_path / "link.db"
    link.symlink_to(mine)
    require(link)
    link.unlink()
    link.symlink_to(theirs)
    refused(link)


@pytest.mark.parametrize(
    "other",
    [
        *("host:5433/db", "host/other", "host/db?host=evil", "host/db?hostaddr=6.6.6.6"),
        *("host/db?dbname=other", "host/db?service=evil", "host/db?options=-csearch_path%3Devil"),
    ],
)
def test_canonical_location_includes_host_port_database_and_options(other):
    one, other = (parse_url(f"postgresql://{place}") for place in ("host/db", other))
    assert canonical_location(one) != canonical_location(other)


def test_approval_of_a_server_ignores_account_and_stores_no_password(folder):
    one = "postgresql+psycopg://me:secret@host/db?password=hidden&user=me&sslmode=require"
    assert canonical_location(parse_url(one)) == "postgresql://host/db?sslmode=require"
    assert shell_word(parse_url(one)) == "'postgresql://me@host/db?sslmode=require&user=me'"
    approval.approve(one, "f" * 32)
    approval.require("postgresql://you:other@host/db?sslmode=require", "f" * 32)
    with pytest.raises(ApprovalError) as caught:
        approval.require(one, "e" * 32)
    shown = str(caught.value) + entry(folder).read_text()
    assert "secret" not in shown and "hidden" not in shown


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"location": 1}', b"\0" * 99]
)
def test_damaged_approval_approves_nothing(data, folder, mine):
    path = entry(folder)
    path.write_bytes(data)
    line = refused(mine)
    assert str(path) in line and line.endswith(f"run: tunedb db trust {mine}")
    found, (error,) = approval.approvals()
    assert found == [] and str(path) in str(error)
    approval.approve(mine, key_of(mine))
    require(mine)


def test_approval_that_is_unreadable_or_that_others_may_write_is_rejected(folder, mine):
    path = entry(folder)
    path.chmod(0o662)
    assert "others may write it" in refused(mine)
    path.unlink()
    path.mkdir()
    assert "cannot be read (Is a directory)" in refused(mine)


def test_folder_of_approvals_that_others_may_write_is_rejected(folder, theirs, mine):
    folder.chmod(0o777)
    assert f"chmod go-w {folder}" in refused(mine)
    with pytest.raises(StorageError, match="others may write it"):
        approval.approve(theirs, key_of(theirs))
    found, (error,) = approval.approvals()
    assert found == [] and str(folder) in str(error)


def test_approvals_of_another_user_are_rejected(monkeypatch, mine):
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    assert "it belongs to " in refused(mine)


def test_creator_may_use_a_database_whose_approval_cannot_be_written(tmp_path, monkeypatch):
    """A warning is logged, and the next store that opens the database needs an approval."""
    lines = []
    monkeypatch.setattr(store_module._log, "warning", lambda text, *args: lines.append(text % args))
    (tmp_path / "configuration").write_text("a file")
    mine = tmp_path / "mine.db"
    with tunedb.open(mine) as store:
        store.require_approved()
    (line,) = lines
    assert line.startswith(f"{mine}: created, but not approved: ")
    assert line.endswith(f"run: tunedb db trust {mine}")
    refused(mine)


def test_concurrent_processes_lose_no_approval(tmp_path):
    script = """
import sys
from tunedb.storage import approval
for number in range(20):
    approval.approve(f"{sys.argv[1]}/{number % 2 and sys.argv[2]}-{number}.db", "f" * 32)
    found, errors = approval.approvals()
    assert not errors, errors
    assert len(found) >= number + 1
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", script, tmp_path, name]) for name in ("a", "b")
    ]
    assert [process.wait(timeout=600) for process in processes] == [0, 0]
    assert len(approval.approvals()[0]) == 30


def test_killed_writer_leaves_the_approval_unchanged(folder, mine):
    before = entry(folder).read_bytes()
    script = """
import os, signal, sys
from tunedb.storage import approval
os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)
approval.approve(sys.argv[1], "f" * 32)
"""
    done = subprocess.run([sys.executable, "-c", script, mine], check=False, timeout=600)
    assert done.returncode == -signal.SIGKILL
    assert entry(folder).read_bytes() == before
    require(mine)
    assert approval.approvals()[1] == []
