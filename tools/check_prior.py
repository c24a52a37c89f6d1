"""Check a prior: its digest and card, its size, and a sample measured again on this machine.

The best program of each workload of the sample is built and run, and its results are compared with
those of the untuned program. The exit code is 1 if the prior is damaged or too large, or if a
program does not pass.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from make_prior import DATABASE, MAX_BYTES, add, network, target
from prior_networks import NETWORKS
from rich.console import Console
from rich.table import Table

import tunedb
from tunedb.exchange.prior import IN_WHEEL, read_card

#: Most workloads of the sample from one network.
_PER_NETWORK = 4


def verdicts(store: Any, here: Any, number: int, repeat: int, seed: int) -> Iterator[Any]:
    """Measure the best programs of some workloads again, in networks that chance chooses.

    They are those for processors with vectors as wide as the target's. The modules are those of the
    networks: TVM reads none of a bundle.
    """
    from tunedb.plugins.metaschedule.deploy.revalidation import Revalidation
    from tunedb.plugins.metaschedule.modules import to_target
    from tunedb.plugins.metaschedule.targets import class_of

    rng = random.Random(seed)
    mine = class_of(to_target(here))
    targets = [each.id for each in store.targets.find() if class_of(each.target) == mine]
    with Revalidation(store, repeat=repeat) as revalidation:
        for name in rng.sample(list(NETWORKS), len(NETWORKS)) if targets else ():
            groups = revalidation.workloads_of(network(name), here)
            known = [
                (group, target)
                for group in groups
                for target in targets
                if target in store.answers.targets(group)
            ]
            for group, target in rng.sample(known, min(number, len(known), _PER_NETWORK)):
                number -= 1
                yield from revalidation.run(group, target, 1)
            if number == 0:
                return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path, nargs="?", default=IN_WHEEL, metavar="FILE")
    parser.add_argument("--sample", type=int, default=10, metavar="N", help="workloads to measure")
    parser.add_argument("--repeat", type=int, default=3, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mcpu", metavar="NAME", help="as for make_prior.py")
    options = parser.parse_args()

    console = Console()
    try:
        card = read_card(options.bundle)
    except tunedb.TuneDBError as error:
        raise SystemExit(str(error)) from None
    size = options.bundle.stat().st_size
    console.print(
        f"{options.bundle}: {size / 1e6:.2f} MB, {card['records']:,} records of "
        f"{card['workloads']} workloads, licence {card['licence']}, digest {card['digest'][:16]}…"
    )
    for machine in card["machines"]:
        console.print("measured on " + ", ".join(f"{k} {v}" for k, v in machine.items()))
    table = Table("workload", "stored", "measured now", "ratio", "result")
    passed = size <= MAX_BYTES
    with tempfile.TemporaryDirectory() as folder:
        add(options.bundle, Path(folder) / DATABASE)
        with tunedb.open(Path(folder) / DATABASE) as store:
            here = target(options.mcpu)
            for verdict in verdicts(store, here, options.sample, options.repeat, options.seed):
                stored, now = verdict.record.mean, verdict.mean
                passed &= verdict.outcome == "passed"
                table.add_row(
                    str(verdict.record.measurement.program.workload.name),
                    f"{stored * 1e6:,.1f} µs",
                    "" if now is None else f"{now * 1e6:,.1f} µs",
                    "" if now is None else f"{now / stored:.2f}",
                    verdict.reason or verdict.outcome,
                )
    if size > MAX_BYTES:
        console.print(f"it is larger than {MAX_BYTES / 1e6:.0f} MB")
    if table.row_count:
        console.print(table)
    else:
        console.print("no program is for this instruction set: none was measured")
    raise SystemExit(not passed)


if __name__ == "__main__":
    main()
