"""Conversion of auto_scheduler's records to schedules of today."""

import json
import lzma
import sys
import textwrap
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from itertools import islice
from math import log2

import ansor_programs as programs
import pytest
import tvm
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from public_logs import DATA, needs_logs
from tvm import te, topi
from tvm.s_tir.analysis import estimate_tir_flops

from tunedb.errors import NotFoundError, PluginError, UsageError
from tunedb.features.steps import STEPS
from tunedb.formats.find import find_logs
from tunedb.formats.importer import import_log
from tunedb.plugins.metaschedule import Database, modules
from tunedb.plugins.metaschedule.convert import convert as conversion
from tunedb.plugins.metaschedule.convert import convert_worker, definitions
from tunedb.plugins.metaschedule.convert.convert import ConvertPool, convert
from tunedb.plugins.metaschedule.convert.stages import ReplayError, plan_of, stage_of
from tunedb.plugins.metaschedule.convert.workloads import DefinedWorkload
from tunedb.plugins.metaschedule.deploy.apply import tasks_of
from tunedb.plugins.metaschedule.deploy.revalidation import Revalidation
from tunedb.plugins.metaschedule.trace_codec import TraceBuilder
from tunedb.plugins.metaschedule.tuning.defaults import host_target
from tunedb.programs.allowlist import check_trace
from tunedb.programs.ansor import split_steps
from tunedb.programs.metaschedule.trace import join_trace, split_trace
from tunedb.programs.workload_info import signature_of
from tunedb.programs.workload_info.keys import of_ansor
from tunedb.records import Origin, Target, Trust, Workload, WorkloadFormat
from tunedb.results import StoredProgram
from tunedb.search.lineage import lineage_lines, lineage_of
from tunedb.storage.store import Store

KINDS = {
    "attached to its consumer": programs.matmul_add,
    "factored": programs.factored_sum,
    "caches, threads and vthreads": programs.cuda_matmul,
}


@pytest.fixture(scope="module")
def worker():
    """The code of a worker process, run in this process."""
    before = list(sys.path)
    assert convert_worker.prepare((), {}) is None
    yield convert_worker
    sys.path[:] = before


def parsed(*lines):
    """Return the workload of lines, and the stored form of the steps of each line."""
    return lines[0]["i"][0][0].encode(), [split_steps(line["i"][1][1], None) for line in lines]


def replayed(worker, *lines):
    """Replay lines of one workload; return its modules, and a trace or a reason for each line."""
    parts, answers = worker.replay(*parsed(*lines))
    return parts, [answer if isinstance(answer, str) else answer.trace for answer in answers]


def module_of(line):
    """Return the module of a line's workload as the installed definitions compute it."""
    return convert_worker._Worker((), {}).define(line["i"][0][0].encode())[0].defined.mod


@pytest.mark.parametrize("kind", KINDS)
def test_converted_program_is_allowed_and_computes_the_same_as_untuned_one(kind):
    key, (record,) = parsed(KINDS[kind]())
    own = convert_worker._Worker((), {})
    (part,), (answer,) = own.replay(key, [record])
    check_trace(answer.trace, WorkloadFormat.GRAPH)
    mod = module_of(KINDS[kind]())
    assert programs.farthest(mod, programs.on_processor(answer.trace), part.args_info) < 1
    # The number of threads that fetch together is a product of tiles and not a decision.
    assert ((key, record.sketch) in own._translations) == (kind != "caches, threads and vthreads")


def test_records_of_one_sketch_convert_to_traces_that_differ_only_in_decisions(worker):
    for several in (
        [programs.matmul_add(), programs.matmul_add((1, 8, 16), unroll=0)],
        [programs.cuda_matmul(), programs.cuda_matmul((1, 8, 2, 4))],
    ):
        _, (first, second) = replayed(worker, *several)
        assert (first.sketch, first.tail) == (second.sketch, second.tail)
        assert first.decisions != second.decisions


def test_split_lengths_and_unroll_step_become_decisions(worker):
    for unroll in (64, 8):
        (part,), (trace,) = replayed(worker, programs.matmul_add((2, 4, 8), unroll=unroll))
        instructions, decisions = join_trace(trace)
        *tiles, (number, chosen) = decisions
        assert [value for _, value in tiles] == [[4, 2, 4, 1], [4, 2, 1, 8], [6, 4]]
        assert instructions[number][2][0][chosen] == unroll
    # The program stays correct with another decision.
    decisions[0][1] = [2, 8, 1, 2]
    mod = module_of(programs.matmul_add())
    assert programs.farthest(mod, split_trace(instructions, decisions), part.args_info) < 1


