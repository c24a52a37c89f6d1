from __future__ import annotations

import json
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from public_logs import GPU, needs_gpu_logs

from tunedb.advisor.counters import aliases, describe, neutral
from tunedb.formats.gpu.profilers import parse_capability
from tunedb.launches import CounterSet

#: Table I of the paper, repaired.
_TABLE_ONE = """
    gld_request gst_request fb_read_sectors fb_write_sectors l1_local_load_hit
    l1_local_load_miss l1_local_store_hit l1_local_store_miss l1_global_load_hit
    l1_global_load_miss uncached_global_load_transaction global_store_transaction
    gld_inst_32bit gst_inst_32bit inst_issued inst_executed thread_inst_executed
    not_predicated_off_thread_inst_executed l2_write_sector_misses l2_read_sector_misses
    l2_read_l1_hit_sectors l2_total_read_sector_queries l2_total_write_sector_queries
    shared_load_replay global_ld_mem_divergence_replays global_st_mem_divergence_replays
"""
TABLE_ONE = _TABLE_ONE.split()

#: Names that are events of several memory slices, or sums of two events.
PARTS = {
    "fb_read_sectors": "fb_subp0_read_sectors fb_subp1_read_sectors",
    "fb_write_sectors": "fb_subp0_write_sectors fb_subp1_write_sectors",
    "inst_issued": "inst_issued1 inst_issued2",
}
PARTS |= {
    name: " ".join(name.replace("l2_", f"l2_subp{n}_") for n in range(4))
    for name in TABLE_ONE
    if name.startswith("l2_")
}

PER_INSTRUCTION = "smsp__thread_inst_executed_per_inst_executed.ratio"
#: Names of profilers, neutral ones, and one that no table has.
NAMES = [*sorted({n for a in aliases() for n in (a.name, a.canonical) if n}), "own"]


def named(tool, values, capability=None):
    """Return the neutral counters of a mapping."""
    names = tuple((name, "") for name in values)
    return neutral(CounterSet(tool, None, capability, names), tuple(values.values()))


def ktt_names():
    """Return KTT's counters of Nsight Compute, with their neutral names."""
    return [a for a in aliases() if a.origin == "ktt" and a.checked == "data"]


def test_table_one_has_26_events_and_all_are_known():
    all_events = {}
    for token in TABLE_ONE:
        events = dict.fromkeys(PARTS.get(token, token).split(), 1.0)
        (name,) = named("nvprof", events, "3.5")
        assert describe(name).kind == "count"
        all_events |= events
    assert len(TABLE_ONE) == len(named("nvprof", all_events, "3.5")) == 26


def test_counters_of_memory_slices_are_summed():
    values = {"l2_subp0_read_sector_misses": 1.0, "l2_subp1_read_sector_misses": 2.0}
    assert named("nvprof", values, "3.5") == {"l2_read_sector_misses": 3.0}
    values |= {"l2_subp2_read_sector_misses": 4.0, "l2_subp3_read_sector_misses": 8.0}
    assert named("nvprof", values, "3.5") == {"l2_read_sector_misses": 15.0}
    reads = {"fb_subp0_read_sectors": 3.0, "fb_subp1_read_sectors": 4.0}
    assert named("nvprof", reads, "3.5") == {"dram_read_transactions": 7.0}
    # A sum with an unmeasured part is left out.
    assert named("nvprof", reads | {"fb_subp1_read_sectors": math.nan, "ipc": 1.0}) == {"ipc": 1.0}


def test_inst_issued_is_single_plus_twice_dual_issues():
    both = {"inst_issued1": 10.0, "inst_issued2": 3.0}
    assert named("nvprof", both, "3.5") == {"inst_issued": 16.0}
    # One of the two does not determine the sum.
    assert named("nvprof", {"inst_issued1": 10.0}, "3.5") == {"inst_issued1": 10.0}
    # A metric of that name needs no sum.
    assert named("nvprof", both | {"inst_issued": 17.0}) == both | {"inst_issued": 17.0}


@pytest.mark.parametrize(
    ("name", "value", "neutral_name", "expected"),
    [
        ("dram__throughput.avg.pct_of_peak_sustained_elapsed", 73.0, "dram_utilization", 7.3),
        ("sm__warps_active.avg.pct_of_peak_sustained_active", 50.0, "achieved_occupancy", 0.5),
        (PER_INSTRUCTION, 16.0, "warp_execution_efficiency", 50.0),
        ("dram__bytes_read.sum", 640.0, "dram_read_transactions", 20.0),
        ("Occupancy: Achieved Occupancy", 25.0, "achieved_occupancy", 0.25),
    ],
)
def test_ncu_values_are_scaled_to_those_of_nvprof(name, value, neutral_name, expected):
    assert named("ncu", {name: value}, "8.6") == pytest.approx({neutral_name: expected})


def test_neutral_names_depend_on_compute_capability():
    requests = {"l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": 5.0}
    assert named("ncu", requests, "8.6") == {"tex_cache_transactions": 5.0}
    assert named("ncu", requests, "12.0") == {"gld_request": 5.0}
    read = {"dram__bytes_op_read.sum": 64.0}
    assert named("ncu", read, "12.0") == {"dram_read_transactions": 2.0}
    # Before Blackwell there is no such counter, so its name stays.
    assert named("ncu", read, "8.6") == read


