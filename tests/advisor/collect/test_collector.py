import json
import math
import os
import re

import pytest
import toy_gpu

from tunedb import limits
from tunedb.advisor.collect import runs as module
from tunedb.advisor.collect.collector import (
    Collector,
    VariantOutcome,
    from_json,
    measurement,
    to_json,
)
from tunedb.advisor.collect.configuration import TimingConfig, read
from tunedb.advisor.collect.plan import make_plan
from tunedb.advisor.collect.runs import VariantError, fingerprint, printed_time
from tunedb.advisor.collect.variants import Variant
from tunedb.advisor.loading import load
from tunedb.errors import FormatError, NotFoundError, UsageError
from tunedb.launches import CounterSet, Launch
from tunedb.records import Failure, FailureKind, Phase, Source, Status
from tunedb.storage.store import Store
from tunedb.system.host import new_session

#: The original alone, and with another block, for tests of what no further block changes.
ONE, TWO = ("32x2",), ("32x2", "64x2")


def collector(path, **options):
    configuration = read(path)
    work = path.parent / "work"
    work.mkdir(exist_ok=True)
    plan = make_plan(configuration)
    return Collector(configuration, plan, path.parent, work, new_session(), **options)


def collect(path, **options):
    """Return the outcomes by block (and limit of registers), and how many were run just now."""
    rows = list(collector(path, **options).run())
    found = {}
    for outcome, _, _ in rows:
        key = "x".join(map(str, outcome.variant.block[:2]))
        limit = outcome.variant.registers
        found[key if limit is None else f"{key} r{limit}"] = outcome
    return found, sum(is_new for _, _, is_new in rows)


def outcomes(tmp_path, **options):
    """Return the outcomes of a configuration of the toy program by block."""
    return collect(toy_gpu.configuration(tmp_path, **options))[0]