TILES = st.sampled_from((1, 2, 3, 4, 8, 16, 64, 128))
NUMBERS = st.tuples(TILES, TILES, TILES, st.sampled_from((0, 8, 16, 512)))


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(NUMBERS, min_size=1, max_size=5))
def test_translated_records_equal_replayed_ones(worker, numbers):
    lines = [programs.matmul_add((a, b, c), unroll=u, n=64, m=128) for a, b, c, u in numbers]
    key, records = parsed(programs.matmul_add((2, 4, 8), n=64, m=128), *lines)
    own = convert_worker._Worker((), {})
    _, answers = own.replay(key, records)
    assert answers == [own._replay_one(key, one, []) for one in records]
    _, translation = own._translations[key, records[0].sketch]
    for (a, b, c, u), record in zip(numbers, records[1:], strict=True):
        divides = 64 % (a * b) == 0 and 128 % (a * c) == 0 and c <= 64
        assert (translation.of(record) is not None) == (divides and u != 8)


def test_worker_detects_and_drops_wrong_translation(worker, monkeypatch):
    """The worker also replays the last record of a call that it translated."""
    key, records = parsed(*(programs.matmul_add((a, 4, 8)) for a in (1, 2, 4, 8)))
    own = convert_worker._Worker((), {})
    _, expected = own.replay(key, records)
    place = (key, records[0].sketch)
    module, translation = own._translations[place]
    # The wrong translation exchanges the tiles of two loops.
    first, second, *others = translation.places
    wrong = (replace(first, numbers=second.numbers), replace(second, numbers=first.numbers))
    own._translations[place] = module, replace(translation, places=(*wrong, *others))
    assert own.replay(key, records)[1] == expected
    assert own._translations[place] is None
    # From then on the worker replays each record.
    replays, replay = [], own._replay_one
    monkeypatch.setattr(own, "_replay_one", lambda *of: replays.append(of) or replay(*of))
    assert (own.replay(key, records)[1], len(replays)) == (expected, len(records))


def test_worker_rejects_records_with_damaged_decisions(worker):
    key, (record,) = parsed(programs.matmul_add())
    data = record.decisions
    records = [
        replace(record, decisions=each)
        for each in (data, data + b"\x01", data[:-1], data + b"\x80")
    ]
    _, (good, *bad) = convert_worker._Worker((), {}).replay(key, records)
    assert not isinstance(good, str)
    assert ["stored steps" in each for each in bad] == [True] * 3


def test_worker_translates_factored_reductions(worker):
    key, records = parsed(*(programs.factored_sum(factor) for factor in (8, 2, 32)))
    own = convert_worker._Worker((), {})
    _, answers = own.replay(key, records)
    _, translation = own._translations[key, records[0].sketch]
    assert [translation.of(record) for record in records] == [answer.trace for answer in answers]
    fresh = convert_worker._Worker((), {})
    assert answers == [fresh._replay_one(key, record, []) for record in records]


# ---- Steps that do not fit ----------------------------------------------------------------------

BAD_STEPS = {
    "stage 9 of 3": ["CI", 9],
    "loop 7 of the 3 of sum": ["AN", 1, 7, 1],
    "the log says extent 5 for a loop of sum, the definition 4": ["SP", 1, 0, 5, [2], 1],
    "a length of the split is unknown or 0": ["SP", 1, 0, 4, [0], 1],
    "it follows step 3, which is no split before it": ["FSP", 1, 0, 3, 1],
    "no permutation of the 3 loops of sum": ["RE", 1, [0, 1, 1]],
    "the loops are not consecutive": ["FU", 1, [0, 2]],
    "tensorize needs an intrinsic that the log lacks": ["AN", 1, 0, 11],
    "the pragma 'debug_skip_region' cannot be replayed": ["PR", 1, 0, "debug_skip_region"],
    "sum cannot be attached to x": ["CA", 1, 0, 0],
    "an input cannot be inlined": ["CI", 0],
    "no stage reads the copy": ["CHR", 0, "shared", []],
    "loop 0 of sum is no loop of a reduction": ["RF", 1, 0, 0],
    "axis 3 of 3": ["RF", 1, 2, 3],
    "a kind of step that cannot be replayed": ["XX", 1],
}


