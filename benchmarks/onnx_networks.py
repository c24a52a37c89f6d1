"""Networks of the benchmarks as ONNX models with random weights: no download, equal each time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

__all__ = [
    "NETWORKS",
    "Builder",
    "bert",
    "llama_block",
    "mobilenet_v2",
    "preactivated_resnet50",
    "resnet18",
]

#: Inverted residual blocks of MobileNetV2 (arXiv 1801.04381, table 2): expansion, channels,
#: repetitions, stride.
_MOBILENET = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class Builder:
    """Collects nodes and weights; each method returns the name of its result."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def node(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add a node."""
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def several(self, kind: str, inputs: Sequence[str], count: int, axis: int) -> list[str]:
        """Add a node of several results."""
        name = f"{kind.lower()}_{len(self.nodes)}"
        results = [f"{name}_{number}" for number in range(count)]
        self.nodes.append(helper.make_node(kind, inputs, results, name=name, axis=axis))
        return results

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """Add a weight with random values (He's initialisation by default)."""
        name = f"weight_{len(self.weights)}"
        scale = np.sqrt(2 / np.prod(shape[1:])) if scale is None else scale
        value = self._rng.normal(0, scale, shape).astype("float32")
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def constant(self, value: Any, dtype: str = "float32") -> str:
        """Add a weight with these values."""
        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def convolution(
        self,
        data: str,
        channels: int,
        out: int,
        size: int,
        *,
        stride: int = 1,
        groups: int = 1,
        relu: bool = True,
    ) -> str:
        """Add a convolution, its batch norm, and ReLU."""
        data = self.bare_convolution(data, channels, out, size, stride=stride, groups=groups)
        data = self.norm(data, out)
        return self.node("Relu", [data]) if relu else data

    def bare_convolution(
        self, data: str, channels: int, out: int, size: int, *, stride: int = 1, groups: int = 1
    ) -> str:
        """Add a convolution."""
        return self.node(
            "Conv",
            [data, self.weight(out, channels // groups, size, size)],
            kernel_shape=[size, size],
            strides=[stride, stride],
            pads=[(size - 1) // 2] * 4,
            group=groups,
        )

    def norm(self, data: str, channels: int) -> str:
        """Add a batch norm."""
        values = [self.constant(self._rng.uniform(0.5, 1.5, channels)) for _ in range(4)]
        return self.node("BatchNormalization", [data, *values], epsilon=1e-5)

    def dense(self, data: str, inputs: int, outputs: int, *, bias: bool = True) -> str:
        """Add a matrix product with a weight."""
        data = self.node("MatMul", [data, self.weight(inputs, outputs, scale=inputs**-0.5)])
        return self.node("Add", [data, self.constant(np.zeros(outputs))]) if bias else data

    def reshape(self, data: str, *shape: int) -> str:
        """Add a reshape."""
        return self.node("Reshape", [data, self.constant(shape, "int64")])

    def model(
        self,
        output: str,
        inputs: Mapping[str, Sequence[int]],
        shape: Sequence[int],
        opset: int = 17,
    ) -> Any:
        """Return the model."""
        graph = helper.make_graph(
            self.nodes,
            "network",
            [helper.make_tensor_value_info(k, TensorProto.FLOAT, v) for k, v in inputs.items()],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)],
            self.weights,
        )
        # ONNX Runtime reads older versions of the file format than the newest.
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8
        )


def mobilenet_v2(size: int = 224, classes: int = 1000, *, relu6: bool = False) -> Any:
    """Return MobileNetV2, one image of `size` x `size`.

    With `relu6` the activations are those of the paper, as exporters write them.
    """
    b = Builder()
    bounds = [b.constant(0.0), b.constant(6.0)] if relu6 else []

    def activated(data: str, channels: int, out: int, size: int, **options: int) -> str:
        data = b.convolution(data, channels, out, size, relu=not relu6, **options)
        return b.node("Clip", [data, *bounds]) if relu6 else data

    data, channels = activated("image", 3, 32, 3, stride=2), 32
    for expansion, out, repetitions, first in _MOBILENET:
        for stride in (first, *[1] * (repetitions - 1)):
            inner, wide = data, channels * expansion
            if expansion > 1:
                inner = activated(inner, channels, wide, 1)
            inner = activated(inner, wide, wide, 3, stride=stride, groups=wide)
            inner = b.convolution(inner, wide, out, 1, relu=False)
            data = b.node("Add", [data, inner]) if stride == 1 and channels == out else inner
            channels = out
    data = activated(data, channels, 1280, 1)
    data = b.node("Flatten", [b.node("GlobalAveragePool", [data])])
    data = b.dense(data, 1280, classes)
    return b.model(data, {"image": [1, 3, size, size]}, [1, classes])


