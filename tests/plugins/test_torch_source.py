"""Exported programs of PyTorch compute in TVM what they compute in PyTorch."""

from types import SimpleNamespace

import networks
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import relax as R

from tunedb.plugins.metaschedule.compat import relax_type
from tunedb.plugins.metaschedule.deploy.apply import compile_lowered
from tunedb.plugins.metaschedule.deploy.network import Lowering, lower
from tunedb.plugins.metaschedule.frontends import torch_source
from tunedb.plugins.metaschedule.module_source import load_module

TARGET = tvm.target.Target(networks.LLVM)


def numbers(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def results_of(mod, *inputs):
    executable = compile_lowered(lower(mod, TARGET, Lowering()), None, TARGET).executable
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    return main(*map(tvm.runtime.tensor, inputs))


def own(x, y):
    """Return numbers of one type, as TVM's frontend does."""
    if isinstance(y, relax.Expr):
        if relax_type(x).dtype != relax_type(y).dtype:  # it knows the larger one
            x = relax.op.astype(x, str(relax_type(y).dtype))
        return x, y
    return x, relax.const(y, str(relax_type(x).dtype))


def program(b, variables, convert):
    """Return the program of a builder that returns what `convert` emits."""
    with b.function("main", variables):
        with b.dataflow():
            result = b.emit_output(convert())
        b.emit_func_output(result)
    return b.finalize()


def converted(name, shape, *arguments, kind="float32", users=(), **options):
    """Return a program of one operator, converted as in TVM's frontend, without PyTorch."""
    b = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor(shape, kind))
    importer = SimpleNamespace(block_builder=b, env={"x": x})
    importer.retrieve_args = lambda node: [
        importer.env.get(each, each) if isinstance(each, str) else each for each in node.args
    ]
    importer._cumsum = lambda node: b.emit(relax.op.cumsum(*importer.retrieve_args(node)))
    importer._binary_op = lambda operator, _: lambda node: b.emit(operator(*own(*node.args)))
    for method in OWN:
        setattr(importer, method, lambda node: b.emit(relax.op.negative(x)))
    node = SimpleNamespace(args=["x", *arguments], kwargs=options, users=users, target=name)
    mod = program(b, [x], lambda: torch_source._CONVERTERS[name](node, importer))
    assert importer.env == {"x": x}
    return mod


#: Conversions of TVM's frontend that are right; their results are negative here.
OWN = (
    *("_upsample_bicubic2d", "_upsample_bilinear2d", "_upsample_nearest2d"),
    *("_avg_pool2d", "_max_pool2d_with_indices"),
)


def results(name, shape, *arguments, kind="float32", **options):
    """Return an input and the result of an operator."""
    x = numbers(*shape) * 3
    x = x > 0 if kind == "bool" else x.astype(kind)
    return x, results_of(converted(name, shape, *arguments, kind=kind, **options), x).numpy()


@pytest.mark.parametrize("numbers_of", [(), (0.5,), (0.5, 2.0), (1.5, 2.0, 3.0)])
def test_elu_has_its_scales(numbers_of):
    x = numbers(3, 4)
    alpha, scale, input_scale = (*numbers_of, 1.0, 1.0, 1.0)[:3]
    expected = scale * np.where(x > 0, x, alpha * np.expm1(x * input_scale))
    found = results_of(converted("elu.default", (3, 4), *numbers_of), x).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("dtype", "options"), [("float32", {}), ("int32", {"dtype": "int32"})])
def test_other_cumulated_numbers_keep_their_type(dtype, options):
    mod = converted("cumsum.default", (3, 4), 1, kind=dtype, **options)
    assert str(relax_type(mod["main"].body).dtype) == dtype


def test_a_grid_of_pytorch_has_coordinates_last():
    """Points of a grid at the centres of pixels are these pixels."""
    b = relax.BlockBuilder()
    grid = np.stack(np.meshgrid(np.linspace(-1, 1, 5), np.linspace(-1, 1, 4)), -1)[None]
    shapes = [(1, 3, 4, 5), (1, 4, 5, 2)]
    x, points = (
        relax.Var(name, R.Tensor(s, "float32")) for name, s in zip("xg", shapes, strict=True)
    )
    importer = SimpleNamespace(block_builder=b, retrieve_args=lambda node: node.args)
    node = SimpleNamespace(args=[x, points, 0, 0, True])
    mod = program(b, [x, points], lambda: torch_source._grid_sample(node, importer))
    image = numbers(*shapes[0])
    found = results_of(mod, image, grid.astype("float32")).numpy()
    np.testing.assert_allclose(found, image, atol=1e-5)


