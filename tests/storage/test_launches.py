"""Launches of kernels and their counters: validation, digests and storage."""

import math

import orjson
import pytest
from builders import FOREIGN, OWN, make_measurement, sql
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tunedb import limits
from tunedb.cli import main
from tunedb.errors import FormatError, NotFoundError
from tunedb.features.base import feature_set
from tunedb.formats.gpu.kernels import gpu_target, kernel_workload
from tunedb.identity import canonical_json
from tunedb.launches import CounterSet, Launch, counters_of, values_of
from tunedb.maintenance.check import check
from tunedb.maintenance.prune import PruneRules, plan, prune
from tunedb.models.dataset import load
from tunedb.programs import allowlist
from tunedb.programs.kernel import split_parameters
from tunedb.records import Measurement, Program, Status, Trace, Workload, WorkloadFormat
from tunedb.storage import launches as reading
from tunedb.storage.exchange_types import Selection
from tunedb.storage.store import Store

COUNTERS = CounterSet("ncu", "2026.1", "7.5", (("dram__bytes.sum", "byte"), ("ipc", "")))
WORKLOAD, TARGET = kernel_workload("conv", [64, 64]), gpu_target("cuda", "Tesla K40c")


def program(number, *, kernel=WORKLOAD, target=TARGET):
    return Program(kernel, target, split_parameters({"block_size_x": 32 * number, "mode": "a"}))


def profiled(warps, *, counted=True, **fields):
    """Return a launch of blocks of so many warps."""
    if counted:
        fields |= {"counter_set": COUNTERS, "values": (2.0 * warps, math.nan)}
    return Launch("conv<float>", 32 * warps, (32 * warps, 1, 1), (8, 1, 1), **fields)


def measured(number, *, kernel=WORKLOAD, target=TARGET, **fields):
    fields.setdefault("launches", (profiled(number),))
    fields.setdefault("context", b'{"log":"ktt"}')
    made = program(number, kernel=kernel, target=target)
    return Measurement(made, fields.pop("secs", (1e-3 * number,)), **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"threads": 0}, "threads of a block"),
        ({"threads": limits.MAX_BLOCK_THREADS + 1}, "threads of a block"),
        ({"threads": True}, "threads of a block"),
        ({"threads": 32.0}, "threads of a block"),
        ({"block": (16, 1, 1)}, "has not 32 threads"),
        ({"block": (32, 1)}, "2 extents"),
        ({"block": (-32, -1, 1)}, "extent"),
        ({"grid": (0, 1, 1)}, "extent"),
        ({"grid": (2**31, 1, 1)}, "extent"),
        ({"number": -1}, "number"),
        ({"number": limits.MAX_LAUNCHES}, "number"),
        ({"registers": -1}, "registers"),
        ({"static_shared": 2**31}, "static_shared"),
        ({"dynamic_shared": 1.5}, "dynamic_shared"),
        ({"kernel": "k" * (limits.MAX_KERNEL_CHARS + 1)}, "name of 16385 characters"),
        ({"values": (1.0,)}, "1 values of 0 counters"),
        ({"counter_set": COUNTERS}, "0 values of 2 counters"),
        ({"counter_set": COUNTERS, "values": (1.0,) * 3}, "3 values of 2 counters"),
    ],
)
def test_invalid_launches_are_refused(fields, message):
    with pytest.raises(FormatError, match=message):
        Launch(**{"kernel": "k", "threads": 32, **fields})


def test_launch_accepts_values_at_the_limits():
    most = limits.MAX_BLOCK_THREADS
    launch = Launch(
        *("k" * limits.MAX_KERNEL_CHARS, most, (most, 1, 1), (2**31 - 1, 1, 1)),
        number=limits.MAX_LAUNCHES - 1,
    )
    assert launch.threads == most


LONG = "a" * (limits.MAX_COUNTER_CHARS + 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"counters": (("a", ""),) * (limits.MAX_COUNTERS + 1)},
        {"counters": ((LONG, ""),)},
        {"counters": (("a", LONG),)},
        {"tool": LONG},
        {"tool_version": LONG},
        {"tool": None},
        {"counters": ((1, ""),)},
        {"counters": tuple((f"{n:0250}", "u" * 250) for n in range(1100))},
    ],
    ids=["many", "name", "unit", "tool", "version", "no tool", "number", "long"],
)
def test_invalid_counter_sets_are_refused(fields):
    """The last one is over MAX_COUNTER_SET_BYTES."""
    nothing = {"tool_version": None, "compute_capability": None, "counters": ()}
    with pytest.raises(FormatError):
        CounterSet(**{"tool": "ncu", **nothing, **fields})
    assert limits.MAX_COUNTER_SET_BYTES < 1100 * 500


