"""Somebody else's SQLite file, opened so that it can neither be changed nor do any harm.

Every table must be, to the letter, one of a revision that this tunedb knows: a view in the place of
a table can compute for ever, a trigger or a generated column can call functions. What is left can
only be wrong, slow or large. :mod:`tunedb.exchange.verify` finds what is wrong; here is what bounds
the time of each statement and the size of each value (sqlite.org/security.html).

The file is never attached to ours, never written and never upgraded. One that its owner writes to
is read in its WAL mode, as everybody else reads it.
"""

from __future__ import annotations

import re
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import identity, limits
from ..errors import LimitError, NotFoundError, SchemaError, StorageError, TuneDBError
from ..storage import schema, versions
from ..storage.engine import BUSY_TIMEOUT_S, converted_errors, file_uri
from ..system.files import require_regular, require_regular_logs
from ..system.one_line import printable

# ---- What the tables and indexes of each revision are, so that a foreign file can be compared ----

#: Name → from which revision on it has which definition; None where it is gone.
#: ``python tests/sharing/test_foreign.py`` prints it; a test compares it with databases.
DEFINITIONS: dict[str, tuple[tuple[str, str | None], ...]] = {
    "account": (("0007", "b8af3b704836bd37e5e2c7ea5e69fa59"),),
    "alembic_version": (("0001", "f36ba38fdd826aac6646ff6d5b38503f"),),
    "args_info": (("0001", "f07f02fd416be3524eea77499ef27518"),),
    "context": (("0002", "331687f54859a2807144b759d3c2bda0"),),
    "counter_set": (("0005", "0cfbee5b91c0e44bc76af07ff9761fc2"),),
    "failure": (
        ("0001", "ac9e951c28d8d80a92fea4f22a87b65e"),
        ("0006", "c66083b38dbe7865e0cc87d02c0f7b79"),
    ),
    "feature": (("0001", "8b69ad0e86b8dd69d70e267a4d5c2a49"),),
    "feature_set": (("0001", "f9f836d6ddd5ecd5f606c10e7b6cdd42"),),
    "foreign_feature": (("0006", "0e4b89e97562fdc38a268546c24b1374"),),
    "ix_failure_measurement_id": (("0001", "0f478b3df7c25ca0856942e467526066"),),
    "ix_launch_measurement_id": (("0005", "32c4fd6bb73a13236ebf93b6d8375bd5"),),
    "ix_measurement_program_id": (
        ("0001", "4f91859bb76d4484bd8770a415e611b0"),
        ("0002", None),
    ),
    "ix_measurement_top_k": (("0001", "dae6e9566826f0dbb2ca4a2312b8dd21"),),
    "ix_prediction_program_id": (("0004", "872ac2118f23eb6daea1b4c780787b20"),),
    "ix_workload_alias_workload_id": (("0001", "ea947089aa222ad8d4d6094afd1e46cd"),),
    "launch": (
        ("0005", "f456d0b558f97bed864fbfbc794d86b3"),
        ("0006", "be480553e8d1838c1ca6f2e030a477c4"),
    ),
    "measurement": (
        ("0001", "a36d5b6a6935c8abcb475b21686f0960"),
        ("0002", "35c5d2c4f14d0c350be379a4c0657ea3"),
    ),
    "meta": (("0001", "0d475b60dac742e4bf825c06131ba857"),),
    "model": (("0001", "0a233962b50124e13afe824bc327b430"),),
    "prediction": (("0003", "eb7306a24469b434d62d06fcc5f6144b"),),
    "program": (
        ("0001", "6e9b9edd136f2642e2811d32cf3ff0be"),
        ("0002", "16e504ffaacba7b0fb3cdffefd3245e4"),
    ),
    "quarantine": (("0001", "157228f6b386d62129837708d3134e9d"),),
    "retraction": (
        ("0001", "f808bfdba646d7b0a928b72b09b578e1"),
        ("0004", "3d17551bc2af28a83e088e2938b614bf"),
        ("0006", "8e61a9e807be31a7a7101c03a2d35782"),
    ),
    "session": (("0001", "139595d56cfdfae0678fde7666817ff7"),),
    "session_factor": (("0003", "cac9e0c9543bd649538aa35987dbd76e"),),
    "sketch": (("0001", "81d6e6213587867e647a74e55064d052"),),
    "source": (("0001", "902779729b0e47bf258efb384fbd54bb"),),
    "tail": (("0001", "4c96aed491e7cde94752d854acdceeca"),),
    "target": (("0001", "102da0920d92d562722617df9ee0c094"),),
    "watermark": (
        ("0004", "8bfbe3ed08db0489c78d54e4abeb83c3"),
        ("0005", "441510190c8ed2b1f303c4df98389667"),
    ),
    "workload": (
        ("0001", "3fdc5a8dc592243d895188336a329efd"),
        ("0002", "887daa2a2c50e0c9afe6da17b70330df"),
    ),
    "workload_alias": (
        ("0001", "579c70ff4b16929bcdb5b32c90e20c04"),
        ("0006", "fc2433aa531364fd1379a86a77e7a41d"),
    ),
}

