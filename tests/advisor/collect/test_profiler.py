"""Command lines of profilers, and merging the launches of several runs."""

import math
from pathlib import Path

import pytest

from tunedb.advisor.collect.profiler import (
    dominant_launches,
    error_message,
    find_tool,
    merge_launches,
)
from tunedb.errors import FormatError, NotFoundError, UsageError
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
    (made,) = merge_launches(
        [
            [launch("", ())],
            [launch("ab", (1, 2), registers=24)],
            [launch("c", (3,), static_shared=512, seconds=0.5)],
        ],
        "step",
        BLOCK,
        "7.5",
    )
    assert made.counter_set.counters == (("a", ""), ("b", ""), ("c", ""))
    assert made.values == (1, 2, 3)
    assert (made.registers, made.static_shared, made.seconds) == (24, 512, None)
    assert (made.counter_set.tool_version, made.counter_set.compute_capability) == ("1", "7.5")


def test_merge_launches_averages_launches_of_equal_geometry():
    """NaN stands for a value that no launch has."""
    one, other = merge_launches(
        [
            [launch("ab", (1, math.nan)), launch("ab", (3, math.nan))],
            [launch("a", (10,), grid=(8, 1, 1))],
        ],
        None,
        BLOCK,
    )
    assert one.values[0] == 2
    assert math.isnan(one.values[1])
    assert (other.values, other.number) == ((10,), 1)


def test_merge_launches_averages_only_measured_values():
    (made,) = merge_launches([[launch("a", (math.nan,)), launch("a", (4,))]], None, BLOCK)
    assert made.values == (4,)


def test_merge_launches_skips_other_blocks_and_kernels():
    runs = [[launch(block=(64, 1, 1)), launch(kernel="clear"), launch(kernel="mystep(int)")]]
    assert merge_launches(runs, "step", BLOCK) == []
    assert len(merge_launches(runs, None, BLOCK)) == 2


@pytest.mark.parametrize("name", ["step", "step(int)", "void ns::step<float, 32>(int)"])
def test_merge_launches_recognises_kernel_by_plain_name(name):
    assert len(merge_launches([[launch(kernel=name)]], "step", BLOCK)) == 1


def command(tool, group, **more):
    arguments = {"kernel": None, "options": (), "first": False, **more}
    return profilers()[tool].counter_command(f"/bin/{tool}", group, Path("log.csv"), **arguments)


def test_command_of_ncu_has_kernel_metrics_and_options():
    words = command("ncu", ("a.sum", "b.sum"), kernel="k", options=["--timing-control", "none"])
    assert words[:2] == ["/bin/ncu", "--csv"]
    assert words[-6:] == [
        "--kernel-name", "k", "--metrics", "a.sum,b.sum", "--timing-control", "none",
    ]  # fmt: skip
    first = command("ncu", ("a.sum",), first=True)
    assert "launch__registers_per_thread" in first[first.index("--metrics") + 1].split(",")
    assert "--kernel-name" not in first


def test_command_of_nvprof_separates_events_and_metrics():
    words = command("nvprof", ("gld_request", "achieved_occupancy", "gst_request"), kernel="k.x")
    assert words[-6:] == [
        "--kernels", "^k\\.x", "--events", "gld_request,gst_request",
        "--metrics", "achieved_occupancy",
    ]  # fmt: skip
    # A colon would begin a filter of contexts and streams.
    assert "--kernels" not in command("nvprof", ("gld_request",), kernel="ns::k")


def test_find_tool_rejects_missing_tool(tmp_path):
    with pytest.raises(UsageError, match=r"ncu is not on the PATH; .* or use --profiler none"):
        find_tool("ncu", str(tmp_path))


def test_read_launches_rejects_missing_and_invalid_files(tmp_path):
    path = tmp_path / "log.csv"
    for profiler in profilers().values():
        with pytest.raises(NotFoundError):
            profiler.read_launches(tmp_path / "none.csv", "x")
        path.write_text("==ERROR== no permission\n")
        with pytest.raises(FormatError):
            profiler.read_launches(path, "x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM: no\n", "ERR_NVGPUCTRPERM: no"),
        ("==27== NVPROF is profiling\n======== Error: no device\n", "no device"),
        ("==7== Error: unable to collect\n", "unable to collect"),
        ("==PROF== Connected\nError of the program\n", None),
    ],
)  # fmt: skip
def test_error_message_returns_the_error_of_a_profiler(tmp_path, text, message):
    path = tmp_path / "log.csv"
    path.write_text(text)
    assert error_message(path) == message
    assert error_message(tmp_path / "none") is None


def test_dominant_launches_keeps_largest_launch_of_kernel_without_times():
    small, large = launch(grid=(4, 1, 1)), launch(grid=(4, 8, 1), number=1)
    other = launch(kernel="b", number=2)
    made = dominant_launches([small, large, other])
    assert [(one.kernel, one.grid, one.number) for one in made] == [
        ("step(int)", (4, 8, 1), 0), ("b", (4, 1, 1), 1),
    ]  # fmt: skip
    timed = [launch(seconds=1.0), launch(grid=(8, 1, 1), seconds=2.0, number=1)]
    assert dominant_launches(timed) == timed
