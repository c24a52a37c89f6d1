"""Winograd's algorithm as a choice for convolutions: the same results, fewer multiplications."""

from dataclasses import replace
from fractions import Fraction
from functools import cache
from types import SimpleNamespace

import matmuls
import networks
import numpy as np
import pytest
import tvm
from effort import long
from fake_measuring import FakeBuilder, FakeRunner
from fake_tuning import tune_quickly
from onnx import numpy_helper
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.tune_context import _normalize_mod

from tunedb.errors import UsageError
from tunedb.plugins.metaschedule import Database, compile, tune
from tunedb.plugins.metaschedule.deploy.algorithms import (
    Choices,
    key_of,
    lower_fastest,
    stored_digest,
)
from tunedb.plugins.metaschedule.deploy.apply import better_lowering, compile_lowered, tasks_of
from tunedb.plugins.metaschedule.deploy.network import Lowering, lower, lower_winograd
from tunedb.plugins.metaschedule.deploy.network_times import FunctionTime, Times
from tunedb.plugins.metaschedule.module_source import prim_funcs
from tunedb.plugins.metaschedule.tuning.network import MeasuredNetwork, _untuned_record
from tunedb.plugins.metaschedule.tuning.resume import session_of_run, store_network
from tunedb.plugins.metaschedule.tuning.tasks import Network
from tunedb.plugins.metaschedule.tuning.tasks import tasks_of as tuning_tasks
from tunedb.plugins.metaschedule.winograd import _TRANSFORMS, TILES, Convolution
from tunedb.search.scheduling import NetworkGoal
from tunedb.storage.network_runs import NetworkRun, OperatorTime

TARGET = tvm.target.Target(networks.LLVM)
CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
WINOGRAD = Lowering(algorithms="winograd")
RULES = ms.space_generator.PostOrderApply(
    sch_rules=[ms.schedule_rule.ApplyCustomRule()], postprocs=[], mutator_probs={}
)


class Model(networks.Builder):
    """A model of convolutions that keeps the values of its weights."""

    def conv(self, data, inputs, outputs, *, pads=(1, 1, 1, 1), kernel=3, stride=1, dilation=1):
        weights = self.weight(outputs, inputs, kernel, kernel, scale=(9 * inputs) ** -0.5)
        inputs = [data, weights, self.weight(outputs, scale=0.1)]
        sizes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "dilations": [dilation] * 2}
        return self.node("Conv", inputs, pads=pads, **sizes)


def single(shape=(1, 8, 6, 6), outputs=8, **options):
    """Return a program of a convolution, a bias and a ReLU, and its weights."""
    b = Model()
    data = b.node("Relu", [b.conv("image", shape[1], outputs, **options)])
    weights = {weight.name: weight for weight in b.weights}
    model = b.model(data, {"image": list(shape)}, ["n", outputs, "h", "w"])
    arrays = map(numpy_helper.to_array, weights.values())
    return from_onnx(model), [array.astype("float64") for array in arrays]


def residual(size=8, channels=8):
    """Return a block of two equal convolutions, whose input is added to its result."""
    b = Model()
    data = b.node("Relu", [b.conv("image", channels, channels)])
    data = b.node("Add", [b.conv(data, channels, channels), "image"])
    shape = [1, channels, size, size]
    return from_onnx(b.model(b.node("Relu", [data]), {"image": shape}, shape))


@cache
def plain():
    """A program of one convolution, whose weights are of no interest."""
    return single()[0]


@cache
def block():
    """A program of two equal convolutions, of which one adds the residual."""
    return residual()


def run(executable, image):
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return machine["main"](tvm.runtime.tensor(image)).numpy()


def image_of(shape):
    return np.random.default_rng(1).normal(size=shape).astype("float32")


def by_definition(image, weights, bias, pads):
    """Compute a convolution of stride 1, its bias and a ReLU in float64."""
    top, left, bottom, right = pads
    padded = np.pad(image.astype("float64"), [(0, 0), (0, 0), (top, bottom), (left, right)])
    height, width = padded.shape[2] - 2, padded.shape[3] - 2
    result = sum(
        np.einsum("nchw,kc->nkhw", padded[:, :, i : i + height, j : j + width], weights[:, :, i, j])
        for i in range(3)
        for j in range(3)
    )
    return np.maximum(result + bias[:, None, None], 0)