@pytest.mark.parametrize("reason", BAD_STEPS)
def test_plan_of_names_the_step_that_does_not_fit(reason):
    stages = [stage_of("x", (4, 6, 8), is_input=True), stage_of("sum", (4, 6), (8,))]
    step = BAD_STEPS[reason]
    with pytest.raises(ReplayError) as caught:
        plan_of([*stages, stage_of("out", (4, 6))], [step])
    assert str(caught.value) == f"step 0 ({step[0]}): {reason}"


# ---- Definitions --------------------------------------------------------------------------------

DEFINITIONS = """
    from tvm import te

    def raises(*arguments):
        raise ValueError("no such operator")

    def exits(*arguments):
        import os
        os._exit(3)

    def hangs(*arguments):
        import time
        time.sleep(60)

    def text(*arguments):
        return "tensors"

    def narrow(n, k, m, dtype):
        from tunedb.plugins.metaschedule.convert.operators import matmul_add
        return matmul_add(n, k, m // 2, dtype)

    def other(n, k, m, dtype):
        a, b = (te.placeholder(shape) for shape in ((n, k), (k, m)))
        c = te.placeholder((n, m))
        return [a, b, c, te.compute((n, m), lambda i, j: a[i, 0] + b[0, j] + c[i, j])]
"""

REASONS = {
    "raises": "definition matmul_add raises: ",
    "text": "definition matmul_add: the definition returns no te tensors",
    "narrow": "definition matmul_add: its arguments have other shapes than the log says",
    "other": "matmul_add: step 2 (SP): loop 8 of the 8 of placeholder",
}


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A store with imported lines, and the user's definitions in the working directory."""
    monkeypatch.chdir(tmp_path)
    # Tests prepare other definitions in this process.
    monkeypatch.setattr(convert_worker, "_worker", None)
    (tmp_path / "users.py").write_text(textwrap.dedent(DEFINITIONS))

    with ExitStack() as stack:

        def stored(*lines, trust=Trust.OWN):
            path = tmp_path / f"{trust.name}.json"
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
            store = stack.enter_context(Store(tmp_path / "tune.db"))
            import_log(store, *find_logs([path]), source=path.name, trust=trust)
            return store

        yield stored


@pytest.fixture
def one_pool(monkeypatch):
    """One process for all conversions of a test."""
    with ConvertPool(workers=1) as pool:
        monkeypatch.setattr(conversion, "ConvertPool", lambda *_, **__: nullcontext(pool))
        yield


@pytest.mark.stress
def test_convert_continues_after_definition_that_hangs_or_exits(stored):
    store = stored(programs.matmul_add(), programs.factored_sum(), programs.cuda_matmul())
    # Definitions from the command line come before the built-in ones of their names.
    define = ["matmul_add=users:hangs", "reduction_layer=users:exits"]
    report = convert(store, define=define, workers=1, timeout_sec=3.0)
    assert [list(each.reasons) for each in report.workloads] == [
        ["its definition took longer than 3 s"],
        ["its definition ended the process (exit status 3)"],
        [],
    ]
    assert [(each.replayed, each.refused) for each in report.workloads] == [(0, 1), (0, 1), (1, 0)]


def test_worker_tries_next_definition_if_one_raises(stored):
    stored()
    assert prepared(["matmul_add=users:raises"]) is None
    _, (trace,) = replayed(convert_worker, programs.matmul_add())
    assert not isinstance(trace, str)


def prepared(statements, functions=None):
    """Prepare the code of a worker process in this process; return the problem or None."""
    before = list(sys.path)
    sys.modules.pop("users", None)
    try:
        return convert_worker.prepare(statements, functions or {})
    finally:
        sys.path[:] = before


@pytest.mark.parametrize("function", REASONS)
def test_reason_of_failed_replay_names_the_definition(monkeypatch, stored, function):
    stored()
    monkeypatch.setattr(definitions, "load_definitions", lambda: ({}, {}))
    assert prepared([f"matmul_add=users:{function}"]) is None
    _, (reason,) = replayed(convert_worker, programs.matmul_add())
    assert reason.startswith(REASONS[function])


def test_prepare_returns_why_a_definition_does_not_load(stored):
    stored()
    assert "No module named 'nowhere'" in prepared(["matmul_add=nowhere:f"])
    assert "no attribute 'missing'" in prepared(["matmul_add=users:missing"])
    assert "not a function" in prepared(["matmul_add=users:te"])


