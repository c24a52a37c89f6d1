"""The campaign: a stranger's bundles, databases and logs against the database of a victim.

Each case is one changed file. After it was merged or imported without any acceptance, the victim's
answers and own facts are what they were, the database is whole, and nothing that is not on the
lists has reached TVM; nor does it after its source was given trust.

    python tests/fuzz/campaign.py --seconds 3600
    python tests/fuzz/campaign.py --replay build/fuzz/7-153-bundle.zip
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "exchange"))
sys.path.insert(0, str(Path(__file__).parents[1] / "stress"))
sys.path.insert(0, str(Path(__file__).parent))

import memory
import mutations
import small_logs
import victim
from tvm.s_tir.schedule import Trace as TVMTrace

from tunedb.errors import FormatError, TuneDBError
from tunedb.exchange.merge import merge
from tunedb.exchange.peers import open_peer
from tunedb.formats.base import LogFile
from tunedb.formats.importer import import_log
from tunedb.maintenance import check
from tunedb.plugins.metaschedule import Database, modules, trace_codec
from tunedb.plugins.metaschedule.deploy import revalidation
from tunedb.programs.allowlist import check_trace
from tunedb.records import Trust, WorkloadFormat
from tunedb.storage.store import Store

ROOT = Path(__file__).parents[2]
FOUND = ROOT / "build" / "fuzz"
KINDS = ("bundle", "bundle", "database", "database", "log")

#: A guard against hanging: a case takes a second on a machine of its own.
HANGS_S = 300

#: Memory that a case, and a campaign after its first cases, may take beside what there was.
CASE_BYTES, CAMPAIGN_BYTES = 300 * 2**20, 300 * 2**20

#: Bounds of a command that runs in a process of its own: readers import no TVM.
COMMAND_BYTES = 4 * 2**30
_COMMAND = [sys.executable, "-c", "from tunedb.cli import main; main()"]

#: Cases of which one runs as a command.
ONE_IN = 25

#: Failing cases after which a campaign ends.
MOST_FAILURES = 20


@dataclass
class Case:
    """A file that a stranger gives away."""

    name: str  # seed, number and kind
    kind: str  # bundle, database or log
    files: dict[str, bytes]  # by name; the first one is named to the command
    as_command: bool = False  # the command merges it, in a process of its own

    def save(self, victim_file: Path) -> Path:
        """Write the case with its victim; return where."""
        FOUND.mkdir(parents=True, exist_ok=True)
        path = FOUND / f"{self.name}.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
            told = {"kind": self.kind, "as_command": self.as_command, "files": [*self.files]}
            out.writestr("case.json", json.dumps(told))
            out.write(victim_file, "victim.db")
            for name, data in self.files.items():
                out.writestr(f"files/{name}", data)
        return path

    @classmethod
    def load(cls, path: Path, victim_file: Path) -> Case:
        """Read a case, and put its victim in place."""
        with zipfile.ZipFile(path) as given:
            told = json.loads(given.read("case.json"))
            victim_file.write_bytes(given.read("victim.db"))
            files = {name: given.read(f"files/{name}") for name in told["files"]}
        return cls(path.stem, told["kind"], files, told["as_command"])


class Generator:
    """Makes cases; equal seeds and numbers are equal cases."""

    def __init__(self, seed, databases, folder):
        self._seed, self._databases, self._folder = seed, databases, folder
        self._rows = mutations.Rows(databases.world)
        self._log = mutations.records_log(databases.world)

    def case(self, number):
        """Return a case."""
        rng = random.Random(f"{self._seed} {number}")
        kind = rng.choice(KINDS)
        if kind == "bundle":
            files = {"theirs.tunedb": mutations.changed_bundle(rng, self._rows)}
        elif kind == "database":
            files = self._database(rng)
        else:
            files = mutations.changed_log(rng, self._log)
        return Case(f"{self._seed}-{number}-{kind}", kind, files, rng.randrange(ONE_IN) == 0)

    def _database(self, rng):
        base = rng.choice([self._databases.world, self._databases.stranger])
        path = Path(shutil.copyfile(base, self._folder / "changed.db"))
        if rng.random() < 0.1:
            mutations.attack_file(rng, path)
        mutations.change_file(rng, path)
        return {"theirs.db": path.read_bytes()}


# ---------------------------------------------------------------------- what reaches TVM


class Guard:
    """Looks at each trace and module that tunedb hands to TVM."""

    #: Bodies and scripts that TVM may read: those that the user's modules make.
    _WORKLOADS = tuple(modules.to_workload(mod) for mod in victim.ASKED.values())
    _BODIES = frozenset(one.body for one in _WORKLOADS)
    _SCRIPTS = frozenset(one.script for one in _WORKLOADS)

    def __init__(self):
        self.traces = 0
        self.broken: list[str] = []

    def __enter__(self):
        self._stack = ExitStack()
        watched = [(trace_codec.TraceBuilder, "build"), (trace_codec, "replay")]
        watched += [(TVMTrace, "apply_to_schedule")]
        watched += [(modules, "to_module"), (modules, "from_script")]
        for where, name in watched:
            looking = self._checked(name, getattr(where, name))
            self._stack.enter_context(mock.patch.object(where, name, looking))
        return self

    def __exit__(self, *_):
        self._stack.close()

    def _checked(self, name, original):
        def looked_at(*given, **options):
            try:
                if name in ("to_module", "from_script"):
                    self._see_module(name, given[0])
                else:
                    self._see_trace(given[name == "build"])
            except FormatError as error:
                # Noted, not raised: callers of TVM catch any error.
                self.broken.append(f"{name}: {error}\n{''.join(traceback.format_stack(limit=8))}")
            return original(*given, **options)

        return looked_at

    def _see_trace(self, trace):
        self.traces += 1
        stored = trace_codec.encode(trace) if isinstance(trace, TVMTrace) else trace
        check_trace(stored, WorkloadFormat.GRAPH)

    def _see_module(self, name, given):
        if name == "to_module" and given.body not in self._BODIES:
            raise FormatError(f"the body of workload {given.digest.hex()} is not the user's")
        if name == "from_script" and given not in self._SCRIPTS:
            raise FormatError("the script is not the user's")


# ---------------------------------------------------------------------- one case


@contextmanager
def bounded(most):
    """Require that the block takes no more memory."""
    memory.reset_peak()
    before = memory.resident_bytes()
    yield
    taken = memory.peak_bytes() - before
    assert taken < most, f"it takes {taken / 2**20:.0f} MB"


@dataclass
class Campaign:
    """A victim, and what became of the cases."""

    folder: Path  # of the databases
    tally: Counter = field(default_factory=Counter)

    def __post_init__(self):
        # A new database is made for each check otherwise, to compare with.
        check._objects_of_new = functools.cache(check._objects_of_new)
        self.databases = victim.build(self.folder)
        self.victim = self.databases.victim
        self.pristine = Path(shutil.copyfile(self.victim, self.folder / "pristine.db"))
        self.look()

    def look(self):
        """Note what the victim answers before anything is merged."""
        self._restore()
        self.before = victim.answers(self.victim), victim.facts(self.victim)

    def _restore(self):
        """Put the victim back in its place: a database elsewhere would not be approved."""
        for end in ("-wal", "-shm"):
            Path(f"{self.victim}{end}").unlink(missing_ok=True)
        shutil.copyfile(self.pristine, self.victim)

    def run(self, case):
        """Run a case; raise AssertionError if it does harm, and any other error of tunedb."""
        self._restore()
        theirs = small_logs.write(self.folder / "theirs", case.files)
        try:
            with Guard() as guard, bounded(CASE_BYTES):
                self._take(case, theirs)
                self._require_unchanged()
                if case.kind == "database":
                    self._layer(theirs)
                self._propose()
                self._trust()
            assert not guard.broken, "\n".join(guard.broken)
            self.tally["traces"] += guard.traces
        finally:
            shutil.rmtree(self.folder / "theirs")

    def _take(self, case, theirs):
        """Merge or import what a stranger gives, without any acceptance."""
        if case.as_command:
            self._command(case, theirs)
            return
        with Store(self.victim) as store:
            if case.kind == "log":
                file = LogFile(theirs, theirs.name)
                report = import_log(store, file, source="a log", trust=Trust.FOREIGN)
                self.tally["taken"] += report.total.read > 0
                self.tally["refused"] += report.quarantined > 0 or report.refused is not None
                return
            try:
                with closing(open_peer(theirs)) as peer:
                    report = merge(store, peer, selection=victim.WITH_FEATURES)
            except TuneDBError:
                self.tally["not read"] += 1
                return
        self.tally["taken"] += report.new + report.known > 0
        self.tally["refused"] += report.rejected > 0

    def _command(self, case, theirs):
        words = ["import", "logs", "--trust", "foreign", "--source", "a log"]
        words = words if case.kind == "log" else ["merge", "--features"]
        options = {"capture_output": True, "text": True, "errors": "replace", "timeout": HANGS_S}
        done = subprocess.run(
            [*_COMMAND, "--db", self.victim, *words, theirs],
            **options,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (COMMAND_BYTES,) * 2),
        )
        assert done.returncode in range(6), (done.returncode, done.stderr)
        assert "Traceback" not in done.stderr, done.stderr
        self.tally["commands"] += 1

    def _require_unchanged(self):
        """Require that answers and own facts are as before, and the database whole."""
        answers, facts = victim.answers(self.victim), victim.facts(self.victim)
        assert answers == self.before[0], victim.differences(self.before[0], answers)
        assert facts == self.before[1], victim.differences(self.before[1], facts)
        report = check.check(self.victim)
        assert not report.problems, report.problems

    def _propose(self):
        """Ask which foreign programs would be measured here, as ``revalidate --foreign`` does."""
        run = mock.patch.object(revalidation, "BuildAndRun")
        with run, Store(self.victim) as store, revalidation.Revalidation(store) as asked:
            for mod in victim.ASKED.values():
                for ids in asked.workloads_of(mod, victim.TARGET, foreign=True):
                    for target in store.programs.targets(ids):
                        found = revalidation.foreign_programs(store, ids, target, 20)
                        for record in found:
                            if revalidation.rejection_of(record, mod) is None:
                                trace = record.measurement.program.trace
                                check_trace(trace, WorkloadFormat.GRAPH)
                                self.tally["proposed"] += 1

    def _trust(self):
        """Give all sources trust, and ask for what is served then; nothing is replayed."""
        with Store(self.victim) as store:
            for row in store.sources.summaries():
                if row.trust is Trust.FOREIGN:
                    try:
                        store.trust.set(row.id, Trust.VERIFIED)
                        self.tally["trusted"] += 1
                    except TuneDBError:
                        self.tally["not trusted"] += 1
        with closing(Database(self.victim, target=victim.TARGET)) as database:
            self._ask(database)

    def _layer(self, theirs):
        """Ask the stranger's database as a layer, where the victim's has nothing."""
        with suppress(TuneDBError):
            database = Database(self.victim, target=victim.TARGET, layers=[theirs], read_only=True)
            with closing(database):
                self.tally["layers"] += self._ask(database)

    @staticmethod
    def _ask(database):
        """Ask for all modules; return whether the stranger's own one is answered."""
        for mod in victim.ASKED.values():
            found = database.query_tuning_record(mod, victim.TARGET, "main")
            if not database.store.read_only:
                database.get_top_k(database.commit_workload(mod), 20)
        return found is not None