@pytest.mark.parametrize("tile", TILES)
def test_transforms_are_exact(tile):
    matrices = _TRANSFORMS[tile]

    def fractions(rows):
        return np.array([[Fraction(n).limit_denominator(24) for n in row] for row in rows])

    data, kernel = np.arange(tile + 2) ** 3, np.array([5, -7, 11])
    elements = (fractions(matrices.weights) @ kernel) * (fractions(matrices.input) @ data)
    expected = [int(data[n : n + 3] @ kernel) for n in range(tile)]
    assert (fractions(matrices.output) @ elements).tolist() == expected


@pytest.mark.parametrize(
    ("tile", "shape", "outputs", "pads"),
    [
        (2, (1, 8, 6, 6), 16, (1, 1, 1, 1)),
        (4, (2, 24, 7, 5), 8, (1, 1, 1, 1)),
        long(4, (1, 8, 9, 4), 8, (0, 0, 0, 0)),
        long(2, (3, 16, 5, 3), 8, (2, 0, 1, 2)),
        long(4, (1, 8, 1, 1), 8, (1, 1, 1, 1)),
    ],
)
def test_winograd_results_equal_those_of_the_definition_within_tolerance(
    tile, shape, outputs, pads
):
    mod, (weights, bias) = single(shape, outputs, pads=pads)
    lowered = lower(mod, TARGET, WINOGRAD)
    (found,) = lowered.convolutions
    batch, channels, height, width = shape
    assert found == Convolution(batch, height, width, channels, outputs, pads)
    changed = lower_winograd(lowered, TARGET, {found: tile})
    image = image_of(shape)
    expected = by_definition(image, weights, bias, pads)
    error = np.abs(run(compile_lowered(changed, None, TARGET).executable, image) - expected).max()
    assert error <= {2: 2e-6, 4: 2e-5}[tile] * np.abs(expected).max()
    # The operators that follow are fused into the last transform.
    names = [name for name in prim_funcs(changed.mod) if "add" in name or "relu" in name]
    assert names == ["fused_winograd_output_add_relu"]


def tasks_in(lowered):
    """Return names and functions of a program, as they are tuned."""
    tasks = ms.relax_integration.extract_tasks(lowered.mod, TARGET)
    return [(str(task.task_name), task.dispatched[0]) for task in tasks]


def sketches_of(task):
    """Return the schedules that the custom rules of a function make."""
    context = ms.TuneContext(task, target=TARGET, space_generator=RULES, num_threads=1)
    return context.generate_design_space()


def test_scheduled_transforms_compute_the_same_to_the_bit_and_replay_without_custom_rules():
    lowered = lower(residual(size=7, channels=16), TARGET, WINOGRAD)
    changed = lower_winograd(lowered, TARGET, dict.fromkeys(lowered.convolutions, 4))
    transforms = [task for name, task in tasks_in(changed) if "winograd" in name]
    assert len(transforms) == 3  # one input, with and without the addition of the residual
    for mod in transforms:
        infos = ms.arg_info.ArgInfo.from_entry_func(mod, remove_preproc=False)
        arguments = [image_of([int(extent) for extent in one.shape]) for one in infos]

        def result(program, arguments=arguments):
            tensors = [tvm.runtime.tensor(array) for array in arguments]
            tvm.compile(program, target=TARGET)["main"](*tensors)
            return tensors[-1].numpy()

        expected, sketches = result(mod), sketches_of(mod)
        assert len(sketches) == 2  # 16 and 8 channels at a time
        for sketch in sketches:
            script = sketch.mod.script()
            assert "T.parallel" in script and "T.vectorized" in script
            np.testing.assert_array_equal(result(sketch.mod), expected)
            assert not any("winograd" in str(i.kind.name).lower() for i in sketch.trace.insts)
            replayed = Schedule(mod)
            sketch.trace.apply_to_schedule(replayed, remove_postproc=False)
            tvm.ir.assert_structural_equal(replayed.mod, sketch.mod)