def test_convert_rejects_malformed_definitions(stored):
    store = stored(programs.matmul_add())
    for statement in ("matmul_add", "matmul_add=users", "=users:f"):
        with pytest.raises(UsageError, match=r"expected NAME=package\.module:function"):
            convert(store, define=[statement], workers=1)


@pytest.mark.stress
def test_convert_rejects_definition_that_does_not_load(stored):
    with pytest.raises(PluginError, match="a definition does not load"):
        convert(stored(programs.matmul_add()), define=["matmul_add=nowhere:f"], workers=1)


# ---- The database -------------------------------------------------------------------------------


def test_convert_stores_converted_records_beside_their_originals(stored, one_pool, tmp_path):
    # The slowest record has the program of a faster one.
    tiles = {0.3: (2, 4, 8), 0.1: (1, 2, 4), 0.2: (2, 4, 8)}
    lines = [
        programs.matmul_add(tile) | {"r": [[time], 0, 1.0, 1_700_000_000]}
        for time, tile in tiles.items()
    ]
    failed = programs.line(["matmul_add", 32, 24, 64, "float32"], programs.CPU, [], error=4)
    unknown = programs.line(["mystery", 32], programs.CPU, [])
    store = stored(*lines, failed, unknown, programs.factored_sum())

    def converted():
        return [r for r in store.records.iterate() if r.measurement.origin is Origin.REPLAYED]

    # The fastest two of each workload.
    seen = []
    fastest = convert(store, best=2, on_begin=seen.append)
    assert [each.replayed for each in fastest.workloads] == [2, 0, 1]
    assert sorted(record.mean for record in converted()) == [0.1, 0.2, 0.25]
    assert seen == [4]
    seen.clear()
    report = convert(store, on_begin=seen.append, on_record=lambda: seen.append(1))
    named, other, _ = report.workloads
    assert (named.read, named.replayed, named.known, named.refused) == (3, 1, 2, 0)
    assert (other.read, other.undefined) == (1, 1)
    assert seen == [6, *[1] * 6]
    originals = {record.mean: record for record in list(store.records.iterate())[:6]}
    matmuls = [record for record in converted() if record.mean in tiles]
    assert len(matmuls) == 3
    for record in matmuls:
        original, measured = originals[record.mean], record.measurement
        assert (measured.program.workload.format, record.source) == ("tvm-graph", original.source)
        assert measured.donor == original.measurement.program.digest
        assert measured.run_secs == original.measurement.run_secs
        assert measured.program.target == original.measurement.program.target
        # They are served for the target of the log alone.
        assert measured.program.target.attributes == {"kind": "llvm", "keys": ["cpu"]}
    slowest = max(matmuls, key=lambda record: record.mean)
    assert lineage_lines(lineage_of(store, slowest)) == ["replayed from record 1 of workload 1"]
    (workload,) = {record.workload_id for record in matmuls}
    assert len(store.records.top_k(workload)) == 3
    with closing(Database(tmp_path / "tune.db", target={"kind": "llvm", "num-cores": 2})) as here:
        workload = here.commit_workload(module_of(programs.matmul_add()))
        assert here.has_workload(workload.mod) and not here.get_top_k(workload, 5)


@pytest.mark.stress
def test_converted_programs_are_served_for_this_target_after_revalidation(stored, tmp_path):
    store, here = stored(programs.matmul_add(), programs.matmul_add((1, 2, 4))), host_target()
    convert(store, workers=1)
    with Revalidation(store, repeat=1) as revalidation:
        with pytest.raises(NotFoundError, match="no converted program of workload 1 for target 1"):
            revalidation.run([1], 1, converted_for=here)
        verdicts = revalidation.run([2], 1, converted_for=here)
    assert [verdict.outcome for verdict in verdicts] == ["passed", "passed"]
    with closing(Database(tmp_path / "tune.db", target=here)) as database:
        workload = database.commit_workload(module_of(programs.matmul_add()))
        times = [float(record.run_secs[0]) for record in database.get_top_k(workload, 5)]
    assert times == sorted(verdict.mean for verdict in verdicts)


def test_convert_skips_records_of_foreign_sources(stored):
    report = convert(stored(programs.matmul_add(), trust=Trust.FOREIGN), workers=1)
    assert (report.untrusted, report.total("read"), report.total("replayed")) == (1, 0, 0)


