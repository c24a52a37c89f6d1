"""What the accounts of docs/sharing.md can and cannot change on a server by their own SQL."""

import importlib
import math
import random
import re
import shutil
from contextlib import closing

import psycopg
import pytest
from builders import FOREIGN, OWN, make_measurement, make_session, make_workload
from click.testing import CliRunner
from effort import examples
from exchanges import digests, fill, rename
from raising import raises_line
from sqlalchemy.engine import make_url

from tunedb import identity
from tunedb.cli import main
from tunedb.errors import SchemaError, StorageError
from tunedb.exchange.sync import pull, push
from tunedb.launches import Launch
from tunedb.maintenance import check
from tunedb.maintenance.check import quick_check
from tunedb.records import Alias, Failure, FailureKind, Phase, Source, SourceKind, Trust
from tunedb.results import NewModel
from tunedb.run_times import mean_of
from tunedb.storage import guards
from tunedb.storage.store import Store

#: Keys of two databases of the team.
ALICES, CAROLS = "a" * 32, "c" * 32


def session(url):
    """Return a connection of an account, which commits each statement."""
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    return closing(psycopg.connect(plain, autocommit=True))


def ask(url, sql, *values):
    """Return the rows of one statement of an account."""
    with session(url) as connection:
        cursor = connection.execute(sql, values or None)
        return cursor.fetchall() if cursor.description else cursor.rowcount


@pytest.fixture
def file(sqlite_template, tmp_path):
    """A function that returns the path of an empty database with a key."""

    def file(key):
        return rename(shutil.copyfile(sqlite_template, tmp_path / f"{key[:4]}.db"), key)

    return file


@pytest.fixture
def alices(file):
    """Alice's database: records 0 to 3."""
    path = file(ALICES)
    with Store(path) as store:
        fill(store, *range(4), session=make_session())
    return path


@pytest.fixture
def shared(team, alices):
    """The accounts of a server where alice has pushed, and her source is trusted."""
    with Store(alices) as store:
        assert push(store, team("alice")).new == 4
    with Store(team("tunedb_owner")) as server:
        (source,) = server.sources.summaries()
        assert (source.store, source.trust) == (ALICES, Trust.FOREIGN)
        server.trust.set(source.id, Trust.VERIFIED)
        server.records.add([make_measurement(9)], OWN)
    return team


def served(url):
    return [bool(row[0]) for row in ask(url, "SELECT served FROM measurement ORDER BY id")]


MODEL = NewModel(b"m" * 16, "xgboost", b"{}", b"t" * 16, {}, b"bytes")

MEASUREMENT = """
    INSERT INTO measurement (digest, program_id, workload_id, target_id, status, run_secs, mean,
        measured_at, occurrence, source_id, served)
    VALUES ('\\x11111111111111111111111111111111', 1, 1, 1, 0, '\\x000000000000f03f', {mean}, 0, 0,
        {source}, 1)"""
RETRACTION = """
    INSERT INTO retraction (digest, store, subject, reason, created_at)
    SELECT digest, {store}, 'source', 'no', 0 FROM source WHERE id = 1"""
SERVER = "(SELECT value FROM meta WHERE key = 'store')"
SOURCE = """
    INSERT INTO source (digest, name, kind, trust, store, created_at, tunedb_version)
    VALUES ('\\x22222222222222222222222222222222', 'x', 'file', {trust}, {store}, 0, '0')"""
WORKLOAD = """
    INSERT INTO workload (digest, format, body, name, script, created_at)
    VALUES ('\\x33333333333333333333333333333333', 'tvm-script', 'x', 'f', {script}, 0)"""

#: Features of program 1 that were computed here, and of program 2 that came with a merge.
FEATURES = (
    "INSERT INTO feature_set VALUES (1, 'x', 1, '[]')",
    "INSERT INTO feature VALUES (1, 1, 1, 1, '\\x00'), (2, 1, 1, 1, '\\x00')",
    "INSERT INTO foreign_feature VALUES (2, 1, 1)",
)