IMAGE = (1, 2, 5, 7)


def weighted(x, rows, columns):
    """Return an image by the weights of its old pixels for each new one."""
    return np.einsum("nchw,hy,wx->ncyx", x, rows, columns)


def test_interpolations_go_by_the_given_scale():
    x, found = results("upsample_nearest2d.vec", IMAGE, None, [1.5, 0.6])
    rows, columns = [0, 0, 1, 2, 2, 3, 4], [0, 1, 3, 5]
    np.testing.assert_array_equal(found, x[:, :, rows][..., columns])
    x, found = results("upsample_bilinear2d.vec", IMAGE, None, False, [0.6, 1.0])
    # The middle of each new pixel, five thirds of an old one high.
    rows = np.zeros((5, 3))
    for new, place in enumerate((np.arange(3) + 0.5) / 0.6 - 0.5):
        rows[int(place), new] = 1 - place % 1
        rows[min(int(place) + 1, 4), new] += place % 1
    np.testing.assert_allclose(found, weighted(x, rows, np.eye(7)), rtol=1e-4, atol=1e-5)


def test_antialiasing_weighs_all_pixels_below_a_new_one():
    x, found = results("_upsample_bilinear2d_aa.default", (1, 1, 4, 6), [2, 6], False, None, None)
    # Twice as wide a triangle around 0.5 and 2.5; outside are no pixels.
    weights = 1 - np.abs(np.arange(4)[:, None] - [0.5, 2.5]) / 2
    rows = np.maximum(weights, 0) / np.maximum(weights, 0).sum(0)
    np.testing.assert_allclose(found, weighted(x, rows, np.eye(6)), rtol=1e-4, atol=1e-5)
    # PyTorch gives the scale besides the size, which rounds it.
    scaled = results("_upsample_bilinear2d_aa.default", (1, 1, 5, 5), [2, 5], False, 0.5, 1.0)
    places = np.abs(np.arange(5)[:, None] - [0.5, 2.5])
    rows = np.maximum(1 - places / 2, 0) / np.maximum(1 - places / 2, 0).sum(0)
    np.testing.assert_allclose(
        scaled[1], weighted(scaled[0], rows, np.eye(5)), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("upsample_nearest2d.vec", (None, [2.0, 3.0])),
        ("upsample_nearest2d.vec", ([10, 14], None)),
        ("upsample_bilinear2d.vec", (None, False, [2.0, 2.0])),
        ("upsample_bilinear2d.vec", (None, True, [1.5, 1.5])),
        ("upsample_bicubic2d.vec", ([6, 8], False, None)),
        ("avg_pool2d.default", ([2, 2],)),
        ("max_pool2d_with_indices.default", ([2, 2],)),
    ],
)
def test_tvms_conversions_stay_where_they_are_right(name, arguments):
    x, found = results(name, IMAGE, *arguments, users=[SimpleNamespace(args=[None, 0], users=[1])])
    np.testing.assert_array_equal(found, -x)


def test_averages_have_their_own_divisor():
    x, found = results("avg_pool2d.default", (1, 1, 4, 6), [2, 3], [], 0, False, True, 5)
    expected = x.reshape(1, 1, 2, 2, 2, 3).sum((3, 5)) / 5
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def f32(x):
    return np.asarray(x, "float32")


FLOOR, TRUNC = {"rounding_mode": "floor"}, {"rounding_mode": "trunc"}

