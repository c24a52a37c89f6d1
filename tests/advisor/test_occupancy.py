"""Occupancy, compared with NVIDIA's documents and calculator, and with measurements."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from public_logs import needs_gpu_logs

from tunedb.advisor.inputs import resident
from tunedb.advisor.occupancy import LIMITS, MAX_THREADS, occupancy

CAPABILITIES = st.sampled_from(sorted(LIMITS))


@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared", "blocks", "fraction"),
    [
        # CUDA C++ Best Practices Guide, "Calculating Occupancy": 37 registers, 7.0.
        ("7.0", 128, 37, 0, 12, 0.75),
        ("7.0", 320, 37, 0, 4, 0.625),
        # CUDA C++ Programming Guide, "Multiprocessor Level": 64 registers and 512 threads, 6.x:
        # two blocks; one register more: one.
        ("6.0", 512, 64, 0, 2, 0.5),
        ("6.0", 512, 65, 0, 1, 0.25),
        # By hand from the tables: 8 warps of 1,024 registers are an eighth of the 65,536.
        ("8.0", 256, 32, 2048, 8, 1.0),
        # Registers of a Fermi warp come in units of 64: 21 registers are 704 and not 672.
        ("2.0", 192, 20, 0, 8, 1.0),
        ("2.0", 192, 21, 0, 7, 42 / 48),
        # Blocks: 8 of 32 threads on Fermi, 16 on Kepler and Turing, 32 on Maxwell.
        ("2.0", 32, 10, 0, 8, 8 / 48),
        ("3.5", 32, 10, 0, 16, 16 / 64),
        ("5.2", 32, 10, 0, 32, 32 / 64),
        ("7.5", 32, 10, 0, 16, 16 / 32),
        ("8.6", 32, 10, 0, 16, 16 / 48),
        ("8.9", 32, 10, 0, 24, 24 / 48),
        # Shared memory: 48 KiB of 96 on Maxwell; 1 KiB is the system's from 8.0 on.
        ("5.2", 128, 16, 48 * 1024, 2, 8 / 64),
        ("8.6", 128, 16, 49 * 1024, 2, 8 / 48),
        ("8.6", 128, 16, 49 * 1024 + 1, 1, 4 / 48),
        ("9.0", 1024, 32, 227 * 1024, 1, 0.5),
        ("9.0", 1024, 32, 227 * 1024 + 1, 0, 0.0),
        # A warp that is not full counts as one.
        ("7.5", 33, 16, 0, 16, 1.0),
        # 255 registers: 8 warps of 8192 registers fit, but two in each of four partitions.
        ("7.5", 96, 255, 0, 2, 6 / 32),
        ("7.5", 512, 255, 0, 0, 0.0),
        ("3.0", 32, 64, 0, 0, 0.0),
        # A block of 25 warps takes the registers of 28, seven in each partition, and may have half
        # of those that a K80 has: 24 warps fit twice, 25 not once.
        ("3.7", 768, 80, 0, 2, 48 / 64),
        ("3.7", 800, 80, 0, 0, 0.0),
    ],
)
def test_occupancy_equals_documented_values(
    capability, threads, registers, shared, blocks, fraction
):
    found = occupancy(capability, threads, registers, shared)
    assert (found.blocks, found.fraction) == (blocks, fraction)
    assert found.warps == blocks * math.ceil(threads / 32)


@pytest.mark.parametrize(
    ("arguments", "limit"),
    [
        (("7.0", 128, 37), "registers"),
        (("7.0", 32, 16), "blocks"),
        (("7.0", 1024, 16), "warps"),
        (("7.0", 128, 16, 40_000), "shared"),
        (("7.0", 1025, 16), "threads"),
        # All of them stop at two blocks; the first is named.
        (("7.0", 1024, 32, 48 * 1024), "warps"),
    ],
)
def test_occupancy_names_its_limiting_resource(arguments, limit):
    assert occupancy(*arguments).limit == limit


@pytest.mark.parametrize("capability", [None, "", "1.3", "99.0", "gfx90a"])
def test_occupancy_of_unknown_capability_is_none(capability):
    assert occupancy(capability, 256) is None


@pytest.mark.parametrize("arguments", [(0,), (-1,), (32, -1), (32, 8, -1)])
def test_occupancy_rejects_invalid_arguments(arguments):
    with pytest.raises(ValueError, match="a block of"):
        occupancy("7.5", *arguments)


def test_too_large_blocks_are_never_resident_and_unknown_registers_do_not_limit():
    assert occupancy("7.5", MAX_THREADS + 1).blocks == 0
    assert occupancy("7.5", MAX_THREADS).blocks == 1
    assert occupancy("7.5", 256) == occupancy("7.5", 256, 0) == occupancy("7.5", 256, 1)


SIZES = {
    "capability": CAPABILITIES,
    "threads": st.integers(1, 1024),
    "registers": st.integers(0, 255),
    "shared": st.integers(0, 240 * 1024),
}


@given(**SIZES)
def test_resident_blocks_fit_the_device(capability, threads, registers, shared):
    limits, found = LIMITS[capability], occupancy(capability, threads, registers, shared)
    assert 0 <= found.fraction <= 1
    assert found.warps <= limits.warps
    assert found.blocks <= limits.blocks
    assert found.blocks * math.ceil(threads / 32) * 32 * registers <= limits.registers
    assert found.blocks * (shared + limits.shared_reserved) <= limits.shared


@given(**SIZES, more=st.integers(1, 64))
def test_more_resources_never_increase_resident_blocks(
    capability, threads, registers, shared, more
):
    found = occupancy(capability, threads, registers, shared).blocks
    assert occupancy(capability, threads, registers + more, shared).blocks <= found
    assert occupancy(capability, threads, registers, shared + 100 * more).blocks <= found
    assert occupancy(capability, threads + more, registers, shared).blocks <= found


@needs_gpu_logs
@pytest.mark.stress
def test_measured_occupancy_stays_below_the_computed_one(profiled_runs):
    """A profiler's count of active warps is an average over time, so it cannot be above.

    Errors of measurement may exceed it: of 9,305 runs, the largest is 3.3 % above.
    """
    theory = [resident(run, run.threads).fraction for run in profiled_runs]
    shares = sorted(
        run.counters["achieved_occupancy"] / fraction
        for run, fraction in zip(profiled_runs, theory, strict=True)
    )
    assert shares[-1] < 1.04
    assert shares[len(shares) // 2] > 0.97
    assert sum(share > 0.85 for share in shares) / len(shares) > 0.99
