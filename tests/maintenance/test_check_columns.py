"""``tunedb db check`` finds a changed value of any column.

The tests change each column of each table in turn, as little as possible. Columns that nothing in
the database determines are exempt, each with its reason; the check must not find changes of them.
"""

import json
import math
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import legacy
import make_frozen
import numpy as np
import pytest
from builders import sql
from effort import EFFORT

from tunedb import limits
from tunedb.errors import TuneDBError
from tunedb.extraction import verify
from tunedb.extraction.extract import extract
from tunedb.features.base import feature_set
from tunedb.features.steps import STEPS
from tunedb.formats.base import LogFile
from tunedb.formats.importer import import_log
from tunedb.maintenance import check
from tunedb.models.cards import body_digest, model_digest
from tunedb.results import NewModel
from tunedb.storage import schema, versions
from tunedb.storage.engine import parse_url
from tunedb.storage.store import Store
from tunedb.system.compression import compress

FROZEN = Path(__file__).parents[1] / "migrations" / "frozen"
TABLES = schema.metadata.sorted_tables

#: Columns that nothing determines. Of the kind and the trust of a source, the check finds invalid
#: values, and a trust that would serve other records; all else about them is the user's statement.
EXEMPT = {
    *(f"watermark.{column.name}" for column in schema.watermark.c),  # the other database's numbers
    # A server's word about who pushes; only its triggers read it.
    *("account.store", "account.role"),
    # When the row was made here: nothing follows from it.
    *("account.registered_at", "prediction.predicted_at", "source.created_at"),
    *("workload.created_at", "quarantine.created_at", "model.created_at", "retraction.created_at"),
    # A label for people.
    *("source.tunedb_version", "source.note", "workload.name", "target.text"),
    *("quarantine.reason", "retraction.reason"),
    "workload.tvm_version",  # an own source's word; TVM refuses a graph of another version
    "workload.script",  # code of an own source, which TVM alone can read
    # Hashes that TVM alone computes; a name counts where structures confirm it.
    *("workload_alias.scheme", "workload_alias.key", "workload_alias.workload_id"),
    # A source is known by its word; how far it counts is decided by its trust.
    *(f"{table}.source_id" for table in ("workload_alias", "measurement", "failure", "launch")),
    *("quarantine.source_id", "foreign_feature.program_id", "foreign_feature.source_id"),
    # A local number to which nothing refers.
    *("failure.id", "launch.id", "quarantine.id"),
    # A set of another name or version is not installed: its rows are used by nobody.
    *("feature_set.name", "feature_set.version"),
    # It may take back what is not here; else records would be served, which is found (below).
    *("retraction.digest", "retraction.store"),
    # What a model said before a measurement: it alone knew.
    *("prediction.program_id", "prediction.score"),
    # An estimate of its time, made anew by each training and served to nobody.
    *("session_factor.target_id", "session_factor.subject_id", "session_factor.machine"),
    *("session_factor.factor", "session_factor.spread", "session_factor.programs"),
    "session_factor.estimated_at",
}


def fill(path):
    """Put a row into every table, and a value into every column."""
    make_frozen.fill(path)
    log = path.with_name("log.json")
    log.write_text("".join(f"{json.dumps(line)}\n" for line in [*legacy.ANSOR, *legacy.AUTOTVM]))
    # They are placeholders, not real models and features.
    for table in ("prediction", "model", "foreign_feature", "feature", "feature_set"):
        sql(path, f"DELETE FROM {table}")
    sql(path, "UPDATE source SET note = 'seen'")
    with Store(path) as store:
        import_log(store, LogFile(log, "log.json"), source="log")
        assert extract(store, feature_set("steps")).done == 5
        versions = {"numpy": "2", "tunedb": "0", "xgboost": "3"}
        body = {"digest": body_digest(b"boosters").hex()}
        card = {"versions": versions, "body": body, "store": store.key}
        digest = model_digest("ranker", b"{}", b"t" * 16, versions)
        model = store.models.add(NewModel(digest, "ranker", b"{}", b"t" * 16, card, b"boosters"))
        store.models.add_predictions(model, {1: 0.5})
    rows = "SELECT program_id, feature_set_id, 1 FROM feature LIMIT 1"
    sql(path, f"INSERT INTO foreign_feature {rows}")


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    path = tmp_path_factory.mktemp("filled") / "filled.db"
    fill(path)
    assert check.check(path).problems == []
    return path


@pytest.fixture
def file(filled, quick_checks):
    return Path(shutil.copyfile(filled, filled.with_name("copy.db")))