#: Operators of integers and truth values, with arguments and options, and what PyTorch computes.
RESULTS = [
    ("cumsum.default", "bool", [1], {}, lambda x: np.cumsum(x, 1)),
    ("cumsum.default", "int8", [1], {}, lambda x: np.cumsum(x, 1)),
    ("div.Tensor", "int64", [2], {}, lambda x: f32(x / 2)),
    ("mul.Tensor", "int64", [0.5], {}, lambda x: f32(x * 0.5)),
    ("lt.Scalar", "int64", [0.5], {}, lambda x: x < 0.5),
    ("add.Tensor", "int64", [3], {}, lambda x: x + 3),
    ("rsub.Scalar", "int64", [1.5], {}, lambda x: f32(1.5 - x)),
    ("floor_divide.default", "int64", [2], {}, lambda x: x // 2),
    ("mul.Tensor", "bool", [3], {}, lambda x: x * 3),
    ("add.Tensor", "int64", ["x"], {"alpha": 2}, lambda x: 3 * x),
    ("div.Tensor_mode", "int32", [3], FLOOR, lambda x: np.floor(x / 3).astype("int32")),
    ("div.Tensor_mode", "int32", [3], TRUNC, lambda x: np.trunc(x / 3).astype("int32")),
    ("div.Tensor_mode", "int32", [1.5], FLOOR, lambda x: f32(np.floor(x / np.float32(1.5)))),
    ("div.Tensor_mode", "int32", [1.5], TRUNC, lambda x: f32(np.trunc(x / np.float32(1.5)))),
    ("div.Tensor_mode", "float32", [2], FLOOR, lambda x: np.floor(x / np.float32(2))),
    ("div.Tensor_mode", "float32", [2], TRUNC, lambda x: np.trunc(x / np.float32(2))),
    ("div.Tensor_mode", "int32", [2], {"rounding_mode": None}, lambda x: f32(x / 2)),
    ("clamp.default", "int64", [-1], {}, lambda x: np.maximum(x, -1)),
    ("clamp.default", "int64", [None, 2], {}, lambda x: np.minimum(x, 2)),
    ("prod.dim_int", "int32", [1], {}, lambda x: x.prod(1)),
    ("amax.default", "float32", [[1], True], {}, lambda x: x.max(1, keepdims=True)),
    ("amin.default", "float32", [[1], True], {}, lambda x: x.min(1, keepdims=True)),
    ("amax.default", "float32", [], {}, np.max),
    ("amin.default", "float32", [], {}, np.min),
]


@pytest.mark.parametrize(("name", "kind", "arguments", "options", "expected"), RESULTS)
def test_operators_have_results_and_types_of_pytorch(name, kind, arguments, options, expected):
    x, found = results(name, (3, 4), *arguments, kind=kind, **options)
    assert found.dtype == expected(x).dtype
    np.testing.assert_array_equal(found, expected(x))


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
def test_any_number_that_is_not_zero_is_true(dtype):
    x, found = results("any.dim", (9, 2), 1, True, kind=dtype)
    assert found.dtype == bool
    np.testing.assert_array_equal(found, (x != 0).any(1, keepdims=True))
    assert len(np.unique(x)) > 1


def test_a_factor_of_the_second_number():
    x, found = results("add.Tensor", (3, 4), 1.5, alpha=2)
    np.testing.assert_allclose(found, x + 3, rtol=1e-6)
    x, found = results("sub.Tensor", (3, 4), "x", alpha=0.5, kind="int32")
    np.testing.assert_allclose(found, x - 0.5 * x)
    assert found.dtype == np.float32


@pytest.mark.parametrize(
    ("name", "arguments", "options", "reason"),
    [
        ("rsub.Scalar", [1], {"alpha": 2}, "a factor is not computed"),
        ("prod.dim_int", [1], {"dtype": "float64"}, "another type of the result is not computed"),
        ("avg_pool2d.default", [[2, 3], [], 0, True, True, 5], {}, "a divisor with ceil_mode"),
        (
            *("max_pool2d_with_indices.default", [[2, 2]]),
            {"users": [SimpleNamespace(args=[None, 1], users=[1])]},
            "indices of maxima are not computed",
        ),
        (
            *("_native_batch_norm_legit_functional.default", [None] * 4 + [True, 0.1, 1e-5], {}),
            r"training is not computed; export .* after eval\(\)",
        ),
        (
            *("_upsample_bicubic2d_aa.default", [[2, 6], True, None, None], {}),
            "antialiasing with aligned corners is not computed",
        ),
    ],
)
def test_what_is_not_computed_is_refused(name, arguments, options, reason):
    with pytest.raises(ValueError, match=reason):
        converted(name, IMAGE, *arguments, **options)


#: Places of None among indices, and the same of NumPy.
INDEXED = [
    ((0, 1, 2), lambda x, *i: x[i]),
    ((1, 2), lambda x, *i: x[:, *i]),
    ((0, 2), lambda x, *i: x[i[0], :, i[1]]),
    ((1,), lambda x, i: x[:, i]),
    ((2, 3), lambda x, *i: x[:, :, *i]),
]


@pytest.mark.parametrize(("axes", "expected"), INDEXED)
def test_indices_belong_together_and_count_from_the_end(axes, expected):
    x = numbers(3, 4, 5, 6)
    given = [np.array([[0, -1, 1]]), np.array([[-2], [1]]), np.array([2])][: len(axes)]
    b = relax.BlockBuilder()
    variables = [relax.Var("x", R.Tensor(x.shape, "float32"))]
    variables += [relax.Var(f"i{k}", R.Tensor(i.shape, "int64")) for k, i in enumerate(given)]
    indices = [None] * (axes[-1] + 1)
    for axis, variable in zip(axes, variables[1:], strict=True):
        indices[axis] = variable

    def own(node):
        data, places = node.args
        if len(places) == len(axes):
            return b.emit(relax.op.index_tensor(data, places))
        return b.emit(relax.op.take(data, places[-1], len(places) - 1))

    importer = SimpleNamespace(
        block_builder=b, retrieve_args=lambda node: node.args, _index_tensor=own
    )
    node = SimpleNamespace(args=[variables[0], indices])
    mod = program(b, variables, lambda: torch_source._CONVERTERS["index.Tensor"](node, importer))
    found = results_of(mod, x, *given).numpy()
    np.testing.assert_array_equal(found, expected(x, *given))


#: Modules of PyTorch, and the shapes of their inputs.
MODULES = {
    "Linear": (lambda torch: torch.nn.Linear(8, 4), (2, 8)),
    "ELU": (lambda torch: torch.nn.ELU(0.5), (2, 8)),
    "SELU": (lambda torch: torch.nn.SELU(), (2, 8)),
    "PixelShuffle": (lambda torch: torch.nn.PixelShuffle(2), (1, 8, 3, 3)),
    "PixelUnshuffle": (lambda torch: torch.nn.PixelUnshuffle(2), (1, 2, 4, 4)),
    "norm of groups": (
        lambda torch: torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.GroupNorm(2, 8)),
        (1, 3, 6, 6),
    ),
    "reflections": (
        lambda torch: torch.nn.Sequential(torch.nn.ReflectionPad2d(1), torch.nn.Conv2d(3, 8, 3)),
        (1, 3, 6, 6),
    ),
}

