"""Networks: tuning and compiling lower a Relax program in the same way."""

import math

import networks
import numpy as np
import pytest
import tvm
from effort import long
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx
from tvm.s_tir import meta_schedule as ms

from tunedb.errors import UsageError
from tunedb.plugins.metaschedule import Database, compile, modules
from tunedb.plugins.metaschedule.deploy.apply import (
    compile_lowered,
    schedule,
    tasks_of,
    write_library,
)
from tunedb.plugins.metaschedule.deploy.explain import explain
from tunedb.plugins.metaschedule.deploy.folding import fold_constants
from tunedb.plugins.metaschedule.deploy.network import Lowering, lower
from tunedb.plugins.metaschedule.module_source import prim_funcs
from tunedb.programs.workload_info import signature_of
from tunedb.programs.workload_info.distance import distance

TARGET = tvm.target.Target(networks.LLVM)
CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
IMAGE = np.random.default_rng(0).normal(size=(1, 3, 16, 16)).astype("float32")


@pytest.fixture(scope="module")
def mod():
    return from_onnx(networks.mobile())


@pytest.fixture(scope="module")
def expected(mod):
    """The result of the unchanged program, compiled by TVM's default pipeline."""
    return run(tvm.compile(mod, target=TARGET))


@pytest.fixture
def database(tmp_path):
    with Database(tmp_path / "store.db", target=TARGET) as found:
        yield found


def run(executable):
    return relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(IMAGE)).numpy()


def test_fold_constants_equals_tvms_to_the_bit(mod):
    passes = relax.transform
    before = [passes.FoldBatchnormToConv2D(), passes.DecomposeOpsForInference()]
    before.append(passes.CanonicalizeBindings())
    after = [passes.CanonicalizeBindings(), passes.DeadCodeElimination()]
    with TARGET:
        ours, tvms = (
            tvm.transform.Sequential([*before, fold, *after])(mod)
            for fold in (fold_constants, passes.FoldConstant())
        )
    tvm.ir.assert_structural_equal(ours, tvms)
    assert all("subtract" not in str(one) for one in (ours, tvms))


def free_layouts(mod):
    free = {name: func.attrs.get("layout_free_buffers") for name, func in prim_funcs(mod).items()}
    return {name: [int(number) for number in found] for name, found in free.items() if found}


def commit(database, task, *, rewrite):
    """Store a program of a task; with `rewrite` one that changes the layout of its weights."""
    space = ms.space_generator.PostOrderApply()
    context = ms.TuneContext(
        task, target=TARGET, space_generator=space, num_threads=1, rand_state=3
    )
    for sketch in context.generate_design_space():
        sch = tvm.s_tir.Schedule(task, seed=7, debug_mask="none")
        sketch.trace.apply_to_schedule(sch, remove_postproc=True)
        sch.enter_postproc()
        applied = [post.apply(sch) for post in context.space_generator.postprocs]
        if all(applied) and ("layout_rewrite_preproc" in sch.mod.script()) is rewrite:
            break
    else:
        raise AssertionError("no such program")
    workload = database.commit_workload(task)
    info = ms.arg_info.ArgInfo.from_entry_func(task)
    record = ms.database.TuningRecord(sch.trace, workload, [1e-3], TARGET, info)
    database.commit_tuning_record(record)


def test_lower_folds_batch_norms_moves_channels_last_and_lets_packing_choose_weights(mod):
    lowered = lower(mod, TARGET, Lowering())
    assert lowered.notes == ()
    functions = prim_funcs(lowered.mod)
    assert not [name for name in functions if "divide" in name or "multiply" in name]
    convolutions = [func for name, func in functions.items() if "conv2d" in name]
    infos = [ms.arg_info.ArgInfo.from_prim_func(func)[1] for func in convolutions]
    shapes = [tuple(info.as_json()[2]) for info in infos]
    assert sorted(shapes) == [(1, 1, 8, 32), (1, 1, 32, 8), (3, 3, 1, 32), (3, 3, 3, 8)]
    # Only weights are free of a layout.
    free = free_layouts(lowered.mod)
    assert free and all(numbers and 0 not in numbers for numbers in free.values())
    assert all("conv2d" in name or "matmul" in name for name in free)
    assert free_layouts(lower(mod, TARGET, Lowering(prepack=False)).mod) == {}


