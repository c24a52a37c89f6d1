"""Promise 18: programs of other databases are applied only to the user's own modules."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
import tvm
from builders import sql
from effort import long
from logged import logged
from old_traces import as_of_0_13, without_upgrade
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

import tunedb
from tunedb.exchange.merge import merge
from tunedb.exchange.peers import open_peer
from tunedb.plugins.metaschedule import Database, graph_module, modules
from tunedb.plugins.metaschedule.deploy import revalidation
from tunedb.plugins.metaschedule.deploy.build_and_run import RunOutcome
from tunedb.plugins.metaschedule.deploy.revalidation import Revalidation
from tunedb.plugins.metaschedule.workers.replay import Replayer
from tunedb.programs.metaschedule.trace import join_trace, split_trace
from tunedb.records import Program, Source, SourceKind, Status, Target, Trust, Workload

THEIRS = Source("their tuner", SourceKind.LIVE, Trust.OWN)
VERIFIED = Source("their tuner", SourceKind.LIVE, Trust.VERIFIED)
FOREIGN = Source("their tuner", SourceKind.LIVE, Trust.FOREIGN)
OWN = Source("own", SourceKind.LIVE, Trust.OWN)

GOLDEN = Path(__file__).parents[1] / "programs" / "workload_info" / "goldens" / "matmul-0.26.0.json"


@pytest.fixture
def no_parser(no_parser, monkeypatch):
    """Fail where TVM reads a script or a graph, or its constructors rebuild one."""
    calls = []
    monkeypatch.setattr(graph_module, "module_of", calls.append)
    yield
    assert calls == []


def crashing(mod):
    """A graph of 0.26, which TVM 0.27 follows in circles until the process ends.

    Its structure is that of the user's matmul.
    """
    graph = orjson.loads(GOLDEN.read_bytes())
    graph.pop("metadata", None)
    sizes = dict(zip((16, 24, 32), extents(mod), strict=True))
    for node in graph["nodes"]:
        if node["type"] == "ir.IntImm":
            node["data"]["value"] = sizes.get(node["data"]["value"], node["data"]["value"])
    return orjson.dumps(graph)


def strange(mod):
    """A graph of today with a node that no TVM knows."""
    graph = orjson.loads(modules.to_workload(mod).body)
    graph["nodes"].append({"type": "evil.Node"})
    return orjson.dumps(graph)


def extents(mod):
    """Return the extents of rows, columns and products of a matmul."""
    (block,) = modules.structure_of_module(mod).blocks
    return [extent for _, extent in block]


#: Bodies whose structure can be read, which confirms an alias.
BODIES = {"strange": strange, "crash": crashing}

#: Bodies whose structure cannot be read; the script writes a file when it is run.
SILENT = {
    "garbage": lambda _: b"\xff\x00 no graph {[",
    "json": lambda _: b'{"root_index":0,"nodes":[]}',
    "script": lambda tmp_path: f"open({str(tmp_path / 'it-ran')!r}, 'w').write('x')".encode(),
}


INSERT_ALIAS = "INSERT OR IGNORE INTO workload_alias SELECT ?, ?, ?, id FROM source WHERE name = ?"


def theirs(measurement, body, seconds=0.25, *, version=None, trace=None, target=None):
    """Return the measurement as another team's database would deliver it."""
    version = str(tvm.__version__) if version is None else version
    workload, own = Workload("tvm-graph", body, "matmul", version), measurement.program
    program = Program(workload, target or own.target, trace or own.trace)
    return replace(measurement, program=program, run_secs=(seconds,), session=None)


def merge_in(path, measurements, source=THEIRS, aliases=()):
    """Store records as a merge leaves them: their source is of another database, without scripts.

    A source of another database cannot be made through the store.
    """
    with tunedb.open(path) as store:
        store.records.add(measurements, source)
        known = [store.workloads.id_of(one.program.workload.digest) for one in measurements]
    sql(path, "UPDATE source SET store = ? WHERE name = ?", "f" * 32, source.name)
    for id_ in known:
        sql(path, "UPDATE workload SET script = NULL WHERE id = ?", id_)
        for alias in aliases:
            sql(path, INSERT_ALIAS, alias.scheme, alias.key, id_, source.name)


