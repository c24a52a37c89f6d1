"""Priors: bundles of measured programs below the user's own database (docs/prior.md).

A prior is a bundle with a card. It is unpacked once, into a database in the user's cache, which is
opened as a layer and never written.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import FormatError, NotFoundError, StorageError
from ..identity import canonical_json, pack_floats, unpack_floats
from ..json_checks import parse_json
from ..records import Target, Trust
from ..storage import approval, schema
from ..storage.columns import AT
from ..storage.exchange_types import COLUMNS, Chunk, Peer, Selection
from ..storage.store import Store
from ..system.files import new_file

# Bundles are imported where one is read: most handles have no prior.
if TYPE_CHECKING:
    from .bundle import BundlePeer

__all__ = [
    "IN_WHEEL",
    "SHIPPED",
    "card_of",
    "digest_of",
    "merge_prior",
    "prior_chunks",
    "prior_path",
    "read_card",
    "start_unpacking",
    "unpacked",
    "write_prior",
]

#: Source of the records of a prior, in messages.
SHIPPED = "shipped"

#: Prior of this release, if it has one.
IN_WHEEL = Path(__file__).parents[1] / "prior" / "cpu.bundle"

#: Types of the values of a card, and of the items of its lists.
_CARD: dict[str, type] = {"licence": str, "machines": list, "targets": list, "workloads": int}
_ITEMS: dict[str, type] = {"machines": dict, "targets": str}

#: Facts of a session that a card has.
_FACTS = ("cpu", "threads", "tvm", "llvm")

#: Bits of the times of a prior, as of single precision.
_BITS = 24

#: Program of a process that unpacks a prior.
_UNPACK = """
import pathlib, sys
from tunedb.exchange.prior import unpacked
unpacked(pathlib.Path(sys.argv[1]))
"""


def prior_path(choice: str | Path) -> Path | None:
    """Return the file of a prior: ``auto``, ``none``, or a path.

    ``auto`` is ``TUNEDB_PRIOR``, which may be ``none`` or a path, or that of this release. None
    where there is none. The file of a path need not exist.
    """
    if choice == "auto":
        choice = os.environ.get("TUNEDB_PRIOR") or "auto"
    if choice == "auto":
        return IN_WHEEL if IN_WHEEL.exists() else None
    return None if choice == "none" else Path(choice)


def card_of(peer: Peer, selection: Selection, licence: str) -> dict[str, Any]:
    """Return the card of a new prior: licence, machines, targets and workloads of its records."""
    rows: dict[str, list[dict[str, Any]]] = {"session": [], "target": [], "workload": []}
    for chunk in peer.chunks(selection):
        if chunk.table in rows:
            names = COLUMNS[chunk.table]
            rows[chunk.table] += [dict(zip(names, row, strict=True)) for row in chunk.rows]
    machines = set()
    for session in rows["session"]:
        facts = parse_json(session["fingerprint"].encode())
        known = {name: facts[name] for name in _FACTS if name in facts}
        machines.add(canonical_json(known))
    return {
        "licence": licence,
        "machines": [parse_json(machine) for machine in sorted(machines)],
        "targets": sorted(
            {Target(row["kind"], row["config"].encode()).full_label for row in rows["target"]}
        ),
        "workloads": len(rows["workload"]),
    }


def read_card(path: Path) -> dict[str, Any]:
    """Return the card of a prior, with its file, digest and number of records; verifies it.

    Raises
    ------
    TuneDBError
        It is damaged, of another version, or no prior.
    """
    from .bundle import BundlePeer

    with BundlePeer(path) as peer:
        return _card(peer) | {
            "file": str(path),
            "digest": peer.info.digest.hex(),
            "records": peer.total,
            "store": peer.store_key,
        }


def _card(peer: BundlePeer) -> dict[str, Any]:
    """Return the card of a prior; FormatError without one, or if a value has another type."""
    card = peer.manifest.card
    if card is None:
        raise FormatError(
            f"{peer.location}: a bundle without a card; make a prior: tunedb bundle --as-prior"
        )
    for name, type_ in _CARD.items():
        value = card.get(name)
        of_items = _ITEMS.get(name, object)
        if not isinstance(value, type_) or (
            isinstance(value, list) and not all(isinstance(item, of_items) for item in value)
        ):
            raise FormatError(f"{peer.location}: damaged: its card has no valid {name}")
    return card


def unpacked(path: Path) -> Path:
    """Return the database of a prior, which is made where the cache does not have it.

    Raises
    ------
    TuneDBError
        It is damaged, of another version, or no prior; or the cache cannot be written.
    """
    from .bundle import BundlePeer

    database = _in_cache(path)
    if database.exists():
        return database
    with BundlePeer(path) as peer:
        _card(peer)
        try:
            database.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with new_file(database, force=True) as file:
                _unpack(peer, file)
        except OSError as error:
            folder, reason = database.parent, error.strerror
            raise StorageError(f"{folder}: cannot be written ({reason})") from None
    return database


def start_unpacking(path: Path) -> subprocess.Popen[bytes] | None:
    """Start a process that makes the database of a prior; None where the cache has it.

    The process says nothing: where it fails, :func:`unpacked` has the reason.

    Raises
    ------
    TuneDBError
        The prior cannot be read.
    """
    if not sys.executable or _in_cache(path).exists():
        return None
    command = (sys.executable, "-P", "-c", _UNPACK, str(path))
    silent = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=silent, stdout=silent, stderr=silent)  # noqa: S603


def digest_of(path: Path) -> str:
    """Return the digest of a prior as its file states it, or raise TuneDBError."""
    from .bundle import DIGEST_BYTES

    try:
        with path.open("rb") as file:
            file.seek(-DIGEST_BYTES, 2)
            return file.read().hex()
    except FileNotFoundError:
        raise NotFoundError(f"{path}: no such file") from None
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror})") from None


def _in_cache(path: Path) -> Path:
    """Return the place of a prior's database, or raise TuneDBError if the prior cannot be read."""
    from platformdirs import user_cache_path

    folder = user_cache_path("tunedb", appauthor=False) / "priors"
    return folder / f"{digest_of(path)}-{schema.HEAD}.db"