@pytest.mark.parametrize(
    ("target", "layout", "channels_last", "packs"),
    [
        (TARGET, "auto", True, True),
        long(TARGET, "keep", False, True),
        (CUDA, "auto", False, False),
        long(CUDA, {"relax.nn.conv2d": ["NHWC", "HWIO"]}, True, False),
    ],
)
def test_target_chooses_layout_and_packing(mod, target, layout, channels_last, packs):
    lowering = Lowering(layout)
    assert bool(lowering.layouts(target)) is channels_last
    assert lowering.packs(target) is packs
    lowered = lower(mod, target, lowering).mod
    assert bool(free_layouts(lowered)) is packs
    has_transpose = any("transpose" in name for name in prim_funcs(lowered))
    assert has_transpose is channels_last


def test_operator_that_tvm_cannot_convert_keeps_its_layout(mod, expected, database):
    layout = {"relax.nn.conv2d": ["NHWC", "HWIO"], "relax.nn.softmax": ["NHWC"]}
    made = compile(mod, database, layout=layout)
    np.testing.assert_allclose(run(made.executable), expected, rtol=1e-5, atol=1e-5)
    broken = {"relax.nn.conv2d": ["NHWC", "HWIO", "X?"]}
    lowered = lower(mod, TARGET, Lowering(broken))
    (note,) = lowered.notes
    assert note.startswith("layout of relax.nn.conv2d is kept: ") and "\n" not in note
    kept = lower(mod, TARGET, Lowering("keep")).mod
    assert prim_funcs(lowered.mod).keys() == prim_funcs(kept).keys()


def test_lowering_rejects_other_layouts():
    with pytest.raises(UsageError, match="layout must be auto, keep or a mapping"):
        Lowering("NHWC")


@pytest.mark.parametrize(
    ("layout", "prepack"), [long("auto", None), long("keep", None), ("keep", False)]
)
def test_compiled_network_computes_the_same_for_any_layout_and_packing(
    mod, expected, database, layout, prepack
):
    made = compile(mod, database, layout=layout, prepack=prepack)
    assert all(use.record_id is None for use in made.uses)
    np.testing.assert_allclose(run(made.executable), expected, rtol=1e-5, atol=1e-5)


def code(made):
    """Return the code of a compiled network; its constants are not in it."""
    (library,) = made.executable.mod.imports
    return library.inspect_source("ll")


def convolution(tasks):
    return next(task for name, task in tasks.items() if name.startswith("fused_conv2d1"))