# ---- Hashes, and functions of the user ----------------------------------------------------------

HASH = "0123456789abcdef" * 2


#: Keys of operators that the definitions and the lists of workloads both know.
REGISTERED = [
    ["gemm", 8, 16, 32],
    ["swish_gemm", 8, 16, 32],
    ["batch_matmul_nkkm", 2, 4, 6, 8],
    ["conv1d_nlc", 1, 16, 4, 8, 3, 2, 1],
    ["conv2d_capsule_nhwijc", 1, 6, 6, 4, 8, 3, 2, 1],
    ["conv2d_nchw", 1, 7, 7, 4, 8, 3, 3, 2, 1],
    ["conv2d_nchw_bias_bn_relu", 1, 7, 7, 4, 8, 3, 3, 2, 1],
    ["conv2d_nhwc", 1, 7, 7, 4, 8, 3, 2, 1],
    ["conv2d_nhwc", 1, 7, 7, 4, 8, 3, 1, 2, 2, 2],
    ["conv2d_nhwc_bn_relu", 1, 7, 7, 4, 8, 3, 2, 1],
    ["conv2d_transpose_nhwc", 1, 4, 4, 8, 4, 4, 2, 1],
    ["conv3d_ndhwc", 1, 4, 6, 6, 4, 8, 3, 2, 1],
    ["depthwise_conv2d_nhwc", 1, 7, 7, 8, 3, 2, 1],
    ["matmul_relu", 8, 16, 32],
    ["norm_bmn", 2, 8, 16],
    ["softmax_mn", 8, 16],
    ["transpose_batch_matmul", 1, 8, 2, 16],
]


@pytest.mark.parametrize("key", REGISTERED, ids=lambda key: key[0])
def test_signature_of_a_registered_function_is_that_of_its_definition(key):
    signature = of_ansor(key)
    tensors = definitions.load_definitions()[0][key[0]](*key[1:])
    shapes = [tuple(map(int, tensor.shape)) for tensor in tensors]
    assert [shape for _, shape in signature.arguments] == shapes
    operations = estimate_tir_flops(DefinedWorkload.from_tensors(tensors).mod)
    # Operations on the result of the anchor do not count.
    assert 0.8 * operations <= signature.flops <= operations


@pytest.mark.parametrize(
    "arguments",
    [
        ["conv2d_layer", 1, 8, 7, 7, 16, 3, 3, 1, 1],
        ["conv2d_layer/add", 1, 8, 7, 7, 16, 3, 3, 1, 1],
        ["conv2d_layer/tutorial", 1, 7, 7, 16, 8, 3, 3, 1, 1],
        ["batch_matmul_layer", 2, 3, 4, 5, 6],
        ["depthwise_conv2d_layer", 1, 8, 7, 7, 3, 3, 2, 1],
        ["matmul_add", 8, 16, 32, "float32"],
        ["pool_layer", "avg", 1, 8, 7, 7, 3, 3, 2, 1],
        ["reduction_layer", [4, 5, 6], 1, False],
        ["matmul", 8, 16, 32],
        *REGISTERED,
    ],
    ids=lambda arguments: arguments[0],
)
def test_workload_from_module_equals_workload_from_its_tensors(arguments):
    name, *rest = arguments
    tensors = definitions.load_definitions()[0][name](*rest)
    by_tensors = DefinedWorkload.from_tensors(tensors)
    assert DefinedWorkload.from_module(by_tensors.mod) == by_tensors


def test_have_dimensions_accepts_any_order_of_inputs_before_the_output():
    shapes = [(2, 3), (3, 4), (4,), (2, 4)]
    fitting = [
        *([], [2, 3, 3, 4, 4, 2, 4], [4, 3, 4, 2, 3, 2, 4]),
        [[3, 4], [4], [2, 3], [2, 4]],
    ]
    others = [
        *([2, 3, 3, 4, 4, 2, 5], [2, 4, 2, 3, 3, 4, 4], [2, 3, 3, 4, 2, 4]),
        *([2, 3, 3, 4, 4, 2, 4, 1], [[3, 4], [4], [2, 4], [2, 3]], [[3, 4], 4, [2, 3], [2, 4]]),
    ]
    for dimensions in fitting:
        assert convert_worker.have_dimensions(shapes, dimensions), dimensions
    for dimensions in others:
        assert not convert_worker.have_dimensions(shapes, dimensions), dimensions
    # It is fast for many equal shapes.
    shapes = [*[(8, 8)] * 40, (320, 8)]
    assert convert_worker.have_dimensions(shapes, [8, 8] * 40 + [320, 8])
    assert not convert_worker.have_dimensions(shapes, [8, 8] * 39 + [8, 9, 320, 8])