def test_lower_winograd_fuses_result_that_is_read_twice():
    b = Model()
    data = b.conv("image", 8, 8)
    gate = b.node("Sigmoid", [data])
    shape = [1, 8, 6, 6]
    mod = from_onnx(b.model(b.node("Mul", [data, gate]), {"image": shape}, shape))
    lowered = lower(mod, TARGET, WINOGRAD)
    changed = lower_winograd(lowered, TARGET, dict.fromkeys(lowered.convolutions, 2))
    image = image_of(shape)
    expected = run(tvm.compile(mod, target=TARGET), image)
    found = run(compile_lowered(changed, None, TARGET).executable, image)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    (last,) = (task for name, task in tasks_in(changed) if "winograd_output" in name)
    (sketch,) = sketches_of(last)
    # Two steps, the result, and the root.
    assert sketch.mod.script().count("T.sblock(") == 3 + 1


@pytest.mark.parametrize(
    "options",
    [
        *[{"stride": 2}, {"dilation": 2}, {"kernel": 1, "pads": (0, 0, 0, 0)}],
        *[{"shape": (1, 3, 6, 6)}, {"outputs": 12}],
    ],
    ids=str,
)
def test_lower_keeps_other_convolutions_exact(options):
    lowered = lower(single(**options)[0], TARGET, WINOGRAD)
    assert not lowered.convolutions
    assert any("all operators are exact" in note for note in lowered.notes)


def test_lower_keeps_weight_parameters_channels_first_and_gpus_exact():
    mod = plain()
    assert not lower(mod, TARGET, Lowering(layout="keep", algorithms="winograd")).convolutions
    assert not lower(mod, CUDA, WINOGRAD).convolutions
    kept = from_onnx(networks.mobile(), keep_params_in_input=True)
    assert not lower(kept, TARGET, WINOGRAD).convolutions
    grouped = lower(from_onnx(networks.mobile(channels=8)), TARGET, WINOGRAD)
    assert not grouped.convolutions
    exact = lower(mod, TARGET, Lowering())
    assert not exact.convolutions and not exact.notes
    with pytest.raises(UsageError, match="algorithms must be exact or winograd, not 'fft'"):
        Lowering(algorithms="fft")


# --------------------------------------------------------- choice of the algorithm


@pytest.fixture
def database(tmp_path):
    with Database(tmp_path / "store.db", target=TARGET) as found:
        yield found


@cache
def parts(mod):
    """Return the functions of each algorithm of a program by the size of its tiles, 1 for exact."""
    found = {1: [], 2: [], 4: []}
    for name, task in tasks_of(mod, TARGET, WINOGRAD).items():
        if "conv2d" in name:
            found[1].append(task)
        else:
            for tile in TILES:
                if f"_f{tile}_" in name:
                    found[tile].append(task)
    return found


def commit(database, tasks, seconds):
    for task in tasks:
        database.commit_tuning_record(_untuned_record(database, task, seconds, TARGET))


def chosen(mod, database):
    """Return the sizes of tiles of the fastest algorithms; 1 is exact."""
    lowered = lower_fastest(mod, TARGET, WINOGRAD, database._handle)
    own = {key_of(task) for _, task in tasks_in(lowered)}
    return {tile for tile, tasks in parts(mod).items() if {key_of(task) for task in tasks} <= own}


def store(database, network_run):
    handle = database._handle
    before = handle.session()
    evaluator = {"number": 1, "repeat": 3}
    handle.use_session(session_of_run(before, "run", max_trials=1, evaluator=evaluator))
    store_network(handle, network_run)
    handle.use_session(before)


def named(lowered):
    """Return the functions of a program, normalised, by name."""
    return {name: _normalize_mod(func) for name, func in prim_funcs(lowered.mod).items()}


def in_network(database, tasks, seconds):
    return [
        OperatorTime("part", stored_digest(database._handle, task), 2, 1.0, 2 * seconds)
        for task in tasks
    ]


def measured(compiled):
    """Return the functions with a record; the transpositions have none."""
    return [use.function for use in compiled.uses if use.kind == "measured"]