def test_compile_packs_weights_that_are_constants(mod, expected, database):
    commit(database, convolution(tasks_of(mod, TARGET)), rewrite=True)
    made = compile(mod, database)
    assert [use.record_id for use in made.uses].count(1) == 1
    text = code(made)
    assert "_prepacked" in text and "_weight_prepack" not in text
    # Packed constants are arguments and not parts of tuples.
    assert "tuple_getitem" not in text
    assert "fused_conv2d1" not in made.executable.as_text()  # no call is interpreted
    np.testing.assert_allclose(run(made.executable), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", ["keep", "auto"])
def test_compiled_library_packs_weights_that_are_parameters(expected, database, layout):
    mod = from_onnx(networks.mobile(), keep_params_in_input=True)
    mod, params = relax.frontend.detach_params(mod)
    weights = [tvm.runtime.tensor(one.numpy()) for one in params["main"]]
    tasks = tasks_of(mod, TARGET, Lowering(layout))
    # What is computed from weights alone runs once; the image is transposed in each run.
    transposed = [name for name in tasks if name.startswith("transpose")]
    assert transposed == (["transpose"] if layout == "auto" else [])
    commit(database, convolution(tasks), rewrite=True)
    made = compile(mod, database, layout=layout)
    (note,) = made.notes
    assert note == "weights are parameters: main_transform_params of the library packs them"
    machine = relax.VirtualMachine(made.executable, tvm.cpu())
    packed = machine["main_transform_params"](weights)
    found = machine["main"](tvm.runtime.tensor(IMAGE), *packed).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert "_prepacked" in code(made)


def test_compile_applies_records_of_unpacked_functions_without_packing(mod, expected, database):
    task = convolution(tasks_of(mod, TARGET, Lowering(prepack=False)))
    commit(database, task, rewrite=False)
    scheduled, uses = schedule(mod, database)
    (used,) = [use.function for use in uses if use.record_id is not None]
    assert used not in free_layouts(scheduled) and free_layouts(scheduled)
    made = compile(mod, database)
    assert "_prepacked" not in code(made)
    np.testing.assert_allclose(run(made.executable), expected, rtol=1e-5, atol=1e-5)
    (finding,) = [one for one in explain(database.store, mod, TARGET) if one.use is not None]
    assert finding.function == used


def test_network_compiled_to_c_becomes_a_library(mod, expected, tmp_path):
    target = tvm.target.Target({"kind": "c"})
    made = compile_lowered(lower(mod, target, Lowering()), None, target)
    write_library(made.executable, tmp_path / "net.so")
    library = tvm.runtime.load_module(str(tmp_path / "net.so"))
    np.testing.assert_allclose(run(library), expected, rtol=1e-5, atol=1e-5)


#: Arguments of activations: usual ones, and those where a polynomial might fail.
POINTS = np.concatenate([np.linspace(-12, 12, 2_001), [-88, 1e-30, -0.0]]).astype("float32")
#: Reference implementation by operator of Relax.
ACTIVATIONS = {
    "exp": np.exp,
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "nn.silu": lambda x: x / (1 + np.exp(-x)),
    "nn.gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / 2**0.5)) / 2,
    "nn.gelu_tanh": lambda x: x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2,
    "nn.softmax": lambda x: np.exp(x - x.max()) / np.exp(x - x.max()).sum(),
    "nn.log_softmax": lambda x: x - x.max() - np.log(np.exp(x - x.max()).sum()),
}


def activation(name, dtype="float32", size=POINTS.size):
    """Return a program that applies an operator to a vector."""
    return tvm.script.from_source(
        f"""
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(({size},), "{dtype}")):
        with R.dataflow():
            y = R.{name}(x)
            R.output(y)
        return y
"""
    )


def calls_library(mod, target):
    """Return whether a lowered activation calls a function of the C library."""
    code = lower(mod, target, Lowering()).mod.script()
    return any(f"T.{name}(" in code for name in ("exp", "erf", "tanh", "sigmoid", "log"))


def applied(mod, points):
    """Return the result of a program for a vector."""
    executable = compile_lowered(lower(mod, TARGET, Lowering()), None, TARGET).executable
    return relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(points)).numpy()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_lower_replaces_activations_by_polynomials_for_llvm(name):
    mod = activation(name)
    assert not calls_library(mod, TARGET)
    expected = ACTIVATIONS[name](POINTS.astype("float64"))
    np.testing.assert_allclose(applied(mod, POINTS), expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "points", "expected"),
    [
        ("exp", [-np.inf, np.inf, np.nan], [0, np.inf, np.nan]),
        ("tanh", [-np.inf, np.inf, np.nan], [-1, 1, np.nan]),
        ("nn.gelu", [-1e9, np.inf, np.nan], [0, np.inf, np.nan]),
        # A masked row of attention, and rows without an answer.
        ("nn.softmax", [-np.inf, 5, 5], [0, 0.5, 0.5]),
        ("nn.softmax", [-np.inf, -np.inf, -np.inf], [np.nan] * 3),
        ("nn.softmax", [np.nan, 1, 2], [np.nan] * 3),
        ("nn.log_softmax", [-np.inf, 5, 5], [-np.inf, -np.log(2), -np.log(2)]),
        ("log", [np.inf, np.nan, -np.inf], [np.inf, np.nan, np.nan]),
        ("log", [0.0, -0.0, -1e-45], [-np.inf, -np.inf, np.nan]),
    ],
)
def test_activations_handle_infinities_and_nan(name, points, expected):
    found = applied(activation(name, size=3), np.array(points, "float32"))
    np.testing.assert_array_equal(found, np.array(expected, "float32"))


def test_logarithms_are_exact_to_two_units_in_the_last_place():
    """From the least subnormal number to the greatest one, and densely around 1."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(1, 0x7F800000, 20_000).astype("uint32").view("float32")
    ends = [1e-45, np.finfo("float32").tiny, np.finfo("float32").max, 1, np.nextafter(1, 0)]
    points = np.concatenate([patterns, np.linspace(0.5, 2, 2_001), ends]).astype("float32")
    mod = activation("log", size=points.size)
    assert not calls_library(mod, TARGET)
    expected = np.log(points.astype("float64"))
    error = np.abs(applied(mod, points) - expected)
    assert (error <= 2 * np.spacing(np.abs(expected).astype("float32"))).all()


@pytest.mark.parametrize(
    ("target", "dtype"),
    [({"kind": "c"}, "float32"), ({"kind": "llvm", "mcpu": "sapphirerapids"}, "float16")],
)
def test_activations_stay_library_calls_for_c_and_vectors_of_float16(target, dtype):
    assert calls_library(activation("nn.silu", dtype), tvm.target.Target(target))


def test_functions_with_and_without_free_layouts_have_distance_0(mod):
    lowerings = Lowering(prepack=True), Lowering(prepack=False)
    tasks = [convolution(tasks_of(mod, TARGET, lowering)) for lowering in lowerings]
    assert distance(*(signature_of(modules.to_workload(task)) for task in tasks)) == 0.0