@pytest.fixture
def mod(live):
    return live[0]


@pytest.fixture
def measurement(live):
    """A measurement of a program of the module."""
    return live[1]


@pytest.fixture
def merged(path, mod, tools, opened):
    """A function that merges measurements of others and opens a handle."""

    def merged(measurements, source=THEIRS, aliases=None):
        merge_in(path, measurements, source, names(mod) if aliases is None else aliases)
        return opened(path, target=tools.llvm)

    return merged


def renamed(trace):
    """Return a trace of a module whose block has another name."""
    instructions, decisions = join_trace(trace)
    instructions = orjson.loads(orjson.dumps(instructions).replace(b'"C"', b'"another"'))
    return split_trace(instructions, decisions)


def names(mod):
    return modules.aliases(mod, str(mod.script(show_meta=True)))


def assert_applies(record, mod):
    """Assert that a record replays on the user's module."""
    tvm.ir.assert_structural_equal(record.workload.mod, mod)
    record.trace.apply_to_schedule(Schedule(record.workload.mod), remove_postproc=False)


def test_merged_records_are_served_once_their_source_is_trusted(path, tmp_path, tools, monkeypatch):
    """TVM never reads the merged module; the record is applied to the user's own one."""
    mod = tools.matmul()
    for name, one, seconds in (("team.db", mod, 0.25), ("tune.db", tools.matmul(8), 0.5)):
        with closing(Database(tmp_path / name, target=tools.llvm)) as database:
            tools.commit(database, one, [seconds], tile=(4, 4 if one is mod else 2))
    with tunedb.open(path) as store:
        report = merge(store, open_peer(tmp_path / "team.db"))
        assert report.new == 1, report
        (theirs,) = [one.id for one in store.sources.summaries() if one.trust is Trust.FOREIGN]

    def served():
        with closing(Database(path, target=tools.llvm)) as database:
            found = database.query_tuning_record(mod, tools.llvm, "main")
            if found is not None:
                assert_applies(found, mod)
            return tools.seconds([found] if found else [])

    with monkeypatch.context() as patch:
        for where, name in ((modules, "from_script"), (tvm.script, "from_source")):
            patch.setattr(where, name, lambda *_: pytest.fail("it was read"))
        load, own = modules.to_module, modules.to_workload(tools.matmul(8)).digest
        patch.setattr(
            *(modules, "to_module"),
            lambda one: load(one) if one.digest == own else pytest.fail("it was read"),
        )
        assert served() == []
        with tunedb.open(path) as store:
            assert store.trust.set(theirs, Trust.VERIFIED) == 1
        assert served() == [[0.25]]
        with closing(Database(path, target=tools.llvm)) as database:
            assert tools.seconds(database.get_all_tuning_records()) == [[0.5]]


@pytest.mark.parametrize(
    ("body", "source", "read_only"),
    [
        *(("strange", THEIRS, False), ("crash", THEIRS, True)),
        *(("crash", VERIFIED, False), ("strange", VERIFIED, True)),
    ],
)
@pytest.mark.usefixtures("no_parser")
def test_promise_18_bodies_of_others_are_never_parsed(
    path, mod, measurement, tools, body, source, read_only, opened
):
    merge_in(path, [theirs(measurement, BODIES[body](mod))], source, names(mod))
    database = opened(path, target=tools.llvm, read_only=read_only)
    assert database.has_workload(mod)
    assert not database.has_workload(tools.matmul(8))
    record = database.query_tuning_record(mod, tools.llvm, "main")
    assert tools.seconds([record]) == [[0.25]]
    assert_applies(record, mod)
    assert "T.parallel" in database.query_schedule(mod, tools.llvm, "main").mod.script()
    (record,) = database.get_top_k(database.commit_workload(mod), 5)
    assert_applies(record, mod)
    assert database.store.quarantine.rows() == []