_SPACE = re.compile(r"[ \t\r\n]+")
_AROUND = re.compile(r" ?([(),]) ?")


def definition(kind: str, name: str, table: str, sql: str) -> str:
    """Return a digest, in hexadecimal, of one row of ``sqlite_schema``.

    Space counts only between words: that between them and brackets is SQLAlchemy's taste.
    """
    text = _AROUND.sub(r"\1", _SPACE.sub(" ", sql)).strip()
    fields = (kind, name, table, text)
    value = identity.digest("schema", *(f.encode(errors="surrogatepass") for f in fields))
    return value.hex()


def objects_of(revision: str) -> dict[str, str]:
    """Return the tables and indexes of a revision with the digests of their definitions."""
    reached = schema.REVISIONS[: schema.REVISIONS.index(revision) + 1]
    found: dict[str, str] = {}
    for name, steps in DEFINITIONS.items():
        digest = [digest for since, digest in steps if since in reached]
        if digest and digest[-1] is not None:
            found[name] = digest[-1]
    return found


# ---- Opening the file ----------------------------------------------------------------------------

#: Steps of SQLite's machine between two looks at the clock: about 20 us.
_STEPS = 1000

#: One page of the smallest size.
_SMALLEST_FILE = 512

_AUTOINDEX = re.compile(r"sqlite_autoindex_(\w+)_\d+")
_STORE_KEY = re.compile(r"[0-9a-f]{32}")

#: What ANALYZE leaves; it changes plans, never results.
_STATISTICS = {
    "sqlite_stat1": "CREATE TABLE sqlite_stat1(tbl,idx,stat)",
    "sqlite_stat4": "CREATE TABLE sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)",
}

_REASONS: tuple[tuple[str, type[TuneDBError], str], ...] = (
    ("interrupted", LimitError, "reading it takes too long; it is damaged, or slow on purpose"),
    ("too big", LimitError, f"it has a value of over {limits.MAX_FOREIGN_BYTES} bytes"),
    ("malformed", StorageError, "damaged; ask for another copy"),
)

_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: limits.MAX_FOREIGN_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 2**14,
    sqlite3.SQLITE_LIMIT_COLUMN: 64,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 4,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 25_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 8,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}

#: Nothing here looks at the tables yet, so nothing in the file is run.
_PRAGMAS = (
    "PRAGMA trusted_schema=OFF",
    "PRAGMA query_only=ON",
    "PRAGMA cell_size_check=ON",
    "PRAGMA mmap_size=0",
    "PRAGMA cache_size=-16384",
    "PRAGMA temp_store=MEMORY",
)


class Watch:
    """Ends a statement that takes too long; SQLite asks it every thousand steps."""

    def __init__(self) -> None:
        self._deadline = 0.0
        self._steps = 0

    def restart(
        self, seconds: float = limits.FOREIGN_STATEMENT_S, steps: int = sys.maxsize
    ) -> None:
        """Give the next statement so many seconds and thousands of steps."""
        self._deadline = time.monotonic() + seconds
        self._steps = steps

    def __call__(self) -> bool:
        """Tell SQLite whether to give up."""
        self._steps -= 1
        return self._steps < 0 or time.monotonic() > self._deadline


@dataclass(frozen=True, slots=True)
class ForeignFile:
    """A file that is what it should be.

    Parameters
    ----------
    connection : sqlite3.Connection
        Reads it. Texts that are no UTF-8 come as bytes.
    watch : Watch
        To be restarted before each statement.
    revision : str
        Its schema, one of :data:`tunedb.storage.schema.REVISIONS`.
    store_key : str
        Which database it says that it is.
    """

    connection: sqlite3.Connection
    watch: Watch
    revision: str
    store_key: str


