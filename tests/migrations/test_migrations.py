"""Revisions, goldens and frozen databases."""

import importlib.util
import re
import shutil
import sqlite3
import textwrap
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import quick_schema
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from builders import OWN, make_measurement, sql
from raising import raises_line
from sqlalchemy import create_engine, select

import tunedb.migrations
from tunedb.errors import SchemaError, StorageError
from tunedb.records import Alias, FailureKind, Origin, Status
from tunedb.storage import schema, versions
from tunedb.storage.engine import make_engine, parse_url
from tunedb.storage.store import Store

HERE = Path(__file__).parent
FROZEN = sorted((HERE / "frozen").glob("*.db"))


def load(name):
    """Return a module beside this file (pytest's import mode leaves sys.path alone)."""
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


dumps = load("schema_dump")
make_frozen = load("make_frozen")


def dump(url):
    """Return the schema of a database of either kind."""
    return dumps.dump_postgresql(url) if "://" in url else dumps.dump_sqlite(url)


def dump_all(url):
    """Return schema and rows."""
    if "://" in str(url):
        return dumps.dump_postgresql(url), dumps.dump_rows(url)
    with closing(sqlite3.connect(url)) as connection:
        return list(connection.iterdump())


def downgrade(url, revision):
    engine = make_engine(parse_url(url))
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.execution_options(tunedb_reads=True)
            connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
            connection.rollback()
            connection.execution_options(tunedb_reads=False)
        with connection.begin():
            tunedb.migrations.downgrade(connection, revision)
    engine.dispose()


def contents(url):
    """Return everything that readers see, by digest."""
    with Store(url) as store:
        records = {
            r.measurement.digest: (r.measurement, r.mean, r.retracted, r.source)
            for r in store.records.iterate()
        }
        return records, store.counts(), store.quarantine.rows(), store.records.failures()


def test_schema_revisions_equal_those_of_alembic():
    scripts = ScriptDirectory.from_config(tunedb.migrations.config())
    assert len(scripts.get_heads()) == 1
    chain = [script.revision for script in scripts.walk_revisions()][::-1]
    assert tuple(chain) == schema.REVISIONS
    assert chain[-1] == schema.HEAD
    # Each has a frozen database.
    assert [path.stem for path in FROZEN] == chain
    assert all(path.stat().st_size < 150_000 for path in FROZEN)


def test_alembic_finds_no_difference_between_code_and_migrations(store):
    """As with `alembic check`, autogenerate would write nothing."""
    options = {"compare_type": True, "compare_server_default": True}
    with store._db.transaction() as connection:
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, schema.metadata) == []


def test_create_all_and_migrations_make_identical_tables(tmp_path, sqlite_file):
    """Autogenerate sees neither STRICT nor WITHOUT ROWID nor the condition of an index."""
    made = tmp_path / "made.db"
    engine = create_engine(f"sqlite:///{made}")
    schema.metadata.create_all(engine)
    engine.dispose()

    def objects(path):
        parts = dump(str(path)).rstrip().split("\n\n")
        # Only the order of constraints may differ.
        lines = [sorted(line.rstrip(",") for line in part.splitlines()) for part in parts]
        left_out = re.compile("alembic_version|CREATE VIEW")
        return sorted(part for part in lines if not left_out.search(str(part)))

    assert objects(made) == objects(sqlite_file)
    assert "STRICT" in str(objects(made))


def test_schema_equals_golden_file(store_url):
    """After a change of the schema, run tests/migrations/update_goldens.py and read the diff."""
    name = "postgresql" if "://" in store_url else "sqlite"
    assert dump(store_url) == (HERE / f"schema_{name}.sql").read_text()


def test_quick_schema_equals_migrated_schema(tmp_path):
    paths = [tmp_path / name for name in ("migrated.db", "first.db", "quick.db")]
    for path in paths:
        Store(path).close()
        quick_schema.use(tmp_path)
    assert len({(dump(str(path)), path.stat().st_size) for path in paths}) == 1


def test_downgrade_to_base_and_upgrade_restore_the_schema(store_url):
    before = dump(store_url)
    engine = make_engine(parse_url(store_url))
    with engine.begin() as connection:
        tunedb.migrations.downgrade(connection, "base")
    left = dump(store_url)
    assert "measurement" not in left
    assert "alembic_version" in left
    with engine.begin() as connection:
        tunedb.migrations.upgrade(connection)
    engine.dispose()
    assert dump(store_url) == before


