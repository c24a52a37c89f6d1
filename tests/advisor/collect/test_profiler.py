import math
from pathlib import Path

import pytest

from tunedb.advisor.collect import profiler
from tunedb.errors import FormatError, NotFoundError
from tunedb.formats.gpu.profilers import profilers
from tunedb.launches import CounterSet, Launch

BLOCK = (32, 2, 1)


def launch(names="a", values=(1.0,), kernel="step(int)", block=BLOCK, grid=(4, 1, 1), **more):
    counters = CounterSet("ncu", "1", None, tuple((name, "") for name in names))
    return Launch(
        kernel, math.prod(block), block, grid,
        counter_set=counters if names else None, values=tuple(values), **more,
    )  # fmt: skip


def test_merge_launches_joins_counters_of_all_runs():
    first, second = launch("", ()), launch("ab", (1, 2), registers=24)
    third = launch("c", (3,), static_shared=512, seconds=0.5)
    (made,) = profiler.merge_launches([[first], [second], [third]], "step", BLOCK, "7.5")
    assert made.counter_set.counters == (("a", ""), ("b", ""), ("c", ""))
    assert made.values == (1, 2, 3)
    assert (made.registers, made.static_shared, made.seconds) == (24, 512, None)
    assert (made.counter_set.tool_version, made.counter_set.compute_capability) == ("1", "7.5")


def test_merge_launches_averages_measured_values_of_launches_of_equal_geometry():
    """NaN stands for a value that no launch has."""
    several = [launch("abc", (1, math.nan, math.nan)), launch("abc", (3, math.nan, 4))]
    larger = launch("a", (10,), grid=(8, 1, 1))
    one, other = profiler.merge_launches([several, [larger]], None, BLOCK)
    assert one.values == pytest.approx((2, math.nan, 4), nan_ok=True)
    assert (other.values, other.number) == ((10,), 1)


def test_merge_launches_skips_other_blocks_and_kernels():
    runs = [[launch(block=(64, 1, 1)), launch(kernel="clear"), launch(kernel="mystep(int)")]]
    assert profiler.merge_launches(runs, "step", BLOCK) == []
    assert len(profiler.merge_launches(runs, None, BLOCK)) == 2
    for name in ("step", "step(int)", "void ns::step<float, 32>(int)"):
        assert len(profiler.merge_launches([[launch(kernel=name)]], "step", BLOCK)) == 1


def command(tool, group, **more):
    arguments = {"kernel": None, "options": (), "first": False, **more}
    return profilers()[tool].counter_command(f"/bin/{tool}", group, Path("log.csv"), **arguments)


def test_command_of_ncu_has_kernel_metrics_and_options():
    words = command("ncu", ("a.sum", "b.sum"), kernel="k", options=["--timing-control", "none"])
    assert words[:2] == ["/bin/ncu", "--csv"]
    options = "--kernel-name k --metrics a.sum,b.sum --timing-control none"
    assert words[-6:] == options.split()
    first = command("ncu", ("a.sum",), first=True)
    assert "launch__registers_per_thread" in first[first.index("--metrics") + 1].split(",")
    assert "--kernel-name" not in first


def test_command_of_nvprof_separates_events_and_metrics():
    words = command("nvprof", ("gld_request", "achieved_occupancy", "gst_request"), kernel="k.x")
    options = r"--kernels ^k\.x --events gld_request,gst_request --metrics achieved_occupancy"
    assert words[-6:] == options.split()
    # A colon would begin a filter of contexts and streams.
    assert "--kernels" not in command("nvprof", ("gld_request",), kernel="ns::k")


def test_read_launches_rejects_missing_and_invalid_files(tmp_path):
    path = tmp_path / "log.csv"
    for one in profilers().values():
        with pytest.raises(NotFoundError):
            one.read_launches(tmp_path / "none.csv", "x")
        path.write_text("==ERROR== no permission\n")
        with pytest.raises(FormatError):
            one.read_launches(path, "x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM: no\n", "ERR_NVGPUCTRPERM: no"),
        ("==27== NVPROF is profiling\n======== Error: no device\n", "no device"),
        ("==7== Error: unable to collect\n", "unable to collect"),
        ("==PROF== Connected\nError of the program\n", None),
    ],
)
def test_error_message_returns_the_error_of_a_profiler(tmp_path, text, message):
    path = tmp_path / "log.csv"
    path.write_text(text)
    assert profiler.error_message(path) == message
    assert profiler.error_message(tmp_path / "none") is None


def test_dominant_launches_keeps_largest_launch_of_kernel_without_times():
    small, large = launch(grid=(4, 1, 1)), launch(grid=(4, 8, 1), number=1)
    other = launch(kernel="b", number=2)
    made = profiler.dominant_launches([small, large, other])
    seen = [(one.kernel, one.grid, one.number) for one in made]
    assert seen == [("step(int)", (4, 8, 1), 0), ("b", (4, 1, 1), 1)]
    timed = [launch(seconds=1.0), launch(grid=(8, 1, 1), seconds=2.0, number=1)]
    assert profiler.dominant_launches(timed) == timed