@contextmanager
def foreign_errors(where: str) -> Iterator[None]:
    """Turn errors of SQLite into ours, with what they quote of the file made harmless."""
    try:
        with converted_errors(where):
            yield
    except MemoryError:
        raise StorageError(
            f"{where}: damaged: its header declares more bytes than the file has"
        ) from None
    except TuneDBError as error:
        if error.__cause__ is None:
            raise
        words = str(error).removeprefix(where)
        for needle, kind, advice in _REASONS:
            if needle in words:
                raise kind(f"{where}: {advice}") from None
        raise type(error)(where + printable(words)) from error.__cause__


def is_sqlite(path: Path) -> bool:
    """Tell whether a file is one of SQLite's.

    Asked of SQLite itself: reading it with ``open()`` would drop the locks that SQLite holds for
    other handles of this process (:func:`tunedb.storage.versions.check_file`).
    """
    if not path.is_file() or path.stat().st_size < _SMALLEST_FILE:
        return False
    connection: sqlite3.Connection | None = None
    try:
        connection = _connect(path, Watch())
    except (sqlite3.Error, StorageError, UnicodeError) as error:
        # A message of SQLite's may quote the file, which then is none of Python's texts.
        return "not a database" not in str(error)
    finally:
        if connection is not None:
            connection.close()
    return True


def open_file(path: Path, *, check: bool = True) -> ForeignFile:
    """Open somebody else's database.

    Parameters
    ----------
    path : Path
        The file.
    check : bool
        Let SQLite look through all of it for damage first (``quick_check``).

    Raises
    ------
    NotFoundError
        There is none.
    SchemaError
        It is of another program, of a newer tunedb, or its tables are not those of its revision.
    StorageError
        It is damaged or cannot be read.
    """
    where = str(path)
    _check_path(path)
    watch = Watch()
    with foreign_errors(where):
        connection = _connect(path, watch)
    try:
        with foreign_errors(where):
            revision = _revision(connection, watch, where)
            store_key = _store_key(connection, watch, where)
            if check:
                _check_size(connection, path)
                _quick_check(connection, watch, path)
    except BaseException:
        connection.close()
        raise
    return ForeignFile(connection, watch, revision, store_key)


def _check_path(path: Path) -> None:
    """Raise our error where there is no file, or none that can be a database."""
    try:
        require_regular(path)
        size = path.stat().st_size
    except FileNotFoundError:
        raise NotFoundError(f"{path}: no such file") from None
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror})") from None
    if size < _SMALLEST_FILE:
        raise SchemaError(f"{path}: not a database ({size} bytes); give another path")


def _connect(path: Path, watch: Watch) -> sqlite3.Connection:
    """Return a connection that has read the first page."""
    require_regular_logs(path)
    uri = f"{file_uri(path)}?mode=ro"
    try:
        return _guarded(uri, watch)
    except sqlite3.OperationalError as error:
        log = path.with_name(f"{path.name}-wal")
        if "unable to open" not in str(error) or (log.exists() and log.stat().st_size):
            raise
        # WAL needs to write beside the file even to read. Here nobody can, on a read-only medium
        # or in a folder of somebody else, and no log is lost where there is none.
        return _guarded(f"{uri}&immutable=1", watch)


def _guarded(uri: str, watch: Watch) -> sqlite3.Connection:
    """Return a connection with every guard that there is."""
    connection = sqlite3.connect(
        uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    try:
        for number, value in _LIMITS.items():
            connection.setlimit(number, value)
        if sys.version_info >= (3, 12):
            connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
            connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_TRIGGER, False)
            connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_VIEW, False)
        # With sqlite3's own, a text that is no UTF-8 ends the statement, and all of it stands in
        # the message.
        connection.text_factory = _text
        connection.set_progress_handler(watch, _STEPS)
        watch.restart()
        for pragma in _PRAGMAS:
            connection.execute(pragma)
        # Needs the first page and no table.
        connection.execute("PRAGMA schema_version").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


# ---------------------------------------------------------------------- what is in it


