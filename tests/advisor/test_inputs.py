import math

import numpy as np
import pytest
from observing import observe
from public_logs import needs_gpu_logs

from tunedb.advisor.inputs import geometry, ratios, raw, resident, shared_bytes
from tunedb.advisor.observations import Inputs


def row(inputs: Inputs, number=0):
    return dict(zip(inputs.names, inputs.values[number].tolist(), strict=True))


def test_raw_returns_nan_for_missing_counters():
    first = observe(counters={"b": 2.0, "a": 1.0})
    found = raw([first, observe(counters={"c": 3.0}), observe()])
    assert found.names == ("a", "b", "c")
    np.testing.assert_array_equal(
        found.values, [[1, 2, math.nan], [math.nan, math.nan, 3], [math.nan] * 3]
    )
    assert found.values.dtype == np.float64


def test_inputs_without_observations_or_counters_are_empty_but_for_geometry():
    for found in (raw([]), ratios([])):
        assert (found.names, found.values.shape) == ((), (0, 0))
    assert raw([observe(), observe()]).values.shape == (2, 0)
    assert "log2_threads" in ratios([observe()]).names


COUNTERS = {
    "inst_executed": 1000.0,
    "gld_transactions": 500.0,
    "sm_efficiency": 90.0,
    "dram_utilization": 3.5,
    "achieved_occupancy": 0.375,
    "gld_throughput": 1e9,
    "nobody_knows": 5.0,
}


def test_ratios_divide_counts_by_instructions_and_omit_unknown_counters():
    run = observe(256, counters=COUNTERS, grid=(10, 1, 1), registers=64)
    found = row(ratios([run]))
    assert found["gld_transactions_per_inst"] == 0.5
    assert found["sm_efficiency"] == 90.0
    assert found["dram_utilization"] == 3.5
    assert found["occupancy_reached"] == 0.375 / found["theoretical_occupancy"]
    assert found["log2_inst_per_warp"] == math.log2(1000 / 80)
    # Neither counts, which grow with the problem, nor rates, nor unknown counters.
    assert not {"inst_executed", "gld_transactions", "gld_throughput", "nobody_knows"} & set(found)
    assert "inst_executed_per_inst" not in found


def test_ratios_are_nan_without_instructions():
    for counters in ({"gld_transactions": 5.0}, {"gld_transactions": 5.0, "inst_executed": 0.0}):
        assert math.isnan(row(ratios([observe(counters=counters)]))["gld_transactions_per_inst"])


def test_ratios_do_not_grow_with_the_problem():
    """Twice the work changes only the number of waves."""
    known = {"registers": 32, "static_shared": 0}
    small = observe(256, counters=COUNTERS, grid=(640, 1, 1), **known)
    doubled = {
        name: value * (2 if name in ("inst_executed", "gld_transactions") else 1)
        for name, value in COUNTERS.items()
    }
    large = observe(256, counters=doubled, grid=(1280, 1, 1), **known)
    table = ratios([small, large])
    differing = {n for n in table.names if row(table)[n] != row(table, 1)[n]}
    assert differing == {"log2_waves", "last_wave"}


def test_geometry_compares_launch_with_limits_of_its_device():
    """Turing, 64 registers, 256 threads: each of 68 multiprocessors holds four blocks."""
    shared = {"static_shared": 8192, "dynamic_shared": 1024}
    found = geometry(observe(block=(64, 4, 1), grid=(68, 6, 1), registers=64, **shared))
    expected = {
        "log2_threads": 8,
        "log2_block_x": 6,
        "block_dimensions": 2,
        "partial_warp": 0,
        "largest_share": 0.25,
        "registers": 64,
        "shared_per_thread": 36,
        "registers_share": 0.25,
        "shared_share": 9 / 64,
        "theoretical_occupancy": 1.0,
        "resident_blocks": 4,
        "log2_waves": math.log2(1.5),
        "last_wave": 0.5,
        # Blocks of 9 KiB: seven of four warps at half the threads.
        "occupancy_halved": 28 / 32,
        "occupancy_doubled": 1.0,
    }
    assert expected.items() <= found.items()


def test_partial_warp_is_the_share_of_unused_lanes():
    for threads, unused in ((1, 31 / 32), (32, 0), (33, 31 / 64), (48, 16 / 64), (1024, 0)):
        assert geometry(observe(threads))["partial_warp"] == pytest.approx(unused)


def test_last_wave_is_1_if_all_waves_are_full():
    run = observe(1024, grid=(68 * 3, 1, 1), registers=32)
    assert geometry(run)["last_wave"] == 1
    assert geometry(run)["log2_waves"] == pytest.approx(math.log2(3))


def test_geometry_of_unknown_device_is_nan_where_it_needs_limits():
    found = geometry(observe(64, device="Testing", compute_capability=None, grid=(4, 1, 1)))
    unknown = {name for name, value in found.items() if math.isnan(value)}
    assert unknown == {
        *("registers", "shared_per_thread", "registers_share", "shared_share"),
        *("theoretical_occupancy", "resident_blocks", "occupancy_halved", "occupancy_doubled"),
        *("log2_waves", "last_wave"),
    }
    amd = {"device": "AMD Instinct MI250X", "compute_capability": None, "registers": 32}
    found = geometry(observe(64, **amd))
    assert (found["partial_warp"], found["registers"]) == (0, 32)
    assert geometry(observe(32, **amd))["partial_warp"] == 0.5
    # An unknown block is taken for a one-dimensional one.
    found = geometry(observe(128, block=None))
    assert (found["log2_block_x"], found["block_dimensions"]) == (7, 1)


def test_shared_bytes_adds_static_and_dynamic_memory():
    for static, dynamic, both in ((None, None, None), (0, None, 0), (None, 5, 5), (3, 4, 7)):
        run = observe(static_shared=static, dynamic_shared=dynamic)
        assert shared_bytes(run) == both
        assert resident(run, 256).blocks == 4


@needs_gpu_logs
@pytest.mark.stress
def test_real_runs_have_all_inputs(profiled_runs):
    found = ratios(profiled_runs)
    assert found.values.shape[0] == 9305
    assert np.isfinite(found.values).all()
    assert not {"duration", "gld_throughput"} & set(found.names)
