"""How many trials, and how long, until a good program: tunedb beside plain MetaSchedule.

tunedb tunes in an empty database, without a prior and with that of the package, which then lacks
the tuned workloads, and in a database that holds plain MetaSchedule's records of two other
workloads of each family, and none of the tuned ones. All tuners take turns on a workload with the
same evaluator and batches; the best programs of all runs are measured again in alternation. A
folder keeps finished runs: an interrupted benchmark continues where it stopped.

A trial's time is the median of its repeats. "Good" is within 5 % of the best that plain
MetaSchedule finds in all its trials with the same seed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from candidates import make_module
from common import Row, approve, run
from held_out import kinds_of, write_without
from measured import measure_again, this_machine
from rich.console import Console
from search_runs import Finished, metaschedule, tunedb

from tunedb.exchange.prior import IN_WHEEL, unpacked

#: What is tuned → what the database holds of its family.
WORKLOADS = {
    "matmul_256_256_256": ("matmul_128_128_128", "matmul_512_512_64"),
    "conv2d_1_28_28_64_64_3_1_1": ("conv2d_1_14_14_128_128_3_1_1", "conv2d_1_56_56_32_64_3_2_1"),
    "dep_1_28_28_128_3_1_1": ("dep_1_28_28_128_3_2_1", "dep_1_56_56_64_3_1_1"),
    "softmax_256_256": ("softmax_1024_128", "softmax_512_512"),
}
PLAIN, WARM_BUILDER = "MetaSchedule", "MetaSchedule, warm builder"
TUNEDB, EMPTY, PRIOR = "tunedb", "tunedb, empty database", "tunedb, empty database and prior"
NO_WARM_START, NO_CROSSOVER = "tunedb, no warm start", "tunedb, no crossover"
#: Trials of donors, of plain MetaSchedule and of tunedb, seeds, and rounds of the last measurement.
FULL, QUICK = (64, 128, 64, 3, 15), (32, 48, 32, 1, 7)
#: Trials after which the best programs are compared.
EARLY = 32
GOOD = 1.05
#: Most trials to a good program with a prior.
WITH_PRIOR = 5
console = Console()


@dataclass(frozen=True)
class Compared:
    """What the tuners found for one workload with one seed.

    Parameters
    ----------
    workload : str
        Its name.
    seed : int
        Of all tuners.
    runs : dict
        Tuner → its run.
    early, final : dict
        Tuner → median and half of the width of the 95 % interval, in seconds, of the program that
        was best after :data:`EARLY` trials and at the end, measured again.
    """

    workload: str
    seed: int
    runs: dict[str, Finished]
    early: dict[str, tuple[float, float]] = field(default_factory=dict)
    final: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def good(self) -> float:
        """Seconds below which a program is good."""
        best = self.runs[PLAIN].curve.best(None)
        assert best is not None
        return GOOD * best

    def trials(self, tuner: str) -> float:
        """Return how many trials a tuner took to a good program, infinity if it found none."""
        return self.runs[tuner].curve.trials_until(self.good)

    def seconds(self, tuner: str) -> float:
        """Return the wall time that a tuner took to a good program, infinity if it found none."""
        return self.runs[tuner].curve.seconds_until(self.good)


def tuners(
    donors: Path, prior: Path, trials: tuple[int, int], ablations: bool
) -> dict[str, Callable[[str, int, Path], Finished]]:
    """Return what runs each tuner on a workload, given its name, a seed and a folder."""
    plain, ours = trials

    def with_database(**options: Any) -> Callable[[str, int, Path], Finished]:
        def tune(name: str, seed: int, folder: Path) -> Finished:
            copy = folder / "tune.db"
            approve(Path(shutil.copy(donors, copy)))
            return tunedb(make_module(name), copy, ours, seed, **options)

        return tune

    found = {
        PLAIN: lambda name, seed, folder: metaschedule(
            make_module(name), folder, plain, seed, warm_builder=False
        ),
        WARM_BUILDER: lambda name, seed, folder: metaschedule(
            make_module(name), folder, plain, seed, warm_builder=True
        ),
        TUNEDB: with_database(again=True),
        EMPTY: lambda name, seed, folder: tunedb(make_module(name), folder / "tune.db", ours, seed),
        PRIOR: lambda name, seed, folder: tunedb(
            make_module(name), folder / "tune.db", ours, seed, prior=prior
        ),
    }
    if ablations:
        found[NO_WARM_START] = with_database(warm=False)
        found[NO_CROSSOVER] = with_database(crossover=False)
    return found


def make_donors(path: Path, trials: int) -> None:
    """Tune the other workloads of all families with plain MetaSchedule, into a database."""
    from tunedb.plugins.metaschedule import Database

    partial = path.with_name(f"partial-{path.name}")
    if partial.exists():
        approve(partial)
    with closing(Database(partial, target=this_machine())) as database:
        for donor in itertools.chain.from_iterable(WORKLOADS.values()):
            mod = make_module(donor)
            if len(database.get_top_k(database.commit_workload(mod), trials)) >= trials // 2:
                continue
            console.print(f"donor {donor}: {trials} trials")
            with tempfile.TemporaryDirectory() as folder:
                metaschedule(mod, Path(folder), trials, 0, warm_builder=True, database=database)
    partial.rename(path)


def compared(name: str, seed: int, tools: dict[str, Any], rounds: int, kept: Path) -> Compared:
    """Return what the tuners find for a workload, or what a file has of it."""
    path = kept / f"{name}-{seed}.json"
    if path.exists():
        told = json.loads(path.read_text(encoding="utf-8"))
        runs = {tuner: Finished.from_dict(one) for tuner, one in told.pop("runs").items()}
        return Compared(**told, runs=runs)
    found = compare(name, seed, tools, rounds)
    told = {
        **{key: getattr(found, key) for key in ("workload", "seed", "early", "final")},
        "runs": {tuner: one.to_dict() for tuner, one in found.runs.items()},
    }
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(told), encoding="utf-8")
    partial.rename(path)
    return found


def compare(name: str, seed: int, tools: dict[str, Any], rounds: int) -> Compared:
    """Run all tuners on a workload, one after the other, and measure what they found again."""
    runs = {}
    # Who goes first changes with the seed: a machine may be slower at one time than at another.
    order = list(tools)
    shift = seed % len(order)
    for tuner in order[shift:] + order[:shift]:
        with tempfile.TemporaryDirectory() as folder:
            runs[tuner] = tools[tuner](name, seed, Path(folder))
        curve = runs[tuner].curve
        best = curve.best(None)
        told = "nothing ran" if best is None else f"best {best * 1e6:.1f} µs"
        console.print(
            f"{name}, seed {seed}, {tuner}: {len(curve.at)} trials in {curve.took:.0f} s, {told}"
        )
    found = Compared(name, seed, {tuner: runs[tuner] for tuner in tools})
    early, final = {}, {}
    for tuner, one in found.runs.items():
        early[tuner], final[tuner] = one.curve.winner(EARLY), one.curve.winner(None)
    found.early.update(measure_again(early, rounds))
    found.final.update(measure_again(final, rounds))
    return found


def geometric(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def lines(found: Sequence[Compared], names: Sequence[str]) -> Iterator[Row]:
    """Yield the table."""
    few = statistics.median(one.trials(PRIOR) for one in found)
    yield Row(
        f"{PRIOR}: trials to a good program, median", "trials", few,
        statistics.median(one.trials(PLAIN) for one in found), f"≤ {WITH_PRIOR}", few <= WITH_PRIOR,
    )  # fmt: skip
    for tuner, most in ((EMPTY, 4), (TUNEDB, 20)):
        middle = statistics.median(one.trials(tuner) / one.trials(PLAIN) for one in found)
        yield Row(
            f"{tuner}: trials to a good program, median", "trials",
            statistics.median(one.trials(tuner) for one in found),
            statistics.median(one.trials(PLAIN) for one in found),
        )  # fmt: skip
        yield Row("the same, median of ratios", "", middle, 1.0, f"≤ 1/{most}", middle * most <= 1)
    quotients = [one.early[TUNEDB][0] / one.early[PLAIN][0] for one in found]
    middle = statistics.median(quotients)
    yield Row(f"best after {EARLY} trials, median of ratios", "", middle, 1.0, "< 1", middle < 1)
    for name in names:
        mine = [one for one in found if one.workload == name]
        yield _early(name, mine)
    yield from _wall(found)
    for tuner in found[0].runs:
        if tuner in (NO_WARM_START, NO_CROSSOVER):
            yield Row(
                f"{tuner}: trials to a good program", "trials",
                statistics.median(one.trials(tuner) for one in found),
                statistics.median(one.trials(PLAIN) for one in found),
            )  # fmt: skip
            quotients = [one.early[tuner][0] / one.early[PLAIN][0] for one in found]
            told = statistics.median(quotients)
            yield Row(f"{tuner}: best after {EARLY} trials, median of ratios", "", told, 1.0)
    yield from _second([one.runs[TUNEDB] for one in found])


def _early(name: str, mine: Sequence[Compared]) -> Row:
    """Return the line of one workload: no worse than the intervals of the finalists allow."""
    ours = [one.early[TUNEDB] for one in mine]
    plain = [one.early[PLAIN] for one in mine]
    told, beside = geometric([m for m, _ in ours]), geometric([m for m, _ in plain])
    slack = float(np.hypot(*(np.mean([half for _, half in each]) for each in (ours, plain))))
    return Row(
        f"{name}: best after {EARLY} trials", "µs", told * 1e6, beside * 1e6,
        f"≤ {(beside + slack) * 1e6:.1f}", told <= beside + slack,
    )  # fmt: skip


def _wall(found: Sequence[Compared]) -> Iterator[Row]:
    for tuner, bar, most in ((PLAIN, "≤ 1/2", 0.5), (WARM_BUILDER, "< 1", 1.0)):
        ratios = [_ratio(one.seconds(TUNEDB), one.seconds(tuner)) for one in found]
        middle = statistics.median(ratios)
        ok = middle <= most if most < 1 else middle < most
        yield Row(
            f"wall time to a good program, beside {tuner}", "s",
            statistics.median(one.seconds(TUNEDB) for one in found),
            statistics.median(one.seconds(tuner) for one in found),
        )  # fmt: skip
        yield Row("the same, median of ratios", "", middle, 1.0, bar, ok)
    ours = statistics.median(one.runs[TUNEDB].curve.per_trial for one in found)
    warm = statistics.median(one.runs[WARM_BUILDER].curve.per_trial for one in found)
    yield Row(f"time of a trial, beside {WARM_BUILDER}", "s", ours, warm, "≤ 1", ours <= warm)


def _ratio(ours: float, other: float) -> float:
    """Return ours / other; 1 where neither of them came there."""
    return 1.0 if ours == other else ours / other


def _second(runs: Sequence[Finished]) -> Iterator[Row]:
    """Yield the lines about the second run of tunedb, and about what its winners descend from."""
    again = [one.again for one in runs if one.again is not None]
    twice = sum(one.measured_twice for one in again)
    yield Row("second run: programs measured twice", "", twice, None, "0", twice == 0)
    first = sum(one.best_in_first_batch for one in again)
    yield Row(
        "second run: first batch has the stored best", f"of {len(again)}", first, None,
        "all", first == len(again),
    )  # fmt: skip
    made = sum(one.report["offspring"].get("crossover", 0) for one in runs)
    illegal = sum(one.report["illegal"].get("crossover", 0) for one in runs)
    yield Row("crossover: share of legal offspring", f"of {made}", 1 - illegal / max(made, 1))
    crossed = sum(one.report["best_is_crossed"] for one in runs)
    yield Row("winners that descend from a crossover", f"of {len(runs)}", crossed)


def measure(options: argparse.Namespace) -> list[Row]:
    """Return the table."""
    donor_trials, plain, ours, seeds, rounds = QUICK if options.quick else FULL
    seeds = options.seeds or seeds
    names = options.workloads
    tier = "quick" if options.quick else "full"
    kept = options.keep / (f"{tier}-no-ablations" if options.no_ablations else tier)
    kept.mkdir(parents=True, exist_ok=True)
    donors = kept / "donors.db"
    missing = [
        name
        for name in names
        for seed in range(seeds)
        if not (kept / f"{name}-{seed}.json").exists()
    ]
    if missing and not donors.exists():
        make_donors(donors, donor_trials)
    prior = kept / "prior.bundle"
    if missing and not prior.exists():
        write_without(kinds_of(map(make_module, WORKLOADS)), unpacked(IN_WHEEL), prior)
    tools = tuners(donors, prior, (plain, ours), not options.no_ablations)
    found = [compared(name, seed, tools, rounds, kept) for name in names for seed in range(seeds)]
    return list(lines(found, names))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="fewer trials, one seed: minutes")
    parser.add_argument("--seeds", type=int, help="seeds of each workload")
    parser.add_argument(
        "--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME"
    )
    parser.add_argument(
        "--keep", type=Path, default=Path("build/search"), metavar="DIR",
        help="folder of what is done: databases of other workloads, and finished runs",
    )  # fmt: skip
    parser.add_argument("--no-ablations", action="store_true", help="leave out what leaves out")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        run(__doc__.splitlines()[0], "MetaSchedule", measure, add_options)