REFUSED = {
    "a mean": "UPDATE measurement SET mean = 1e-9",
    "what is served": "UPDATE measurement SET served = 1",
    "a digest": "UPDATE measurement SET digest = '\\x00'",
    "run times": "UPDATE measurement SET run_secs = '\\x000000000000f03f'",
    "a program": "UPDATE measurement SET program_id = 1",
    "a worse source": "UPDATE measurement SET source_id = 3",
    "trust": "UPDATE source SET trust = 2",
    "a script": "UPDATE workload SET script = 'x'",
    "a script of a new workload": WORKLOAD.format(script="'x'"),
    "the TVM of a workload": "UPDATE workload SET tvm_version = '0.1'",
    "a body": "UPDATE model SET body = 'x'",
    "the key of the server": "UPDATE meta SET value = 'x'",
    "a factor": "INSERT INTO session_factor VALUES (1, 'session', 1, 0, 2, NULL, 9, 0)",
    "an account": "UPDATE account SET role = 'mallory'",
    "the account of the server": f"INSERT INTO account (store, role) SELECT {SERVER}, 'mallory'",
    "no record": "DELETE FROM measurement",
    "no program": "DELETE FROM program",
    "no retraction": "DELETE FROM retraction",
    "no account": "DELETE FROM account",
    "no features": "DELETE FROM feature",
    "no mark of features": "DELETE FROM foreign_feature",
    "a lock": "DO $$ BEGIN LOCK TABLE measurement IN ACCESS EXCLUSIVE MODE; END $$",
    "a retraction of another": RETRACTION.format(store=f"'{ALICES}'"),
    "a retraction of the server": RETRACTION.format(store=SERVER),
    "a trusted source of another": SOURCE.format(trust=1, store=f"'{CAROLS}'"),
    "a record of another": MEASUREMENT.format(source=1, mean=1),
    "a name by another": "INSERT INTO workload_alias VALUES ('s', 'k', 1, 1)",
    "a failure by another": """
        INSERT INTO failure (digest, measurement_id, kind, phase, message, source_id)
        VALUES ('\\x00', 1, 'crash', 'run', 'x', 1)""",
    "a launch by another": """
        INSERT INTO launch (digest, measurement_id, number, kernel, threads, source_id)
        VALUES ('\\x00', 1, 0, 'k', 32, 1)""",
}


def test_writers_cannot_change_protected_rows(shared):
    """Attack 7: a writer inserts rows, and cannot change what identifies, ranks or serves them."""
    with Store(shared("tunedb_owner")) as server:
        server.records.add([make_measurement(20)], FOREIGN)
        server.models.add(MODEL)
        with server._db.transaction() as connection:
            for sql in FEATURES:
                connection.exec_driver_sql(sql)
    with session(shared("tunedb_owner")) as owner, session(shared("mallory")) as mallory:

        def everything():
            tables = ("feature", "foreign_feature")
            tables += ("measurement", "source", "workload", "model", "account", "retraction")
            return [owner.execute(f"SELECT * FROM {one} ORDER BY 1").fetchall() for one in tables]

        before = everything()
        for what, sql in REFUSED.items():
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                mallory.execute(sql)
                pytest.fail(f"mallory says {what}")
        assert everything() == before
        # A writer replaces features that came with a merge.
        for sql in (
            "DELETE FROM feature WHERE program_id = 2",
            "DELETE FROM foreign_feature",
            "INSERT INTO feature VALUES (2, 1, 1, 1, '\\x01')",
        ):
            assert mallory.execute(sql).rowcount == 1
        assert owner.execute("DELETE FROM feature").rowcount == 2


def test_reader_cannot_change_anything(team):
    with session(team("bob")) as bob:
        for sql in (*REFUSED.values(), SOURCE.format(trust=0, store="'x'")):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                bob.execute(sql)


