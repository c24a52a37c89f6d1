import math
from dataclasses import replace

import pytest
from builders import FOREIGN, add, make_measurement, make_program
from observing import counted, elementwise, measure
from public_logs import GPU, needs_gpu_logs

from tunedb.advisor.labels import by_slice, verdicts
from tunedb.advisor.loading import device_of, load, t1_inputs
from tunedb.formats.base import LogFile
from tunedb.formats.gpu.kernels import gpu_target
from tunedb.formats.importer import import_log
from tunedb.launches import CounterSet, Launch
from tunedb.records import (
    Failure,
    FailureKind,
    Measurement,
    Phase,
    Program,
    Status,
    Target,
    Workload,
    WorkloadFormat,
)
from tunedb.storage.store import Store


@pytest.fixture
def store(sqlite_file):
    with Store(sqlite_file) as opened:
        yield opened


def slices_of(store):
    """Return the threads of the observations of each slice."""
    found = load(store)
    return [sorted(found[i].threads for i in positions) for positions in by_slice(found)]


def scale(x, tile=1, secs=(1.0,), **fields):
    return measure({"block_size_x": x, "tile": tile}, secs, (x, 1, 1), **fields)


def test_load_returns_observation_of_a_launch(store):
    launch = {"kernel": "void scale<float, int=64>(float*)", "grid": (16, 2, 1), **counted(7.0)}
    launch |= {"registers": 40, "static_shared": 1024, "dynamic_shared": 512}
    (id_,) = add(store, scale(64, secs=(1.0, 3.0), launch=launch))
    (found,) = load(store)
    assert (found.record, found.kernel, found.workload) == (id_, "scale", "scale")
    assert found.device == "NVIDIA GeForce RTX 2080 Ti"
    assert found.compute_capability == "7.5"
    assert (found.threads, found.block, found.grid) == (64, (64, 1, 1), (16, 2, 1))
    assert (found.registers, found.static_shared, found.dynamic_shared) == (40, 1024, 512)
    assert found.seconds == 2.0
    assert found.spread == pytest.approx(math.sqrt(2) / 2)
    assert found.counters == {"inst_executed": 7.0}
    assert found.parameters == {"block_size_x": 64, "tile": 1}


def test_observations_of_a_slice_differ_only_in_the_block(store):
    add(store, scale(32), scale(64), scale(64, tile=2), scale(64, kernel="other"))
    add(store, scale(64, device="NVIDIA GeForce RTX 3090"))
    assert slices_of(store) == [[32, 64], [64], [64], [64]]


def test_load_skips_retracted_records_and_those_without_time_or_launch(store):
    failure = Failure(FailureKind.WRONG_RESULT, Phase.RUN, "wrong")
    failed = scale(64, secs=None, status=Status.FAILED, failure=failure)
    unmeasured = scale(128, secs=None, status=Status.UNMEASURED)
    ids = add(store, scale(32), failed, unmeasured, scale(256), make_measurement(), source=FOREIGN)
    store.trust.retract([ids[3]], "wrong")
    assert [observation.record for observation in load(store)] == [ids[0]]


def test_measurements_of_one_configuration_are_one_observation(store):
    add(store, scale(32, secs=(1.0,)), scale(32, secs=(9.0,)), scale(32, secs=(2.0,)))
    (found,) = load(store)
    assert found.seconds == 2.0
    assert found.spread == pytest.approx(math.sqrt(19) / 4)
    (id_,) = add(store, scale(64, secs=(4.0,)))
    alone = load(store)[-1]
    assert (alone.record, alone.spread) == (id_, None)


def test_load_does_not_mix_profiled_and_plain_times(store):
    """Three blocks ran without a profiler, two with it: times without it are compared."""
    add(store, *(scale(x, secs=(1.0,)) for x in (32, 64, 128)))
    profiled = add(store, *(scale(x, secs=(2.0,), launch=counted(x)) for x in (32, 64)))
    found = {observation.threads: observation for observation in load(store)}
    assert [found[x].seconds for x in (32, 64, 128)] == [1.0] * 3
    counters = [found[x].counters for x in (32, 64, 128)]
    assert counters == [{"inst_executed": 32.0}, {"inst_executed": 64.0}, {}]
    # `record` is the measurement with counters.
    assert [found[x].record for x in (32, 64)] == profiled
    assert [o.seconds for o in load(store, profiled=True)] == [2.0] * 2
    assert [o.seconds for o in load(store, profiled=False)] == [1.0] * 3
    add(store, scale(128, secs=(2.0,), launch=counted()))
    assert [observation.seconds for observation in load(store)] == [2.0] * 3


