"""Which database a command means."""

from pathlib import Path

import pytest

from tunedb import config
from tunedb.errors import FormatError, StorageError, UsageError


@pytest.fixture
def folder(tmp_path):
    inner = tmp_path / "project" / "a" / "b"
    inner.mkdir(parents=True)
    return inner


def located(folder, url=None, **environ):
    found = config.locate(url, environ=environ, folder=folder)
    return found.url, found.origin


def test_order(folder):
    file = folder.parent / "tunedb.toml"
    file.write_text('url = "sqlite:////srv/tune.db"')
    assert located(folder, "x.db", TUNEDB_URL="y.db") == ("x.db", "--db")
    assert located(folder, "", TUNEDB_URL="y.db") == ("", "--db")
    assert located(folder, TUNEDB_URL="y.db") == ("y.db", "TUNEDB_URL")
    assert located(folder, TUNEDB_URL="") == ("sqlite:////srv/tune.db", str(file))
    file.unlink()
    url, origin = located(folder)
    assert origin == "default"
    assert Path(url).name == "tune.db"
    assert Path(url).parent.name == "tunedb"


def test_the_nearest_file_counts(folder):
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
        ("postgresql://me@host/db", "postgresql://me@host/db"),
    ],
)
def test_paths_of_a_file_begin_at_its_folder(url, found, folder):
    (folder.parent / "tunedb.toml").write_text(f'url = "{url}"')
    assert located(folder)[0] == found.format(folder.parent)


def test_home(folder, monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    (folder / "tunedb.toml").write_text('url = "~/t.db"')
    assert located(folder)[0] == "/home/somebody/t.db"


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
def test_wrong_files(text, error, folder):
    file = folder / "tunedb.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(error, match=r"tunedb\.toml"):
        located(folder)


def test_an_empty_file_says_nothing(folder):
    (folder / "tunedb.toml").write_text("")
    assert located(folder)[1] == "default"


def test_a_file_that_cannot_be_read(folder, monkeypatch):
    (folder / "tunedb.toml").write_text('url = "x"')

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(StorageError, match="Permission denied"):
        located(folder)


def test_only_the_default_folder_is_made(tmp_path):
    config.make_folder(config.Location(str(tmp_path / "a" / "b" / "t.db"), "default"))
    assert (tmp_path / "a" / "b").is_dir()
    config.make_folder(config.Location(str(tmp_path / "c" / "t.db"), "--db"))
    assert not (tmp_path / "c").exists()
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be made"):
        config.make_folder(config.Location(str(tmp_path / "file" / "x" / "t.db"), "default"))


def test_the_url_is_not_in_tracebacks():
    assert "hunter2" not in repr(config.Location("postgresql://me:hunter2@host/db", "--db"))


def server(folder, url=None, **environ):
    return config.locate_server(url, environ=environ, folder=folder).url


def test_order_of_servers(folder):
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


def test_layers(folder):
    assert config.locate_layers(folder=folder) == ()
    file = folder.parent / "tunedb.toml"
    file.write_text('url = "own.db"\nlayers = ["team.db", "postgresql://me@host/db"]')
    assert config.locate_layers(folder=folder) == (
        f"{folder.parent}/team.db",
        "postgresql://me@host/db",
    )
    assert config.locate_layers(["a.db"], folder=folder) == ("a.db",)
    assert located(folder)[0] == f"{folder.parent}/own.db"
    file.write_text('url = "own.db"')
    assert config.locate_layers([], folder=folder) == ()
