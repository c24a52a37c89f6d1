"""Networks whose operators the prior has: ONNX models with random weights.

They cover the operators and shapes of common image, text and audio networks. Where a published
network has several equal stages, one of them is here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from modern_networks import (
    convnext,
    dcgan,
    deeplab,
    diffusion_unet,
    dlrm,
    grouped_llama,
    mobilenet_v3,
    super_resolution,
    swin,
    t5,
    wav2vec,
    whisper,
    yolo,
)
from onnx_networks import Builder, bert, llama_block, mobilenet_v2, resnet18

__all__ = ["NETWORKS"]

#: Fire modules of SqueezeNet 1.1 (arXiv 1602.07360): squeezed and expanded channels, pooled after.
_SQUEEZENET = (
    (16, 64, False),
    (16, 64, True),
    (32, 128, False),
    (32, 128, True),
    (48, 192, False),
    (48, 192, False),
    (64, 256, False),
    (64, 256, False),
)
#: Separable convolutions of MobileNet (arXiv 1704.04861, table 1): channels, stride.
_MOBILENET = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *((512, 1), (1024, 2), (1024, 1)),
)
#: Stages of EfficientNet-B0 (arXiv 1905.11946, table 1): expansion, channels, repetitions, stride,
#: kernel size.
_EFFICIENTNET = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 2, 2, 3),
    (6, 112, 2, 1, 5),
    (6, 192, 2, 2, 5),
    (6, 320, 1, 1, 3),
)


def _pool(b: Builder, data: str, size: int, stride: int, pad: int = 0) -> str:
    return b.node(
        "MaxPool", [data], kernel_shape=[size, size], strides=[stride, stride], pads=[pad] * 4
    )


def _classify(b: Builder, data: str, channels: int, classes: int = 1000) -> str:
    data = b.node("Flatten", [b.node("GlobalAveragePool", [data])])
    return b.node("Softmax", [b.dense(data, channels, classes)], axis=-1)


def _image(b: Builder, output: str, size: int, shape: Sequence[int] = (1, 1000)) -> Any:
    return b.model(output, {"image": [1, 3, size, size]}, shape)


def mobilenet(size: int) -> Any:
    """Return MobileNet."""
    b = Builder()
    data, channels = b.convolution("image", 3, 32, 3, stride=2), 32
    for out, stride in _MOBILENET:
        data = b.convolution(data, channels, channels, 3, stride=stride, groups=channels)
        data, channels = b.convolution(data, channels, out, 1), out
    return _image(b, _classify(b, data, channels), size)


def resnet50(size: int, groups: int = 1, width: int = 64) -> Any:
    """Return two blocks of each stage of ResNet-50, or of ResNeXt-50 (32 groups, width 128)."""
    b = Builder()
    data = _pool(b, b.convolution("image", 3, 64, 7, stride=2), 3, 2, 1)
    channels = 64
    for stage in range(4):
        inside, out = width << stage, 256 << stage
        for block in range(2):
            stride = 2 if stage and not block else 1
            inner = b.convolution(data, channels, inside, 1)
            inner = b.convolution(inner, inside, inside, 3, stride=stride, groups=groups)
            inner = b.convolution(inner, inside, out, 1, relu=False)
            if not block:
                data = b.convolution(data, channels, out, 1, stride=stride, relu=False)
            data, channels = b.node("Relu", [b.node("Add", [data, inner])]), out
    return _image(b, _classify(b, data, channels), size)


def squeezenet(size: int) -> Any:
    """Return SqueezeNet 1.1."""
    b = Builder()
    data = _pool(b, b.convolution("image", 3, 64, 3, stride=2), 3, 2)
    channels = 64
    for squeezed, expanded, is_pooled in _SQUEEZENET:
        inner = b.convolution(data, channels, squeezed, 1)
        parts = [b.convolution(inner, squeezed, expanded, kernel) for kernel in (1, 3)]
        data, channels = b.node("Concat", parts, axis=1), 2 * expanded
        data = _pool(b, data, 3, 2) if is_pooled else data
    data = b.convolution(data, channels, 1000, 1)
    output = b.node("Softmax", [b.node("Flatten", [b.node("GlobalAveragePool", [data])])], axis=-1)
    return _image(b, output, size)


def vgg(size: int) -> Any:
    """Return VGG-11 with batch norms, and one hidden layer of 1,024."""
    b = Builder()
    data, channels = "image", 3
    for outs in ((64,), (128,), (256, 256), (512, 512), (512, 512)):
        for out in outs:
            data, channels = b.convolution(data, channels, out, 3), out
        data = _pool(b, data, 2, 2)
    inputs = channels * (size // 32) ** 2
    data = b.node("Relu", [b.dense(b.node("Flatten", [data]), inputs, 1024)])
    return _image(b, b.dense(data, 1024, 1000), size)


def efficientnet(size: int) -> Any:
    """Return EfficientNet-B0 with at most two blocks of a stage."""
    b = Builder()

    def swish(data: str) -> str:
        return b.node("Mul", [data, b.node("Sigmoid", [data])])

    def conv(data: str, channels: int, out: int, kernel: int, **more: Any) -> str:
        return b.convolution(data, channels, out, kernel, relu=False, **more)

    data, channels = swish(conv("image", 3, 32, 3, stride=2)), 32
    for expansion, out, repetitions, first, kernel in _EFFICIENTNET:
        for stride in (first, 1)[:repetitions]:
            wide = channels * expansion
            inner = swish(conv(data, channels, wide, 1)) if expansion > 1 else data
            inner = swish(conv(inner, wide, wide, kernel, stride=stride, groups=wide))
            gate = b.node("GlobalAveragePool", [inner])
            gate = swish(conv(gate, wide, max(1, channels // 4), 1))
            gate = b.node("Sigmoid", [conv(gate, max(1, channels // 4), wide, 1)])
            inner = conv(b.node("Mul", [inner, gate]), wide, out, 1)
            data = b.node("Add", [data, inner]) if stride == 1 and channels == out else inner
            channels = out
    data = swish(conv(data, channels, 1280, 1))
    return _image(b, _classify(b, data, 1280), size)


def _shuffle(b: Builder, data: str, groups: int, channels: int, places: int) -> str:
    """Exchange the channels of groups."""
    shape = [1, groups, channels // groups, places, places]
    data = b.node("Reshape", [data, b.constant(shape, "int64")])
    data = b.node("Transpose", [data], perm=[0, 2, 1, 3, 4])
    return b.node("Reshape", [data, b.constant([1, channels, places, places], "int64")])


def shufflenet(size: int, groups: int, width: int) -> Any:
    """Return two units of each stage of ShuffleNet (arXiv 1707.01083, table 1)."""
    b = Builder()
    data = _pool(b, b.convolution("image", 3, 24, 3, stride=2), 3, 2, 1)
    channels, places = 24, size // 4
    for out in (width, 2 * width, 4 * width):
        for stride in (2, 1):
            middle, more = out // 4, out - channels if stride == 2 else out
            first = 1 if channels == 24 else groups
            inner = b.convolution(data, channels, middle, 1, groups=first)
            inner = _shuffle(b, inner, groups, middle, places)
            inner = b.convolution(
                inner, middle, middle, 3, stride=stride, groups=middle, relu=False
            )
            inner = b.convolution(inner, middle, more, 1, groups=groups, relu=False)
            if stride == 2:
                pooled = b.node(
                    "AveragePool", [data], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4
                )
                joined, places = b.node("Concat", [pooled, inner], axis=1), places // 2
            else:
                joined = b.node("Add", [data, inner])
            data, channels = b.node("Relu", [joined]), out
    return _image(b, _classify(b, data, channels), size)


def densenet(size: int, growth: int = 32) -> Any:
    """Return three blocks of DenseNet (arXiv 1608.06993) with two layers each."""
    b = Builder()
    data, channels = _pool(b, b.convolution("image", 3, 64, 7, stride=2), 3, 2, 1), 64
    for wide in (128, 256, 512):
        data, channels = b.convolution(data, channels, wide, 1), wide
        for _ in range(2):
            inner = b.convolution(data, channels, 4 * growth, 1)
            inner = b.convolution(inner, 4 * growth, growth, 3)
            data, channels = b.node("Concat", [data, inner], axis=1), channels + growth
        data = b.node("AveragePool", [data], kernel_shape=[2, 2], strides=[2, 2])
    return _image(b, _classify(b, data, channels), size)


def unet(size: int, channels: int = 32) -> Any:
    """Return U-Net (arXiv 1505.04597) of three levels."""
    b = Builder()
    data, inside, skips = "image", 3, []
    for level in range(3):
        out = channels << level
        data = b.convolution(b.convolution(data, inside, out, 3), out, out, 3)
        skips.append(data)
        data, inside = _pool(b, data, 2, 2), out
    data, inside = b.convolution(data, inside, 2 * inside, 3), 2 * inside
    for level in reversed(range(3)):
        out = channels << level
        data = b.node(
            "ConvTranspose",
            [data, b.weight(inside, out, 2, 2)],
            kernel_shape=[2, 2],
            strides=[2, 2],
        )
        data = b.node("Concat", [data, skips[level]], axis=1)
        data, inside = b.convolution(data, 2 * out, out, 3), out
    data = b.convolution(data, inside, 2, 1, relu=False)
    return _image(b, b.node("Sigmoid", [data]), size, (1, 2, size, size))


def speech(frames: int, width: int = 384) -> Any:
    """Return the two convolutions with which Whisper (arXiv 2212.04356) begins."""
    b = Builder()
    data, channels = "mel", 80
    for stride in (1, 2):
        data = b.node(
            "Conv",
            [data, b.weight(width, channels, 3), b.weight(width)],
            kernel_shape=[3],
            strides=[stride],
            pads=[1, 1],
        )
        data, channels = b.node("Relu", [data]), width
    output = b.node("Transpose", [data], perm=(0, 2, 1))
    return b.model(output, {"mel": [1, 80, frames]}, [1, frames // 2, width])


def perceptron(batch: int, widths: Sequence[int]) -> Any:
    """Return dense layers with ReLU."""
    b = Builder()
    data = "rows"
    for inputs, outputs in pairwise(widths):
        data = b.node("Relu", [b.dense(data, inputs, outputs)])
    return b.model(data, {"rows": [batch, widths[0]]}, [batch, widths[-1]])


def columns(size: int, widths: Sequence[int]) -> Any:
    """Return reductions over pixels at several sizes: pooling, means, norms of channels and groups.

    Each level has half of the height and width of the one before.
    """
    b = Builder()
    data, channels, side, means = "image", 3, size, []
    for width in widths:
        data, channels, side = b.convolution(data, channels, width, 1, stride=2), width, side // 2
        found = [data]
        found += [_pool(b, data, *shape) for shape in ((2, 2), (3, 1, 1), (3, 2, 1), (5, 1, 2))]
        average = {"kernel_shape": [3, 3], "pads": [1] * 4, "count_include_pad": 1}
        found.append(b.node("AveragePool", [data], **average))
        for count in (width, 16):
            weights = [b.constant(np.full(count, each)) for each in (1, 0)]
            groups = b.reshape(data, 1, count, -1)
            norm = b.node("InstanceNormalization", [groups, *weights])
            found.append(b.node("Relu", [b.reshape(norm, 1, width, side, side)]))
        means += [b.node("GlobalAveragePool", [each]) for each in found]
    return _image(b, b.node("Concat", means, axis=1), size, (1, 8 * sum(widths), 1, 1))


#: Name → the model, in the order in which they are tuned: each part of the list has all families.
NETWORKS: dict[str, Callable[[], Any]] = {
    "encoder-128x512": lambda: bert(128, layers=1, width=512, heads=8),
    "mobilenet-224": lambda: mobilenet(224),
    "squeezenet-224": lambda: squeezenet(224),
    "resnet50-224": lambda: resnet50(224),
    "perceptron-64": lambda: perceptron(64, (784, 512, 256, 10)),
    "decoder-128x768": lambda: llama_block(128, width=768, heads=12, hidden=2048),
    "efficientnet-224": lambda: efficientnet(224),
    "densenet-224": lambda: densenet(224),
    "unet-128": lambda: unet(128),
    "speech-400": lambda: speech(400),
    "decode-64x768": lambda: llama_block(1, past=63, width=768, heads=12, hidden=2048),
    "mobilenet_v2-224": lambda: mobilenet_v2(224),
    "resnet18-224": lambda: resnet18(224),
    "encoder-128x768": lambda: bert(128, layers=1),
    "vgg-128": lambda: vgg(128),
    "shufflenet-224": lambda: shufflenet(224, groups=3, width=240),
    "shufflenet-2-224": lambda: shufflenet(224, groups=2, width=200),
    "vgg-224": lambda: vgg(224),
    "resnext50-224": lambda: resnet50(224, groups=32, width=128),
    "whisper-300x512": lambda: whisper(300, width=512, layers=1),
    "wav2vec-6000x192": lambda: wav2vec(6000, width=192),
    "diffusion-24x128": lambda: diffusion_unet(24, width=128, text=192),
    "yolo-192x24": lambda: yolo(192, width=24),
    "swin-56x64": lambda: swin(56, width=64),
    "convnext-64x64": lambda: convnext(64, width=64),
    "dcgan-48": lambda: dcgan(64, width=48),
    "mobilenet_v3-224": lambda: mobilenet_v3(224),
    "llama-100x256": lambda: grouped_llama(100, width=256, heads=4),
    "edsr-48x32": lambda: super_resolution(48, width=32, scale=2),
    "deeplab-96x24": lambda: deeplab(96, width=24),
    "t5-50x256": lambda: t5(50, width=256),
    "dlrm-50": lambda: dlrm(50),
    "columns-160x32": lambda: columns(160, (32, 96, 192, 512)),
    "encoder-150x512": lambda: bert(150, layers=1, width=512, heads=8),
    "encoder-197x384": lambda: bert(197, layers=1, width=384, heads=6),
    "mobilenet-160": lambda: mobilenet(160),
    "squeezenet-128": lambda: squeezenet(128),
    "perceptron-1": lambda: perceptron(1, (1024, 4096, 1024, 100)),
    "efficientnet-128": lambda: efficientnet(128),
    "unet-64": lambda: unet(64),
    "decoder-32x1024": lambda: llama_block(32),
    "resnet50-128": lambda: resnet50(128),
    "densenet-128": lambda: densenet(128),
}