def resnet18(size: int = 224, classes: int = 1000, stages: int = 4) -> Any:
    """Return the first stages of ResNet-18, one image of `size` x `size`.

    arXiv 1512.03385, table 1.
    """
    b = Builder()
    data = b.convolution("image", 3, 64, 7, stride=2)
    data = b.node("MaxPool", [data], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for out in (64, 128, 256, 512)[:stages]:
        for stride in (1 if out == 64 else 2, 1):
            inner = b.convolution(data, channels, out, 3, stride=stride)
            inner = b.convolution(inner, out, out, 3, relu=False)
            if stride != 1:
                data = b.convolution(data, channels, out, 1, stride=stride, relu=False)
            data = b.node("Relu", [b.node("Add", [data, inner])])
            channels = out
    data = b.node("Flatten", [b.node("GlobalAveragePool", [data])])
    data = b.dense(data, channels, classes)
    return b.model(data, {"image": [1, 3, size, size]}, [1, classes])


def preactivated_resnet50(size: int = 224, classes: int = 1000) -> Any:
    """Return ResNet-50 as TVM's ``relay.testing`` had it, one image of `size` x `size`.

    Batch norms come before convolutions (arXiv 1603.05027), strides are in the first 1x1.
    """
    b = Builder()

    def activated(data: str, channels: int) -> str:
        return b.node("Relu", [b.norm(data, channels)])

    data = activated(b.bare_convolution("image", 3, 64, 7, stride=2), 64)
    pads = [1, 1, 1, 1]
    data = b.node("MaxPool", [data], kernel_shape=[3, 3], strides=[2, 2], pads=pads)
    channels = 64
    for units, out in ((3, 256), (4, 512), (6, 1024), (3, 2048)):
        for unit in range(units):
            stride, inner = (2 if out > 256 and not unit else 1), out // 4
            first = activated(data, channels)
            body = activated(b.bare_convolution(first, channels, inner, 1, stride=stride), inner)
            body = activated(b.bare_convolution(body, inner, inner, 3), inner)
            body = b.bare_convolution(body, inner, out, 1)
            if not unit:
                data = b.bare_convolution(first, channels, out, 1, stride=stride)
            data, channels = b.node("Add", [body, data]), out
    data = b.node("GlobalAveragePool", [activated(data, channels)])
    data = b.dense(b.node("Flatten", [data]), channels, classes)
    output = b.node("Softmax", [data], axis=-1)
    return b.model(output, {"image": [1, 3, size, size]}, [1, classes])


def _attention(b: Builder, data: str, tokens: int, width: int, heads: int) -> str:
    """Add attention of all tokens to all."""
    part = width // heads

    def split(order: Sequence[int]) -> str:
        projected = b.reshape(b.dense(data, width, width), 1, tokens, heads, part)
        return b.node("Transpose", [projected], perm=order)

    query, key, value = split((0, 2, 1, 3)), split((0, 2, 3, 1)), split((0, 2, 1, 3))
    scores = b.node("Mul", [b.node("MatMul", [query, key]), b.constant(part**-0.5)])
    found = b.node("MatMul", [b.node("Softmax", [scores], axis=-1), value])
    found = b.node("Transpose", [found], perm=(0, 2, 1, 3))
    return b.dense(b.reshape(found, 1, tokens, width), width, width)


def bert(tokens: int = 128, layers: int = 2, width: int = 768, heads: int = 12) -> Any:
    """Return layers of BERT (arXiv 1810.04805) on embedded tokens."""
    b = Builder()

    def norm(data: str) -> str:
        scale, bias = b.constant(np.ones(width)), b.constant(np.zeros(width))
        return b.node("LayerNormalization", [data, scale, bias], axis=-1, epsilon=1e-5)

    data = "tokens"
    for _ in range(layers):
        data = norm(b.node("Add", [data, _attention(b, data, tokens, width, heads)]))
        inner = b.dense(data, width, 4 * width)
        half = b.node("Mul", [inner, b.constant(0.5)])
        erf = b.node("Erf", [b.node("Mul", [inner, b.constant(0.5**0.5)])])
        inner = b.node("Mul", [half, b.node("Add", [erf, b.constant(1.0)])])
        data = norm(b.node("Add", [data, b.dense(inner, 4 * width, width)]))
    return b.model(data, {"tokens": [1, tokens, width]}, [1, tokens, width])


def llama_block(
    tokens: int = 128, past: int = 0, width: int = 1024, heads: int = 16, hidden: int = 2816
) -> Any:
    """Return a block of Llama (arXiv 2302.13971): RMSNorm, rotary attention, SwiGLU.

    With `past` tokens their keys and values are inputs, as for the decoding of one token.
    """
    b, part, total = Builder(), width // heads, past + tokens

    def norm(data: str) -> str:
        square = b.node("ReduceMean", [b.node("Mul", [data, data])], axes=[-1], keepdims=1)
        root = b.node("Sqrt", [b.node("Add", [square, b.constant(1e-5)])])
        return b.node("Mul", [b.node("Div", [data, root]), b.constant(np.ones(width))])

    angles = np.outer(
        np.arange(past, total), 10_000.0 ** -(np.arange(0, part, 2, dtype="float64") / part)
    )
    cos, sin = (b.constant(np.concatenate([f(angles)] * 2, axis=-1)) for f in (np.cos, np.sin))

    def heads_of(data: str) -> str:
        projected = b.dense(data, width, width, bias=False)
        return b.node(
            "Transpose", [b.reshape(projected, 1, tokens, heads, part)], perm=(0, 2, 1, 3)
        )

    def rotate(data: str) -> str:
        def half(begin: int, end: int) -> str:
            return b.node(
                "Slice", [data, *(b.constant([value], "int64") for value in (begin, end, 3))]
            )

        turned = b.node(
            "Concat", [b.node("Neg", [half(part // 2, part)]), half(0, part // 2)], axis=-1
        )
        return b.node("Add", [b.node("Mul", [data, cos]), b.node("Mul", [turned, sin])])

    inputs = {"tokens": [1, tokens, width]}
    normed = norm("tokens")
    query, key, value = rotate(heads_of(normed)), rotate(heads_of(normed)), heads_of(normed)
    if past:
        inputs |= {"past_keys": [1, heads, past, part], "past_values": [1, heads, past, part]}
        key = b.node("Concat", ["past_keys", key], axis=2)
        value = b.node("Concat", ["past_values", value], axis=2)
    scores = b.node("MatMul", [query, b.node("Transpose", [key], perm=(0, 1, 3, 2))])
    scores = b.node("Mul", [scores, b.constant(part**-0.5)])
    mask = np.triu(np.full((tokens, total), -1e9), k=past + 1)
    scores = b.node("Add", [scores, b.constant(mask)])
    found = b.node("MatMul", [b.node("Softmax", [scores], axis=-1), value])
    found = b.reshape(b.node("Transpose", [found], perm=(0, 2, 1, 3)), 1, tokens, width)
    data = b.node("Add", ["tokens", b.dense(found, width, width, bias=False)])
    normed = norm(data)
    gate = b.dense(normed, width, hidden, bias=False)
    gate = b.node("Mul", [gate, b.node("Sigmoid", [gate])])
    inner = b.node("Mul", [gate, b.dense(normed, width, hidden, bias=False)])
    data = b.node("Add", [data, b.dense(inner, hidden, width, bias=False)])
    return b.model(data, inputs, [1, tokens, width])


#: Name → the model, by its size: ``quick`` and full.
NETWORKS = {
    "mobilenet_v2": {"quick": lambda: mobilenet_v2(96), "full": lambda: mobilenet_v2(224)},
    "mobilenet_v2_relu6": {
        "quick": lambda: mobilenet_v2(96, relu6=True),
        "full": lambda: mobilenet_v2(relu6=True),
    },
    "resnet18": {"quick": lambda: resnet18(64), "full": lambda: resnet18(224)},
    "resnet18_stage": {
        "quick": lambda: resnet18(64, stages=1),
        "full": lambda: resnet18(224, stages=1),
    },
    "bert": {
        "quick": lambda: bert(32, layers=1, width=256, heads=4),
        "full": lambda: bert(128, layers=2),
    },
    "llama_prefill": {
        "quick": lambda: llama_block(32, width=256, heads=4, hidden=704),
        "full": lambda: llama_block(128),
    },
    "llama_decode": {
        "quick": lambda: llama_block(1, past=31, width=256, heads=4, hidden=704),
        "full": lambda: llama_block(1, past=127),
    },
}