def _unpack(peer: BundlePeer, file: Path) -> None:
    """Write a database with the records of a prior, all of them served."""
    with Store(file) as store:
        merge_prior(store, peer, is_new=True)
        # TVM never reads modules from it, so it needs no approval.
        approval.forget(store.url)


def merge_prior(store: Store, peer: BundlePeer, *, is_new: bool = False) -> None:
    """Merge the records of a prior, and verify the foreign sources of the database.

    Verification checks all of their programs against the allow-list, as the merge does with those
    of the prior, which are all that a new database has.
    """
    from .merge import merge

    merge(store, peer)
    for source in store.sources.summaries():
        if source.trust is Trust.FOREIGN:
            if is_new:
                store.trust._set(source.id, Trust.VERIFIED)
            else:
                store.trust.set(source.id, Trust.VERIFIED)


def prior_chunks(peer: Peer, selection: Selection) -> Iterator[Chunk]:
    """Yield the selected rows as a prior has them, in three quarters of the bytes.

    Times are rounded to 24 bits (1e-7 of each), and measurements have no lineage.
    """
    for chunk in peer.chunks(selection):
        if chunk.table == "measurement":
            yield Chunk(chunk.table, [_without_lineage(row) for row in chunk.rows])
        else:
            yield chunk


def _without_lineage(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a row of ``measurement`` without donor and search operators, its times rounded."""
    values = list(row)
    times, extra = row[AT["run_secs"]], row[AT["extra"]]
    values[AT["donor"]] = None
    if times is not None:
        values[AT["run_secs"]] = pack_floats(map(_rounded, unpack_floats(times)))
    if extra is not None and '"search"' in extra:
        facts = parse_json(extra.encode())
        if isinstance(facts, dict):
            facts.pop("search", None)
            values[AT["extra"]] = canonical_json(facts).decode() if facts else None
    return tuple(values)


def _rounded(seconds: float) -> float:
    mantissa, exponent = math.frexp(seconds)
    return math.ldexp(round(math.ldexp(mantissa, _BITS)), exponent - _BITS)


def write_prior(
    database: str | Path, file: Path, selection: Selection, licence: str, *, force: bool = False
) -> None:
    """Write a prior of records of a database; `force` replaces an existing file."""
    from .bundle import new_manifest, write_bundle
    from .database_peer import DatabasePeer

    peer = DatabasePeer(database, own=True)
    try:
        manifest = new_manifest(peer.store_key, selection, card_of(peer, selection, licence))
        write_bundle(file, prior_chunks(peer, selection), manifest, force=force)
    finally:
        peer.close()