def edit(path, old, new):
    """Replace a text of a file, and return its path."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


def runs(tmp_path):
    """Return the runs of the toy program: block, input and limit of registers each."""
    return toy_gpu.lines(tmp_path / "runs")


def test_each_variant_is_checked_and_timed(tmp_path):
    path = toy_gpu.configuration(tmp_path, rest="wrong crash")
    found, new = collect(path)
    assert new == 4
    assert list(found) == ["32x2", "16x4", "32x4", "64x2"]
    for block, seconds in (("32x2", 33.25e-6), ("64x2", 17.625e-6)):
        assert found[block].failure is None and found[block].compared
        assert found[block].run_secs == pytest.approx([seconds] * 2)
    (launch,) = found["64x2"].launches
    assert (launch.kernel, launch.block, launch.threads) == ("step", (64, 2, 1), 128)
    failure = found["16x4"].failure
    assert (failure.kind, failure.phase) == (FailureKind.WRONG_RESULT, Phase.RUN)
    assert "its output is not the original's: word 2 is 1001.0" in failure.message
    assert found["16x4"].run_secs == ()
    assert found["32x4"].failure.kind is FailureKind.CRASH
    assert "SIGSEGV" in found["32x4"].failure.message
    # The original twice for its output, the others once; two timed runs of the right ones.
    expected = [*["32x2"] * 4, "16x4", "32x4", *["64x2"] * 3]
    assert [line.split()[0] for line in runs(tmp_path)] == expected
    assert collect(path, again=True)[1] == 2
    assert [line.split()[0] for line in runs(tmp_path)][9:] == ["16x4", "32x4"]


def test_timing_by_wall_clock_measures_each_run(tmp_path):
    found = outcomes(tmp_path, rest="slow", blocks=ONE, clock="wall", repeats=1)
    assert 0.05 <= found["32x2"].run_secs[0] < 20


def test_each_build_command_runs_once(tmp_path):
    """The command holds the limit of registers alone, so two blocks share a build."""
    found = outcomes(tmp_path, blocks=TWO, registers='["default", 32, 16]')
    built = list((tmp_path / "work").glob("toy/build-*/built"))
    assert len(built) == 2
    assert all(file.read_text() == "once\n" for file in built)
    assert not (tmp_path / "toy" / "built").exists()
    assert {line.split()[2] for line in runs(tmp_path)} == {"default", "-maxrregcount=32"}
    for block in TWO:
        assert found[f"{block} r32"].failure is None
        failure = found[f"{block} r16"].failure
        assert (failure.kind, failure.phase) == (FailureKind.COMPILE_ERROR, Phase.BUILD)
        assert failure.message == "the build ended with status 1: ptxas fatal: too few registers"


@pytest.mark.stress
def test_hung_program_is_ended_with_its_children_and_not_run_again(tmp_path):
    path = edit(toy_gpu.configuration(tmp_path, rest="hang"), "timeout = 20", "timeout = 4")
    found, _ = collect(path)
    assert found["64x2"].failure.kind is FailureKind.TIMEOUT
    assert found["64x2"].failure.seconds >= 4
    toy_gpu.wait_for_end([(tmp_path / "child").read_text()])
    # Known failures are not run again by default.
    before = len(runs(tmp_path))
    assert collect(path)[1] == 0
    assert len(runs(tmp_path)) == before


def test_output_that_differs_between_runs_is_not_compared(tmp_path):
    found = outcomes(tmp_path, rest="random wrong", blocks=("32x2", "16x4"))
    assert not any(outcome.compared for outcome in found.values())
    assert found["16x4"].failure is None


def test_output_file_is_compared_within_the_tolerance(tmp_path):
    path = toy_gpu.configuration(tmp_path, rest="file", blocks=("32x2", "32x4", "64x2"))
    edit(path, "[programs.output]\n", '[programs.output]\nfrom = "out.bin"\ntype = "float32"\n')
    found, _ = collect(path)
    # The second number grows with the block's x: within no tolerance of 1e-6.
    assert found["32x4"].compared
    assert found["64x2"].failure.kind is FailureKind.WRONG_RESULT
    assert found["64x2"].failure.message.endswith("number 2 is 6.4e-06 instead of 3.2e-06")


def test_old_output_file_is_not_taken_for_a_new_one(tmp_path):
    """The folder of the program already has the file, and the program writes none."""
    path = toy_gpu.configuration(tmp_path)
    (tmp_path / "toy" / "out.bin").write_bytes(b"old")
    edit(path, "[programs.output]\n", '[programs.output]\nfrom = "out.bin"\n')
    found, _ = collect(path)
    assert list(found) == ["32x2"]
    assert found["32x2"].failure.message.startswith("it wrote no out.bin: ")


@pytest.mark.parametrize("command", ["run", "build"])
def test_missing_command_is_an_infrastructure_failure(tmp_path, command):
    path = toy_gpu.configuration(tmp_path)
    words = '["./none", "{block_x}", "{block_y}", "{input}"]'
    text = re.sub(rf"(?m)^{command} = .*$", f"{command} = {words}", path.read_text())
    path.write_text(text)
    found, _ = collect(path)
    assert found["32x2"].failure.kind is FailureKind.INFRASTRUCTURE
    assert "./none: No such file" in found["32x2"].failure.message


@pytest.mark.parametrize("tool", ["ncu", "nvprof"])
def test_counters_of_all_groups_are_joined(tmp_path, tool):
    found = outcomes(tmp_path, tool=tool, blocks=ONE)
    plan = make_plan(read(tmp_path / "advise.toml"))
    (launch,) = found["32x2"].launches
    names = [name for name, _ in launch.counter_set.counters]
    assert sorted(names) == sorted(name for group in plan.groups for name in group)
    assert launch.values == tuple(64 * (len(name) + 1) for name in names)
    assert (launch.registers, launch.static_shared, launch.dynamic_shared) == (24, 1024, 0)
    assert (launch.block, launch.grid) == ((32, 2, 1), (32, 1, 1))
    assert launch.counter_set.compute_capability == {"ncu": "7.5", "nvprof": "3.5"}[tool]
    # Under the profiler nothing was timed.
    assert found["32x2"].run_secs == pytest.approx([33.25e-6] * 2)
    profiled = [json.loads(line) for line in toy_gpu.lines(tmp_path / "profiled")]
    assert len(profiled) == len(plan.groups) + (tool == "nvprof")


def test_timing_from_trace_returns_times_of_the_kernel(tmp_path):
    found = outcomes(tmp_path, tool="nvprof", counters=["ipc"], blocks=ONE, clock="trace")
    assert found["32x2"].run_secs == pytest.approx([1e-3 / 32] * 2)


def test_timing_from_trace_needs_nvprof(tmp_path):
    path = toy_gpu.configuration(tmp_path, tool="ncu", clock="trace")
    with pytest.raises(UsageError, match='timing from "trace" needs nvprof'):
        collect(path)


def test_failing_group_of_counters_keeps_the_other_groups_of_the_largest_launch(tmp_path):
    counters = ["a__x.sum", "unknown_counter", "b__x.sum"]
    options = {"rest": "twice", "counters": counters, "per_run": 1}
    outcome = outcomes(tmp_path, tool="ncu", blocks=ONE, **options)["32x2"]
    assert outcome.failure is None
    (launch,) = outcome.launches
    assert (launch.grid[0], launch.seconds) == (32, None)
    assert [name for name, _ in launch.counter_set.counters] == ["a__x.sum", "b__x.sum"]
    (note,) = outcome.notes
    assert note.startswith("group 2 (unknown_counter): group2: the run ended with status 1")


def test_program_that_ignores_the_block_fails(tmp_path):
    found = outcomes(tmp_path, tool="ncu", rest="ignore", counters=["a__x.sum"], blocks=TWO)
    assert found["32x2"].failure is None
    assert found["64x2"].failure.message == (
        "no kernel was launched with a block of 64x2x1; launched: step(float *, int) with 32x2x1"
    )


def test_nvprof_gives_each_launch_its_own_time_of_the_trace(tmp_path):
    found = outcomes(tmp_path, tool="nvprof", rest="twice", counters=["ipc"], blocks=ONE)
    pairs = [(one.grid[0], one.seconds) for one in found["32x2"].launches]
    assert pairs == [(32, pytest.approx(1e-3 / 32)), (2, pytest.approx(1e-5))]


@pytest.mark.parametrize("source", ["output", "trace"])
def test_profiler_without_permission_loses_only_times_of_its_trace(tmp_path, source):
    """Times from the program's output do not need the profiler."""
    path = toy_gpu.configuration(tmp_path, tool="nvprof", blocks=ONE, clock=source)
    stub = tmp_path / "bin" / "nvprof"
    stub.write_text(
        "#!/bin/sh\nwhile [ $# -gt 0 ]; do [ $1 = --log-file ] && log=$2; shift; done\n"
        "echo '==7== Error: no permission' > $log; exit 1\n"
    )
    found, _ = collect(path)
    outcome = found["32x2"]
    if source == "trace":
        assert outcome.failure.kind is FailureKind.INFRASTRUCTURE
        assert outcome.failure.message == "trace0: no permission"
        return
    assert outcome.failure is None
    assert outcome.run_secs
    assert outcome.notes[0] == "trace0: no permission"
    assert outcome.notes[-1] == "nvprof saw no launch"
    assert [launch.counter_set for launch in outcome.launches] == [None]


