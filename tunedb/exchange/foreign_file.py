"""Opening of foreign SQLite files, so that they can neither be changed nor do any harm.

Every table, index and view must have exactly the definition of a revision that this tunedb knows:
a view in the place of a table can compute for ever, a trigger or a generated column can call
functions. Nothing here reads a view. The remaining dangers are wrong content, which
:mod:`tunedb.exchange.verify` finds, and slow or large files: here the time of each statement and
the size of each value are bounded (sqlite.org/security.html).

A file is never attached to ours, never written and never upgraded. A file that its owner is writing
is read in its WAL mode, as by everybody else.
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

# ---- Definitions of tables, indexes and views, for comparison with a file ------------------------

#: Digests of the definitions of each table, index or view, by the revision that introduced them;
#: None if it was removed. ``python tests/exchange/test_foreign.py`` prints them; a test checks
#: them.
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
    "ix_measurement_lost": (("0010", "4483dcc762e1ecfc439e8817f842982e"),),
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
    "v_best": (
        ("0009", "ce66eb197b57c79232805da325d81d80"),
        ("0010", "4ea6c8e128032a199b96b0d39873d244"),
        ("0011", "5d4432367c0efe86eb4db9b44db1779a"),
    ),
    "v_failures": (("0009", "ab96ea818ca27508916adaeeabbe5bd2"),),
    "v_launches": (("0009", "a0ca66c8557fb26db671e5eeea4f8a4a"),),
    "v_records": (("0009", "7bcca02de78fc395656d9b5afe398438"),),
    "v_sessions": (("0009", "affa311583e0c25e7391239c007f8bc8"),),
    "v_tasks": (
        ("0009", "abb038f723d582e065a4c46abdb611fb"),
        ("0010", "7d518b37288423bfa49a9377ed7d8568"),
        ("0011", "cb58bf93314825dabd8e4840b67db530"),
    ),
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

_KNOWN_DEFINITIONS = {digest for steps in DEFINITIONS.values() for _, digest in steps}

_SPACE = re.compile(r"[ \t\r\n]+")
_AROUND = re.compile(r" ?([(),]) ?")


def definition(kind: str, name: str, table: str, sql: str) -> str:
    """Return a hexadecimal digest of one row of ``sqlite_schema``."""
    # Only space between words counts: versions of SQLAlchemy differ in that around brackets.
    text = _AROUND.sub(r"\1", _SPACE.sub(" ", sql)).strip()
    fields = (kind, name, table, text)
    value = identity.digest("schema", *(f.encode(errors="surrogatepass") for f in fields))
    return value.hex()


def objects_of(revision: str) -> dict[str, str]:
    """Return the definition digests of a revision's tables, indexes and views, by name."""
    applied = schema.REVISIONS[: schema.REVISIONS.index(revision) + 1]
    objects: dict[str, str] = {}
    for name, steps in DEFINITIONS.items():
        digests = [digest for since, digest in steps if since in applied]
        if digests and digests[-1] is not None:
            objects[name] = digests[-1]
    return objects


# ---- Opening the file ----------------------------------------------------------------------------

#: Steps of SQLite's machine between two checks of the clock: about 20 us.
_STEPS = 1000

#: Bytes of SQLite's smallest page.
_SMALLEST_FILE = 512

_AUTOINDEX = re.compile(r"sqlite_autoindex_(\w+)_\d+")
_STORE_KEY = re.compile(r"[0-9a-f]{32}")

#: Tables of ANALYZE, which change plans but never results.
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

#: Settings made before any table is read, so that nothing in the file is executed.
_PRAGMAS = (
    "PRAGMA trusted_schema=OFF",
    "PRAGMA query_only=ON",
    "PRAGMA cell_size_check=ON",
    "PRAGMA mmap_size=0",
    "PRAGMA cache_size=-16384",
    "PRAGMA temp_store=MEMORY",
)