@pytest.mark.parametrize("body", [*SILENT, "crash"])
@pytest.mark.usefixtures("no_parser")
def test_foreign_and_unreadable_bodies_are_silent(mod, measurement, tools, tmp_path, body, merged):
    """An alias alone does not make a workload the user's."""
    data, source = (crashing(mod), FOREIGN) if body == "crash" else (SILENT[body](tmp_path), THEIRS)
    database = merged([theirs(measurement, data)], source)
    assert not database.has_workload(mod)
    assert database.query_schedule(mod, tools.llvm, "main") is None
    assert (tools.top(database, mod), database.get_all_tuning_records()) == ([], [])
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.usefixtures("no_parser")
def test_no_script_or_alias_is_stored_for_workloads_of_others(mod, measurement, merged):
    """Either one would make a workload look like one of an own source."""
    database = merged([theirs(measurement, b"garbage")], aliases=())
    assert not database.has_workload(mod)
    assert database.store.names.aliases(1) == []
    assert database.store.workloads.get(1).script is None


@pytest.mark.usefixtures("no_parser")
def test_workload_with_equal_bytes_answers_for_the_users_module(mod, measurement, tools, merged):
    """A JSON log has no aliases, but the user's module gives the same graph byte by byte."""
    database = merged([theirs(measurement, measurement.program.workload.body)], aliases=())
    record = database.query_tuning_record(mod, tools.llvm, "main")
    assert tools.seconds([record]) == [[0.25]]
    assert_applies(record, mod)


def test_all_records_exclude_others_until_a_module_is_known(path, mod, measurement, tools, opened):
    merge_in(path, [theirs(measurement, strange(mod))], THEIRS, names(mod))
    merge_in(path, [theirs(measurement, b"of something else", 0.125)])
    database = opened(path, target=tools.llvm)
    with logged() as warnings:
        assert database.get_all_tuning_records() == []
        database.commit_workload(mod)
        (record,) = database.get_all_tuning_records()
    first, second = warnings
    assert "2 records of 2 workloads are left out: it came from others" in first
    assert "1 records of 1 workloads" in second
    assert_applies(record, mod)
    pruned = ms.database.MemoryDatabase()
    database.dump_pruned(pruned)
    assert tools.seconds(pruned.get_all_tuning_records()) == [[0.25]]


def test_all_records_include_own_failed_ones(path, measurement, tools, opened):
    """An imported log with failures alone has neither a script nor a record to serve."""
    workload = replace(measurement.program.workload, script=None)
    program = replace(measurement.program, workload=workload)
    failed = replace(measurement, program=program, run_secs=(1e10,), status=Status.FAILED)
    with tunedb.open(path) as store:
        store.records.add([failed], OWN)
        assert not store.provenance.is_own_workload(1)
        assert store.provenance.own_workloads() == {1}
    assert tools.seconds(opened(path, target=tools.llvm).get_all_tuning_records()) == [[1e10]]


def test_own_record_makes_merged_workload_an_own_one(path, mod, measurement, tools, opened):
    merge_in(path, [theirs(measurement, measurement.program.workload.body)])
    with tunedb.open(path) as store:
        assert not store.provenance.is_own_workload(1)
        store.records.add([measurement], OWN)
        assert store.provenance.is_own_workload(1)
    database = opened(path, target=tools.llvm)
    assert tools.seconds(database.get_all_tuning_records()) == [[0.25], [0.5]]
    assert_applies(database.get_all_tuning_records()[0], mod)