def test_missing_profiler_is_rejected(tmp_path):
    path = toy_gpu.configuration(tmp_path, tool="ncu")
    (tmp_path / "bin" / "ncu").unlink()
    with pytest.raises(UsageError, match=r"ncu is not on the PATH; .* or use --profiler none"):
        collect(path)


def test_interrupted_variant_is_run_again_as_a_whole_and_no_other(tmp_path, monkeypatch):
    path = toy_gpu.configuration(tmp_path, blocks=TWO)
    calls = []
    real = module.run

    def stop(*args, **options):
        calls.append(args)
        if len(calls) == 7:  # of the second variant; a build and four runs are of the first
            raise KeyboardInterrupt
        return real(*args, **options)

    monkeypatch.setattr(module, "run", stop)
    running = collector(path).run()
    first = next(running)[0]
    with pytest.raises(KeyboardInterrupt):
        next(running)
    monkeypatch.undo()
    before = len(runs(tmp_path))
    found, new = collect(path)
    assert new == 1
    assert len(runs(tmp_path)) == before + 3
    assert found["32x2"].run_secs == first.run_secs
    assert all(outcome.failure is None and outcome.compared for outcome in found.values())


def test_incomplete_builds_are_repeated_and_edited_programs_run_again(tmp_path):
    path = toy_gpu.configuration(tmp_path, blocks=ONE)
    collect(path)
    assert collect(path)[1] == 0
    (folder,) = (tmp_path / "work" / "toy").glob("build-*[0-9a-f]")
    (folder / "limit").unlink()
    (tmp_path / "work" / "state.jsonl").write_text("")
    found, new = collect(path)
    assert new == 1
    assert (folder / "limit").read_text() == "default"
    assert found["32x2"].failure is None
    edit(tmp_path / "toy" / "app.py", "import os, sys", "import os, sys  # edited")
    assert collect(path)[1] == 1


def test_fingerprint_ignores_the_work_folder(tmp_path):
    folder = toy_gpu.program(tmp_path / "toy")
    work = folder / "work"
    before = fingerprint(folder, work)
    work.mkdir()
    (work / "x").write_text("x")
    assert fingerprint(folder, work) == before
    (folder / "x").write_text("x")
    assert fingerprint(folder, work) != before