# ---------------------------------------------------------------------- many cases


def run(seed, cases, seconds):
    """Run a campaign; return whether nothing was found."""
    failures: list[tuple[Path, str]] = []
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tunedb-fuzz-") as name:
        campaign = Campaign(Path(name))
        generator = Generator(seed, campaign.databases, Path(name))
        started, told, settled, number = time.monotonic(), 0.0, 0, 0
        while number < cases and time.monotonic() - started < seconds:
            case = generator.case(number)
            number += 1
            campaign.tally[case.kind] += 1
            # The file stays if this process dies or hangs.
            path = case.save(campaign.pristine)
            faulthandler.dump_traceback_later(HANGS_S, exit=True)
            try:
                campaign.run(case)
                path.unlink()
            except Exception:  # whatever tunedb let out
                failures.append((path, traceback.format_exc()))
                print(f"{failures[-1][1]}\nreplay it: {_replay(path)}", flush=True)
            finally:
                faulthandler.cancel_dump_traceback_later()
            if number == 50:
                settled = memory.resident_bytes()
            if time.monotonic() - told > 60:
                told = time.monotonic()
                print(f"{number} cases, {len(failures)} failed: {_words(campaign)}", flush=True)
            if len(failures) == MOST_FAILURES:
                break
        grown = memory.resident_bytes() - settled if settled else 0
        print(f"{number} cases, {len(failures)} failed: {_words(campaign)}, {grown >> 20} MB more")
        assert grown < CAMPAIGN_BYTES, f"{grown >> 20} MB more than after 50 cases"
    # Cases that are rejected at once do not test later steps.
    leasts = {"taken": 0.4, "refused": 0.2, "trusted": 0.5, "layers": 0.05, "traces": 5}
    for word, least in leasts.items():
        assert campaign.tally[word] >= least * number, f"{word}: {campaign.tally[word]}"
    for path, _ in failures:
        print(f"failed; replay it: {_replay(path)}")
    print(json.dumps(campaign.tally))
    return not failures


def _words(campaign):
    return ", ".join(f"{value} {key}" for key, value in sorted(campaign.tally.items()))


def _replay(path):
    return f"python tests/fuzz/campaign.py --replay {path.relative_to(ROOT)}"


def replay(path):
    """Run one case that was kept."""
    with tempfile.TemporaryDirectory(prefix="tunedb-fuzz-") as name:
        campaign = Campaign(Path(name))
        case = Case.load(path, campaign.pristine)
        campaign.look()
        faulthandler.dump_traceback_later(HANGS_S, exit=True)
        campaign.run(case)


def main():
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--cases", type=int, default=sys.maxsize)
    parser.add_argument("--replay", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tunedb-fuzz-") as name:
        # The user's own configuration is not read, and approves nothing here.
        os.environ["XDG_CONFIG_HOME"] = name
        if given.replay is None:
            return 0 if run(given.seed, given.cases, given.seconds) else 1
        replay(given.replay.absolute())
    print("nothing is wrong")
    return 0


if __name__ == "__main__":
    sys.exit(main())
