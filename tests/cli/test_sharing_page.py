"""docs/sharing.md: its commands exist, and its roles have the rights that it states."""

import re
import shutil

from exchanges import digests, fill, rename
from server_roles import PAGE, SQL
from test_help import check_line

from tunedb.records import Trust
from tunedb.storage.store import Store

LINES = re.findall(r"^ +(tunedb .*)$", PAGE, re.MULTILINE) + re.findall(r"`(tunedb [^`]+)`", PAGE)
RETRACT = ("retract", "1", "--reason", "x", "--yes")


def test_commands_and_options_of_the_page_exist():
    assert len(LINES) > 15
    for line in LINES:
        check_line(line)


def test_page_has_sql_blocks():
    assert [len(block) for block in SQL] == [4, 14, 2]


def test_roles_of_the_page_have_the_stated_rights(
    team, run, run_json, filled, tmp_path, sqlite_template
):
    """Writers push and tune, readers pull and read; nobody else gets in."""
    alice, bob = team("alice"), team("bob")
    assert run_json("--db", filled, "push", alice)["new"] == 7
    assert run_json("--db", tmp_path / "bob.db", "pull", bob)["new"] == 7
    with Store(alice) as store:
        fill(store, *range(3))
        other = rename(shutil.copyfile(sqlite_template, tmp_path / "other.db"), "b" * 32)
        with Store(other) as theirs:
            fill(theirs, *range(2, 6))
    refused = run("--db", other, "push", bob, code=1).stderr
    assert "INSERT and UPDATE" in refused and refused.count("\n") == 1
    assert run_json("--db", other, "push", alice)["new"] == 3
    # A server can pull, too.
    assert run_json("--db", alice, "pull", other)["known"] == 4
    assert digests(other) <= digests(bob)
    for account in (bob, alice):
        assert "permission denied" in run("--db", account, "trust", "1", "own", code=1).stderr
    run("--db", team("tunedb_owner"), "trust", "1", "verified")
    run("--db", team("tunedb_owner"), *RETRACT)
    with Store(bob, read_only=True) as store:
        assert store.sources.summaries()[0].trust is Trust.VERIFIED
    for account in (alice, bob):
        refused = run("--db", account, *RETRACT, code=1).stderr
        assert "only the server's owner retracts records there" in refused
        assert refused.count("\n") == 1
    refused = run("--db", alice, "vacuum", code=1).stderr
    assert "ask its owner" in refused and refused.count("\n") == 1
    run("--db", team("tunedb_owner"), "vacuum")
