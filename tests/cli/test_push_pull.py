"""``tunedb push`` and ``tunedb pull``."""

import re
from pathlib import Path

import pytest
from checks import has, row_has
from exchanges import away, digests, rename
from sqlalchemy.engine import make_url

from tunedb.storage.store import Store


@pytest.fixture
def server(store_url):
    """The other database: a file or a server."""
    if "://" not in store_url:
        rename(store_url, "f" * 32)
    return store_url


def with_password(url):
    """Return the URL of a server with a password; a path stays as it is."""
    if "://" not in url:
        return url
    return make_url(url).set(password="hush").render_as_string(hide_password=False)


def test_push_and_pull_copy_records_once(run, run_json, filled, server, tmp_path):
    report = run_json("--db", filled, "push", server, "--dry-run")
    row_has(report, new=7, known=0, rejected=0, dry_run=True)
    assert [source["name"] for source in report["sources"]] == ["nightly"]
    result = run("--db", filled, "push", with_password(server))
    assert re.search(r"nightly\s+ours\s+7\s+0\s+0", result.stdout)
    assert "7 new records" in result.stderr and "hush" not in result.output
    assert digests(filled) == digests(server)
    other = tmp_path / "other.db"
    assert run_json("--db", other, "pull", server, "--dry-run")["new"] == 7
    assert not other.exists()
    assert run_json("--db", other, "pull", server)["new"] == 7
    assert digests(other) == digests(filled)
    assert run_json("--db", other, "pull", server)["read"] == 0
    assert "nothing new" in run("--db", filled, "push", server).stderr
    assert run_json("--db", other, "pull", server, "--full")["known"] == 7


def test_push_and_pull_take_server_from_configuration_or_environment(
    run, run_json, filled, server, monkeypatch
):
    has(run("--db", filled, "push", code=2).stderr, "TUNEDB_SERVER", "tunedb.toml")
    Path("tunedb.toml").write_text(f'url = "{filled}"\nserver = "{server}"\n')
    assert run_json("push")["new"] == 7
    Path("tunedb.toml").write_text('server = "postgresql://nowhere/x"\n')
    monkeypatch.setenv("TUNEDB_SERVER", str(server))
    assert run_json("--db", "other.db", "pull")["new"] == 7


def test_pull_reports_rejected_records_of_trusted_source(run, run_json, filled, server, tmp_path):
    run("--db", filled, "push", server)
    other = tmp_path / "other.db"
    run("--db", other, "pull", server, "--workload", "softmax")
    run("--db", other, "trust", "nightly", "own")
    refused = run("--db", other, "pull", server, code=1)
    has(refused.output, "trusted here", "--accept-trusted-names")
    assert run_json("--db", other, "pull", server, "--accept-trusted-names")["new"] == 6
    assert digests(other) == digests(server)


def test_errors_are_one_line(run, filled, tmp_path, postgres_server, postgres_url):
    missing = run("--db", tmp_path / "none.db", "push", postgres_url, code=3)
    assert "no such database" in missing.stderr
    url = with_password(postgres_url)
    with away(postgres_server, postgres_url):
        for command in ("push", "pull"):
            result = run("--db", filled, command, url, code=5)
            assert result.stderr.count("\n") == 1 and "did not answer" in result.stderr
            assert "hush" not in result.output
    with Store(filled) as store:
        assert store.records.count() == 7
    assert "this is the database itself" in run("--db", filled, "push", filled, code=2).stderr
    run("--db", filled, "pull", tmp_path / "none.db", code=3)
    (tmp_path / "text").write_text("no database" * 100)
    assert run("--db", filled, "pull", tmp_path / "text", code=4).stderr.count("\n") == 1
