"""SQLite does not write to network file systems."""

from pathlib import Path

import pytest
from builders import OWN, make_measurement
from raising import raises_line

from tunedb.errors import StorageError
from tunedb.storage import network_filesystem
from tunedb.storage.engine import parse_url
from tunedb.storage.store import Store
from tunedb.storage.versions import upgrade

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:5 / /proc rw,nosuid shared:12 - proc proc rw
30 22 0:40 / /mnt/a\\040team rw,relatime shared:1 - nfs4 server:/export rw,vers=4.2
31 30 0:41 / /mnt/a\\040team/local rw - xfs /dev/vdb rw
32 22 0:42 / /home rw - ext4 /dev/vdc rw
33 32 0:43 / /home rw master:3 - cifs //server/home rw
34 22 0:44 / /data rw - fuse.sshfs host:/data rw
a line that the kernel would not write
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/tune.db", "ext4"),
        ("/mnt/tune.db", "ext4"),
        ("/mnt/a team/tune.db", "nfs4"),
        ("/mnt/a team/x/../tune.db", "nfs4"),
        ("/mnt/a teammate/tune.db", "ext4"),
        ("/mnt/a team/local/tune.db", "xfs"),
        ("/home/me/tune.db", "cifs"),
        ("/data/tune.db", "fuse.sshfs"),
    ],
)
def test_file_system_of_returns_type_of_the_mount_of_a_path(tmp_path, path, kind):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert network_filesystem.file_system_of(Path(path), mounts) == kind
    assert network_filesystem.file_system_of(Path(path), tmp_path / "missing") is None
    assert network_filesystem.file_system_of(Path("/proc/self/status")) == "proc"


@pytest.fixture
def mounted(tmp_path, monkeypatch):
    """A function that makes a folder look as if it were mounted from a server."""

    def mounted(kind):
        mounts = tmp_path / "mountinfo"
        mounts.write_text(f"1 0 0:1 / {tmp_path} rw - {kind} server:/export rw\n")
        monkeypatch.setattr(network_filesystem, "_MOUNTS", mounts)

    return mounted


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
def test_store_does_not_write_to_a_network_file_system_unless_allowed(
    sqlite_file, mounted, monkeypatch, kind
):
    with Store(sqlite_file) as store:
        store.records.add([make_measurement()], OWN)
    before = sqlite_file.read_bytes()
    mounted(kind)
    new = sqlite_file.with_name("new.db")
    for write in (
        lambda: Store(sqlite_file),
        lambda: Store(new),
        lambda: upgrade(parse_url(sqlite_file)),
    ):
        with raises_line(StorageError, match=f"a network file system \\({kind}\\)") as caught:
            write()
        assert "PostgreSQL" in str(caught.value)
    assert not new.exists()
    with Store(sqlite_file, read_only=True) as store:
        assert store.records.count() == 1
    assert sqlite_file.read_bytes() == before

    monkeypatch.setenv(network_filesystem.VARIABLE, "1")
    with Store(sqlite_file) as store:
        assert store.records.count() == 1


def test_memory_and_server_databases_ignore_network_file_systems(postgres_url, mounted):
    mounted("nfs4")
    Store(":memory:").close()
    Store(postgres_url).close()