def _revision(connection: sqlite3.Connection, watch: Watch, where: str) -> str:
    """Return the revision of a file whose tables are those of that revision.

    Raises
    ------
    SchemaError
        They are not, or the file is none of tunedb.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != schema.APPLICATION_ID:
        raise SchemaError(f"{where}: a database of another program; give one of tunedb")
    # Reading one row of this makes SQLite read the definitions of all tables.
    watch.restart(steps=limits.FOREIGN_OPEN_STEPS)
    cursor = connection.execute("SELECT type, name, tbl_name, rootpage, sql FROM sqlite_schema")
    rows = cursor.fetchmany(limits.FOREIGN_OBJECTS + 1)
    cursor.close()
    if len(rows) > limits.FOREIGN_OBJECTS:
        raise SchemaError(
            f"{where}: more than {limits.FOREIGN_OBJECTS} tables and indexes, "
            "more than any tunedb database; it is not read"
        )
    have = _objects(rows, where)
    first = objects_of(schema.REVISIONS[0])
    for name in ("alembic_version", "meta"):
        if have.get(name) != first[name]:
            raise SchemaError(f"{where}: a database of another program; give one of tunedb")
    watch.restart()
    said = connection.execute("SELECT version_num FROM alembic_version LIMIT 2").fetchall()
    if len(said) != 1 or not isinstance(said[0][0], str):
        raise SchemaError(f"{where}: it does not state its schema; ask for another copy")
    revision = said[0][0]
    if revision not in schema.REVISIONS:
        versions.require_head(printable(revision), where)
    _compare(have, objects_of(revision), revision, where)
    return revision


def _objects(rows: Sequence[tuple[Any, ...]], where: str) -> dict[str, str]:
    """Return what a file defines: name → digest of its definition."""
    found: dict[str, str] = {}
    for said, name, table, root, sql in rows:
        if not all(isinstance(value, str) for value in (said, name, table)):
            raise StorageError(f"{where}: damaged: its list of tables cannot be read")
        stored = isinstance(root, int) and root > 0
        kind = "virtual table" if said in ("table", "index") and not stored else said
        automatic = _AUTOINDEX.fullmatch(name)
        if kind == "index" and automatic and automatic[1] == table and sql is None:
            continue
        if kind == "table" and isinstance(sql, str) and _STATISTICS.get(name) == sql:
            continue
        if name in found:
            raise SchemaError(f"{where}: it defines {printable(name)} twice; it is not read")
        found[name] = definition(kind, name, table, sql if isinstance(sql, str) else "")
        if kind not in ("table", "index"):
            raise SchemaError(
                f"{where}: its {printable(name)} is a {printable(kind)}, which tunedb databases "
                "lack; it is not read"
            )
    return found


def _compare(have: dict[str, str], wanted: dict[str, str], revision: str, where: str) -> None:
    """Raise SchemaError with the first difference."""
    if missing := sorted(wanted.keys() - have.keys()):
        problem = f"{missing[0]} is missing"
    elif added := sorted(have.keys() - wanted.keys()):
        problem = f"{printable(added[0])} is not part of it"
    elif changed := sorted(name for name in have if have[name] != wanted[name]):
        problem = f"the definition of {changed[0]} differs"
    else:
        return
    raise SchemaError(
        f"{where}: its tables do not match schema {revision}: {problem}; it is not read"
    )


def _store_key(connection: sqlite3.Connection, watch: Watch, where: str) -> str:
    """Return which database a file says that it is."""
    watch.restart()
    meta = dict(connection.execute("SELECT key, value FROM meta LIMIT 100").fetchall())
    if meta.get("format") != schema.FORMAT:
        raise SchemaError(f"{where}: a database of another program; give one of tunedb")
    key = meta.get("store")
    if not isinstance(key, str) or not _STORE_KEY.fullmatch(key):
        raise SchemaError(f"{where}: it has no store key; ask for another copy")
    return key


def _check_size(connection: sqlite3.Connection, path: Path) -> None:
    """Raise StorageError where bytes are missing at the end: SQLite would read zeros."""
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:
        # The last pages may be in there.
        return
    (page,) = connection.execute("PRAGMA page_size").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    size = path.stat().st_size
    if size < page * pages:
        raise StorageError(f"{path}: truncated to {size} of {page * pages} bytes; copy it again")


def _quick_check(connection: sqlite3.Connection, watch: Watch, path: Path) -> None:
    """Raise StorageError where SQLite finds damage."""
    size = path.stat().st_size
    watch.restart(limits.FOREIGN_STATEMENT_S + size / limits.FOREIGN_CHECK_RATE)
    (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if said != "ok":
        raise StorageError(f"{path}: damaged ({printable(str(said))}); ask for another copy")
