"""Make the prior of this package, or add this machine's measurements to it.

Tunes the networks of `prior_networks.py` one after another into a database and writes its records
as a bundle with a card (docs/prior.md). A run that is interrupted, or ends with its minutes,
continues where it stopped; `--add` begins with the records of an existing prior, so that several
machines make one.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

# What the prior says of a task must not depend on an earlier one.
os.environ["TUNEDB_PRIOR"] = "none"

from prior_networks import NETWORKS
from rich.progress import Progress

BUNDLE = Path(__file__).parents[1] / "tunedb" / "prior" / "cpu.bundle"
LICENCE = "Apache-2.0"
DATABASE = "prior.db"
#: Maximum size of the prior in the wheel.
MAX_BYTES = 3_000_000


def add(bundle: Path, database: Path) -> None:
    """Create a database with the records of a prior."""
    from tunedb.exchange.bundle import BundlePeer
    from tunedb.exchange.merge import merge
    from tunedb.records import Trust
    from tunedb.storage.store import Store

    with Store(database) as store, BundlePeer(bundle) as peer:
        merge(store, peer)
        for source in store.sources.summaries():
            # The search may take donors from them.
            store.trust.set(source.id, Trust.VERIFIED)


def network(name: str) -> Any:
    """Return a network as a Relax program."""
    from tvm.relax.frontend.onnx import from_onnx

    return from_onnx(NETWORKS[name]())


def tune_networks(folder: Path, options: argparse.Namespace) -> None:
    """Tune networks until all are done or the minutes are over.

    The file `done` in the folder names the networks of earlier runs.
    """
    from tunedb.plugins.metaschedule import Database, tune
    from tunedb.plugins.metaschedule.tune.defaults import host_target

    end = time.monotonic() + 60 * options.minutes
    notes = folder / "done"
    done = set(notes.read_text().split()) if notes.exists() else set()
    todo = [name for name in options.networks if name not in done]
    target = host_target()
    with Database(folder / DATABASE, target=target) as database, Progress() as progress:
        bar = progress.add_task("", total=None)
        for name in todo:
            minutes = (end - time.monotonic()) / 60
            if minutes <= 0:
                return

            def show(state: Any, name: str = name) -> None:
                progress.update(
                    bar, description=name, completed=state.trials, total=state.max_trials
                )

            tune(
                network(name),
                target,
                database=database,
                max_trials_per_task=options.trials,
                minutes=minutes,
                measure_network=False,
                seed=options.seed,
                on_progress=show,
            )
            if time.monotonic() < end:
                with notes.open("a") as file:
                    print(name, file=file)
            progress.console.print(f"{name}: {len(database):,} records in all")


def write(folder: Path, bundle: Path) -> int:
    """Write all records as a prior; return its size in bytes."""
    from tunedb.exchange.bundle import new_manifest, write_bundle
    from tunedb.exchange.database_peer import DatabasePeer
    from tunedb.exchange.prior import card_of
    from tunedb.storage.exchange_types import EVERYTHING

    bundle.parent.mkdir(exist_ok=True)
    peer = DatabasePeer(folder / DATABASE, own=True)
    try:
        manifest = new_manifest(peer.store_key, EVERYTHING, card_of(peer, EVERYTHING, LICENCE))
        write_bundle(bundle, peer.chunks(EVERYTHING), manifest, force=True)
    finally:
        peer.close()
    return bundle.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="for the database of the run")
    parser.add_argument("--add", type=Path, metavar="BUNDLE", help="begin with these records")
    parser.add_argument("--bundle", type=Path, default=BUNDLE, metavar="FILE")
    parser.add_argument("--minutes", type=float, default=600, metavar="N")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), metavar="NAME")
    parser.add_argument("--trials", type=int, default=32, metavar="N", help="of each task")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    unknown = sorted(set(options.networks) - set(NETWORKS))
    if unknown:
        raise SystemExit(f"no network {unknown[0]}; there are: {', '.join(NETWORKS)}")
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.add is not None and not (options.folder / DATABASE).exists():
        add(options.add, options.folder / DATABASE)
    tune_networks(options.folder, options)
    size = write(options.folder, options.bundle)
    print(f"{options.bundle}: {size / 1e6:.2f} MB")
    if size > MAX_BYTES:
        raise SystemExit(f"the prior of the package may have {MAX_BYTES / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