def test_replayer_applies_programs_of_others_only_to_own_module(path, mod, measurement, tools):
    merge_in(path, [theirs(measurement, strange(mod))], THEIRS, names(mod))
    with tunedb.open(path) as store:
        (program,) = store.programs.get([1])
        with pytest.raises(tunedb.PluginError, match="it came from others"):
            Replayer(store).module(program)
    Database(path, target=tools.llvm).commit_workload(mod)
    with tunedb.open(path) as store:
        assert "T.parallel" in Replayer(store).module(program).script()


class Passing:
    """Stands for the processes of a revalidation, in which each program passes."""

    def __init__(self, **_):
        self.close = lambda: None

    def outcomes(self, jobs, _target, run=None):
        return [RunOutcome((1e-3,) if run is None else (0.0, 1e-4), None) for _ in jobs]


@pytest.mark.parametrize("source", [THEIRS, FOREIGN], ids=["trusted", "foreign"])
@pytest.mark.parametrize("runs", [False, long(True)])
def test_revalidation_does_not_make_workload_of_others_an_own_one(
    path, mod, measurement, tools, source, runs, opened, monkeypatch
):
    """A program that passes is verified, but its workload remains that of others."""
    if not runs:
        monkeypatch.setattr(revalidation, "BuildAndRun", Passing)
    merge_in(path, [theirs(measurement, strange(mod))], source, names(mod))
    foreign = source is FOREIGN
    with tunedb.open(path) as store, Revalidation(store, repeat=1, max_workers=1) as again:
        assert again.workloads_of(tools.matmul(8), tools.llvm, foreign=foreign) == []
        (ids,) = again.workloads_of(mod, tools.llvm, foreign=foreign)
        (verdict,) = again.run(ids, 1, 1, foreign=foreign)
        assert verdict.outcome == "passed"
        assert not store.provenance.is_own_workload(1)
        assert store.provenance.own_workloads() == set()
        *_, last = store.records.iterate()
        assert last.source.trust is Trust.VERIFIED
    database = opened(path, target=tools.llvm)
    assert database._handle.workloads.get(1).is_exact is False
    assert_applies(database.query_tuning_record(mod, tools.llvm, "main"), mod)


@pytest.mark.usefixtures("no_parser")
def test_record_under_wrong_alias_is_quarantined_and_next_best_answers(
    mod, measurement, tools, merged
):
    """The best record is of another module and does not replay."""
    wrong = theirs(measurement, strange(mod), 0.001, trace=renamed(measurement.program.trace))
    database = merged([wrong, theirs(measurement, strange(mod))])
    assert "T.parallel" in database.query_schedule(mod, tools.llvm, "main").mod.script()
    (row,) = database.store.quarantine.rows()
    assert "record 1 cannot be rebuilt" in row.item.reason
    workload = database.commit_workload(mod)
    # The module that is committed has another Workload object, but the same blocks.
    database.query_schedule(mod, tools.llvm, "main")
    assert tools.top(database, workload) == [[0.25]]


def test_record_answers_for_the_module_of_equal_hash_that_it_fits(tools, mod, measurement, merged):
    """TVM's hash ignores block names; a trace that fails on one module is tried on the next."""
    other = tools.matmul(block="another")
    trace = renamed(measurement.program.trace)
    first, second = (modules.structural_hash(one, "structural") for one in (mod, other))
    assert first == second
    database = merged([theirs(measurement, strange(mod), 0.125, trace=trace)])
    for one in (mod, other):
        database.commit_workload(one)
    served = [database.query_schedule(one, tools.llvm, "main") for one in (mod, other, mod)]
    assert [one is not None for one in served] == [False, True, False]


@pytest.mark.usefixtures("no_parser")
def test_trace_gets_the_block_names_of_the_module_that_it_answers_for(
    tools, mod, measurement, merged
):
    """Names of blocks come from the variables of a network, and TVM's hash ignores them."""
    body = strange(tools.matmul(block="another"))
    database = merged([theirs(measurement, body, trace=renamed(measurement.program.trace))])
    assert_applies(database.query_tuning_record(mod, tools.llvm, "main"), mod)
    assert database.store.quarantine.rows() == []


