"""The databases that a command uses: options, environment, ``tunedb.toml`` and default."""

import os
import pwd
import shutil
from pathlib import Path

import pytest
from builders import key_of

from tunedb.errors import ApprovalError, FormatError, StorageError, UsageError
from tunedb.storage import approval, config
from tunedb.storage.store import Store


@pytest.fixture(autouse=True)
def approved(tmp_path, monkeypatch):
    """Approve the only server of these tests, in a configuration folder of their own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    approval.approve("postgresql://me@host/db", "f" * 32)


@pytest.fixture
def folder(tmp_path):
    inner = tmp_path / "project" / "a" / "b"
    inner.mkdir(parents=True)
    return inner


def located(folder, url=None, **environ):
    found = config.locate(url, environ=environ, folder=folder)
    return found.url, found.origin


def test_locate_prefers_option_then_environment_then_file_then_default(folder):
    file = folder.parent / "tunedb.toml"
    file.write_text('url = "sqlite:////srv/tune.db"')
    assert located(folder, "x.db", TUNEDB_URL="y.db") == ("x.db", "--db")
    assert located(folder, "", TUNEDB_URL="y.db") == ("", "--db")
    assert located(folder, TUNEDB_URL="y.db") == ("y.db", "TUNEDB_URL")
    assert located(folder, TUNEDB_URL="") == ("sqlite:////srv/tune.db", str(file))
    file.write_text("")
    url, origin = located(folder)
    assert (origin, *Path(url).parts[-2:]) == ("default", "tunedb", "tune.db")


def test_locate_reads_the_nearest_tunedb_toml(folder):
    for path, name in ((folder.parents[1], "far"), (folder.parent, "near")):
        (path / "tunedb.toml").write_text(f'url = "/{name}.db"')
    assert located(folder)[0] == "/near.db"
    assert located(folder.parents[1])[0] == "/far.db"


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("t.db", "{0}/t.db"),
        ("../t.db", "{0}/../t.db"),
        ("/t.db", "/t.db"),
        ("sqlite:///t.db", "sqlite:///{0}/t.db"),
        ("sqlite:////t.db", "sqlite:////t.db"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        (":memory:", ":memory:"),
        ("~/t.db", "/home/somebody/t.db"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
    ],
)
def test_relative_paths_in_tunedb_toml_start_at_its_folder(url, found, folder, monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    (folder.parent / "tunedb.toml").write_text(f'url = "{url}"')
    assert located(folder)[0] == found.format(folder.parent)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("url =", FormatError),
        (b"\xff\xfe", FormatError),
        ("url = 1", UsageError),
        ('url = ""', UsageError),
        ('uri = "x"', UsageError),
        ('layers = "x"', UsageError),
        ("layers = [1]", UsageError),
        ('layers = [""]', UsageError),
    ],
)
def test_locate_rejects_invalid_tunedb_toml(text, error, folder):
    file = folder / "tunedb.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(error, match=r"tunedb\.toml"):
        located(folder)


def test_locate_reports_unreadable_tunedb_toml(folder, monkeypatch):
    (folder / "tunedb.toml").write_text('url = "x"')

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(config.os, "open", refuse)
    with pytest.raises(StorageError, match="Permission denied"):
        located(folder)


def test_make_folder_creates_only_the_default_folder(tmp_path):
    def make(place, origin):
        config.make_folder(config.Location(str(tmp_path / place), origin))

    make("a/b/t.db", "default")
    make("c/t.db", "--db")
    assert (tmp_path / "a" / "b").is_dir() and not (tmp_path / "c").exists()
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be made"):
        make("file/x/t.db", "default")


def server(folder, url=None, **environ):
    return config.locate_server(url, environ=environ, folder=folder).url


def test_locate_server_prefers_option_then_environment_then_file(folder):
    with pytest.raises(UsageError, match="TUNEDB_SERVER"):
        server(folder)
    file = folder.parent / "tunedb.toml"
    file.write_text('url = "x.db"')
    with pytest.raises(UsageError, match="server = "):
        server(folder)
    file.write_text('server = "postgresql://me@host/db"')
    assert server(folder) == "postgresql://me@host/db"
    assert server(folder, TUNEDB_SERVER="sqlite:///y.db") == "sqlite:///y.db"
    assert server(folder, "z.db", TUNEDB_SERVER="sqlite:///y.db") == "z.db"
    file.write_text('server = "all.db"')
    assert server(folder) == f"{folder.parent}/all.db"
    assert located(folder)[1] == "default"
    assert "secret" not in repr(config.locate_server("postgresql://me:secret@host/db"))


def test_locate_layers_prefers_option_to_tunedb_toml(folder):
    assert config.locate_layers(folder=folder) == ()
    file = folder.parent / "tunedb.toml"
    file.write_text('url = "own.db"\nlayers = ["team.db", "postgresql://me@host/db"]')
    layers = (f"{folder.parent}/team.db", "postgresql://me@host/db")
    assert config.locate_layers(folder=folder) == layers
    assert config.locate_layers(["a.db"], folder=folder) == ("a.db",)
    assert located(folder)[0] == f"{folder.parent}/own.db"
    file.write_text('url = "own.db"')
    assert config.locate_layers([], folder=folder) == ()


STRANGER = 12345


@pytest.fixture
def theirs(folder, sqlite_template):
    """A database that is not approved; a ``tunedb.toml`` above the working directory names it."""
    toml = 'url = "theirs.db"\nserver = "theirs.db"\nlayers = ["theirs.db"]'
    (folder.parent / "tunedb.toml").write_text(toml)
    return shutil.copyfile(sqlite_template, folder.parent / "theirs.db")


LOCATE = (config.locate, config.locate_server, config.locate_layers)


def refused(locate, folder):
    with pytest.raises(ApprovalError) as caught:
        locate(folder=folder)
    (line,) = str(caught.value).splitlines()
    return line


@pytest.mark.parametrize("locate", LOCATE)
def test_tunedb_toml_may_name_only_approved_databases(locate, folder, theirs, tmp_path):
    line = refused(locate, folder)
    assert line.startswith(f"{theirs.with_name('tunedb.toml')} names {theirs}: ")
    assert line.endswith(f"run: tunedb db trust {theirs}")
    approval.approve(theirs, key_of(theirs))
    locate(folder=folder)
    Store(tmp_path / "other.db").close()
    shutil.copyfile(tmp_path / "other.db", theirs)
    assert "it is not the database that you approved there" in refused(locate, folder)


@pytest.mark.parametrize("locate", LOCATE)
def test_missing_database_needs_no_approval_but_a_dangling_link_does(locate, folder, theirs):
    theirs.unlink()
    locate(folder=folder)
    theirs.symlink_to(folder / "nowhere.db")
    refused(locate, folder)


def test_databases_named_by_the_user_or_the_environment_need_no_approval(theirs, folder):
    url = str(theirs)
    assert located(folder, url) == (url, "--db")
    assert located(folder, TUNEDB_URL=url) == (url, "TUNEDB_URL")
    assert server(folder, url) == server(folder, TUNEDB_SERVER=url) == url
    assert config.locate_layers([url], folder=folder) == (url,)


@pytest.mark.parametrize("locate", LOCATE[:2])
def test_tunedb_toml_of_another_user_is_rejected(locate, folder, theirs, monkeypatch):
    approval.approve(theirs, key_of(theirs))
    owner = pwd.getpwuid(os.geteuid()).pw_name
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    file = theirs.with_name("tunedb.toml")
    line = refused(locate, folder)
    assert line.startswith(f"{file}: it belongs to {owner}, so it is ignored; ")
    assert line.endswith(f'run: sudo chown "$USER" {file}')


@pytest.mark.parametrize("mode", [0o664, 0o646])
@pytest.mark.parametrize("locate", LOCATE[:2])
def test_tunedb_toml_that_others_may_write_is_rejected(locate, mode, folder, theirs):
    """It is not even parsed."""
    approval.approve(theirs, key_of(theirs))
    file = theirs.with_name("tunedb.toml")
    text = file.read_text()
    file.write_text("no TOML")
    file.chmod(mode)
    line = refused(locate, folder)
    assert line.startswith(f"{file}: others may write it, so it is ignored; ")
    assert line.endswith(f"run: chmod go-w {file}")
    file.write_text(text)
    file.chmod(0o644)
    locate(folder=folder)


def test_layers_of_tunedb_toml_that_others_may_write_are_ignored(folder, theirs, monkeypatch):
    lines = []
    monkeypatch.setattr(config._log, "warning", lambda text, *args: lines.append(text % args))
    approval.approve(theirs, key_of(theirs))
    theirs.with_name("tunedb.toml").chmod(0o666)
    assert config.locate_layers(folder=folder) == ()
    (line,) = lines
    assert "its layers are ignored" in line and "others may write it" in line


def test_link_to_tunedb_toml_that_others_may_write_is_rejected(folder, theirs):
    approval.approve(theirs, key_of(theirs))
    file = theirs.with_name("tunedb.toml")
    file.chmod(0o666)
    link = folder / "tunedb.toml"
    link.symlink_to(file)
    assert "others may write it" in refused(config.locate, folder)