def test_measured_times_choose_the_algorithm(database):
    mod = plain()
    tasks = parts(mod)
    assert {tile: len(found) for tile, found in tasks.items()} == {1: 1, 2: 3, 4: 3}
    assert chosen(mod, database) == {1}
    commit(database, tasks[4][:2], 1e-6)  # a part is not measured
    assert chosen(mod, database) == {1}
    commit(database, tasks[4][2:], 1e-6)
    assert chosen(mod, database) == {4}  # nothing is known of the exact one
    commit(database, tasks[1], 2e-6)
    assert chosen(mod, database) == {1}
    commit(database, tasks[2], 0.5e-6)
    assert chosen(mod, database) == {2}
    executable = compile(mod, database, algorithms="winograd")
    assert measured(executable) == ["fused_winograd_output_add_relu", "matmul", "winograd_input"]
    (name,) = measured(compile(mod, database))
    assert "conv2d" in name


def test_better_lowering_suggests_algorithm_with_records(database):
    mod = plain()
    tasks = parts(mod)
    exact = Lowering(bind={})
    assert better_lowering(mod, database, TARGET, exact) is None
    commit(database, tasks[4], 1e-6)
    assert better_lowering(mod, database, TARGET, exact) == Lowering(bind={}, algorithms="winograd")
    commit(database, tasks[1], 1e-5)  # slower, but a record
    assert better_lowering(mod, database, TARGET, exact) is None


def test_times_in_a_network_outweigh_those_of_the_records(database):
    mod = plain()
    tasks = parts(mod)
    for tile, seconds in ((1, 5e-6), (2, 1.2e-6), (4, 1e-6)):
        commit(database, tasks[tile], seconds)
    assert chosen(mod, database) == {4}
    network_run = NetworkRun(
        *("net", str(TARGET), 2, 1.0, 0.5, 0.0, 1e-4),
        tuple(in_network(database, tasks[2], 2e-6)),
        others=tuple(in_network(database, tasks[4], 3e-6)),
    )
    store(database, replace(network_run, target="another"))
    assert chosen(mod, database) == {4}
    store(database, network_run)
    (_, (_, stored)) = database.store.runs.networks()
    assert stored == network_run
    assert chosen(mod, database) == {2}  # the exact one is far behind by its records
    commit(database, tasks[1], 4e-6)
    assert chosen(mod, database) == {4}  # it is close now, and nobody knows it in a network


def test_network_times_decide_among_algorithms_whose_records_are_close(database):
    mod = block()
    lowered = lower(mod, TARGET, WINOGRAD)
    tasks = parts(mod)
    assert len(tasks[1]) == 2  # with and without the residual
    # Two calls of the exact function, or six of the parts of others.
    for tile, seconds in ((1, 3.5e-6), (2, 1.05e-6), (4, 1e-6)):
        commit(database, tasks[tile], seconds)
    slow = {key_of(task) for task in (*tasks[1], *tasks[4])}
    measured = []

    def measure(executable):
        measured.append(executable)
        # The first measurement of a network is disturbed.
        factor = 1 if measured.count(executable) > 1 else 20
        times = {
            name: FunctionTime(1, factor * (9e-6 if key_of(task) in slow else 1e-6))
            for name, task in named(executable).items()
        }
        return Times(sum(time.seconds for time in times.values()), times, 0.0, 1e-4)

    untuned = Times(1.0, {name: FunctionTime(1, 1e-2) for name in prim_funcs(lowered.mod)}, 0, 1e-4)
    functions = {name: key_of(task) for name, task in named(lowered).items()}
    given = Network("net", mod, lowered, NetworkGoal())
    network = MeasuredNetwork(given, TARGET, functions, measure, untuned, None)
    choices = Choices.of(lowered, TARGET)
    records = choices.recorded(database._handle)
    assert [choices.ranked(records, rank) for rank in range(3)] == [(1,), (2,), (0,)]
    assert choices.fastest([{}], {}) == (0,)
    assert choices.fastest([{}, *records], {}) == (1,)  # of a layer
    assert choices.lower((0,)) is lowered

    def compiled(current, *_, **__):
        return SimpleNamespace(executable=current)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tunedb.plugins.metaschedule.tuning.network.compile_lowered", compiled)
        result = network.finish(database, 2, [])
    assert len(measured) == 6 and len(set(map(id, measured))) == 3
    digests = {tile: {stored_digest(database._handle, t) for t in tasks[tile]} for tile in tasks}
    assert digests[2] <= {each.workload for each in result.operators}
    assert digests[1] | digests[4] == {each.workload for each in result.others}
    # The functions that replace the exact ones share their untuned time.
    total = sum(time.seconds for time in untuned.functions.values())
    assert sum(each.untuned for each in result.operators) == pytest.approx(total)
    assert chosen(mod, database) == {4}
    store(database, result)
    assert chosen(mod, database) == {2}


