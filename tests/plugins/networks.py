"""Small networks as ONNX models with random weights."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper


class Builder:
    """Collects nodes and weights; each method returns the name of its result."""

    def __init__(self, seed=0):
        self._rng = np.random.default_rng(seed)
        self.nodes, self.weights = [], []

    def node(self, kind, inputs, **attributes):
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def weight(self, *shape, scale=None):
        name = f"weight_{len(self.weights)}"
        scale = np.sqrt(2 / np.prod(shape[1:])) if scale is None else scale
        value = self._rng.normal(0, scale, shape).astype("float32")
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def constant(self, value):
        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, "float32"), name))
        return name

    def convolution(self, data, channels, out, size, *, stride=1, groups=1, relu=True):
        """Add a convolution, its batch norm, and ReLU."""
        weight = self.weight(out, channels // groups, size, size)
        padding = [(size - 1) // 2] * 4
        data = self.node(
            "Conv",
            [data, weight],
            kernel_shape=[size, size],
            strides=[stride, stride],
            pads=padding,
            group=groups,
        )
        norm = [self.constant(self._rng.uniform(0.5, 1.5, out)) for _ in range(2)]
        norm += [self.constant(self._rng.uniform(0.5, 1.5, out)) for _ in range(2)]
        data = self.node("BatchNormalization", [data, *norm], epsilon=1e-5)
        return self.node("Relu", [data]) if relu else data

    def model(self, output, inputs, shape, opset=17):
        graph = helper.make_graph(
            self.nodes,
            "network",
            [helper.make_tensor_value_info(k, TensorProto.FLOAT, v) for k, v in inputs.items()],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)],
            self.weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


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
