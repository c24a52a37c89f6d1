"""Operator families: one short word for the computation of a workload.

``attention``, ``conv1d`` to ``conv3d`` with the variants ``conv2d_winograd``,
``conv2d_transpose``, ``depthwise_conv2d`` and ``group_conv2d``, ``sparse_dense``,
``batch_matmul``, ``matmul``, ``softmax``, ``normalization``, ``pooling``, ``reduction``,
``elementwise`` and ``data_movement``.

A fused function has the family of its anchor, the operator that determines the schedule: the first
of this order among its parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

#: From the most to the least specific; N is the number of dimensions.
_ORDER = (
    "attention",
    "convNd_winograd",
    "convNd_transpose",
    "depthwise_convNd",
    "group_convNd",
    "convNd",
    "sparse_dense",
    "batch_matmul",
    "matmul",
    "softmax",
    "normalization",
    "pooling",
    "reduction",
    "elementwise",
    "data_movement",
)
_RANK = {family: rank for rank, family in enumerate(_ORDER)}

_CONV = re.compile(r"conv([123])d")
_CONV_VARIANTS = (
    (re.compile(r"winograd"), "conv{}d_winograd"),
    (re.compile(r"conv[123]d_?transpose|deconv[123]d"), "conv{}d_transpose"),
    (re.compile(r"depth(?:wise)?_?conv[123]d"), "depthwise_conv{}d"),
    (re.compile(r"group(?:ed)?_?conv[123]d"), "group_conv{}d"),
)


def _words(words: str) -> str:
    """Return a pattern of whole words of a name, which may be numbered: ``matmul3``."""
    return rf"(?<![a-z])(?:{words})\d*(?![a-z])"


_PATTERNS = tuple(
    (re.compile(pattern), family)
    for pattern, family in (
        (rf"attention|{_words('sdpa|mha')}", "attention"),
        (rf"sparse_?(?:dense|matmul|conv)|{_words('bsrmm|csrmm')}", "sparse_dense"),
        (rf"batch_?matmul|{_words('bmm|bgemm')}", "batch_matmul"),
        (rf"matmul|{_words('gemm|gemv|dense')}", "matmul"),
        (r"softmax", "softmax"),
        (
            rf"(?:layer|batch|group|instance|rms)_?norm"
            rf"|{_words('norm|lrn|l2norm|normalize|normalization')}",
            "normalization",
        ),
        (_words("(?:max|avg|adaptive|global)?pool(?:[123]d)?|pooling"), "pooling"),
        (
            _words(
                "sum|mean|prod|variance|argmax|argmin|logsumexp|reduce|reduction|reducesum"
                "|reducemax|reducemin|reducemean"
            ),
            "reduction",
        ),
        (
            _words(
                "elementwise|elemwise|ewise|add|subtract|multiply|mul|divide|div|power|maximum"
                "|minimum|negative|negate|abs|exp|log|sqrt|rsqrt|erf|relu|relu6|prelu|gelu|silu"
                "|swish|sigmoid|tanh|clip|cast|quantize|dequantize|requantize"
            ),
            "elementwise",
        ),
        (
            _words(
                "reshape|transpose|layout_trans|layout_transform|concat|concatenate|split|slice"
                "|strided_slice|squeeze|expand_dims|flatten|take|gather|gather_nd|scatter"
                "|scatter_nd|pad|tile|repeat|stack|flip|broadcast|broadcast_to|copy"
            ),
            "data_movement",
        ),
    )
)


@lru_cache(maxsize=1024)
def family_of_name(name: str) -> str | None:
    """Return the family in the name of a task, function or block; None if it names no family.

    Examples
    --------
    >>> family_of_name("fused_nn_conv2d_add_relu")
    'conv2d'
    >>> family_of_name("depthwise_conv2d_nchw.cuda")
    'depthwise_conv2d'
    """
    text = name.lower()
    found = _CONV.search(text)
    if found:
        variants = (family for pattern, family in _CONV_VARIANTS if pattern.search(text))
        return next(variants, "conv{}d").format(found[1])
    return next((family for pattern, family in _PATTERNS if pattern.search(text)), None)


def anchor_of(families: Iterable[str | None]) -> str | None:
    """Return the most specific of the families of a function's parts; None if none is known."""
    known = [family for family in families if family is not None]
    return min(known, key=_rank, default=None)


def _rank(family: str) -> int:
    return _RANK.get(_CONV.sub("convNd", family), len(_ORDER))


def is_convolution(family: str) -> bool:
    """Tell whether a family is a convolution of any variant."""
    return _CONV.search(family) is not None


def transposed_of(family: str) -> str:
    """Return the transposed variant of a convolution: ``conv2d_transpose``."""
    return "conv{}d_transpose".format(*_CONV.findall(family))


def is_matmul(family: str) -> bool:
    """Tell whether a family is a product of matrices."""
    return family in ("matmul", "batch_matmul", "sparse_dense")