# ------------------------------------------------------------------------------ tuning


def test_op_names_select_all_algorithms_of_an_operator(database):
    options = {"target": TARGET, "algorithms": "winograd", "max_trials_global": 1}
    with pytest.raises(UsageError, match="no operator has fft in its name: fused_conv2d"):
        tune_quickly(plain(), database, op_names=["fft"], **options)
    named = SimpleNamespace(
        **{"op_names": ["matmul_f4"], "bind": None, "weights": None, "latency_target": None},
        **{"layout": "auto", "prepack": None, "algorithms": "winograd"},
    )
    tasks, (network,) = tuning_tasks({"net": block()}, TARGET, named, "structural")
    numbers = {n for each in network.goal.choices for option in each for n in option}
    assert numbers == set(range(len(tasks))) and len(numbers) == 2 + 2 * 4
    with pytest.raises(UsageError, match="algorithms are for convolutions of Relax programs"):
        tune_quickly(matmuls.matmul(), database, **options)


def test_equal_shapes_with_other_padding_are_other_tasks():
    b = Model()
    data = b.conv(b.conv("image", 8, 8), 8, 8, pads=(1, 1, 1, 1))
    other = b.conv("image", 8, 8, pads=(0, 0, 0, 0))
    sums = [b.node("ReduceSum", [each], keepdims=0) for each in (data, other)]
    mod = from_onnx(b.model(b.node("Add", sums), {"image": [1, 8, 6, 6]}, []))
    lowered = lower(mod, TARGET, WINOGRAD)
    labels = {each.label(4) for each in lowered.convolutions}
    assert labels == {"f4_1x6x6x8x8", "f4_1x6x6x8x8_p0000"}


@pytest.mark.stress
def test_run_tunes_all_algorithms_and_counts_the_fastest(tmp_path):
    mod = block()
    builder = FakeBuilder()
    result = tune(
        *(mod, networks.LLVM),
        **{"database": tmp_path / "tune.db", "algorithms": "winograd", "builder": builder},
        **{"runner": FakeRunner(), "cost_model": "random", "num_tuning_cores": 1, "seed": 0},
        **{"max_trials_global": 64, "num_trials_per_iter": 2},
    )
    builder.close()
    names = {task.name for task in result.tasks}
    assert {"winograd_input_f4_1x8x8x8x8", "matmul_f2_1x8x8x8x8"} <= names
    (network,) = result.networks
    options = network.progress.goal.choices[0]
    assert len(options) == 3
    assert sorted(options[0].values()) == [1.0, 1.0]
    assert all(sorted(each.values()) == [1.0, 1.0, 2.0, 2.0] for each in options[1:])
    calls = [task.calls for task in result.tasks]
    assert any(all(calls[n] == count for n, count in option.items()) for option in options)
    # Each operator is in the network once: the parts of other algorithms are not called.
    parts = {number for option in options for number in option}
    assert sum(calls[number] for number in parts) in (2, 6)
    estimate = sum(task.calls * task.seconds for task in result.tasks if task.calls)
    assert network.progress.latency == pytest.approx(estimate)
    result.database.close()


@pytest.mark.stress
def test_real_run_measures_the_network_with_the_fastest_algorithm(tmp_path):
    mod = residual(size=28, channels=64)
    budget = {"max_trials_global": 48, "num_trials_per_iter": 8, "seed": 0, "prior": "none"}
    result = tune(mod, database=tmp_path / "tune.db", algorithms="winograd", **budget)
    network = result.networks[0].run
    assert network.is_accurate
    image = image_of((1, 64, 28, 28))
    exact = run(tvm.compile(mod, target=result.target), image)
    compiled = compile(mod, result.database, algorithms="winograd")
    parts = [use for use in compiled.uses if "transpose" not in use.function]
    assert len(parts) in (2, 4) and {use.kind for use in parts} == {"measured"}
    found = run(compiled.executable, image)
    np.testing.assert_allclose(found, exact, atol=1e-4 * np.abs(exact).max())
    result.database.close()