def hashed(line, *dimensions):
    """Return a line whose workload has a hash in place of its name."""
    (task, rest), result = line["i"], line["r"]
    return {"i": [[json.dumps([HASH, *dimensions]), *task[1:]], rest], "r": result, "v": "v0.6"}


@pytest.fixture(scope="module")
def functions():
    """Functions of a user by name: three with the shapes of `matmul_add`, and others."""
    shapes = {"a": (32, 24), "b": (24, 64), "c": (32, 64)}
    a, b, c = (te.placeholder(shape, "float32", name) for name, shape in shapes.items())
    product = topi.nn.matmul(a, b)
    added = topi.add(product, c)
    tensors = {
        "fused_matmul_add": [a, b, c, added],
        "fused_matmul_add_relu": [a, b, c, topi.nn.relu(added)],
        "fused_relu_matmul_add": [a, b, c, topi.add(topi.nn.matmul(topi.nn.relu(a), b), c)],
        "matmul": [a, b, product],
        "softmax": [a, topi.nn.softmax(a)],
    }
    mods = {name: tvm.IRModule({"main": te.create_prim_func(t)}) for name, t in tensors.items()}
    return {name: tvm.ir.save_json(mod) for name, mod in mods.items()}


@pytest.mark.parametrize(
    ("dimensions", "reverse"),
    [
        ((32, 24, 24, 64, 32, 64, 32, 64), False),
        # The order of a network's arguments; that of the stages depends on the graph alone.
        ((32, 64, 32, 24, 24, 64, 32, 64), True),
        (([32, 24], [24, 64], [32, 64], [32, 64]), False),
        ((), False),
        ((), True),
    ],
    ids=["flat", "another order", "lists", "none", "none of reversed functions"],
)
def test_worker_replays_hash_on_the_function_that_its_steps_fit(functions, dimensions, reverse):
    """Other functions of these shapes have one more stage, which the steps do not fit."""
    names = sorted(functions, reverse=reverse)
    assert prepared((), {name: functions[name] for name in names}) is None
    (part,), (trace,) = replayed(convert_worker, hashed(programs.matmul_add(), *dimensions))
    assert not isinstance(trace, str), trace
    assert part.definition == "fused_matmul_add"
    mod = tvm.ir.load_json(functions["fused_matmul_add"])
    assert part.workload == modules.to_workload(mod)
    assert programs.farthest(mod, programs.on_processor(trace), part.args_info) < 1


def test_plan_of_marks_the_stages_that_steps_touch():
    def touched(*stages, steps):
        stages = [stage_of("x", (4, 6), is_input=True), *stages]
        return [stage.is_touched for stage in plan_of(stages, steps).stages]

    pad, out = stage_of("pad", (4, 6)), stage_of("out", (4, 6))
    assert touched(pad, out, steps=[["CA", 1, 2, 0]]) == [False, True, False]
    total = stage_of("sum", (4,), (6,))
    assert touched(total, steps=[["CHW", 1, "local"], ["CR", 2]]) == [False, True, True]


@pytest.mark.stress
def test_convert_leaves_hashes_without_matching_function_undefined(stored, functions):
    """Nothing is stored for them, and they do not count as errors."""
    matching = hashed(programs.matmul_add(), 32, 24, 24, 64, 32, 64, 32, 64)
    strange = hashed(programs.matmul_add(), 32, 24, 24, 64, 32, 64, 32, 65)
    other = hashed(programs.factored_sum(), 32, 24, 32, 24)
    gpu = hashed(programs.cuda_matmul(), 64, 32, 32, 64, 64, 64)
    store = stored(gpu, matching, strange, other)
    mods, asked = {name: tvm.ir.load_json(text) for name, text in functions.items()}, []

    def functions_of(kind):
        asked.append(kind)
        if kind == "cuda":
            raise PluginError("no such device")
        return mods

    report = convert(store, functions=functions_of, workers=1)
    assert sorted(asked) == ["cuda", "llvm"]
    assert report.problems == ["no function for targets of kind cuda: no such device"]
    assert [each.definitions for each in report.workloads] == [{}, {"fused_matmul_add": 1}, {}, {}]
    assert [each.undefined for each in report.workloads] == [1, 0, 1, 1]
    assert (report.total("replayed"), report.total("refused")) == (1, 0)
    # The converted program belongs to the user's own function, as if a run had tuned it.
    with_record = [s for s in store.workloads.find() if s.format != WorkloadFormat.ANSOR]
    expected = modules.to_workload(mods["fused_matmul_add"]).digest
    assert [store.workloads.get(s.id).digest for s in with_record] == [expected]
    again = convert(store, functions=functions_of, workers=1)
    assert (again.total("known"), again.total("replayed")) == (1, 0)


