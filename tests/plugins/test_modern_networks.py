"""Small networks of today compute the same after tunedb's lowering as after TVM's."""

import networks  # adds the folder of modern_networks to the path

# isort: split
import modern_networks as modern
import numpy as np
import onnx
import pytest
import tvm
from effort import spread
from onnx import TensorProto
from tvm import relax

from tunedb.plugins.metaschedule.deploy.apply import compile_lowered
from tunedb.plugins.metaschedule.deploy.network import Lowering, lower
from tunedb.plugins.metaschedule.module_source import load_module

TARGET = tvm.target.Target(networks.LLVM)
NETWORKS = {
    "convnext": lambda: modern.convnext(32, width=8),
    "crnn": lambda: modern.crnn(32, channels=2, hidden=6),
    "dcgan": lambda: modern.dcgan(8, width=4),
    "deeplab": lambda: modern.deeplab(64, width=8),
    "denoiser": lambda: modern.denoiser(5, bands=8, width=12),
    "diffusion_unet": lambda: modern.diffusion_unet(4, width=32, text=16),
    "dlrm": lambda: modern.dlrm(3),
    "grouped_llama": lambda: modern.grouped_llama(6, width=64, heads=4),
    "mobilenet_v3": lambda: modern.mobilenet_v3(32),
    "quantised_mobilenet": lambda: modern.quantised_mobilenet(32, width=4, blocks=2),
    "super_resolution": lambda: modern.super_resolution(8, width=8),
    "swin": lambda: modern.swin(56, width=32),
    "t5": lambda: modern.t5(6, width=64),
    "video": lambda: modern.video(8, frames=4),
    "wav2vec": lambda: modern.wav2vec(400, width=32),
    "whisper": lambda: modern.whisper(12, width=64, layers=1),
    "yolo": lambda: modern.yolo(32, width=4),
    "yolo_v3": lambda: modern.yolo_v3(32, width=4),
}


def values(tensor):
    """Return random values for an input of a network; indices are small."""
    shape = [axis.dim_value for axis in tensor.shape.dim]
    rng = np.random.default_rng(0)
    is_index = tensor.elem_type == TensorProto.INT64
    array = rng.integers(0, 1000, shape) if is_index else rng.normal(size=shape)
    return tvm.runtime.tensor(array if is_index else array.astype("float32"))


@pytest.mark.parametrize("name", spread(NETWORKS, 10))
def test_results_are_those_of_tvms_pipeline(name, tmp_path):
    model = NETWORKS[name]()
    onnx.save(model, str(tmp_path / "m.onnx"))
    mod = load_module(tmp_path / "m.onnx")
    lowered = lower(mod, TARGET, Lowering())
    assert lowered.notes == ()
    executables = tvm.compile(mod, target=TARGET), compile_lowered(lowered, None, TARGET).executable
    inputs = [values(each.type.tensor_type) for each in model.graph.input]
    expected, found = (
        relax.VirtualMachine(executable, tvm.cpu())["main"](*inputs).numpy()
        for executable in executables
    )
    # Outputs of sums of random signs have the rounding errors of their largest terms.
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
