"""Small networks as ONNX models with random weights."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from onnx_networks import Builder

__all__ = ["Builder", "mobile", "symbolic"]


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


def preactivated_resnet50(size=224):
    """ResNet-50 as in TVM's ``relay.testing``: batch norms before, strides in the first 1x1."""
    b = Builder()

    def norm(data, channels):
        values = [b.constant(b._rng.uniform(0.5, 1.5, channels)) for _ in range(4)]
        return b.node("BatchNormalization", [data, *values], epsilon=1e-5)

    def conv(data, inputs, outputs, kernel, stride=1):
        return b.node(
            "Conv",
            [data, b.weight(outputs, inputs, kernel, kernel)],
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[(kernel - 1) // 2] * 4,
        )

    def activated(data, channels):
        return b.node("Relu", [norm(data, channels)])

    data = activated(conv("image", 3, 64, 7, 2), 64)
    data = b.node("MaxPool", [data], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    inputs = 64
    for number, (units, outputs) in enumerate(((3, 256), (4, 512), (6, 1024), (3, 2048))):
        for unit in range(units):
            stride = 2 if number and not unit else 1
            inner = outputs // 4
            act = activated(data, inputs)
            body = activated(conv(act, inputs, inner, 1, stride), inner)
            body = activated(conv(body, inner, inner, 3), inner)
            body = conv(body, inner, outputs, 1)
            shortcut = data if unit else conv(act, inputs, outputs, 1, stride)
            data = b.node("Add", [body, shortcut])
            inputs = outputs
    data = b.node("GlobalAveragePool", [activated(data, inputs)])
    data = b.dense(b.node("Flatten", [data]), inputs, 1000)
    return b.model(b.node("Softmax", [data], axis=-1), {"image": [1, 3, size, size]}, [1, 1000])
