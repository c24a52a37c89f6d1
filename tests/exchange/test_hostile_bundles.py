"""A merge of a hostile database or bundle changes nothing, and the command says why."""

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import hostile
import pytest
from builders import sql
from click.testing import CliRunner
from effort import long, spread
from exchanges import fill, rename

from tunedb.cli import main
from tunedb.records import Source
from tunedb.storage.store import Store
from tunedb.system.text import _is_unsafe

OUR_KEY = "600d" * 8

#: Tables to which a merge may write although it stores no record: sources and positions.
BOOKKEEPING = ('INSERT INTO "source"', 'INSERT INTO "watermark"')


@pytest.fixture(scope="module")
def ours_template(tmp_path_factory, sqlite_template):
    """The database that :func:`ours` copies."""
    path = tmp_path_factory.mktemp("ours") / "ours.db"
    rename(shutil.copyfile(sqlite_template, path), OUR_KEY)
    with Store(path) as store:
        fill(store, *range(5))
    return path


@pytest.fixture
def ours(ours_template, tmp_path):
    """The attacked database."""
    return Path(shutil.copyfile(ours_template, tmp_path / "ours.db"))


@pytest.fixture
def known(ours):
    """Facts that the attacker knows of that database."""
    (source,), *_ = sql(ours, "SELECT digest FROM source")
    ((record,),) = sql(ours, "SELECT digest FROM measurement LIMIT 1")
    return hostile.Ours(OUR_KEY, source, record)


def content(path):
    """Return the dump of a database without its bookkeeping."""
    with closing(sqlite3.connect(path)) as connection:
        return [line for line in connection.iterdump() if not line.startswith(BOOKKEEPING)]


def merge(ours, other, *options):
    """Merge from the command line, and return its output."""
    result = CliRunner().invoke(main, ["--db", str(ours), "merge", str(other), *options])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    assert result.exit_code in (0, 1, 3, 4), result.output
    assert "Traceback" not in result.output
    assert not any(_is_unsafe(char) for char in result.output.replace("\n", "")), result.output
    assert max(map(len, result.output.splitlines()), default=0) < 1_000
    return " ".join(result.output.split())


def assert_refused(ours, other, message):
    """Assert that merges end with a message, and change no row and no served record."""
    before = content(ours)
    with Store(ours) as store:
        served = [record.measurement.digest for record in store.records.iterate()]
    # A dry run after the merge meets the sources that it left.
    for options in ([], ["--dry-run"]):
        output = merge(ours, other, *options)
        assert re.search(message, output), output
        assert content(ours) == before
    with Store(ours) as store:
        assert [one.measurement.digest for one in store.records.iterate()] == served
        assert store.answers.best_ids([1], [1], 10)
    assert CliRunner().invoke(main, ["--db", str(ours), "db", "check"]).exit_code == 0


#: Files that are refused before a row is read; in full in test_foreign.py.
REFUSED_AT_ONCE = (
    *("a trigger", "a generated column", "another program's tables", "a newer schema"),
    "a view in the place of a table",
)


@pytest.mark.parametrize(
    "name", [long(name) if name in REFUSED_AT_ONCE else name for name in hostile.ATTACKS]
)
def test_a_hostile_database_changes_nothing(name, ours, known, sqlite_template, tmp_path):
    attack = hostile.ATTACKS[name]
    other = hostile.database(sqlite_template, tmp_path / "theirs.db", attack, known)
    assert_refused(ours, other, attack.message)


@pytest.mark.parametrize(
    "name", spread([name for name, attack in hostile.ATTACKS.items() if attack.in_bundles], 5)
)
def test_a_hostile_bundle_changes_nothing(name, ours, known, sqlite_template, tmp_path):
    attack = hostile.ATTACKS[name]
    other = hostile.bundle(sqlite_template, tmp_path / "theirs.tunedb", attack, known)
    assert_refused(ours, other, attack.message)


@pytest.mark.parametrize("name", hostile.BYTES)
def test_damaged_bundle_changes_nothing(name, ours, known, sqlite_template, tmp_path):
    path = tmp_path / "theirs.tunedb"
    hostile.bundle(sqlite_template, path, hostile.Attack(""), known)
    path.write_bytes(hostile.BYTES[name](path.read_bytes()))
    assert_refused(ours, path, r"theirs\.tunedb: ")


def test_merge_stores_good_records_beside_hostile_ones(ours, known, sqlite_template, tmp_path):
    """Their labels are printed escaped, and none of them is served."""
    attack = hostile.ATTACKS["an annotation that imports LLVM's code"]
    other = hostile.database(sqlite_template, tmp_path / "theirs.db", attack, known)
    with Store(other) as store:
        store.records.add(hostile.records(None), Source(hostile.EVIL))
    output = merge(ours, other)
    assert re.search(attack.message, output)
    with Store(ours) as store:
        assert store.records.count() == 5 + 3
        assert [record.source.name for record in store.records.iterate()][5:] == [hostile.EVIL] * 3
        # None of them is served.
        assert len(store.answers.best_ids(range(1, 9), [1], 100)) == 5
    for command in (["top"], ["sources"], ["workloads"], ["show", "8"], ["top", "--json"]):
        result = CliRunner().invoke(main, ["--db", str(ours), *command])
        assert result.exit_code == 0, result.output
        assert "\x1b" not in result.output and "\x07" not in result.output


@pytest.mark.parametrize("make", [hostile.database, hostile.bundle])
def test_merge_stores_records_of_the_same_file_without_attack(
    make, known, makes, sqlite_template, tmp_path
):
    """So no attack is rejected for a reason that is not its own."""
    ours = makes.empty(OUR_KEY)
    other = make(sqlite_template, tmp_path / "good.tunedb", hostile.Attack(""), known)
    merge(ours, other)
    with Store(ours) as store:
        assert store.records.count() == 3