def test_times_of_kernel_tuner_are_plain_despite_counters(store):
    add(store, scale(32, log="kernel-tuner", launch=counted()))
    add(store, scale(64, secs=(2.0,), log="kernel-tuner"))
    assert [observation.seconds for observation in load(store)] == [1.0, 2.0]


def test_each_kernel_of_a_record_has_its_own_time(store):
    launches = (
        Launch("first", 32, (32, 1, 1), seconds=0.25),
        Launch("second", 64, (64, 1, 1), number=1, seconds=0.75),
        Launch("third", 64, (64, 1, 1), number=2),
    )
    add(store, scale(32, launches=launches))
    found = load(store)
    assert [(o.kernel, o.seconds) for o in found] == [("first", 0.25), ("second", 0.75)]
    # The same if only one kernel is requested.
    assert [o.seconds for o in load(store, kernels=["second"])] == [0.75]
    assert load(store, kernels=["third"]) == []


def test_metrics_computed_by_kernel_tuner_are_no_counters(store):
    names = (("GFLOP/s", ""), ("smsp__inst_executed.sum", "inst"))
    for x, values in ((32, (5.0, 6.0)), (64, (5.0,))):
        counters = CounterSet("kernel_tuner", None, None, names[: len(values)])
        launch = {"counter_set": counters, "values": values}
        add(store, scale(x, log="kernel-tuner", launch=launch))
    first, second = load(store)
    assert (first.counters, second.counters) == ({"inst_executed": 6.0}, {})
    assert [o.threads for o in load(store, profiled=True)] == [32]


def test_load_selects_kernels_and_devices_by_name(store):
    add(store, scale(32, launch={"kernel": "void scale<int=1>(int)"}))
    add(store, scale(64, device="NVIDIA GeForce RTX 3090"))
    for name in ("scale", "void scale<int=1>(int)"):
        assert 32 in {o.threads for o in load(store, kernels=[name])}
    assert load(store, kernels=[]) == []
    for name in ("NVIDIA GeForce RTX 3090", "RTX 3090", "rtx_3090"):
        assert [o.threads for o in load(store, devices=[name])] == [64]
    assert load(store, devices=["RTX 4090"]) == []


def test_block_parameters_are_recognised_by_the_launches(store):
    add(store, *(measure({"multiply": x, "n": 1}, (1.0,), (x, 1, 1)) for x in (32, 64)))
    assert slices_of(store) == [[32, 64]]


def test_block_parameters_are_recognised_by_the_t1_input(store):
    body = (
        b'{"ConfigurationSpace":{"TuningParameters":[{"Name":"w","Values":"[1, 2]"},'
        b'{"Name":"block_size_x","Values":"[7]"}]},'
        b'"KernelSpecification":{"KernelName":"scale","LocalSize":{"X":"32 * w"}}}'
    )
    for w in (1, 2):
        add(store, measure({"w": w, "block_size_x": 7}, (1.0,), (32 * w, 1, 1)))
    assert slices_of(store) == [[32], [64]]
    store.workloads.add(Workload(WorkloadFormat.T1, body, "scale"))
    assert slices_of(store) == [[32, 64]]
    # A second input of the kernel contradicts it, so neither counts.
    store.workloads.add(Workload(WorkloadFormat.T1, body.replace(b"32 * w", b"64 * w"), "scale"))
    store.workloads.add(Workload(WorkloadFormat.T1, b'{"broken":1}', "broken"))
    assert t1_inputs(store) == {}
    assert slices_of(store) == [[32], [64]]


def test_slices_of_nvprof_kernel_separate_its_problems(store):
    for x, blocks in ((64, 100), (128, 50), (256, 50)):
        parameters, more = {"block_x": x, "block_y": 1, "block_z": 1}, {"grid": (blocks, 1, 1)}
        add(store, measure(parameters, (1.0,), (x, 1, 1), log="nvprof", launch=more))
    assert slices_of(store) == [[64, 128], [256]]


def test_slice_of_metaschedule_programs_differs_only_in_threads(store):
    """The unbound part of a tile, and the unroll step, make another slice."""
    workload = Workload(WorkloadFormat.GRAPH, b"{}", "main", "0.27.0")
    target = Target.from_config({"kind": "cuda", "arch": "sm_80"})
    for threads, more in ((32, {}), (64, {}), (128, {}), (32, {"tile": 8}), (32, {"unroll": 0})):
        program = Program(workload, target, elementwise(threads, **more))
        launch = Launch("main_kernel", threads, (threads, 1, 1))
        add(store, Measurement(program, (1.0,), launches=(launch,)))
    assert slices_of(store) == [[32, 64, 128], [32], [32]]
    first = load(store)[0]
    assert (first.kernel, first.workload) == ("main_kernel", "main")
    assert (first.device, first.compute_capability) == ("cuda", "8.0")
    assert first.parameters == {}


