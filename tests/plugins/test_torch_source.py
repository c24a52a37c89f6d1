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


def converted(name, shape, *arguments, kind="float32", **options):
    """Return a program of one operator, converted as in TVM's frontend, without PyTorch."""
    b = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor(shape, kind))
    importer = SimpleNamespace(block_builder=b, env={"x": x})
    importer.retrieve_args = lambda node: [importer.env.get(each, each) for each in node.args]
    importer._cumsum = lambda node: b.emit(relax.op.cumsum(*importer.retrieve_args(node)))
    node = SimpleNamespace(args=["x", *arguments], kwargs=options)
    with b.function("main", [x]):
        with b.dataflow():
            result = b.emit_output(torch_source._CONVERTERS[name](node, importer))
        b.emit_func_output(result)
    assert importer.env == {"x": x}
    return b.finalize()


@pytest.mark.parametrize("numbers_of", [(), (0.5,), (0.5, 2.0), (1.5, 2.0, 3.0)])
def test_elu_has_its_scales(numbers_of):
    x = numbers(3, 4)
    alpha, scale, input_scale = (*numbers_of, 1.0, 1.0, 1.0)[:3]
    expected = scale * np.where(x > 0, x, alpha * np.expm1(x * input_scale))
    found = results_of(converted("elu.default", (3, 4), *numbers_of), x).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["bool", "int8"])
def test_cumulated_integers_are_int64(dtype):
    x = numbers(3, 4) > 0
    found = results_of(converted("cumsum.default", (3, 4), 1, kind=dtype), x.astype(dtype)).numpy()
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, np.cumsum(x, 1))


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
    with b.function("main", [x, points]):
        with b.dataflow():
            result = b.emit_output(torch_source._grid_sample(node, importer))
        b.emit_func_output(result)
    image = numbers(*shapes[0])
    found = results_of(b.finalize(), image, grid.astype("float32")).numpy()
    np.testing.assert_allclose(found, image, atol=1e-5)


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
