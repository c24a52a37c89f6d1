"""Small networks as ONNX models with random weights."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from onnx_networks import Builder, preactivated_resnet50

__all__ = ["LLVM", "Builder", "mobile", "preactivated_resnet50", "symbolic"]

#: A processor; LLVM optimises nothing for it, and compiles in a tenth of the time.
LLVM = {"kind": "llvm", "num-cores": 2, "mcpu": "x86-64-v2", "opt-level": 0}


def mobile(size=16, channels=8, classes=10):
    """Return an inverted residual block between a first convolution and a classifier."""
    b = Builder()
    data = b.convolution("image", 3, channels, 3, stride=2)
    inner = b.convolution(data, channels, 4 * channels, 1)
    inner = b.convolution(inner, 4 * channels, 4 * channels, 3, groups=4 * channels)
    inner = b.convolution(inner, 4 * channels, channels, 1, relu=False)
    data = b.node("Add", [data, inner])
    data = b.node("GlobalAveragePool", [data])
    data = b.node("Flatten", [data])
    data = b.node("Gemm", [data, b.weight(channels, classes), b.weight(classes, scale=1.0)])
    return b.model(data, {"image": [1, 3, size, size]}, [1, classes])


def symbolic(batch, length):
    """Return a classifier of sequences, whose sizes may be names; its last part has no length."""
    b = Builder()
    data = b.node("Relu", [b.dense("text", 16, 8)])
    data = b.node("ReduceMean", [data], axes=[1], keepdims=0)
    data = b.node("Softmax", [b.dense(data, 8, 4)], axis=-1)
    return b.model(data, {"text": [batch, length, 16]}, [batch, 4])