def test_digests_cover_all_fields_of_launches_and_counter_sets():
    fields = {
        **{"kernel": "other", "threads": 64, "block": (32, 1, 1), "grid": (2, 1, 1), "number": 1},
        **{"registers": 0, "static_shared": 0, "dynamic_shared": 0, "seconds": 0.0},
    }
    found = {Launch("k", 32).digest(b"m" * 16), Launch("k", 32).digest(b"n" * 16)}
    for name, value in fields.items():
        found.add(Launch(**{"kernel": "k", "threads": 32, name: value}).digest(b"m" * 16))
    for version in ("1", "2"):
        counters = CounterSet("ncu", version, None, (("a", ""),))
        for value in (1.0, 2.0, math.nan):
            one = Launch("k", 32, counter_set=counters, values=(value,))
            found.add(one.digest(b"m" * 16))
    assert len(found) == 2 + len(fields) + 6
    sets = (
        *(("ncu", None, None, ()), ("nvprof", None, None, ())),
        *(("ncu", "1", None, ()), ("ncu", None, "1", ())),
        *(("ncu", None, None, (("a", ""),)), ("ncu", None, None, (("a", "%"),))),
        ("ncu", None, None, (("a", ""), ("b", ""))),
        ("ncu", None, None, (("b", ""), ("a", ""))),
    )
    assert len({CounterSet(*given).digest for given in sets}) == len(sets)


def test_launch_and_counter_set_normalise_equal_values():
    """NaN has many encodings, SQLite keeps no -0.0, and "" and None both mean no version."""
    strange = values_of(b"\x01" + b"\0" * 5 + b"\xf8\xff")
    counters = CounterSet("ncu", None, None, (("a", ""),))
    assert counters == CounterSet("ncu", "", "", (("a", ""),))
    digests = {
        Launch("k", 32, counter_set=counters, values=value).digest(b"m")
        for value in (strange, (math.nan,))
    }
    assert len(digests) == 1
    assert str(Launch("k", 32, counter_set=counters, values=(-0.0,)).values) == "(0.0,)"
    assert Launch("k", 32, seconds=math.inf) == Launch("k", 32)
    assert Launch("a\0\udcff", 32).kernel == "a\\0\\udcff"


@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=5)), max_size=5))
def test_counters_survive_round_trip(counters):
    made = CounterSet("ncu", None, None, tuple(counters))
    assert counters_of(made.body) == made.counters
    assert CounterSet("ncu", None, None, made.counters) == made


def test_invalid_counters_and_values_of_a_wrong_length_are_refused():
    for body in (b"{", b"{}", b'["a"]', b'[["a"]]', b'[["a",1]]', b'[["a","","b"]]'):
        with pytest.raises(FormatError):
            counters_of(body)
    assert values_of(None) == ()
    with pytest.raises(FormatError, match="7 bytes"):
        values_of(b"\0" * 7)


def test_launches_are_stored_once(store):
    records = [measured(1), measured(2, launches=(profiled(2), profiled(3, number=1)))]
    assert [store.records.add(records, OWN).new for _ in range(2)] == [2, 0]
    assert store.counts().launches == 3
    found = store.launches.for_record(2)
    assert [(one.threads, one.number) for one in found] == [(64, 0), (96, 1)]
    assert found[0].counter_set == COUNTERS
    assert repr(found[0]) == repr(records[1].launches[0])
    with store._db.transaction() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM counter_set").scalar() == 1
    assert check(store.url).problems == []


def test_add_stores_only_new_launches_of_known_records(store):
    bare = measured(1, launches=())
    store.records.add([bare], OWN)
    assert store.launches.for_record(1) == []
    given_ = [(bare, profiled(1)), (measured(9), profiled(9))]
    assert [store.launches.add(one) for one in (given_, given_[:1], [])] == [1, 0, 0]
    # A repeated import has another launch: the record is known, and its launch is new.
    store.records.add([measured(1, launches=(profiled(1, number=1),))], OWN)
    assert [one.number for one in store.launches.for_record(1)] == [0, 1]
    assert check(store.url).problems == []


def test_failed_transaction_leaves_no_counter_set_in_the_cache(store):
    """Otherwise the cache would return an id that no row has."""
    other = CounterSet("nvprof", None, None, (("a", ""),))
    good = measured(1, launches=(Launch("k", 1, counter_set=other, values=(1.0,)),))
    with pytest.raises(FormatError):
        store.records.add([good, make_measurement(3, (math.inf,))], OWN)
    store.records.add([good], OWN)
    assert store.launches.for_record(1)[0].counter_set == other
    assert check(store.url).problems == []


