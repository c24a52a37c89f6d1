"""Facts of a target."""

from __future__ import annotations

import re

from ...records import Target
from .columns import DEVICE

#: Bits of a vector register by words of ``mcpu`` and ``mattr`` (LLVM's names), the widest first.
_VECTOR_BITS = (
    (
        re.compile(
            r"avx512|skylake-avx512|cascadelake|icelake|cooperlake|sapphirerapids|znver[45]"
            r"|tigerlake|rocketlake|granite|x86-64-v4"
        ),
        512,
    ),
    (
        re.compile(
            r"avx2|haswell|broadwell|skylake|alderlake|znver|core-avx|raptorlake|meteorlake"
            r"|x86-64-v3|sve"
        ),
        256,
    ),
)
_DEFAULT_VECTOR_BITS = 128

_GPU_KINDS = frozenset({"cuda", "rocm", "opencl", "vulkan", "metal", "nvptx", "webgpu", "adreno"})

#: Default limits of a GPU, for targets that lack them (``src/target/target_kind.cc``, CUDA).
_GPU_LIMITS = {"threads": 1024, "warp": 32, "shared_bytes": 49152, "registers": 65536}
_LIMIT_KEYS = {
    "threads": ("max_threads_per_block", "max_num_threads"),
    "warp": ("thread_warp_size",),
    "shared_bytes": ("max_shared_memory_per_block", "shared_memory_per_block"),
    "registers": ("registers_per_block",),
}


def device_of(target: Target) -> list[float]:
    """Return the facts of a target, in the order of :data:`.columns.DEVICE`."""
    attributes = target.attributes or {}
    is_gpu = target.kind in _GPU_KINDS
    facts = {"gpu": float(is_gpu), "cores": _number(attributes.get("num-cores"), 1 - is_gpu)}
    for name, default in _GPU_LIMITS.items():
        values = (_number(attributes.get(key), 0) for key in _LIMIT_KEYS[name])
        facts[name] = next(filter(None, values), float(default) if is_gpu else 0.0)
    facts["lanes"] = 4.0 if is_gpu else _vector_bits(attributes) / 32
    return [facts[name] for name in DEVICE]


def _number(value: object, default: float) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e12:
        return float(value)
    return float(default)


def _vector_bits(attributes: dict[str, object]) -> int:
    text = " ".join(str(attributes.get(key, ""))[:1000] for key in ("mcpu", "mattr"))
    widths = (bits for pattern, bits in _VECTOR_BITS if pattern.search(text))
    return next(widths, _DEFAULT_VECTOR_BITS)
