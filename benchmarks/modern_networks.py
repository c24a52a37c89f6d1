"""Networks of today as small ONNX models with random weights: vision, language, speech and others.

Each has the operators of its architecture in the order in which exporters write them, and few
blocks of each kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from onnx import AttributeProto, TensorProto, numpy_helper
from onnx_networks import Builder, bert, llama_block

__all__ = [
    "HALVED",
    "MODERN",
    "QUANTISED",
    "convnext",
    "crnn",
    "dcgan",
    "deeplab",
    "denoiser",
    "diffusion_unet",
    "dlrm",
    "grouped_llama",
    "halved",
    "mobilenet_v3",
    "quantised_mobilenet",
    "super_resolution",
    "swin",
    "t5",
    "video",
    "wav2vec",
    "whisper",
    "yolo",
    "yolo_v3",
]


class _Builder(Builder):
    """Adds what the networks below share."""

    def conv(
        self,
        data: str,
        channels: int,
        out: int,
        size: int,
        kind: str = "",
        *,
        stride: int = 1,
        groups: int = 1,
        dilation: int = 1,
        pad: int | None = None,
        **attributes: Any,
    ) -> str:
        """Add a convolution with a bias and an activation: a kind of node, or SiLU."""
        pad = dilation * (size - 1) // 2 if pad is None else pad
        weights = [self.weight(out, channels // groups, size, size), self.weight(out, scale=0.1)]
        data = self.of_weights([data, *weights], size, stride, groups, pad, dilation)
        if kind == "SiLU":
            return self.silu(data)
        return self.node(kind, [data], **attributes) if kind else data

    def of_weights(
        self,
        inputs: Sequence[str],
        size: int,
        stride: int,
        groups: int,
        pad: int,
        dilation: int = 1,
    ) -> str:
        """Add a convolution of square kernels whose weights are there."""
        return self.node(
            "Conv",
            inputs,
            kernel_shape=[size, size],
            strides=[stride] * 2,
            pads=[pad] * 4,
            dilations=[dilation] * 2,
            group=groups,
        )

    def silu(self, data: str) -> str:
        """Add a product with the sigmoid."""
        return self.node("Mul", [data, self.node("Sigmoid", [data])])

    def gelu(self, data: str) -> str:
        """Add GELU as PyTorch's exporter writes it."""
        erf = self.node("Erf", [self.node("Div", [data, self.constant(2**0.5)])])
        data = self.node("Mul", [data, self.node("Add", [erf, self.constant(1.0)])])
        return self.node("Mul", [data, self.constant(0.5)])

    def layer_norm(self, data: str, width: int) -> str:
        """Add a layer norm of the last axis."""
        ones, zeros = self.constant(np.ones(width)), self.constant(np.zeros(width))
        return self.node("LayerNormalization", [data, ones, zeros], axis=-1)

    def rms_norm(self, data: str, width: int) -> str:
        """Add a norm by the root of the mean square of the last axis."""
        square = self.node("Pow", [data, self.constant(2.0)])
        mean = self.node("ReduceMean", [square], axes=[-1])
        root = self.node("Sqrt", [self.node("Add", [mean, self.constant(1e-6)])])
        scaled = self.node("Mul", [data, self.node("Div", [self.constant(1.0), root])])
        return self.node("Mul", [self.constant(np.ones(width)), scaled])

    def turn(self, data: str, *axes: int) -> str:
        """Add a transposition."""
        return self.node("Transpose", [data], perm=axes)

    def split(self, data: str, number: int, part: int, axis: int) -> list[str]:
        """Add a division into equal parts."""
        return self.several("Split", [data, self.constant([part] * number, "int64")], number, axis)

    def slice(self, data: str, begin: int, end: int, axis: int, step: int = 1) -> str:
        """Add a slice of one axis."""
        numbers = (begin, end, axis, step)
        return self.node("Slice", [data, *(self.constant([n], "int64") for n in numbers)])

    def upsample(self, data: str) -> str:
        """Add a repetition of each element in both axes."""
        return self.node(
            "Resize",
            [data, "", self.constant([1, 1, 2, 2])],
            mode="nearest",
            nearest_mode="floor",
            coordinate_transformation_mode="asymmetric",
        )

    def heads(self, data: str, tokens: int, heads: int, part: int, *axes: int) -> str:
        """Add a division into heads; queries and values have axes (0, 2, 1, 3)."""
        return self.turn(self.reshape(data, 1, tokens, heads, part), *(axes or (0, 2, 1, 3)))

    def attention(
        self,
        data: str,
        tokens: int,
        width: int,
        heads: int,
        *,
        other: tuple[str, int, int] | None = None,
        bias: str = "",
    ) -> str:
        """Add attention with its projections, also to other tokens: name, number and width."""
        source, more, inputs = other or (data, tokens, width)
        part = width // heads
        query = self.heads(self.dense(data, width, width), tokens, heads, part)
        key = self.heads(self.dense(source, inputs, width), more, heads, part, 0, 2, 3, 1)
        value = self.heads(self.dense(source, inputs, width), more, heads, part)
        scores = self.node("MatMul", [query, key])
        scores = self.node("Mul", [scores, self.constant(part**-0.5)])
        scores = self.node("Add", [scores, bias]) if bias else scores
        scores = self.node("Softmax", [scores], axis=-1)
        joined = self.turn(self.node("MatMul", [scores, value]), 0, 2, 1, 3)
        return self.dense(self.reshape(joined, 1, tokens, width), width, width)

    def mlp(self, data: str, width: int, hidden: int) -> str:
        """Add two dense layers with GELU between them."""
        return self.dense(self.gelu(self.dense(data, width, hidden)), hidden, width)

    def recurrent(
        self, kind: str, data: str, steps: int, inputs: int, hidden: int, **attributes: Any
    ) -> str:
        """Add an LSTM or a GRU over the first axis, as PyTorch's exporter writes it."""
        directions = 2 if attributes.get("direction") == "bidirectional" else 1
        rows = {"LSTM": 4, "GRU": 3}[kind] * hidden
        weights = [
            self.weight(directions, rows, inputs, scale=inputs**-0.5),
            self.weight(directions, rows, hidden, scale=hidden**-0.5),
            self.weight(directions, 2 * rows, scale=0.1),
        ]
        data = self.node(kind, [data, *weights], hidden_size=hidden, **attributes)
        return self.reshape(self.turn(data, 0, 2, 1, 3), steps, 1, directions * hidden)

    def quantised(self, data: str, scale: float = 0.05, zero: int = 128) -> str:
        """Add a quantisation to eight bits, and its inverse."""
        numbers = [self.constant(scale), self.constant(zero, "uint8")]
        return self.node(
            "DequantizeLinear", [self.node("QuantizeLinear", [data, *numbers]), *numbers]
        )

    def quantised_conv(
        self,
        data: str,
        channels: int,
        out: int,
        size: int,
        kind: str = "",
        *,
        stride: int = 1,
        groups: int = 1,
    ) -> str:
        """Add a convolution between quantised tensors, as ONNX Runtime's quantiser writes it."""
        shape = (out, channels // groups, size, size)
        integers = self._rng.integers(-127, 128, shape)
        scales = self._rng.uniform(0.5, 1.5, out) / 127 * (2 / np.prod(shape[1:])) ** 0.5
        zeros = np.zeros(out)
        weight, bias = (
            self.node(
                "DequantizeLinear",
                [self.constant(values, dtype), self.constant(scale), self.constant(zeros, dtype)],
                axis=0,
            )
            for values, dtype, scale in (
                (integers, "int8", scales),
                (self._rng.integers(-500, 500, out), "int32", 0.05 * scales),
            )
        )
        data = self.of_weights([data, weight, bias], size, stride, groups, size // 2)
        return self.quantised(self.node(kind, [data])) if kind else self.quantised(data)

    def add(self, left: str, right: str) -> str:
        """Add a sum."""
        return self.node("Add", [left, right])


def _image(b: Builder, output: str, size: int, shape: Sequence[int]) -> Any:
    return b.model(output, {"image": [1, 3, size, size]}, shape)


def yolo(size: int = 160, width: int = 16) -> Any:
    """Return a detector like YOLOv8: C2f blocks with SiLU, SPPF, upsampling, two heads."""
    b = _Builder()

    def conv(data: str, channels: int, out: int, size: int, stride: int = 1) -> str:
        return b.conv(data, channels, out, size, "SiLU", stride=stride)

    def c2f(data: str, channels: int, number: int) -> str:
        half = channels // 2
        parts = b.split(conv(data, channels, channels, 1), 2, half, 1)
        for _ in range(number):
            inner = conv(conv(parts[-1], half, half, 3), half, half, 3)
            parts.append(b.add(parts[-1], inner))
        joined = b.node("Concat", parts, axis=1)
        return conv(joined, half * len(parts), channels, 1)

    data, channels, levels = conv("image", 3, width, 3, 2), width, []
    for number in (1, 2, 2, 1):
        data, channels = conv(data, channels, 2 * channels, 3, 2), 2 * channels
        data = c2f(data, channels, number)
        levels.append((data, channels))
    pooled = [conv(data, channels, channels // 2, 1)]
    for _ in range(3):
        pooled.append(b.node("MaxPool", [pooled[-1]], kernel_shape=[5, 5], pads=[2] * 4))
    data = conv(b.node("Concat", pooled, axis=1), 2 * channels, channels, 1)
    found, places = [], size // 32
    for skipped, out in (levels[2], levels[1]):
        data = b.node("Concat", [b.upsample(data), skipped], axis=1)
        data, channels, places = conv(data, channels + out, out, 1), out, 2 * places
        data = c2f(data, channels, 1)
        head = b.conv(conv(data, channels, 64, 3), 64, 84, 1)
        found.append(b.reshape(head, 1, 84, places * places))
    output = b.node("Sigmoid", [b.node("Concat", found, axis=2)])
    return _image(b, output, size, (1, 84, (size // 16) ** 2 + (size // 8) ** 2))


def yolo_v3(size: int = 128, width: int = 16) -> Any:
    """Return a small detector like YOLOv3-tiny: leaky ReLU and poolings (arXiv 1804.02767)."""
    b, data, channels, places = _Builder(), "image", 3, size
    for level in range(5):
        if level:
            data = b.node("MaxPool", [data], kernel_shape=[2, 2], strides=[2, 2])
            places //= 2
        data = b.conv(data, channels, width << level, 3, "LeakyRelu", alpha=0.1)
        channels = width << level
    data = b.conv(data, channels, channels // 2, 1, "LeakyRelu", alpha=0.1)
    data = b.reshape(b.conv(data, channels // 2, 255, 1), 1, 3, 85, places, places)
    output = b.node("Sigmoid", [b.turn(data, 0, 1, 3, 4, 2)])
    return _image(b, output, size, (1, 3, places, places, 85))


#: Kernel, expanded and resulting channels, gate, activation and stride (arXiv 1905.02244, table 2).
_MOBILENET_V3 = (
    (3, 16, 16, True, "Relu", 2),
    (3, 72, 24, False, "Relu", 2),
    (3, 88, 24, False, "Relu", 1),
    (5, 96, 40, True, "HardSwish", 2),
    (5, 240, 40, True, "HardSwish", 1),
    (5, 120, 48, True, "HardSwish", 1),
    (5, 288, 96, True, "HardSwish", 2),
    (5, 576, 96, True, "HardSwish", 1),
)


def mobilenet_v3(size: int = 128) -> Any:
    """Return MobileNetV3-Small (arXiv 1905.02244) with a block of each kind."""
    b = _Builder()
    data, channels = b.conv("image", 3, 16, 3, "HardSwish", stride=2), 16
    for kernel, wide, out, is_gated, kind, stride in _MOBILENET_V3:
        inner = b.conv(data, channels, wide, 1, kind)
        inner = b.conv(inner, wide, wide, kernel, kind, stride=stride, groups=wide)
        if is_gated:
            gate, narrow = b.node("GlobalAveragePool", [inner]), max(8, wide // 4)
            gate = b.conv(gate, wide, narrow, 1, "Relu")
            gate = b.conv(gate, narrow, wide, 1, "HardSigmoid", alpha=1 / 6)
            inner = b.node("Mul", [inner, gate])
        inner = b.conv(inner, wide, out, 1)
        data = b.add(data, inner) if stride == 1 and channels == out else inner
        channels = out
    data = b.node("GlobalAveragePool", [b.conv(data, channels, 576, 1, "HardSwish")])
    data = b.node("HardSwish", [b.dense(b.node("Flatten", [data]), 576, 1024)])
    return _image(b, b.dense(data, 1024, 1000), size, (1, 1000))


def convnext(size: int = 96, width: int = 96) -> Any:
    """Return three stages of ConvNeXt (arXiv 2201.03545) with two blocks each."""
    b = _Builder()

    def last(data: str) -> str:
        return b.turn(data, 0, 2, 3, 1)

    def norm(data: str, channels: int) -> str:
        return b.turn(b.layer_norm(last(data), channels), 0, 3, 1, 2)

    data, channels = norm(b.conv("image", 3, width, 4, stride=4, pad=0), width), width
    for stage in range(3):
        if stage:
            data = b.conv(norm(data, channels), channels, 2 * channels, 2, stride=2, pad=0)
            channels *= 2
        for _ in range(2):
            inner = last(b.conv(data, channels, channels, 7, groups=channels))
            inner = b.mlp(b.layer_norm(inner, channels), channels, 4 * channels)
            inner = b.node("Mul", [inner, b.constant(np.full(channels, 0.5))])
            data = b.add(data, b.turn(inner, 0, 3, 1, 2))
    data = b.node("Flatten", [b.node("GlobalAveragePool", [data])])
    output = b.dense(b.layer_norm(data, channels), channels, 1000)
    return _image(b, output, size, (1, 1000))


def swin(size: int = 112, width: int = 96, window: int = 7) -> Any:
    """Return two stages of Swin (arXiv 2103.14030): windows, shifted windows, merged patches."""
    b, places, channels = _Builder(), size // 4, width

    def rolled(data: str, by: int) -> str:
        for axis in (1, 2):
            ends = [b.slice(data, by, places, axis), b.slice(data, 0, by, axis)]
            data = b.node("Concat", ends, axis=axis)
        return data

    def attended(data: str, heads: int, shift: int) -> str:
        number, inside, part = (places // window) ** 2, window * window, channels // heads
        split = (places // window, window)
        data = rolled(data, shift) if shift else data
        data = b.turn(b.reshape(data, 1, *split, *split, channels), 0, 1, 3, 2, 4, 5)
        data = b.dense(b.reshape(data, number, inside, channels), channels, 3 * channels)
        data = b.turn(b.reshape(data, number, inside, 3, heads, part), 2, 0, 3, 1, 4)
        query, key, value = (
            b.node("Gather", [data, b.constant(place, "int64")], axis=0) for place in range(3)
        )
        query = b.node("Mul", [query, b.constant(part**-0.5)])
        scores = b.node("MatMul", [query, b.turn(key, 0, 1, 3, 2)])
        scores = b.add(scores, b.weight(1, heads, inside, inside, scale=0.1))
        if shift:
            scores = b.reshape(scores, 1, number, heads, inside, inside)
            scores = b.add(scores, b.weight(1, number, 1, inside, inside, scale=0.1))
            scores = b.reshape(scores, number, heads, inside, inside)
        data = b.turn(b.node("MatMul", [b.node("Softmax", [scores], axis=-1), value]), 0, 2, 1, 3)
        data = b.dense(b.reshape(data, number, inside, channels), channels, channels)
        data = b.reshape(data, 1, split[0], split[0], window, window, channels)
        data = b.reshape(b.turn(data, 0, 1, 3, 2, 4, 5), 1, places, places, channels)
        return rolled(data, places - shift) if shift else data

    data = b.turn(b.conv("image", 3, width, 4, stride=4, pad=0), 0, 2, 3, 1)
    data = b.layer_norm(data, channels)
    for stage in range(2):
        if stage:
            corners = [
                b.slice(b.slice(data, row, places, 1, 2), column, places, 2, 2)
                for column in (0, 1)
                for row in (0, 1)
            ]
            data = b.layer_norm(b.node("Concat", corners, axis=3), 4 * channels)
            data = b.dense(data, 4 * channels, 2 * channels, bias=False)
            places, channels = places // 2, 2 * channels
        for shift in (0, window // 2):
            data = b.add(data, attended(b.layer_norm(data, channels), channels // 32, shift))
            data = b.add(data, b.mlp(b.layer_norm(data, channels), channels, 4 * channels))
    data = b.node("ReduceMean", [b.layer_norm(data, channels)], axes=[1, 2], keepdims=0)
    return _image(b, b.dense(data, channels, 100), size, (1, 100))


def _conv1d(
    b: Builder, data: str, channels: int, out: int, size: int, *, bias: bool = True, **more: Any
) -> str:
    weights = [b.weight(out, channels, size), *([b.weight(out, scale=0.1)] if bias else [])]
    return b.node("Conv", [data, *weights], kernel_shape=[size], **more)


def whisper(frames: int = 400, width: int = 384, layers: int = 2) -> Any:
    """Return the first layers of Whisper's encoder (arXiv 2212.04356)."""
    b, tokens = _Builder(), frames // 2
    data = b.gelu(_conv1d(b, "mel", 80, width, 3, pads=[1, 1]))
    data = b.gelu(_conv1d(b, data, width, width, 3, pads=[1, 1], strides=[2]))
    data = b.add(b.turn(data, 0, 2, 1), b.weight(tokens, width, scale=0.1))
    for _ in range(layers):
        normed = b.layer_norm(data, width)
        data = b.add(data, b.attention(normed, tokens, width, width // 64))
        data = b.add(data, b.mlp(b.layer_norm(data, width), width, 4 * width))
    return b.model(b.layer_norm(data, width), {"mel": [1, 80, frames]}, [1, tokens, width])


def wav2vec(samples: int = 8000, width: int = 256) -> Any:
    """Return the convolutions of wav2vec 2.0 (arXiv 2006.11477) and a layer of its encoder."""
    b, data, channels, steps = _Builder(), "wave", 1, samples
    for size, stride in ((10, 5), (3, 2), (3, 2), (3, 2), (2, 2)):
        data = _conv1d(b, data, channels, width, size, bias=False, strides=[stride])
        steps = (steps - size) // stride + 1
        if channels == 1:
            scale, bias = b.constant(np.ones(width)), b.constant(np.zeros(width))
            data = b.node("InstanceNormalization", [data, scale, bias])
        data, channels = b.gelu(data), width
    data = b.layer_norm(b.turn(data, 0, 2, 1), width)
    places = b.node(
        "Conv",
        [b.turn(data, 0, 2, 1), b.weight(width, width // 16, 16)],
        kernel_shape=[16],
        pads=[8, 7],
        group=16,
    )
    data = b.add(data, b.turn(b.gelu(places), 0, 2, 1))
    data = b.layer_norm(b.add(data, b.attention(data, steps, width, 8)), width)
    return b.model(data, {"wave": [1, 1, samples]}, [1, steps, width])


def diffusion_unet(size: int = 32, width: int = 160, text: int = 256) -> Any:
    """Return a level of the U-Net of Stable Diffusion (arXiv 2112.10752): it attends to a text."""
    b = _Builder()
    moment = b.reshape(b.dense(b.silu("moment"), 320, width), 1, width, 1, 1)

    def norm(data: str, channels: int, places: int) -> str:
        ones, zeros = b.constant(np.ones(32)), b.constant(np.zeros(32))
        data = b.node("InstanceNormalization", [b.reshape(data, 1, 32, -1), ones, zeros])
        data = b.reshape(data, 1, channels, places, places)
        data = b.node("Mul", [data, b.constant(np.ones((channels, 1, 1)))])
        return b.add(data, b.constant(np.zeros((channels, 1, 1))))

    def residual(data: str, channels: int, out: int, places: int) -> str:
        inner = b.conv(b.silu(norm(data, channels, places)), channels, out, 3)
        inner = b.add(inner, moment) if out == width else inner
        inner = b.conv(b.silu(norm(inner, out, places)), out, out, 3)
        return b.add(data if channels == out else b.conv(data, channels, out, 1), inner)

    def attended(data: str, places: int) -> str:
        tokens, heads = places * places, width // 32
        inner = b.turn(norm(data, width, places), 0, 2, 3, 1)
        inner = b.reshape(inner, 1, tokens, width)
        for other in (None, ("text", 77, text)):
            normed = b.layer_norm(inner, width)
            inner = b.add(inner, b.attention(normed, tokens, width, heads, other=other))
        gated = b.dense(b.layer_norm(inner, width), width, 8 * width)
        value, gate = b.split(gated, 2, 4 * width, 2)
        gated = b.node("Mul", [value, b.gelu(gate)])
        inner = b.add(inner, b.dense(gated, 4 * width, width))
        inner = b.turn(b.reshape(inner, 1, places, places, width), 0, 3, 1, 2)
        return b.add(data, inner)

    data = residual(b.conv("latent", 4, width, 3), width, width, size)
    skipped = attended(data, size)
    data = b.conv(skipped, width, width, 3, stride=2)
    data = residual(data, width, 2 * width, size // 2)
    data = b.conv(b.upsample(data), 2 * width, width, 3)
    data = residual(b.node("Concat", [data, skipped], axis=1), 2 * width, width, size)
    output = b.conv(b.silu(norm(data, width, size)), width, 4, 3)
    inputs = {"latent": [1, 4, size, size], "moment": [1, 320], "text": [1, 77, text]}
    return b.model(output, inputs, [1, 4, size, size])


def deeplab(size: int = 128, width: int = 32) -> Any:
    """Return a segmentation like DeepLabV3 (arXiv 1706.05587): dilations, bilinear resizes."""
    b, data, channels, places = _Builder(), "image", 3, size // 8
    for level in range(3):
        data = b.conv(data, channels, width << level, 3, "Relu", stride=2)
        channels = width << level

    def resize(data: str, channels: int, places: int) -> str:
        extents = b.constant([1, channels, places, places], "int64")
        return b.node("Resize", [data, "", "", extents], mode="linear")

    out = channels // 2
    parts = [b.conv(data, channels, out, 1, "Relu")]
    parts += [b.conv(data, channels, out, 3, "Relu", dilation=dilation) for dilation in (6, 12)]
    whole = b.conv(b.node("GlobalAveragePool", [data]), channels, out, 1, "Relu")
    joined = b.node("Concat", [*parts, resize(whole, out, places)], axis=1)
    data = b.conv(b.conv(joined, 4 * out, out, 1, "Relu"), out, 21, 1)
    output = b.node("ArgMax", [resize(data, 21, size)], axis=1, keepdims=0)
    output = b.node("Cast", [output], to=TensorProto.FLOAT)
    return _image(b, output, size, (1, size, size))


def super_resolution(size: int = 64, width: int = 64, scale: int = 3) -> Any:
    """Return residual blocks and a pixel shuffle, as EDSR has them (arXiv 1707.02921)."""
    b = _Builder()
    data = b.conv("image", 3, width, 5, "Relu")
    for _ in range(3):
        inner = b.conv(b.conv(data, width, width, 3, "Relu"), width, width, 3)
        data = b.add(data, inner)
    data = b.conv(data, width, 3 * scale * scale, 3)
    data = b.node("DepthToSpace", [data], blocksize=scale, mode="CRD")
    output = b.node("Clip", [data, b.constant(0.0), b.constant(1.0)])
    return _image(b, output, size, (1, 3, scale * size, scale * size))


def dcgan(inputs: int = 100, width: int = 64) -> Any:
    """Return the generator of DCGAN (arXiv 1511.06434): transposed convolutions."""
    b, channels = _Builder(), 8 * width
    data = b.reshape(b.dense("noise", inputs, 16 * channels), 1, channels, 4, 4)
    for out in (4 * width, 2 * width, width, 3):
        data = b.node(
            "ConvTranspose",
            [data, b.weight(channels, out, 4, 4)],
            kernel_shape=[4, 4],
            strides=[2, 2],
            pads=[1] * 4,
        )
        data = b.node("Relu", [b.norm(data, out)]) if out > 3 else b.node("Tanh", [data])
        channels = out
    return b.model(data, {"noise": [1, inputs]}, [1, 3, 64, 64])


def grouped_llama(tokens: int = 64, width: int = 512, heads: int = 8, keys: int = 2) -> Any:
    """Return a Llama of two blocks whose heads share keys (arXiv 2305.13245)."""
    b, part, hidden, words = _Builder(), width // heads, width * 43 // 16, 2000
    cos, sin = b.weight(tokens, part, scale=1.0), b.weight(tokens, part, scale=1.0)
    mask = b.constant(np.triu(np.full((tokens, tokens), -1e9), 1))

    def rotated(data: str) -> str:
        halves = [b.slice(data, begin, begin + part // 2, 3) for begin in (0, part // 2)]
        turned = b.node("Concat", [b.node("Neg", [halves[1]]), halves[0]], axis=3)
        return b.add(b.node("Mul", [data, cos]), b.node("Mul", [turned, sin]))

    def projected(data: str, number: int) -> str:
        return b.heads(b.dense(data, width, number * part, bias=False), tokens, number, part)

    def repeated(data: str) -> str:
        data = b.node("Unsqueeze", [data, b.constant([2], "int64")])
        shape = b.constant([1, keys, heads // keys, tokens, part], "int64")
        return b.reshape(b.node("Expand", [data, shape]), 1, heads, tokens, part)

    data = b.node("Gather", [b.weight(words, width, scale=1.0), "words"])
    for _ in range(2):
        normed = b.rms_norm(data, width)
        query, key = rotated(projected(normed, heads)), rotated(projected(normed, keys))
        value = repeated(projected(normed, keys))
        scores = b.node("MatMul", [query, b.turn(repeated(key), 0, 1, 3, 2)])
        scores = b.add(b.node("Div", [scores, b.constant(part**0.5)]), mask)
        joined = b.node("MatMul", [b.node("Softmax", [scores], axis=-1), value])
        joined = b.reshape(b.turn(joined, 0, 2, 1, 3), 1, tokens, width)
        data = b.add(data, b.dense(joined, width, width, bias=False))
        normed = b.rms_norm(data, width)
        gate = b.silu(b.dense(normed, width, hidden, bias=False))
        inner = b.node("Mul", [gate, b.dense(normed, width, hidden, bias=False)])
        data = b.add(data, b.dense(inner, hidden, width, bias=False))
    output = b.dense(b.rms_norm(data, width), width, words, bias=False)
    return _with_integers(b.model(output, {"words": [1, tokens]}, [1, tokens, words]), "words")


def t5(tokens: int = 64, width: int = 512) -> Any:
    """Return two layers of T5's encoder (arXiv 1910.10683), which adds a bias of distances."""
    b, data = _Builder(), "tokens"
    bias = b.weight(1, width // 64, tokens, tokens, scale=1.0)
    for _ in range(2):
        normed = b.rms_norm(data, width)
        data = b.add(data, b.attention(normed, tokens, width, width // 64, bias=bias))
        inner = b.node("Relu", [b.dense(b.rms_norm(data, width), width, 2 * width, bias=False)])
        data = b.add(data, b.dense(inner, 2 * width, width, bias=False))
    return b.model(b.rms_norm(data, width), {"tokens": [1, tokens, width]}, [1, tokens, width])


def crnn(size: int = 160, channels: int = 64, hidden: int = 128) -> Any:
    """Return a reader of text lines: convolutions and LSTMs (arXiv 1507.05717)."""
    b, data, before = _Builder(), "line", 1
    for out, pool in ((1, [2, 2]), (2, [2, 2]), (4, []), (4, [2, 1]), (8, [2, 1])):
        data = b.conv(data, before, out * channels, 3, "Relu")
        before = out * channels
        if pool:
            data = b.node("MaxPool", [data], kernel_shape=pool, strides=pool)
    data = b.conv(data, before, before, 2, "Relu", pad=0)
    steps = size // 4 - 1
    data = b.turn(b.reshape(data, 1, before, steps), 2, 0, 1)
    for inputs in (before, 2 * hidden):
        data = b.recurrent("LSTM", data, steps, inputs, hidden, direction="bidirectional")
    output = b.dense(data, 2 * hidden, 37)
    return b.model(output, {"line": [1, 1, 32, size]}, [steps, 1, 37])


def denoiser(frames: int = 100, bands: int = 64, width: int = 192) -> Any:
    """Return a speech denoiser of GRUs, like RNNoise (arXiv 1709.08243)."""
    b = _Builder()
    data = b.node("Relu", [b.dense("bands", bands, width)])
    for _ in range(3):
        data = b.recurrent("GRU", data, frames, width, width, linear_before_reset=1)
    output = b.node("Sigmoid", [b.dense(data, width, bands)])
    return b.model(output, {"bands": [frames, 1, bands]}, [frames, 1, bands])


def quantised_mobilenet(size: int = 96, width: int = 16, blocks: int = 3) -> Any:
    """Return inverted residual blocks of eight bits (arXiv 1712.05877)."""
    b = _Builder()
    data = b.quantised_conv(b.quantised("image"), 3, width, 3, "Relu", stride=2)
    for number in range(blocks):
        channels, data = (
            width << number,
            b.quantised_conv(data, width << number, 4 * width << number, 1, "Relu"),
        )
        data = b.quantised_conv(
            data, 4 * channels, 4 * channels, 3, "Relu", stride=2, groups=4 * channels
        )
        data = b.quantised_conv(data, 4 * channels, 2 * channels, 1)
        inner = b.quantised_conv(data, 2 * channels, 2 * channels, 3, "Relu")
        data = b.quantised(b.add(data, b.quantised_conv(inner, 2 * channels, 2 * channels, 1)))
    channels = width << blocks
    data = b.node("Flatten", [b.quantised(b.node("GlobalAveragePool", [data]), 0.0173)])
    return _image(b, b.dense(data, channels, 10), size, [1, 10])


def video(size: int = 64, frames: int = 8) -> Any:
    """Return convolutions of three axes, as C3D has them (arXiv 1412.0767)."""
    b, data, channels = _Builder(), "clip", 3
    for out in (32, 64):
        data = b.node(
            "Conv", [data, b.weight(out, channels, 3, 3, 3)], kernel_shape=[3] * 3, pads=[1] * 6
        )
        data, channels = b.node("Relu", [data]), out
        if out == 32:
            data = b.node("MaxPool", [data], kernel_shape=[1, 2, 2], strides=[1, 2, 2])
    data = b.node("Flatten", [b.node("GlobalAveragePool", [data])])
    output = b.dense(data, channels, 10)
    return b.model(output, {"clip": [1, 3, frames, size, size]}, [1, 10])


def dlrm(batch: int = 128) -> Any:
    """Return DLRM (arXiv 1906.00091): embeddings, their products, and dense layers."""
    b, width, tables = _Builder(), 64, 8

    def dense(data: str, *widths: int) -> str:
        for inputs, outputs in pairwise(widths):
            data = b.node("Relu", [b.dense(data, inputs, outputs)])
        return data

    data = dense("numbers", 13, 512, 256, width)
    ids = [f"ids_{table}" for table in range(tables)]
    found = [b.node("Gather", [b.weight(1000, width, scale=0.1), each]) for each in ids]
    rows = [b.reshape(each, batch, 1, width) for each in (data, *found)]
    joined = b.node("Concat", rows, axis=1)
    products = b.node("MatMul", [joined, b.turn(joined, 0, 2, 1)])
    pairs = (tables + 1) ** 2
    data = b.node("Concat", [data, b.reshape(products, batch, pairs)], axis=1)
    output = b.node("Sigmoid", [b.dense(dense(data, width + pairs, 512, 256), 256, 1)])
    shapes = {"numbers": [batch, 13]} | {each: [batch] for each in ids}
    return _with_integers(b.model(output, shapes, [batch, 1]), *ids)


def _with_integers(model: Any, *names: str) -> Any:
    """Return a model some of whose inputs are indices."""
    for each in model.graph.input:
        if each.name in names:
            each.type.tensor_type.elem_type = TensorProto.INT64
    return model


def halved(model: Any) -> Any:
    """Return a model whose floats have 16 bits: weights, inputs, outputs and conversions."""
    graph = model.graph
    nodes = [attribute for node in graph.node for attribute in node.attribute]
    tensors = [each.t for each in nodes if each.type == AttributeProto.TENSOR]
    for tensor in [*graph.initializer, *tensors]:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype("float16")
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for value in [*graph.input, *graph.output, *graph.value_info]:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for each in nodes:
        if each.name == "to" and each.i == TensorProto.FLOAT:
            each.i = TensorProto.FLOAT16
    return model


#: Networks of the benchmark.
HALVED: dict[str, Callable[[], Any]] = {
    "BERT of 16 bits": lambda: halved(bert(100, layers=1)),
    "MobileNetV3 of 16 bits": lambda: halved(mobilenet_v3()),
    "Whisper of 16 bits": lambda: halved(whisper()),
}
QUANTISED: dict[str, Callable[[], Any]] = {"MobileNet of eight bits": quantised_mobilenet}
MODERN: dict[str, Callable[[], Any]] = {
    "YOLOv8-like": yolo,
    "YOLOv3-tiny-like": yolo_v3,
    "MobileNetV3": mobilenet_v3,
    "ConvNeXt": convnext,
    "Swin": swin,
    "Whisper": whisper,
    "wav2vec 2.0": wav2vec,
    "diffusion U-Net": diffusion_unet,
    "DeepLabV3-like": deeplab,
    "EDSR-like": super_resolution,
    "DCGAN": dcgan,
    "Llama, grouped": grouped_llama,
    "T5": t5,
    "CRNN": crnn,
    "GRU denoiser": denoiser,
    "C3D-like": video,
    "DLRM": dlrm,
    "BERT, 100 tokens": lambda: bert(100, layers=1),
    "Llama, 50 tokens": lambda: llama_block(50),
}