def test_threads_can_create_databases_at_the_same_time(tmp_path):
    """Alembic's proxies are global: without a lock this was a segmentation fault."""

    def make(number):
        with Store(tmp_path / f"{number}.db") as store:
            store.records.add([make_measurement()], OWN)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(make, range(4)))
    assert len(list(tmp_path.glob("*.db"))) == 4


@pytest.fixture(params=FROZEN, ids=lambda path: path.stem)
def frozen(request, tmp_path):
    return Path(shutil.copyfile(request.param, tmp_path / "frozen.db"))


def assert_rows_in_every_table(path, revision):
    tables = [name for (name,) in sql(path, "SELECT name FROM pragma_table_list")]
    rows = {
        table: sql(path, f'SELECT count(*) FROM "{table}"')[0][0]
        for table in tables
        if not table.startswith("sqlite_")
    }
    assert len(rows) >= 17
    assert all(rows.values()), rows
    since = {Status.UNMEASURED: "0002", Status.CUT_SHORT: "0008"}
    statuses = {status for (status,) in sql(path, "SELECT status FROM measurement")}
    assert statuses == {s for s in Status if since.get(s, "0001") <= revision}


def test_upgraded_frozen_database_keeps_records_and_accepts_new_ones(frozen, request):
    revision = request.node.callspec.params["frozen"].stem
    assert_rows_in_every_table(frozen, revision)
    versions.upgrade(parse_url(frozen), dry_run=True)
    assert versions.upgrade(parse_url(frozen)) == (revision, schema.HEAD)
    assert dump(str(frozen)) == (HERE / "schema_sqlite.sql").read_text()
    expected = make_frozen.measurements()
    later = make_frozen.logged() if revision > "0001" else []
    shared = make_frozen.shared() if revision > "0003" else []
    launched = make_frozen.launched() if revision > "0004" else []
    cut_short = [make_frozen.cut_short()] if revision > "0007" else []
    with Store(frozen) as store:
        records = list(store.records.iterate())
        assert [r.measurement.digest for r in records[:11]] == [m.digest for m in expected]
        assert [r.measurement for r in records[12:][: len(later)]] == later
        last = [r.measurement.digest for r in records[12 + len(later) :]]
        assert last == [m.digest for m in shared + launched + cut_short]
        profiled = records[len(records) - len(launched + cut_short) :][: len(launched)]
        for record, measurement in zip(profiled, launched, strict=True):
            found = store.launches.for_record(record.id)
            assert repr(found) == repr(list(measurement.launches))
        # Retracted one by one, with their session, by the database that they come from.
        gone = [record.id for record in records if record.retracted]
        assert gone == ([11, 12, 16, 17] if shared else [11])
        stored = store._db.select(select(schema.measurement.c.id, schema.measurement.c.digest))
        digests = {row.id: bytes(row.digest) for row in stored}
        assert {r.id: r.measurement.digest for r in records} == digests
        assert [r.measurement.run_secs for r in records[:11]] == [m.run_secs for m in expected]
        assert [r.id for r in store.records.top_k([1], None, 10)] == [9, 5, 2, 3, 1, 4]
        assert records[6].measurement.failure.kind is FailureKind.CRASH
        assert records[5].measurement.failure.seconds == 10.0
        assert records[3].measurement.origin is Origin.MUTATED
        assert records[0].measurement.program.workload.script.startswith("# from tvm.script")
        assert store.workloads.equivalent(1) == [1]
        assert Alias("script", "ab" * 16) in [name for name, _ in store.names.aliases(1)]
        (quarantined,) = [row.item for row in store.quarantine.rows()]
        assert quarantined.data == b"{\xff\0"

        assert store.records.add(expected, OWN).new == 0
        best = make_measurement(0, (1e-12,), workload=expected[0].program.workload)
        (id_,), new = store.batches.add([best], OWN)
        # The denormal time of the ninth record has the mean 0.
        assert (new, [r.id for r in store.records.top_k([1], None, 2)]) == (1, [9, id_])
        assert store.trust.retract([9], "x") == 1
        assert store.records.best([1]).id == id_


def test_downgrade_to_first_schema_loses_only_cut_short_records(store_url):
    with Store(store_url) as store:
        store.records.add(make_frozen.measurements(), OWN)
        store.trust.retract([1], "x")
    before = contents(store_url)
    with Store(store_url) as store:
        again = replace(make_frozen.measurements()[1], status=Status.CUT_SHORT)
        store.records.add([again], OWN)
    downgrade(store_url, "0001")
    assert versions.upgrade(parse_url(store_url)) == ("0001", schema.HEAD)
    assert contents(store_url) == before
    with Store(store_url) as store:
        assert store.records.add(make_frozen.measurements(), OWN).new == 0