class Watch:
    """Limits the time of a statement; SQLite calls it every thousand steps."""

    def __init__(self) -> None:
        self._deadline = 0.0
        self._steps = 0

    def restart(
        self, seconds: float = limits.FOREIGN_STATEMENT_S, steps: int = sys.maxsize
    ) -> None:
        """Set the limits of the next statement: seconds, and thousands of steps."""
        self._deadline = time.monotonic() + seconds
        self._steps = steps

    def __call__(self) -> bool:
        """Return true to interrupt the statement."""
        self._steps -= 1
        return self._steps < 0 or time.monotonic() > self._deadline


@dataclass(frozen=True, slots=True)
class ForeignFile:
    """A checked foreign file.

    Parameters
    ----------
    connection : sqlite3.Connection
        Connection that returns text that is not UTF-8 as bytes.
    watch : Watch
        Limits; to be restarted before each statement.
    revision : str
        Revision of its schema, one of :data:`tunedb.storage.schema.REVISIONS`.
    store_key : str
        Its stated store key.
    """

    connection: sqlite3.Connection
    watch: Watch
    revision: str
    store_key: str


@contextmanager
def foreign_errors(where: str) -> Iterator[None]:
    """Convert errors of SQLite to ours, and escape quotations from the file."""
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
        message = str(error).removeprefix(where)
        for needle, kind, advice in _REASONS:
            if needle in message:
                raise kind(f"{where}: {advice}") from None
        raise type(error)(where + printable(message)) from error.__cause__


def is_sqlite(path: Path) -> bool:
    """Return true if a file is a SQLite database.

    SQLite itself decides: reading the file with ``open()`` would drop the locks that SQLite holds
    for other handles of this process (:func:`tunedb.storage.versions.check_file`).
    """
    if not path.is_file() or path.stat().st_size < _SMALLEST_FILE:
        return False
    connection: sqlite3.Connection | None = None
    try:
        connection = _connect(path, Watch())
    except (sqlite3.Error, StorageError, UnicodeError) as error:
        # UnicodeError: a message of SQLite may quote the file.
        return "not a database" not in str(error)
    finally:
        if connection is not None:
            connection.close()
    return True


def open_file(path: Path, *, check: bool = True) -> ForeignFile:
    """Open a foreign database.

    Parameters
    ----------
    path : Path
        The file.
    check : bool
        Let SQLite check the whole file for damage first (``quick_check``).

    Raises
    ------
    NotFoundError
        The file does not exist.
    SchemaError
        It belongs to another program or a newer tunedb, or its tables are not those of its
        revision.
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
    """Raise an error of tunedb if the file is missing or cannot be a database."""
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
        # Reading in WAL mode writes beside the file, which fails on a read-only medium or in a
        # foreign folder. Without a log, nothing is lost by reading the file as immutable.
        return _guarded(f"{uri}&immutable=1", watch)


def _guarded(uri: str, watch: Watch) -> sqlite3.Connection:
    """Return a connection with all available guards."""
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
        # The default of sqlite3 fails for text that is not UTF-8, with all of it in the message.
        connection.text_factory = _text
        connection.set_progress_handler(watch, _STEPS)
        watch.restart()
        for pragma in _PRAGMAS:
            connection.execute(pragma)
        # Reads the first page but no table.
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


# ---------------------------------------------------------------------- content


def _revision(connection: sqlite3.Connection, watch: Watch, where: str) -> str:
    """Return the revision of a file after comparing its tables with those of that revision."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != schema.APPLICATION_ID:
        raise SchemaError(f"{where}: a database of another program; give one of tunedb")
    # The first row makes SQLite read the definitions of all tables.
    watch.restart(steps=limits.FOREIGN_OPEN_STEPS)
    cursor = connection.execute("SELECT type, name, tbl_name, rootpage, sql FROM sqlite_schema")
    rows = cursor.fetchmany(limits.FOREIGN_OBJECTS + 1)
    cursor.close()
    if len(rows) > limits.FOREIGN_OBJECTS:
        raise SchemaError(
            f"{where}: more than {limits.FOREIGN_OBJECTS} tables, indexes and views, "
            "more than any tunedb database; it is not read"
        )
    objects = _objects(rows, where)
    first = objects_of(schema.REVISIONS[0])
    for name in ("alembic_version", "meta"):
        if objects.get(name) != first[name]:
            raise SchemaError(f"{where}: a database of another program; give one of tunedb")
    watch.restart()
    stated = connection.execute("SELECT version_num FROM alembic_version LIMIT 2").fetchall()
    if len(stated) != 1 or not isinstance(stated[0][0], str):
        raise SchemaError(f"{where}: it does not state its schema; ask for another copy")
    revision = stated[0][0]
    if revision not in schema.REVISIONS:
        versions.require_head(printable(revision), where)
    _compare(objects, objects_of(revision), revision, where)
    return revision


