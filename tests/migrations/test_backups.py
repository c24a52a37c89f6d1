"""A backup of ``tunedb db upgrade`` is whole or absent, wherever the upgrade is killed."""

import os
import shutil
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tunedb import migrations
from tunedb.errors import StorageError
from tunedb.storage import versions
from tunedb.storage.engine import parse_url
from tunedb.system import files

FROZEN = Path(__file__).parent / "frozen" / "0004.db"


@pytest.fixture
def old(tmp_path):
    return Path(shutil.copyfile(FROZEN, tmp_path / "old.db"))


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


class _Dying(sqlite3.Connection):
    """A connection that is killed when it copies."""

    def backup(self, target, **_):
        super().backup(target, pages=1, progress=die)


#: Where the process is killed, in the order of the steps of an upgrade.
STEPS = {
    "before the first page": (versions, "closing", die),
    "after the first page": (sqlite3, "connect", _Dying),
    "before it is on the disk": (files, "_sync", die),
    "before it has its name": (files, "_place", die),
    "before the migration": (migrations, "upgrade", die),
}


def killed_upgrade(path, step, monkeypatch):
    """Upgrade in a fork that is killed at a step."""
    process = os.fork()
    if process == 0:
        try:
            monkeypatch.setattr(*STEPS[step])
            versions.upgrade(parse_url(path))
        finally:
            os._exit(1)
    assert os.waitpid(process, 0)[1] == signal.SIGKILL


def rows(path):
    with closing(sqlite3.connect(path)) as db:
        return list(db.iterdump())


@pytest.mark.parametrize("step", STEPS)
def test_attack_7_backup_of_killed_upgrade_is_whole_or_absent(step, old, monkeypatch):
    before = rows(old)
    killed_upgrade(old, step, monkeypatch)
    assert rows(old) == before
    for backup in old.parent.glob("*.bak-*"):
        assert rows(backup) == before
    assert bool(list(old.parent.glob("*.bak-*"))) == (step == "before the migration")
    # The next upgrade makes its own backup and removes what is left of this one.
    versions.upgrade(parse_url(old))
    backups = sorted(old.parent.glob("*.bak-*"))
    assert [rows(backup) == before for backup in backups] == [True] * len(backups) != []
    assert sorted(old.parent.iterdir()) == sorted([old, *backups])


def test_upgrade_without_backup_changes_nothing(old, monkeypatch):
    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    before = rows(old)
    monkeypatch.setattr(files, "_sync", refuse)
    with pytest.raises(StorageError, match=r"old.db.bak-0004: cannot be written \(No space"):
        versions.upgrade(parse_url(old))
    assert rows(old) == before
    assert list(old.parent.iterdir()) == [old]