def test_server_derives_workload_mean_and_served_flag(shared):
    """It ignores the values of the writer, and does not serve a foreign record."""
    mallory = shared("mallory")
    ask(mallory, SOURCE.format(trust=0, store=f"'{CAROLS}'"))
    ((source,),) = ask(mallory, "SELECT id FROM source WHERE name = 'x'")
    ask(mallory, WORKLOAD.format(script="NULL"))
    assert ask(mallory, "SELECT count(*) FROM workload") == [(2,)]
    lie = MEASUREMENT.format(source=source, mean=1e-12).replace("1, 1, 1, 0,", "1, 2, 1, 0,", 1)
    ask(mallory, lie)
    found = "SELECT workload_id, mean, served FROM measurement WHERE source_id = %s"
    assert ask(mallory, found, source) == [(1, 1.0, 0)]
    # A record of the server's own source is served, with the mean of its times.
    ((own,),) = ask(mallory, f"SELECT id FROM source WHERE store = {SERVER}")
    ask(mallory, MEASUREMENT.format(source=own, mean=1e-12).replace("x1111", "x2222"))
    assert (1, 1.0, 1) in ask(mallory, found, own)
    for times, words in (
        ("'\\x000000000000f07f'", "not finite"),
        ("'\\x00'", "run times of 1 bytes"),
    ):
        sql = MEASUREMENT.format(source=2, mean=1).replace("'\\x000000000000f03f'", times)
        with pytest.raises(psycopg.DataError, match=words):
            ask(mallory, sql)


@pytest.mark.examples
def test_server_computes_the_same_means_as_python(postgres_url):
    """They are equal bit for bit."""
    drawn = random.Random(7)
    whole = [drawn.getrandbits(64).to_bytes(8, "little") for _ in range(examples(3000))]
    values = [identity.unpack_floats(one)[0] for one in whole]
    values = [one for one in values if math.isfinite(one) and abs(one) < 1e300]
    special = [0.0, -0.0, 1.0, -1.5, 1e10, 2.2e-308, 5e-324, 1e-310, 1.7e308, 1e-3]
    lists = [[one] for one in special + values]
    lists += [[drawn.choice(special[:7] + values) for _ in range(4)] for _ in range(examples(1000))]
    lists += [[drawn.lognormvariate(-8, 2) for _ in range(drawn.randint(1, 9))] for _ in lists]
    with session(postgres_url) as connection:
        rows = [(identity.pack_floats(one), mean_of(one)) for one in lists]
        for (packed, mean), one in zip(rows, lists, strict=True):
            sql = "SELECT tunedb_mean(%s, %s)"
            (found,) = connection.execute(sql, (packed, mean)).fetchone()
            assert (0.0 + found).hex() == (0.0 + mean).hex(), one
        assert connection.execute("SELECT tunedb_mean('', 1)").fetchone() == (None,)


def test_check_finds_no_problems_in_records_that_a_writer_adds(shared):
    with Store(shared("alice")) as store:
        made = [
            make_measurement(n, (1e-3 / (n + 1), 3e-3), workload=n % 3, empty=n % 7 == 0)
            for n in range(100, 140)
        ]
        store.records.add([*made, *(make_measurement(n, None) for n in range(140, 150))], OWN)
        store.records.add([make_measurement(150)], FOREIGN)
    assert check.check(shared("bob")).problems == []


def test_writer_pushes_pulls_tunes_and_imports_and_reader_pulls(shared, alices, file):
    """A writer uses all that docs/sharing.md promises; a reader pulls everything."""
    with Store(alices) as here:
        fill(here, 5, 6)
        report = push(here, shared("alice"))
        assert (report.new, report.reasons) == (2, {})
        assert pull(here, shared("alice")).new == 1
    # The new records belong to her source, which is trusted.
    assert served(shared("bob")) == [True] * 7
    with Store(shared("alice")) as store:
        store.set_retry_timeout(1)
        failed = make_measurement(30, None, failure=Failure(FailureKind.TIMEOUT, Phase.RUN, "x"))
        launched = make_measurement(31, launches=(Launch("k", 32),), session=make_session(3))
        made = [make_measurement(32), failed, launched]
        store.records.add(made, Source("tuning", SourceKind.LIVE))
        store.workloads.add(make_workload(7, script="code"), [Alias("s", "k")])
        store.sessions.add(make_session(4))
        store.models.add_predictions(store.models.add(MODEL), {1: 0.5})
    # The server stores no script (it is code) and no bytes of a model (nobody checks them).
    assert ask(shared("bob"), "SELECT count(script) FROM workload") == [(0,)]
    assert ask(shared("bob"), "SELECT body FROM model") == [(None,)]
    with Store(file("d" * 32)) as other:
        assert pull(other, shared("bob")).new == 10
        assert digests(other) == digests(shared("bob"))
    # A writer also pulls into the server, which writes watermarks of the server itself.
    with Store(shared("alice")) as store, Store(file("e" * 32)) as theirs:
        fill(theirs, 60)
        assert pull(store, theirs.location).new == 1