def test_workload_answers_for_the_alias_of_its_structure(mod, measurement, tools, merged):
    """The structure of its body confirms an alias."""
    small = tools.matmul(8)
    database = merged([theirs(measurement, strange(mod))], aliases=[*names(mod), *names(small)])
    for _ in range(2):
        record = database.query_tuning_record(mod, tools.llvm, "main")
        tvm.ir.assert_structural_equal(record.workload.mod, mod)
        assert database.query_tuning_record(small, tools.llvm, "main") is None
        assert not database.has_workload(small)


def test_alias_of_own_workload_does_not_replace_equality(path, mod, measurement, tools, opened):
    """TVM may read an own workload, so TVM's own equality decides."""
    small = tools.matmul(8)
    with tunedb.open(path) as store:
        store.records.add([measurement], OWN)
        store.workloads.add(measurement.program.workload, names(mod))
    for alias in names(small):
        sql(path, "INSERT INTO workload_alias VALUES (?, ?, 1, 1)", alias.scheme, alias.key)
    database = opened(path, target=tools.llvm)
    assert not database.has_workload(small)
    assert database.query_tuning_record(small, tools.llvm, "main") is None
    assert database.query_tuning_record(mod, tools.llvm, "main") is not None


def test_new_measurements_are_stored_for_the_users_module(mod, measurement, tools, merged):
    """They do not belong to the merged workload, whose body comes from others."""
    database = merged([theirs(measurement, strange(mod))])
    workload = database.query_tuning_record(mod, tools.llvm, "main").workload
    database.commit_tuning_record(tools.record(mod, workload, [0.1], tile=(8, 2)))
    *_, last = database.store.records.iterate()
    assert last.measurement.program.workload.digest == modules.to_workload(mod).digest
    assert tools.top(database, workload) == [[0.1], [0.25]]
    own = database.commit_workload(mod)
    assert all(one.workload.same_as(own) for one in database.get_top_k(own, 5))


@pytest.mark.usefixtures("no_parser")
def test_records_of_another_release_are_found_by_digest_of_script(mod, measurement, tools, merged):
    """A structural hash is valid in one release; the digest of the script is equal in all."""
    trace = as_of_0_13(measurement.program.trace)
    record = theirs(measurement, crashing(mod), version="0.26.0", trace=trace)
    # This alias is the same in all releases of TVM.
    (script,) = (one for one in names(mod) if one.scheme == modules.SCRIPT)
    database = merged([record], VERIFIED, [script])
    assert database.has_workload(mod)
    (found,) = database.get_top_k(database.commit_workload(mod), 5)
    assert_applies(found, mod)
    assert found.trace.insts[0].kind.name == "GetSBlock"
    assert database.query_schedule(mod, tools.llvm, "main") is not None


def test_record_with_trace_that_cannot_be_upgraded_is_skipped(mod, measurement, tools, merged):
    body, gone = crashing(mod), without_upgrade(measurement.program.trace)
    best = theirs(measurement, body, 0.01, version="0.26.0", trace=gone)
    assert tools.top(merged([best, theirs(measurement, body, version="0.26.0")]), mod) == [[0.25]]


def test_compatible_targets_are_served_with_fallback_alone(path, mod, measurement, tools, opened):
    near, far = (
        Target.from_config(modules.plain(target.export()))
        for target in (tools.llvm_other, tools.llvm_newer)
    )
    times = ((0.25, near), (0.125, far))
    found = [theirs(measurement, strange(mod), time, target=target) for time, target in times]
    merge_in(path, found, THEIRS, names(mod))
    for fallback, best in (("exact", None), ("compatible", [0.25])):
        database = opened(path, target=tools.llvm, fallback=fallback)
        assert tools.top(database, mod) == ([best] if best else [])
        assert tools.best(database, mod) == best