def _objects(rows: Sequence[tuple[Any, ...]], where: str) -> dict[str, str]:
    """Return the definition digests of a file's tables, indexes and views, by name."""
    objects: dict[str, str] = {}
    for stated_kind, name, table, root, sql in rows:
        if not all(isinstance(value, str) for value in (stated_kind, name, table)):
            raise StorageError(f"{where}: damaged: its list of tables cannot be read")
        is_virtual = stated_kind in ("table", "index") and not (isinstance(root, int) and root > 0)
        kind = "virtual table" if is_virtual else stated_kind
        automatic = _AUTOINDEX.fullmatch(name)
        if kind == "index" and automatic and automatic[1] == table and sql is None:
            continue
        if kind == "table" and isinstance(sql, str) and _STATISTICS.get(name) == sql:
            continue
        if name in objects:
            raise SchemaError(f"{where}: it defines {printable(name)} twice; it is not read")
        objects[name] = definition(kind, name, table, sql if isinstance(sql, str) else "")
        if kind not in ("table", "index") and objects[name] not in _KNOWN_DEFINITIONS:
            raise SchemaError(
                f"{where}: its {printable(name)} is a {printable(kind)}, which tunedb databases "
                "lack; it is not read"
            )
    return objects


def _compare(actual: dict[str, str], expected: dict[str, str], revision: str, where: str) -> None:
    """Raise SchemaError with the first difference."""
    if missing := sorted(expected.keys() - actual.keys()):
        problem = f"{missing[0]} is missing"
    elif added := sorted(actual.keys() - expected.keys()):
        problem = f"{printable(added[0])} is not part of it"
    elif changed := sorted(name for name in actual if actual[name] != expected[name]):
        problem = f"the definition of {changed[0]} differs"
    else:
        return
    raise SchemaError(
        f"{where}: its tables do not match schema {revision}: {problem}; it is not read"
    )


def _store_key(connection: sqlite3.Connection, watch: Watch, where: str) -> str:
    """Return the stated store key of a file."""
    watch.restart()
    meta = dict(connection.execute("SELECT key, value FROM meta LIMIT 100").fetchall())
    if meta.get("format") != schema.FORMAT:
        raise SchemaError(f"{where}: a database of another program; give one of tunedb")
    key = meta.get("store")
    if not isinstance(key, str) or not _STORE_KEY.fullmatch(key):
        raise SchemaError(f"{where}: it has no store key; ask for another copy")
    return key


def _check_size(connection: sqlite3.Connection, path: Path) -> None:
    """Raise StorageError for a truncated file: SQLite would read zeros."""
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:
        # The log may have the last pages.
        return
    (page,) = connection.execute("PRAGMA page_size").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    size = path.stat().st_size
    if size < page * pages:
        raise StorageError(f"{path}: truncated to {size} of {page * pages} bytes; copy it again")


def _quick_check(connection: sqlite3.Connection, watch: Watch, path: Path) -> None:
    """Raise StorageError if SQLite finds damage."""
    size = path.stat().st_size
    watch.restart(limits.FOREIGN_STATEMENT_S + size / limits.FOREIGN_CHECK_RATE)
    (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if result != "ok":
        raise StorageError(f"{path}: damaged ({printable(str(result))}); ask for another copy")