def test_33_counters_of_ktt_have_different_neutral_names():
    values = {a.name: float(n) for n, a in enumerate(ktt_names(), 1)}
    assert len(values) == 33
    found = named("ncu", values, "7.5")
    assert len(found) == 33
    assert set(found) <= {a.canonical for a in aliases()}


def test_neutral_keeps_unknown_names_in_order_and_leaves_unmeasured_counters_out():
    values = {"zz__own.sum": 1.0, "aa__own.sum": 2.0, "smsp__inst_executed.sum": 3.0}
    assert list(named("ncu", values)) == ["inst_executed", "zz__own.sum", "aa__own.sum"]
    values = {"inst_executed": math.nan, "ipc": math.inf, "gld_transactions": 0.0}
    assert named("nvprof", values) == {"gld_transactions": 0.0}


def test_counters_of_kernel_tuner_are_recognised_by_ncu_names():
    assert named("kernel_tuner", {"smsp__inst_executed.sum": 3.0}) == {"inst_executed": 3.0}
    assert named("nvprof", {"smsp__inst_executed.sum": 3.0}) == {"smsp__inst_executed.sum": 3.0}


def test_neutral_rejects_wrong_number_of_values():
    with pytest.raises(ValueError, match="1 values of 2"):
        neutral(CounterSet("ncu", None, None, (("a", ""), ("b", ""))), (1.0,))


@given(
    st.dictionaries(st.sampled_from(NAMES), st.floats(1, 1e9), max_size=30),
    st.sampled_from(["ncu", "nvprof", "kernel_tuner"]),
    st.sampled_from([None, "3.5", "5.2", "8.6", "12.0"]),
)
def test_neutral_keeps_unknown_counters_and_adds_none(values, tool, capability):
    """Each measured counter belongs to one neutral counter, so their number never grows."""
    found = named(tool, values, capability)
    assert len(found) <= len(values)
    assert bool(found) == bool(values)
    assert all(math.isfinite(value) for value in found.values())
    for name in values:
        # A counter that no row of the table has keeps its own name.
        rows = [a for a in aliases() if a.name == name]
        assert rows or found[name] == values[name]


def test_alias_table_is_consistent():
    for alias in aliases():
        assert alias.tool in ("ncu", "nvprof") and alias.aggregation in ("one", "parts", "all")
        assert alias.exactness in ("exact", "near", "none")
        assert alias.checked in ("data", "source", "no")
        assert alias.scale > 0
        assert alias.cc_min is None or alias.cc_max is None or alias.cc_min <= alias.cc_max
        assert alias.name or alias.exactness == "none"
        assert describe(alias.canonical).text != alias.canonical
        # Neutral names are those of nvprof, which have no double underscore.
        assert "__" not in alias.canonical
    keys = Counter((a.canonical, a.tool, a.name) for a in aliases())
    assert max(keys.values()) == 1


def test_unverified_names_are_marked():
    unsure = {a.name for a in aliases() if a.checked == "no"}
    assert "smsp__thread_inst_executed_pred_on.sum" in unsure
    assert "lts__t_sectors_srcunit_tex_op_read_lookup_hit.sum" in unsure
    assert "dram__sectors_read.sum" not in unsure


@pytest.mark.parametrize(
    ("name", "kind", "unit"),
    [
        ("dram_utilization", "level", "0 to 10"),
        ("sm_efficiency", "percent", "%"),
        ("inst_executed", "count", ""),
        ("ipc", "ratio", ""),
        ("gld_throughput", "rate", "byte/s"),
        ("duration", "time", "s"),
        ("any__thing.avg.pct_of_peak_sustained_elapsed", "percent", "%"),
        ("any__thing.sum", "count", ""),
        ("any__thing.sum.per_second", "rate", "1/s"),
        ("nothing", "unknown", ""),
    ],
)
def test_describe_returns_kind_and_unit(name, kind, unit):
    found = describe(name)
    assert (found.name, found.kind, found.unit) == (name, kind, unit)


def test_parse_capability_returns_numbers_or_none():
    parsed = {"7.5": (7, 5), "10.0": (10, 0), "9": (9, 0), "": None, None: None, "x.y": None}
    assert {text: parse_capability(text) for text in parsed} == parsed


@needs_gpu_logs
def test_ktt_counters_before_and_after_7_0_have_equal_neutral_names():
    """Of the new sums only inst_fp16_pipe has no partner among the old counters."""
    names = (GPU / "ktt" / "1070_profile_counters.pc.txt").read_text().split("\n")[1:]
    sizes = {"Global size", "Local size", "Maximum work-group size", "Registers count"}
    sizes |= {f"{space} memory size" for space in ("Local", "Private", "Constant")}
    old = [name for name in names if name and name not in sizes]
    assert len(names[:44]) == 44
    found = named("nvprof", {name: float(n) for n, name in enumerate(old, 1)}, "6.1")
    assert found == {name: float(n) for n, name in enumerate(old, 1)}
    assert all(describe(name).text != name for name in found)
    new = {a.canonical for a in ktt_names() if a.name.endswith(".sum")}
    assert new - set(old) == {"inst_fp16_pipe"}


@needs_gpu_logs
def test_alias_table_has_the_33_names_of_real_files():
    document = json.loads((GPU / "ktt" / "2080-vectorAdd_output_DT.sav.metadata.json").read_text())
    names = [name for name in document["pc"] if "__" in name]
    assert set(names) == {a.name for a in ktt_names()}
    assert len(names) == 33