#: Functions of PyTorch, and the shapes of their arguments.
FUNCTIONS = {
    "the last of a sequence": (lambda _torch, x: x[:, -1], (2, 5, 3)),
    "a grid": (
        lambda torch, x, grid: torch.nn.functional.grid_sample(x, grid, align_corners=False),
        (2, 3, 5, 5),
        (2, 4, 6, 2),
    ),
    "scales": (
        lambda torch, x: torch.nn.functional.interpolate(x, scale_factor=1.3, mode="bilinear"),
        (1, 2, 5, 7),
    ),
    "sizes": (lambda torch, x: torch.nn.functional.interpolate(x, (8, 9)), (1, 2, 5, 7)),
    "antialiasing": (
        lambda torch, x: torch.nn.functional.interpolate(x, (3, 4), mode="bicubic", antialias=True),
        (1, 2, 5, 7),
    ),
    "quotients of integers": (lambda torch, x: torch.round(x * 9).to(torch.int32) / 2, (2, 8)),
    "numbers and integers": (
        lambda torch, x: torch.round(x * 9).long() * 0.5 + (x > 0) * 2,
        (2, 8),
    ),
    "pairs of indices": (
        lambda torch, x: x[:, :, torch.arange(3), torch.round(x[0, 0, 0, :3]).long() - 1],
        (1, 2, 5, 7),
    ),
    "cumulated truth values": (lambda torch, x: torch.cumsum(x > 0, -1) * 2, (2, 8)),
    "equal truth values": (lambda _torch, x: (x > 0) == (x > 1), (2, 8)),
    "causal attention": (
        lambda torch, x: torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True),
        (1, 2, 6, 4),
    ),
}


def module_of(torch, name):
    if name in MODULES:
        return MODULES[name][0](torch)

    class Function(torch.nn.Module):
        def forward(self, *inputs):
            return FUNCTIONS[name][0](torch, *inputs)

    return Function()


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of torch itself
def test_results_are_those_of_pytorch(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch = pytest.importorskip(
        "torch", reason="needs PyTorch, 3 GB that no extra of tunedb installs"
    )
    for name, (_, *shapes) in (MODULES | FUNCTIONS).items():
        module, inputs = module_of(torch, name).eval(), [numbers(*shape) for shape in shapes]
        tensors = tuple(map(torch.from_numpy, inputs))
        path = tmp_path / "m.pt2"
        torch.export.save(torch.export.export(module, tensors), str(path))
        found = results_of(load_module(path), *inputs)
        (found,) = [found] if hasattr(found, "numpy") else found
        expected = module(*tensors).detach().numpy()
        assert found.numpy().dtype == expected.dtype, name
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5, err_msg=name)