def test_iterate_yields_launches_by_record_and_applies_filters(store, monkeypatch):
    monkeypatch.setattr(reading, "_PAGE", 2)
    other = gpu_target("opencl", "gfx90a")
    records = [measured(n) for n in (3, 1, 2)]
    records += [
        measured(4, kernel=kernel_workload("gemm"), target=other, launches=()),
        measured(5, secs=(), status=Status.FAILED),
    ]
    store.records.add(records, FOREIGN)
    store.launches.add([(records[3], profiled(4, counted=False)), (records[0], profiled(6))])
    rows = list(store.launches.iterate())
    assert [(row.record_id, row.launch.threads) for row in rows] == [
        *((1, 96), (1, 192)),
        *((2, 32), (3, 64), (4, 128)),
    ]
    first = rows[0]
    assert (first.workload, first.target, first.trace) == (WORKLOAD, TARGET, program(3).trace)
    assert (first.run_secs, first.mean, first.trust) == ((3e-3,), 3e-3, FOREIGN.trust)
    assert (first.context, first.digest) == (b'{"log":"ktt"}', records[0].digest)
    assert first.workload is rows[1].workload
    assert first.launch.counter_set is rows[2].launch.counter_set

    def threads(**options):
        return [row.launch.threads for row in store.launches.iterate(**options)]

    assert threads(counted=True) == [96, 192, 32, 64]
    assert threads(counted=False) == threads(workload_ids=[2]) == threads(target_ids=[2]) == [128]
    assert threads(workload_ids=[]) == []
    assert threads(statuses=None) == [96, 192, 32, 64, 128, 160]
    assert threads(statuses=[Status.FAILED]) == [160]
    store.trust.retract([1], "measured under load")
    assert threads() == [32, 64, 128]


def test_kernel_name_finds_the_kernel_and_not_its_t1_input(store):
    """The T1 input describes the kernel of that name."""
    body = canonical_json({"KernelSpecification": {"KernelName": "conv"}})
    described = store.workloads.add(Workload(WorkloadFormat.T1, body, "conv"))
    store.records.add([measured(1)], OWN)
    assert store.training.t1_inputs() == [("conv", body)]
    assert store.lookup.workloads("conv") == [store.workloads.id_of(WORKLOAD.digest)]
    assert store.lookup.workloads(str(described)) == [described]


#: Changes of the first launch or set of counters → the check that finds them, and the table.
DAMAGES = {
    "launch SET threads = 31": ["readable launch"],
    "launch SET threads = 0, block_x = NULL": ["readable launch"],
    "launch SET number = 5": ["digest launch"],
    "launch SET kernel = 'x'": ["digest launch"],
    "launch SET counters = x'00'": ["readable launch"],
    "launch SET counters = zeroblob(8)": ["readable launch"],
    "launch SET counters = zeroblob(16)": ["digest launch"],
    "launch SET counters = NULL": ["readable launch"],
    "launch SET measurement_id = 2": ["digest launch"],
    "launch SET grid_y = NULL": ["readable launch"],
    "launch SET counter_set_id = 9": ["foreign keys launch", "readable launch"],
    "launch SET measurement_id = 9": ["foreign keys launch"],
    "counter_set SET tool = 'x'": ["digest counter_set"],
    "counter_set SET counters = '[]'": ["digest counter_set", "readable launch"],
    "counter_set SET counters = '{'": ["readable counter_set"],
}


@pytest.mark.parametrize("change", DAMAGES)
def test_check_finds_damaged_launches_and_counter_sets(change, sqlite_file):
    with Store(sqlite_file) as store:
        store.records.add([measured(1), measured(2)], OWN)
    sql(sqlite_file, f"UPDATE {change} WHERE id = 1")
    found = {f"{one.check} {one.table}" for one in check(sqlite_file).problems if one.id == 1}
    assert found >= set(DAMAGES[change])


def test_prune_removes_launches_with_their_records(store):
    """It keeps the last launch and its record: SQLite would reuse their ids."""
    rules = PruneRules(selection=Selection(best=1, rest=0))
    store.records.add([measured(n) for n in range(1, 6)], OWN)
    chosen = plan(store, rules)
    (part,) = (part for part in chosen.parts if part.kind == "launches")
    assert (part.rows, part.bytes > 0) == (3, True)
    assert prune(store, chosen).launches == 3
    assert [row.record_id for row in store.launches.iterate()] == [1, 5]
    # Now the last launch is not one of the last record.
    store.records.add([measured(n, launches=()) for n in range(6, 9)], OWN)
    store.launches.add([(measured(7, launches=()), profiled(3))])
    prune(store, plan(store, rules))
    assert [row.record_id for row in store.launches.iterate()] == [1, 7]
    assert check(store.url).problems == []