def test_push_moves_a_known_record_to_a_better_source(shared, alices, file):
    """Mallory pushes it first; alice's push takes it over, and mallory cannot take it back."""
    record = make_measurement(50)
    with Store(file("f" * 32)) as theirs:
        theirs.records.add([record], Source("theirs"))
        assert push(theirs, shared("mallory")).new == 1
        assert served(shared("bob"))[-1] is False
        with Store(alices) as here:
            here.records.add([record], Source("nightly"))
            assert push(here, shared("alice")).moved == 1
        assert served(shared("bob"))[-1] is True
        assert push(theirs, shared("mallory"), full=True).moved == 0
    assert served(shared("bob"))[-1] is True
    ((own,),) = ask(shared("bob"), f"SELECT id FROM source WHERE store = {SERVER}")
    # She cannot move a record to a source of somebody else either.
    ask(shared("mallory"), SOURCE.format(trust=0, store="'g'"))
    ask(shared("mallory"), MEASUREMENT.format(source="(SELECT max(id) FROM source)", mean=1))
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="not of this account"):
        ask(shared("mallory"), "UPDATE measurement SET source_id = 1 WHERE source_id > %s", own + 1)


def test_server_accepts_retractions_only_from_the_account_of_their_database(shared, alices, file):
    """A push leaves out relayed retractions, reports them and goes on."""
    with Store(alices) as here, Store(file(CAROLS)) as carols:
        fill(carols, 70)
        carols.trust.retract([1], "a test")
        assert pull(here, carols.location).retractions == 1
        report = push(here, shared("alice"))
        assert (report.new, report.retractions) == (1, 0)
        (reason,) = report.reasons
        assert "only from the database's own account" in reason
        assert push(carols, shared("mallory")).retractions == 1
        # Alice's source is trusted there: the server accepts retractions only from her account.
        here.trust.retract([1], "the clock was wrong")
        assert pull(carols, alices).retractions == 1
        report = push(carols, shared("mallory"))
        assert report.retractions == 0
        assert len(report.reasons) == 1
        assert served(shared("bob"))[0] is True
        assert push(here, shared("alice")).retractions == 1
    assert served(shared("bob"))[0] is False
    assert served(shared("bob"))[1:4] == [True] * 3
    # It still holds if the owner asks for the rows to be served again.
    ask(shared("tunedb_owner"), "UPDATE measurement SET served = 1")
    assert served(shared("bob"))[0] is False


def test_a_database_pushes_with_one_account(shared, alices, file):
    """Mallory writes alice's key into a file; the owner may give the key to another account."""
    # A key belongs to the account that inserts it first, whatever role the row states.
    insertion = "INSERT INTO account VALUES (%s, %s, 0) ON CONFLICT DO NOTHING"
    assert ask(shared("mallory"), insertion, CAROLS, "alice") == 1
    assert ask(shared("alice"), insertion, CAROLS, "alice") == 0
    rows = ask(shared("bob"), "SELECT store, role, registered_at > 0 FROM account ORDER BY store")
    assert rows == [(ALICES, "alice", True), (CAROLS, "mallory", True)]
    # A row of the owner precedes one of an account that has not pushed yet (docs/sharing.md).
    ask(shared("tunedb_owner"), "INSERT INTO account (store, role) VALUES ('k', 'alice')")
    assert ask(shared("mallory"), insertion, "k", "mallory") == 0
    forged = shutil.copyfile(alices, alices.with_name("forged.db"))
    with Store(forged) as store:
        fill(store, 80)
        with raises_line(StorageError, match=f"{ALICES} pushes as alice") as error:
            push(store, shared("mallory"))
        assert ask(shared("bob"), "SELECT count(*) FROM measurement") == [(5,)]
        mended = re.search(r"UPDATE account SET .*'$", str(error.value)).group()
        ask(shared("tunedb_owner"), mended)
        assert push(store, shared("mallory")).new == 1
    with Store(alices) as store, pytest.raises(StorageError, match="pushes as mallory"):
        push(store, shared("alice"))