def test_make_frozen_is_deterministic_and_never_overwrites(tmp_path, monkeypatch):
    """A database that varies could not be compared with that of a later revision."""
    monkeypatch.setattr(make_frozen, "HERE", tmp_path)
    make_frozen.main()
    made = tmp_path / "frozen" / f"{schema.HEAD}.db"
    kept = shutil.copyfile(HERE / "frozen" / made.name, tmp_path / "kept.db")
    assert dump_all(str(made)) == dump_all(str(kept))
    with pytest.raises(SystemExit, match="stays as it is"):
        make_frozen.main()


ADD_COLUMN = """
    op.add_column("workload", sa.Column("note", sa.Text()))
    op.create_table("extra", sa.Column("id", sa.Integer, primary_key=True), sqlite_strict=True)
    op.execute("UPDATE workload SET note = name")
"""
# SQLite cannot change a table in many ways, so Alembic creates a new one, drops the old one and
# renames; programs, measurements, aliases and views refer to this one.
MAKE_ANEW = """
    recreate = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    with views_dropped(), op.batch_alter_table("workload", recreate=recreate) as batch:
        batch.add_column(sa.Column("note", sa.Text()))
"""
FAIL = """
    op.execute("DELETE FROM failure")
    op.execute("INSERT INTO meta (key, value) VALUES ('half', 'done')")
    op.execute("SELECT 1 FROM nowhere")
"""
FAIL_HALF_WAY = ADD_COLUMN + FAIL


@pytest.fixture
def next_revision(tmp_path, monkeypatch):
    """A function that adds a revision as the new head, in a copy of the scripts."""

    def make(upgrade):
        scripts = tmp_path / "scripts"
        source = Path(tunedb.migrations.__file__).parent
        shutil.copytree(source, scripts, ignore=shutil.ignore_patterns("__pycache__"))
        text = f"""
            import sqlalchemy as sa
            from alembic import op

            from tunedb.migrations.views import views_dropped

            revision = "9999"
            down_revision = "{schema.HEAD}"


            def upgrade():
            {textwrap.indent(textwrap.dedent(upgrade), " " * 16)}


            def downgrade():
                pass
            """
        (scripts / "versions" / "9999_next.py").write_text(textwrap.dedent(text))
        real = tunedb.migrations.config

        def config(connection=None):
            value = real(connection)
            value.set_main_option("script_location", str(scripts))
            return value

        monkeypatch.setattr(tunedb.migrations, "config", config)
        monkeypatch.setattr(schema, "REVISIONS", (*schema.REVISIONS, "9999"))
        monkeypatch.setattr(schema, "HEAD", "9999")

    return make


@pytest.fixture
def old_url(store_url):
    """A database with records, of the revision before that of `next_revision`."""
    if "://" in store_url:
        with Store(store_url) as store:
            store.records.add(make_frozen.measurements(), OWN)
            store.trust.retract([1], "x")
    else:
        shutil.copyfile(HERE / "frozen" / f"{schema.HEAD}.db", store_url)
    return store_url


@pytest.fixture
def old_file(sqlite_file):
    """A SQLite file of that revision."""
    return str(shutil.copyfile(HERE / "frozen" / f"{schema.HEAD}.db", sqlite_file))


def backups_of(url):
    return [] if "://" in url else sorted(Path(url).parent.glob("*.bak-*"))


def test_error_about_older_database_names_the_upgrade_command(old_url, next_revision):
    next_revision(ADD_COLUMN)
    for options in ({}, {"read_only": True}, {"create": False}):
        with raises_line(SchemaError, match="tunedb db upgrade --db ") as caught:
            Store(old_url, **options)
        words = f"its schema is {schema.REVISIONS[-2]}, but this tunedb needs 9999"
        assert words in str(caught.value)
        assert parse_url(old_url).database in str(caught.value)
    assert backups_of(old_url) == []