def test_each_ansor_program_is_a_slice_of_its_own(store):
    workload = Workload(WorkloadFormat.ANSOR, b'["w"]', "w")
    for number in range(2):
        program = replace(make_program(number), workload=workload)
        add(store, Measurement(program, (1.0,), launches=(Launch("k", 32 * (number + 1)),)))
    assert slices_of(store) == [[32], [64]]


@pytest.mark.parametrize(
    ("target", "device", "capability"),
    [
        (gpu_target("cuda", "Tesla K40c"), "Tesla K40c", "3.5"),
        (gpu_target("unknown", ""), "unknown", None),
        (Target.from_config({"kind": "cuda", "arch": "sm_86"}), "cuda", "8.6"),
        (Target.from_config({"kind": "cuda", "arch": "sm_90a", "model": "unknown"}), "cuda", "9.0"),
        (Target.from_config({"kind": "rocm", "arch": "gfx90a"}), "rocm", None),
        (Target.from_config({"kind": "cuda", "arch": "sm_x"}), "cuda", None),
    ],
)
def test_load_takes_device_and_capability_from_target(store, target, device, capability):
    assert device_of(target) == device
    measurement = scale(32)
    add(store, replace(measurement, program=replace(measurement.program, target=target)))
    (found,) = load(store)
    assert (found.device, found.compute_capability) == (device, capability)


@needs_gpu_logs
@pytest.mark.stress
def test_profiled_runs_have_known_slices_counters_and_kernels(profiled_runs):
    """``specs/block-size.md`` 1.5: 9,305 runs in 362 slices, without failed ones."""
    assert len(profiled_runs) == 9305
    assert len(by_slice(profiled_runs)) == 362
    assert {len(run.counters) for run in profiled_runs} == {33}
    assert {run.compute_capability for run in profiled_runs} == {"7.5"}
    kernels = [run.kernel for run in profiled_runs]
    counts = [kernels.count(name) for name in ("directCoulombSum", "Convolution", "Pnpoly")]
    assert counts == [210, 5280, 3815]
    assert min(run.seconds for run in profiled_runs) > 1e-5


def loaded(path, *names):
    with Store(path) as store:
        for name in names:
            import_log(store, LogFile(GPU / name, name), source=name)
        return load(store)


@needs_gpu_logs
def test_t4_conversion_has_the_slices_of_its_ktt_file(tmp_path):
    """``specs/block-size.md``, check 8: KTT's JSON and its conversion to FAIR T4."""

    def slices(rows):
        return {
            frozenset((tuple(sorted(rows[i].parameters.items())), rows[i].threads) for i in several)
            for several in by_slice(rows)
        }

    name = "ktt/coulomb_2080_full_search_space"
    original = loaded(tmp_path / "ktt.db", f"{name}.json.gz")
    converted = loaded(tmp_path / "t4.db", f"{name}_converted.json.gz")
    assert len(original) == len(converted) == 210
    assert len(slices(original)) == 42
    assert slices(converted) == slices(original)
    times = [sorted(round(run.seconds, 12) for run in rows) for rows in (original, converted)]
    assert times[0] == times[1]


@needs_gpu_logs
def test_ktt_file_gives_one_observation_per_configuration(tmp_path):
    """475 results of 210 configurations, 67 of them with counters."""
    found = loaded(tmp_path / "ktt.db", "ktt/TuningOutput.json.gz")
    assert len(found) == 210
    assert 0 < sum(bool(run.counters) for run in found) <= 67


@needs_gpu_logs
def test_nvprof_files_of_one_kernel_make_one_slice(tmp_path):
    """nvprof on a GTX 950: vectorAdd in blocks of 32 to 1,024 threads, each from its own file."""
    sizes = ["", "32", "64", "128", "256", "512", "1024"]
    names = [f"nvprof/vector_add/metrics{size}.csv" for size in sizes]
    found = loaded(tmp_path / "nvprof.db", *(n for n in names if (GPU / n).exists()))
    (positions,) = by_slice(found)
    assert sorted(found[i].threads for i in positions) == [32, 64, 128, 256, 512, 1024]
    assert {found[i].compute_capability for i in positions} == {"5.2"}
    assert all(found[i].counters for i in positions)
    assert verdicts(found)[0].best in positions
