"""Make the prior of this package, or add this machine's measurements to it.

Tunes the networks of `prior_networks.py` one after another into a database, writes its records as a
bundle with a card (docs/prior.md), and trains its models. An interrupted run continues where it
stopped; `--add` adds the records of an existing prior, so that several machines make one. With
`--held-out` a network is tuned as if its operators were new: what models of the others like best is
measured, and they learn where they are wrong.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

# The prior of the package would be a donor of its own successor.
os.environ["TUNEDB_PRIOR"] = "none"

from prior_networks import NETWORKS
from rich.progress import Progress
from train_prior import train

from tunedb.exchange.prior import IN_WHEEL, merge_prior, read_card, write_prior
from tunedb.storage.exchange_types import EVERYTHING

LICENCE = "Apache-2.0"
DATABASE = "prior.db"
#: Maximum size of the prior in the wheel.
MAX_BYTES = 3_000_000


def add(bundle: Path, database: Path) -> None:
    """Add the records of a prior to a database, which is created if it does not exist."""
    from tunedb.exchange.bundle import BundlePeer
    from tunedb.storage.store import Store

    with BundlePeer(bundle) as peer, Store(database) as store:
        merge_prior(store, peer)


def network(name: str) -> Any:
    """Return a network as a Relax program."""
    from tvm.relax.frontend.onnx import from_onnx

    return from_onnx(NETWORKS[name]())


def target(mcpu: str | None) -> Any:
    """Return this machine's processor as a target, or another one."""
    from tunedb.plugins.metaschedule.tuning.defaults import target_of

    config = None if mcpu is None else {"kind": "llvm", "mcpu": mcpu}
    return target_of(config, is_remote=False)


def tune_networks(folder: Path, options: argparse.Namespace) -> None:
    """Tune networks until all are done, or the minutes are over after one.

    The file `done` in the folder names the networks of earlier runs, with trials, seed and
    processor.
    """
    from tunedb.plugins.metaschedule import Database, tune

    end = time.monotonic() + 60 * options.minutes
    notes = folder / "done"
    done = set(notes.read_text().splitlines()) if notes.exists() else set()
    mcpu = "" if options.mcpu is None else f" {options.mcpu}"
    held_out = " held out" if options.held_out else ""
    here = target(options.mcpu)
    with Progress() as progress:
        bar = progress.add_task("", total=None)

        def show(state: Any) -> None:
            progress.update(bar, completed=state.trials, total=state.max_trials)

        for name in options.networks:
            note = f"{name} {options.trials} {options.seed}{mcpu}{held_out}"
            if note in done:
                continue
            if time.monotonic() >= end:
                return
            progress.update(bar, description=name)
            file, prior = folder / DATABASE, "none"
            if options.held_out:
                file, prior = folder / f"{name}.db", write_others(folder, name, here)
            with Database(file, target=here, prior=prior) as database:
                tune(
                    network(name),
                    here,
                    database=database,
                    max_trials_per_task=options.trials,
                    measure_network=False,
                    seed=options.seed,
                    on_progress=show,
                )
                number = len(database)
            if options.held_out:
                new = folder / f"{name}.new"
                write_prior(file, new, EVERYTHING, LICENCE, force=True)
                add(new, folder / DATABASE)
            with notes.open("a") as lines:
                print(note, file=lines)
            progress.console.print(f"{name}: {number:,} records")


def write_others(folder: Path, name: str, here: Any) -> Path:
    """Write the records of the database without the operators of a network; return the file."""
    from held_out import kinds_of, write_without  # `prior_networks` makes its folder known

    from tunedb.plugins.metaschedule.deploy.apply import tasks_of

    kinds = kinds_of(tasks_of(network(name), here).values())
    return write_without(kinds, folder / DATABASE, folder / f"{name}.others")


def write(folder: Path, bundle: Path) -> None:
    """Write all records as a prior.

    Raises
    ------
    SystemExit
        It would be too large; an earlier one stays.
    """
    bundle.parent.mkdir(exist_ok=True)
    new = bundle.with_suffix(".new")
    write_prior(folder / DATABASE, new, EVERYTHING, LICENCE, force=True)
    size = new.stat().st_size
    if size > MAX_BYTES:
        raise SystemExit(f"{new}: {size / 1e6:.2f} MB; the prior may have {MAX_BYTES / 1e6:.0f} MB")
    new.replace(bundle)
    print(f"{bundle}: {size / 1e6:.2f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="for the database of the run")
    parser.add_argument("--add", type=Path, metavar="BUNDLE", help="add the records of this prior")
    parser.add_argument("--bundle", type=Path, default=IN_WHEEL, metavar="FILE")
    parser.add_argument(
        "--minutes", type=float, default=600, metavar="N", help="the last network is finished"
    )
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), metavar="NAME")
    parser.add_argument("--trials", type=int, default=32, metavar="N", help="of each task")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--held-out", action="store_true", help="tune with what is known of other operators alone"
    )
    parser.add_argument(
        "--mcpu",
        metavar="NAME",
        help="compile for another processor, whose instructions this machine has (znver3: AVX2)",
    )
    options = parser.parse_args()

    unknown = sorted(set(options.networks) - set(NETWORKS))
    if unknown:
        raise SystemExit(f"no network {unknown[0]}; there are: {', '.join(NETWORKS)}")
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.add is not None:
        licence = read_card(options.add)["licence"]
        if licence != LICENCE:
            raise SystemExit(f"{options.add}: its licence is {licence}, not {LICENCE}")
        add(options.add, options.folder / DATABASE)
    if options.held_out and not (options.folder / DATABASE).exists():
        raise SystemExit("--held-out needs records of other networks; give them with --add BUNDLE")
    tune_networks(options.folder, options)
    write(options.folder, options.bundle)
    train(options.bundle, options.bundle.with_suffix(".models"))


if __name__ == "__main__":
    main()