@pytest.mark.parametrize("body", [ADD_COLUMN, MAKE_ANEW], ids=["alter", "make anew"])
def test_upgrade_keeps_every_record(old_url, next_revision, body):
    before = contents(old_url)
    next_revision(body)
    backups = []
    done = versions.upgrade(parse_url(old_url), on_backup=backups.append)
    assert done == (schema.REVISIONS[-2], "9999")
    assert contents(old_url) == before
    assert versions.upgrade(parse_url(old_url)) == ("9999", "9999")
    assert backups == backups_of(old_url)
    assert len(backups) == (0 if "://" in old_url else 1)
    if "://" not in old_url:
        assert sql(old_url, "PRAGMA foreign_key_check") == []
        assert sql(old_url, "PRAGMA integrity_check") == [("ok",)]
        assert sql(old_url, "SELECT count(*) FROM v_records") == [(len(before[0]),)]
        strict = "SELECT strict FROM pragma_table_list WHERE name = 'workload'"
        assert sql(old_url, strict) == [(1,)]
    with Store(old_url) as store:
        assert store.records.add([make_measurement(50, workload=50)], OWN).new == 1


def test_backup_of_upgrade_restores_the_old_database(old_file, next_revision):
    whole, before = dump_all(old_file), contents(old_file)
    old = (schema.REVISIONS, schema.HEAD)
    next_revision(ADD_COLUMN)
    backups = []
    versions.upgrade(parse_url(old_file), on_backup=backups.append)
    assert backups == backups_of(old_file) == [Path(f"{old_file}.bak-{old[1]}")]
    assert dump_all(str(backups[0])) == whole
    assert dump_all(old_file) != whole
    schema.REVISIONS, schema.HEAD = old  # the older tunedb; the fixture puts all back
    with pytest.raises(SchemaError, match="written by a newer tunedb"):
        Store(old_file)
    shutil.copyfile(backups[0], old_file)
    assert contents(old_file) == before


def test_backup_has_any_name_and_does_not_overwrite_existing_file(old_file, next_revision):
    odd = Path(old_file).rename(Path(old_file).with_name("a?b#c%41.db"))
    first = Path(f"{odd}.bak-{schema.HEAD}")
    first.write_text("something of the user's")
    next_revision(ADD_COLUMN)
    versions.upgrade(parse_url(odd))
    assert first.read_text() == "something of the user's"
    second = Path(f"{first}.2")
    assert backups_of(str(odd)) == [first, second]
    assert second.stat().st_size > 10_000


def test_dry_run_of_upgrade_changes_nothing(old_url, next_revision):
    before = dump_all(old_url)
    next_revision(ADD_COLUMN)
    assert versions.upgrade(parse_url(old_url), dry_run=True) == (schema.REVISIONS[-2], "9999")
    assert dump_all(old_url) == before
    assert backups_of(old_url) == []


@pytest.mark.parametrize("dry_run", [False, True])
def test_failed_migration_changes_nothing(old_url, next_revision, dry_run):
    before = dump_all(old_url)
    next_revision(FAIL_HALF_WAY)
    with raises_line((StorageError, SchemaError), match="nowhere"):
        versions.upgrade(parse_url(old_url), dry_run=dry_run)
    assert dump_all(old_url) == before


def test_failed_first_migration_leaves_no_file_and_an_empty_server(
    tmp_path, bare_postgres_url, next_revision
):
    before = dump_all(bare_postgres_url)
    next_revision(FAIL_HALF_WAY)
    for url in (tmp_path / "new.db", bare_postgres_url):
        with pytest.raises((StorageError, SchemaError)):
            Store(url)
    assert [path.name for path in tmp_path.iterdir()] == ["scripts"]
    assert dump_all(bare_postgres_url) == before


def test_migration_that_breaks_foreign_keys_is_rolled_back(old_url, next_revision):
    before = dump_all(old_url)
    next_revision('op.execute("DELETE FROM sketch")')
    with pytest.raises(StorageError, match=r"lose their references|foreign key"):
        versions.upgrade(parse_url(old_url))
    assert dump_all(old_url) == before


def test_partial_backup_on_full_disk_is_removed(mount, next_revision):
    """The upgrade then changes nothing."""
    folder = mount("1m")
    database = folder / "x.db"
    with Store(":memory:") as memory, closing(sqlite3.connect(database)) as copy:
        memory.records.add([make_measurement(i, workload=i) for i in range(400)], OWN)
        memory._db.reader().connection.driver_connection.backup(copy)
    next_revision(ADD_COLUMN)
    size, before = database.stat().st_size, dump_all(database)
    (folder / "ballast").write_bytes(bytes(2**20 - size - 150_000))
    with pytest.raises(StorageError, match="free some space"):
        versions.upgrade(parse_url(database))
    assert sorted(path.name for path in folder.iterdir()) == ["ballast", "x.db"]
    (folder / "ballast").unlink()
    assert dump_all(database) == before