def changed(value):
    """Return values that differ as little as possible from one, the least different first."""
    if isinstance(value, float):
        return [math.nextafter(value, math.inf)]
    if isinstance(value, int):
        return [value + 1, value - 1, value + 2]
    if isinstance(value, bytes):
        middle = len(value) // 2
        return [value[:middle] + bytes([value[middle] ^ 1]) + value[middle + 1 :]]
    places = [place for place, character in enumerate(value) if character.isalnum()]
    if not places:
        return [value + " "]
    middle = places[len(places) // 2]
    first, second = "01" if value[middle].isdecimal() else "xy"
    other = second if value[middle] == first else first
    return [value[:middle] + other + value[middle + 1 :]]


def others(db, column, value):
    """Return replacements of a value: ids of other rows for a reference, else similar values."""
    found = []
    for key in column.foreign_keys:
        parent = key.column
        rows = db.execute(f"SELECT {parent.name} FROM {parent.table.name}")
        found += [number for (number,) in rows if number != value]
    return found or changed(value)


def change(db, column):
    """Change the last value of a column as little as possible; return it and its replacement."""
    name, table = column.name, column.table
    keys = [key.name for key in table.primary_key]
    rows = db.execute(
        f"SELECT {name}, {', '.join(keys)} FROM {table.name} WHERE {name} IS NOT NULL"
        f" ORDER BY {', '.join(keys)}"
    ).fetchall()
    assert rows, f"no row of {table.name} has a {name}"
    value, *key = rows[-1]
    where = " AND ".join(f"{one} = ?" for one in keys)
    for other in others(db, column, value):
        with suppress(sqlite3.IntegrityError):
            db.execute(f"UPDATE {table.name} SET {name} = ? WHERE {where}", (other, *key))
            db.commit()
            return value, other
    raise AssertionError(f"{table.name}.{name} cannot be changed")


@pytest.mark.examples
@pytest.mark.parametrize("table", TABLES, ids=[table.name for table in TABLES])
def test_check_finds_changed_value_of_any_column(table, filled, file):
    """A long run alone changes all columns, of which exempt ones must not be found."""
    unseen, seen = {}, {}
    for column in list(table.c)[:: 3 if EFFORT == "few" else 1]:
        if EFFORT == "few" and str(column) in EXEMPT:
            continue
        shutil.copyfile(filled, file)
        with closing(sqlite3.connect(file)) as db:
            changed = change(db, column)
        try:
            found = bool(check.check(file).problems)
        except TuneDBError:
            found = True
        (seen if found else unseen)[str(column)] = changed
    exempt = {name for name in EXEMPT if name.partition(".")[0] == table.name}
    assert unseen.keys() - exempt == set(), unseen
    assert seen.keys() & exempt == set(), "what is found need not be exempt"


def test_exempt_columns_exist():
    assert {str(column) for table in TABLES for column in table.c} >= EXEMPT


@pytest.mark.parametrize("column", ["digest", "store", "subject"])
def test_check_finds_changed_retraction_of_stored_record(column, filled, file):
    """Without it, the record would be served."""
    names = ("digest", "store", "subject")
    values, *_ = sql(
        file,
        "SELECT r.digest, r.store, r.subject FROM retraction r JOIN measurement m"
        " ON m.digest = r.digest JOIN source s ON s.id = m.source_id JOIN meta"
        " ON meta.key = 'store' AND meta.value = r.store WHERE s.trust > 0",
    )
    after = "source" if column == "subject" else changed(values[names.index(column)])[0]
    change = f"UPDATE retraction SET {column} = ? WHERE digest = ? AND store = ? AND subject = ?"
    sql(file, change, after, *values)
    assert {one.table for one in check.check(file).problems} & {"measurement", "retraction"}


def test_attack_7_check_finds_changed_key_of_store(filled, file):
    """With another key, own sources and retractions would count as foreign."""
    sql(file, "UPDATE meta SET value = ? WHERE key = 'store'", "0" * 32)
    found = [(one.check, one.table) for one in check.check(file).problems]
    # Models are trained here, and say so.
    assert {("digest", "meta"), ("readable", "model")} <= set(found)


def test_upgrade_writes_mark_of_the_store_key(tmp_path):
    path = Path(shutil.copyfile(FROZEN / "0004.db", tmp_path / "old.db"))
    versions.upgrade(parse_url(path))
    assert not [one for one in check.check(path).problems if one.table == "meta"]
    ((key,),) = sql(path, "SELECT value FROM meta WHERE key = 'store'")
    assert sql(path, "PRAGMA user_version") == [(versions.store_mark(key),)]
    sql(path, "UPDATE meta SET value = ? WHERE key = 'store'", "0" * 32)
    assert [one for one in check.check(path).problems if one.table == "meta"]


def test_attack_6_check_finds_forged_rows_of_features(filled, file):
    """1e30 in rows of own programs is a valid number, but not the one that their steps give."""
    rows = sql(file, "SELECT program_id, n_rows, n_columns FROM feature")
    for program, height, width in rows[1:]:
        forged = compress(np.full(height * width, 1e30, "<f4").tobytes())
        sql(file, "UPDATE feature SET data = ? WHERE program_id = ?", forged, program)
    report = check.check(file)
    assert [(one.check, one.table, one.id) for one in report.problems] == [
        ("derived", "feature", program) for program, _, _ in rows[1:]
    ]
    told = f"steps version {STEPS.version}: not the features of the program's steps"
    assert told in report.problems[0].message


def test_check_recomputes_a_limited_sample_of_features(filled, monkeypatch):
    """FEATURE_SAMPLE"""
    drawn, real = [], verify.differing

    def differing(*args):
        drawn.append(len(args[1]))
        return real(*args)

    monkeypatch.setattr(verify, "differing", differing)
    monkeypatch.setattr(limits, "FEATURE_SAMPLE", 2)
    assert check.check(filled).problems == []
    assert drawn == [2]
