from hypothesis import given
from hypothesis import strategies as st

from tunedb.advisor.collect.plan import group_counters
from tunedb.advisor.counters import aliases
from tunedb.formats.gpu.nvprof import event_domain
from tunedb.formats.gpu.profilers import profilers

NCU, NVPROF = profilers()["ncu"], profilers()["nvprof"]

names = st.lists(
    st.sampled_from([row.name for row in aliases() if row.name]) | st.text(min_size=1, max_size=5),
    max_size=60,
)


@given(st.sampled_from([NCU, NVPROF]), names, st.integers(0, 5))
def test_group_counters_returns_a_partition(profiler, counters, per_run):
    made = group_counters(profiler, counters, per_run)
    flat = [name for group in made for name in group]
    assert sorted(flat) == sorted(set(counters))
    assert all(made)
    if per_run:
        assert all(len(group) <= per_run for group in made)


@given(names)
def test_groups_of_nvprof_respect_the_events_per_unit(counters):
    for group in group_counters(NVPROF, counters):
        for unit in set(map(event_domain, group)):
            most = 4 if unit == "multiprocessor" else 2
            assert sum(event_domain(name) == unit for name in group) <= most


def test_events_of_different_units_share_a_run():
    mixed = ("gld_request", "fb_subp0_read_sectors", "l2_subp3_write_sector_misses")
    assert [event_domain(name) for name in mixed] == ["multiprocessor", "fb_subp0", "l2_subp3"]
    assert group_counters(NVPROF, mixed) == [mixed]


def test_unverified_counters_have_groups_of_their_own():
    unsure = {row.name for row in aliases() if row.tool == "ncu" and row.checked == "no"}
    made = group_counters(NCU, NCU.default_counters((8, 0)))
    assert unsure
    for group in made:
        assert set(group) <= unsure or not set(group) & unsure


def test_default_counters_of_kepler_are_the_events_of_table_one():
    """The 26 events of the document, those of memory and cache once per slice."""
    found = NVPROF.default_counters((3, 5))
    assert len(found) == 44
    assert {"gld_request", "fb_subp1_write_sectors", "l2_subp3_read_l1_hit_sectors"} <= set(found)
    assert {"inst_issued1", "inst_issued2", "not_predicated_off_thread_inst_executed"} <= set(found)


def test_default_counters_are_names_that_the_device_has():
    old = "smsp__inst_executed_op_global_ld.sum"
    for capability in ((7, 5), (9, 0)):
        assert old in NCU.default_counters(capability)
    found = NCU.default_counters((10, 0))
    assert old not in found
    assert "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum" in found
    assert NVPROF.default_counters((7, 5)) == NCU.default_counters((5, 0)) == ()