# ---- Public logs --------------------------------------------------------------------------------

#: Distance between the lines that are read from the V100 log.
EVERY = 100_025 // examples(25)


@pytest.fixture(scope="module")
def v100():
    """Some of Roller's records of a V100, measured without error."""
    with lzma.open(DATA / "costmodel" / "roller_ansor" / "v100.jsonl.xz", "rt") as file:
        lines = [json.loads(line) for line in islice(file, 7, None, EVERY)]
    return [line for line in lines if line["r"][1] == 0]


@needs_logs
def test_converted_kernels_have_blocks_threads_and_vthreads_of_the_steps(worker, v100):
    names = ("grid.blocks", "grid.threads", "grid.vthreads")
    for line in v100:
        _, (trace,) = replayed(worker, line)
        assert not isinstance(trace, str), trace
        key = Workload(WorkloadFormat.ANSOR, line["i"][0][0].encode())
        steps = split_steps(line["i"][1][1], None)
        target = Target.from_config({"kind": "cuda", "max_num_threads": 1024})
        program = StoredProgram(1, 1, key, signature_of(key), 1, target, 1, None, steps)
        row = dict(zip(STEPS.columns, STEPS.rows([program])[0][0].tolist(), strict=True))
        extents = programs.grid(TraceBuilder().scheduled(module_of(line), trace))
        expected = [log2(1 + extent) for extent in extents]
        assert [row[name] for name in names] == pytest.approx(expected), line["i"]


def converted_resnet50(database, commit):
    """Convert TVM's log of ResNet-50 at a commit, with that network as of today."""
    pytest.importorskip("onnx")
    from networks import preactivated_resnet50
    from tvm.relax.frontend.onnx import from_onnx

    log = DATA / "ansor" / "tvm_ci_logs" / f"resnet-50-NHWC-B1-llvm_{commit}.json"
    mod = from_onnx(preactivated_resnet50())
    with Store(database) as store:
        import_log(store, *find_logs([log]), source="tvm")
        return convert(store, functions=lambda kind: tasks_of(mod, {"kind": kind}), workers=1)


@pytest.mark.stress
@needs_logs
def test_convert_replays_records_with_padding_that_is_only_attached(sqlite_file):
    """TVM's log of March 2021 has 3x3 convolutions with such a padding."""
    report = converted_resnet50(sqlite_file, "d0cc9b6")
    attached = [each for each in report.workloads if each.name.startswith("0fb1dfcd")]
    assert attached and all(each.replayed == each.read for each in attached)


@pytest.mark.stress
@needs_logs
def test_convert_replays_hashes_of_resnet50_on_functions_of_the_network(sqlite_file):
    """The log is TVM's for ResNet-50 (NHWC); the functions are those of the network today."""
    report = converted_resnet50(sqlite_file, "e6d5318")
    assert (report.total("read"), report.total("replayed"), report.total("refused")) == (26, 21, 0)
    # The other five end in batch norms that Relay folded into other operators than Relax does.
    stay = [each.name.split()[0] for each in report.workloads if each.undefined]
    assert stay == ["875556d1", "1b524af8", "1b524af8", "a5612fde", "1b524af8"]
    named = [name for each in report.workloads for name in each.definitions]
    assert len(set(named)) == 21


@needs_logs
def test_converted_tutorial_record_computes_the_same_as_untuned_program(worker):
    """The record is of v0.2 or v0.3, which have no layout option."""
    file = DATA / "ansor" / "tvm_ci_logs" / "v0.2_or_3_matmul_c70238e.json"
    line = next(json.loads(each) for each in file.read_text().splitlines() if each[:1] == "{")
    (part,), (trace,) = replayed(worker, line)
    assert programs.farthest(module_of(line), trace, part.args_info) < 1
