"""The databases of the campaign: the victim's, and those of others with all that strangers know.

The victim has own records of three modules, a source that was merged and verified, and a foreign
one. ``world`` is the database of the stranger after it took over everything that the victim gives
away: so it has each digest, name, session and source that an attacker can name.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

import tvm
from builders import copied, make_session
from click.testing import CliRunner
from exchanges import rename
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from unions import launch

from tunedb.cli import main
from tunedb.exchange.database_peer import DatabasePeer
from tunedb.exchange.merge import merge
from tunedb.extraction.extract import extract
from tunedb.features.steps import STEPS
from tunedb.plugins.metaschedule import Database, modules, trace_codec
from tunedb.plugins.metaschedule.database.handle import args_json
from tunedb.plugins.metaschedule.deploy.apply import schedule
from tunedb.records import (
    TUNING,
    Failure,
    FailureKind,
    Measurement,
    Phase,
    Program,
    Source,
    SourceKind,
    Status,
    Trust,
)
from tunedb.storage.exchange_types import Selection
from tunedb.storage.store import Store

OURS, TEAM, STRANGER = "0a" * 16, "1b" * 16, "2c" * 16
TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2, "mcpu": "x86-64-v2"})
WITH_FEATURES = Selection(features=True)
OWN_SESSION = make_session(1)
STOPPED = Failure(FailureKind.TIMEOUT, Phase.RUN, "killed after 10 s", 10.0)


def _matmul(n):
    a, b = (te.placeholder((n, n), name=name) for name in "AB")
    k = te.reduce_axis((0, n), name="k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return tvm.IRModule({"main": te.create_prim_func([a, b, c])})


def _add(n):
    a = te.placeholder((n, n), name="A")
    c = te.compute((n, n), lambda i, j: a[i, j] + 1.0, name="C")
    return tvm.IRModule({"main": te.create_prim_func([a, c])})


#: Modules of the victim; one that only its verified team has; one that only the stranger has.
OWN = {"matmul 16": _matmul(16), "matmul 32": _matmul(32), "add 16": _add(16)}
TEAMS, STRANGE = _matmul(8), _matmul(64)
ASKED = {**OWN, "matmul 8": TEAMS, "matmul 64": STRANGE}


def _measured(mod, width, seconds, number, **fields):
    """Return the record of a tiled module, as a tuning run stores it."""
    made = Schedule(mod)
    rows, columns, *_ = made.get_loops(made.get_sblock("C"))
    tile = [int(made.get(columns).extent) // width, width]
    inner = made.sample_perfect_tile(columns, 2, 64, decision=tile)
    made.split(columns, inner)
    made.annotate(rows, "pragma_auto_unroll_max_step", 16)
    made.enter_postproc()
    made.parallel(rows)
    trace = trace_codec.encode(made.trace)
    program = Program(modules.to_workload(mod), modules.to_target(TARGET), trace)
    fields |= {"measured_at": 10**15 + number, "occurrence": number}
    fields["args_info"] = args_json(ms.arg_info.ArgInfo.from_prim_func(mod["main"]))
    return Measurement(program, seconds, **fields)


def _records(mods, seconds, session):
    """Return records of modules; the first of each has a launch, the last one failed."""
    found = []
    for mod in mods:
        for width in (1, 2, 4, 8):
            number = len(found)
            more = {"launches": (launch(width % 3),)} if width == 1 else {}
            if width == 8:
                more = {"status": Status.FAILED, "failure": STOPPED}
            times = (1e10,) if width == 8 else (seconds * (number + 1),) * 2
            found.append(_measured(mod, width, times, number, session=session, **more))
    return found


def _fill(path, key, records, source):
    """Make a database with records, the names of their workloads, and features."""
    Store(path).close()
    rename(path, key)
    with Store(path) as store:
        store.records.add(records, source)
        for mod in ASKED.values():
            workload = modules.to_workload(mod)
            if store.workloads.id_of(workload.digest) is not None:
                store.workloads.add(workload, modules.aliases(mod, workload.script), source)
        extract(store, STEPS)
    return path


def _take(path, other, **options):
    with Store(path) as store, closing(DatabasePeer(other, own=True)) as peer:
        report = merge(store, peer, selection=WITH_FEATURES, **options)
        assert report.rejected == 0, report.reasons


@dataclass(frozen=True)
class Databases:
    """Paths of the databases of a campaign."""

    victim: Path
    stranger: Path
    world: Path


def build(folder: Path) -> Databases:
    """Make the databases in a folder."""
    teams = _records([OWN["matmul 16"], TEAMS], 2e-3, make_session(3))
    team = _fill(folder / "team.db", TEAM, teams, Source("team"))
    theirs = _records([*OWN.values(), STRANGE], 1e-9, make_session(2))
    stranger = _fill(folder / "stranger.db", STRANGER, theirs[:-1], Source("stranger"))
    victim = _fill(folder / "victim.db", OURS, _records(OWN.values(), 1e-3, OWN_SESSION), TUNING)
    _take(victim, team)
    _take(victim, stranger)
    with Store(victim) as store:
        (id_,) = [row.id for row in store.sources.summaries() if row.name == "team"]
        store.trust.set(id_, Trust.VERIFIED)
        # The best of one module, which must not be served again.
        store.trust.retract([5], "wrong results")
    world = copied(stranger, folder / "world.db")
    # The victim has the stranger's own records too.
    _take(world, victim, accept_trusted_names=True)
    with Store(world) as store:
        store.records.add(theirs[-1:], Source("stranger", SourceKind.FILE))
    return Databases(victim, stranger, world)


# ---------------------------------------------------------------------- what must not change


def answers(path: Path) -> dict[str, str]:
    """Return what top, apply and query_schedule answer."""
    found = {}
    for options in ((), ("-k", "20")):
        result = CliRunner().invoke(main, ["--db", str(path), "top", "--json", *options])
        assert result.exit_code == 0, result.output
        found["top " + " ".join(options)] = result.stdout
    with closing(Database(path, target=TARGET, read_only=True)) as database:
        for name, mod in ASKED.items():
            answer = database.query_schedule(mod, database.tvm_target, "main")
            found[f"query_schedule {name}"] = str(answer and answer.mod.script())
            made, uses = schedule(mod, database)
            found[f"apply {name}"] = f"{made.script()}\n{uses}"
    return found


def facts(path: Path) -> dict[str, str]:
    """Return what readers are told of the victim's own records."""
    found = {}
    with Store(path, read_only=True) as store:
        own = [one for one in store.records.iterate() if one.source.trust is Trust.OWN]
        digests = [one.measurement.program.digest for one in own]
        rows = store.features.rows(STEPS, store.programs.ids(digests))
        for record, features in zip(own, rows, strict=True):
            where, measurement = f"record {record.id}", store.records.get(record.id).measurement
            found[f"failures: {where}"] = repr((measurement.failure, record.measurement.failure))
            found[f"launches: {where}"] = repr(store.launches.for_record(record.id))
            found[f"features: {where}"] = str(None if features is None else features.tolist())
        # Others may have one of that key; the own one is older.
        session = min(store.sessions.find(OWN_SESSION.key))
        found["trials: own session"] = repr(store.runs.trials(session))
    return found


def differences(before: dict[str, str], after: dict[str, str]) -> str:
    """Return what changed, as lines to print."""
    lines = []
    for key in sorted({**before, **after}):
        old, new = (one.get(key, "").splitlines() for one in (before, after))
        lines += unified_diff(old, new, f"{key}, before", f"{key}, after", lineterm="", n=2)
    return "\n".join(line[:300] for line in lines[:60])