def check_parameters(names, values, *, tail=None):
    sketch = canonical_json({"parameters": names})
    trace = Trace(sketch, tail, canonical_json(values))
    allowlist.check_trace(trace, WorkloadFormat.KERNEL)


def test_allowlist_accepts_valid_kernel_parameters():
    for value in (1, -7, 2**62, 0.5, True, None, "", "float4", "nhwc_v1.2", "-O3", "row-major"):
        check_parameters(["block_size_x", "_MDIMC", "a.b"], [32, value, value])


@pytest.mark.parametrize(
    ("names", "values", "message"),
    [
        *(
            ([name], [1], "a parameter is called")
            for name in ("a b", "1a", "", "x" * 65, "x\n", "$(rm)", 7)
        ),
        *(
            (["a"], [value], "a parameter has")
            for value in ("$(rm -rf /)", "x" * 65, [1], {"b": 1})
        ),
        (["a", "a"], [1, 2], "two parameters have one name"),
        ("a", [1], "not a list"),
        (["a"], {}, "not a list of values"),
        (["a"], [], "0 values of 1 parameters"),
        (["a"], [1, 2], "2 values of 1 parameters"),
        (["a"] * (limits.MAX_FOREIGN_STEPS + 1), [], "list of at most"),
    ],
)
def test_allowlist_rejects_invalid_kernel_parameters(names, values, message):
    with pytest.raises(FormatError, match=message):
        check_parameters(names, values)


def test_allowlist_rejects_invalid_sketches_tails_and_decisions_of_kernels():
    for sketch in (b"[]", b"{", b'{"parameters":[],"x":1}', b'{"parameters": []}'):
        with pytest.raises(FormatError):
            allowlist.check_part("sketch", sketch, WorkloadFormat.KERNEL)
    for tail in (b"[]", b'{"parameters":[]}'):
        with pytest.raises(FormatError, match="has no tail"):
            check_parameters([], [], tail=tail)
    with pytest.raises(FormatError):
        allowlist.check_decisions(b"[1" + b" " * limits.MAX_FOREIGN_DECISION_BYTES, "gpu-kernel")
    with pytest.raises(FormatError, match="unknown format"):
        allowlist.check_decisions(b"[]", WorkloadFormat.T1)


def run(path, *arguments):
    result = CliRunner().invoke(main, ["--db", str(path), *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_feature_extraction_and_training_leave_out_kernels(sqlite_file):
    """They are left out without a quarantined row."""
    steps = feature_set("steps")
    with Store(sqlite_file) as store:
        store.records.add([measured(n) for n in (3, 1, 2)], OWN)
        assert store.features.coverage(steps).programs == 0
        assert store.programs.without_features(steps) == []
        with pytest.raises(NotFoundError, match="tunedb advise train"):
            load(store, steps)
        store.records.add([make_measurement(1)], OWN)
        assert len(store.programs.without_features(steps)) == 1
        shown = run(sqlite_file, "extract", "--set", "steps")
        assert "configurations of GPU kernels have no features" in shown
        assert len(store.training.records(steps)) == 1
        assert store.counts().quarantined == 0


def test_commands_show_kernels(sqlite_file):
    with Store(sqlite_file) as store:
        store.records.add([measured(n) for n in (3, 1, 2)], OWN)
    assert "conv" in run(sqlite_file, "workloads")
    assert run(sqlite_file, "top", "conv", "--csv").count("\n") == 4
    assert "cuda Tesla K40c" in run(sqlite_file, "history", "conv")
    shown = run(sqlite_file, "show", "2")
    for words in ("block_size_x = 32", "dram__bytes.sum", "32 x 1 x 1"):
        assert words in shown
    row = orjson.loads(run(sqlite_file, "show", "2", "--json"))
    (launch,) = row["launches"]
    assert (launch["kernel"], launch["block"]) == ("conv<float>", [32, 1, 1])
    assert launch["counters"] == [
        {"name": "dram__bytes.sum", "value": 2.0, "unit": "byte"},
        {"name": "ipc", "value": None, "unit": ""},
    ]
    assert row["trace"] is None
    assert orjson.loads(run(sqlite_file, "db", "info", "--json"))["counts"]["launches"] == 3


def test_show_escapes_control_characters_of_launches(sqlite_file):
    """Their names come from files of others."""
    evil = "\x1b]0;owned\x07"
    counters = CounterSet(evil, evil, evil, ((evil, evil),))
    with Store(sqlite_file) as store:
        launch = Launch(evil, 1, counter_set=counters, values=(1.0,))
        store.records.add([measured(1, launches=(launch,))], OWN)
    assert not {"\x1b", "\x07"} & set(run(sqlite_file, "show", "1"))