def test_a_work_folder_inside_the_program_is_not_copied(tmp_path):
    path = toy_gpu.configuration(tmp_path, blocks=ONE)
    edit(path, 'directory = "toy"', 'directory = "."')
    for name in ("app.py", "build.py"):
        os.link(tmp_path / "toy" / name, tmp_path / name)
    found, _ = collect(path)
    assert found["32x2"].failure is None
    assert not list((tmp_path / "work").glob("toy/build-*/work"))


def test_missing_folder_of_program_is_rejected(tmp_path):
    path = edit(toy_gpu.configuration(tmp_path), 'directory = "toy"', 'directory = "none"')
    with pytest.raises(NotFoundError, match=r"programs\.toy\.directory: .*none is not a folder"):
        collect(path)


@pytest.mark.parametrize(("tool", "counters"), [("ncu", ["a__x.sum"]), ("none", ())])
def test_variants_that_differ_in_the_block_alone_are_a_slice(tmp_path, tool, counters):
    options = {"blocks": ("32x2", "16x4", "64x2"), "registers": '["default", 32]', "repeats": 1}
    path = toy_gpu.configuration(tmp_path, tool=tool, rest="wrong", counters=counters, **options)
    configuration = read(path)
    with Store(":memory:") as store:
        for _ in range(2):
            (program,), (device,) = configuration.programs, configuration.devices
            found = collector(path).run()
            made = [measurement(one, program, device, tool, s) for one, s, _ in found]
            report = store.records.add(made, Source("collect"))
        # The second run is known already: nothing is stored twice.
        assert report.new == 0
        found = load(store)
    failed = [m for m in made if m.status is Status.FAILED]
    assert {(m.failure.kind, m.run_secs) for m in failed} == {(FailureKind.WRONG_RESULT, None)}
    # Without a launch of another kernel, and without the two that were wrong.
    assert [seen.kernel for seen in found] == ["step"] * 4
    slices = {}
    for seen in found:
        slices.setdefault(seen.slice, set()).add((seen.parameters["maxrregcount"], seen.block))
    for rows in slices.values():
        assert len({limit for limit, _ in rows}) == 1
        assert sorted(block for _, block in rows) == [(32, 2, 1), (64, 2, 1)]
    assert len(slices) == 2


def test_outcome_survives_round_trip_through_json():
    session = new_session()
    variant = Variant("p", (32, 1, 1), 32, "1024")
    counters = CounterSet("ncu", None, "7.5", (("a", "byte"), ("b", "")))
    counted = {"counter_set": counters, "values": (1.5, math.nan)}
    launch = Launch("k", 32, (32, 1, 1), None, 3, registers=24, **counted)
    more = {"compared": True, "notes": ("x",), "measured_at": 5}
    for outcome in (
        VariantOutcome(variant, (1e-3, 2e-3), None, (launch,), **more),
        VariantOutcome(variant, failure=Failure(FailureKind.TIMEOUT, Phase.BUILD, "slow", 1.5)),
    ):
        row = json.loads(json.dumps(to_json(outcome, session)))
        again, same = from_json(row, variant)
        assert same.digest == session.digest
        assert repr(again) == repr(outcome)
    del row["launches"]
    with pytest.raises(FormatError, match=r"cannot read a state .*; remove it"):
        from_json(row, variant)


def printed(folder, text, pattern="time (.*)", unit="s"):
    path = folder / "out"
    path.write_text(text)
    return printed_time(path, TimingConfig("output", pattern, unit))


@pytest.mark.parametrize(
    ("text", "pattern", "unit", "seconds"),
    [
        ("time 1.5 ms", "time (.*) ms", "ms", 1.5e-3),
        ("a 1 b 2e3", r"[ab] (\S+)", "us", 2.001e-3),
        ("time 2", "time (.*)", "s", 2),
        ("time 7", "time (.*)", "ns", 7e-9),
    ],
)
def test_printed_time_returns_the_sum_of_times_in_seconds(tmp_path, text, pattern, unit, seconds):
    assert printed(tmp_path, text, pattern, unit) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time soon", "is not a number"),
        ("time 0", "it prints 0.0 s"),
        ("time nan", "it prints nan s"),
        ("time -1", "it prints -1.0 s"),
        ("", "it prints no time; the pattern is time"),
        (f"time {limits.MAX_PRINTED_SECONDS}", "it prints 2592000.0 s"),
        ("x" * limits.MAX_PRINTED_BYTES + "time 1", "it prints no time"),
    ],
)
def test_printed_time_rejects_invalid_times(tmp_path, text, message):
    with pytest.raises(VariantError, match=message):
        printed(tmp_path, text)
