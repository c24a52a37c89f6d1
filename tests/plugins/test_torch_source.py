"""Exported programs of PyTorch compute in TVM what they compute in PyTorch."""

import networks
import numpy as np
import pytest
import tvm
from tvm import relax

from tunedb.plugins.metaschedule.deploy.apply import compile_lowered
from tunedb.plugins.metaschedule.deploy.network import Lowering, lower
from tunedb.plugins.metaschedule.module_source import load_module

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of torch itself
TARGET = tvm.target.Target(networks.LLVM)


class Function(nn.Module):
    """A module that computes a function of its inputs."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def images(*shape):
    return torch.from_numpy(np.random.default_rng(0).normal(size=shape).astype("float32"))


MODULES = {
    "Linear": (nn.Linear(8, 4), images(2, 8)),
    "the last of a sequence": (Function(lambda x: x[:, -1]), images(2, 5, 3)),
    "ELU": (nn.ELU(0.5), images(2, 8)),
    "SELU": (nn.SELU(), images(2, 8)),
    "PixelShuffle": (nn.PixelShuffle(2), images(1, 8, 3, 3)),
    "PixelUnshuffle": (nn.PixelUnshuffle(2), images(1, 2, 4, 4)),
    "GroupNorm": (nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8)), images(1, 3, 6, 6)),
    "reflections": (nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(3, 8, 3)), images(1, 3, 6, 6)),
    "grid_sample": (
        Function(lambda x, grid: functional.grid_sample(x, grid, align_corners=False)),
        images(2, 3, 5, 5),
        images(2, 4, 6, 2),
    ),
    "cumulated truth values": (Function(lambda x: torch.cumsum(x > 0, -1) * 2), images(2, 8)),
    "equal truth values": (Function(lambda x: (x > 0) == (x > 1)), images(2, 8)),
    "causal attention": (
        Function(lambda x: functional.scaled_dot_product_attention(x, x, x, is_causal=True)),
        images(1, 2, 6, 4),
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_results_are_those_of_pytorch(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    module, *inputs = MODULES[name]
    path = tmp_path / "m.pt2"
    torch.export.save(torch.export.export(module.eval(), tuple(inputs)), str(path))
    executable = compile_lowered(lower(load_module(path), TARGET, Lowering()), None, TARGET)
    main = relax.VirtualMachine(executable.executable, tvm.cpu())["main"]
    found = main(*(tvm.runtime.tensor(each.numpy()) for each in inputs))
    (found,) = [found] if hasattr(found, "numpy") else found
    expected = module(*inputs).detach().numpy()
    assert found.numpy().dtype == expected.dtype
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5)