def test_only_the_owner_retracts_in_the_name_of_the_server(shared, alices):
    """The owner also sets trust, adds scripts and removes records."""
    owner = shared("tunedb_owner")
    with Store(shared("alice")) as store, raises_line(StorageError, match="tunedb push"):
        store.trust.retract([1], "no")
    with Store(owner) as store:
        assert store.trust.set(1, Trust.FOREIGN) == 4
        assert served(owner) == [False] * 4 + [True]
        assert store.trust.set(1, Trust.VERIFIED) == 4
        store.trust.retract_source(1, "all of it")
        assert served(owner) == [False] * 4 + [True]
        store.workloads.add(make_workload(7, script="code"))
        assert store.trust.retract([5], "no") == 1
        assert served(owner) == [False] * 5
        assert store.pruning.remove_records([1, 2]).records == 2
        store.pruning.vacuum()
    assert ask(owner, "SELECT count(script) FROM workload") == [(1,)]
    with Store(alices) as here:
        assert push(here, owner, full=True).new == 2


def test_guards_lists_triggers_and_functions_of_the_migration(postgres_url):
    script = importlib.import_module("tunedb.migrations.versions.0007_server_guards")
    made = "\n".join(script.GUARDS)
    tables = re.findall(r"TRIGGER tunedb_guard BEFORE .* ON public.(\w+)", made)
    assert set(guards.TABLES) == set(tables)
    functions = set(re.findall(r"FUNCTION\s+public\.(\w+)\([^)]*\) RETURNS (?!trigger)", made))
    assert set(guards.FUNCTIONS) == functions
    with Store(postgres_url) as store:
        assert guards.inspect(store._db.reader()) == guards.Guards(is_owner=True)


def test_push_names_a_missing_guard_and_upgrade_restores_it(shared, alices):
    """The error names the guards and the command that restores them."""
    owner = shared("tunedb_owner")

    def run(*words, code=0):
        result = CliRunner().invoke(main, list(words))
        assert result.exit_code == code, result.output
        return result.stdout

    for sql in (
        "DROP TRIGGER tunedb_guard ON retraction",
        "ALTER TABLE measurement DISABLE TRIGGER tunedb_guard",
        "DROP FUNCTION tunedb_stop_serving",
        "DROP FUNCTION tunedb_guard_word CASCADE",
    ):
        ask(owner, sql)
    tables = ("measurement", "workload_alias", "failure", "launch", "retraction")
    missing = [f"trigger tunedb_guard of {table}" for table in tables]
    missing.append("function tunedb_stop_serving")
    words = f"the server lacks its {', '.join(missing)}, .*its owner runs: tunedb db upgrade"
    for account in ("alice", "tunedb_owner"):
        with Store(alices) as here, raises_line(SchemaError, match=words):
            push(here, shared(account))
    with Store(shared("bob"), read_only=True) as store:
        assert store.records.count() == 5
    found = quick_check(shared("bob"))
    assert found[: len(missing)] == [f"{guard} is missing or off" for guard in missing]
    checked = run("--db", shared("bob"), "db", "check", code=1)
    planned = run("db", "upgrade", owner, "--dry-run")
    with pytest.raises(SchemaError):
        Store(owner)
    upgraded = run("db", "upgrade", owner)
    assert f"restored: {missing[0]}" in upgraded
    assert all(guard in text for guard in missing for text in (checked, planned, upgraded))
    assert "restored" not in run("db", "upgrade", owner)
    run("--db", shared("bob"), "db", "check")
    with Store(alices) as here:
        fill(here, 5)
        assert push(here, shared("alice")).new == 1
    assert served(shared("bob")) == [True] * 6
