"""Facts on GPUs by their names.

Sources: NVIDIA's list of CUDA GPUs (compute capability) and the data sheets and white papers of the
chips (multiprocessors); AMD's data sheets (compute units; for MI250 and MI250X those of one die,
which is a device to programs).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache

#: Vendors and families, which some tools leave out.
_FAMILIES = frozenset(
    ["nvidia", "corporation", "geforce", "tesla", "quadro", "amd", "radeon", "instinct", "graphics"]
)

#: Words left out of a name that is not known with them: editions of memory, slot and board.
_EDITIONS = tuple(
    re.compile(words)
    for words in (
        "gpu|generation|server|workstation|edition",
        r"gpu|generation|server|workstation|edition|\d+gb|sxm\d?|pcie|hbm\d?e?|nvl",
        r"gpu|generation|server|workstation|edition|\d+gb|sxm\d?|pcie|hbm\d?e?|nvl|pro",
    )
)


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU.

    Parameters
    ----------
    name : str
        Usual name, without vendor.
    vendor : str
        ``NVIDIA`` or ``AMD``.
    compute_capability : str or None
        ``"7.5"``; None for AMD.
    multiprocessors : int
        Multiprocessors, or compute units.
    warp : int
        Threads in lockstep: 32; 64 on GCN and CDNA.
    max_threads : int
        Threads of the largest block.
    """

    name: str
    vendor: str
    compute_capability: str | None
    multiprocessors: int
    warp: int = 32
    max_threads: int = 1024


#: Compute capability → names with multiprocessors. Names that several sizes of a chip share (Orin,
#: Xavier) are left out.
_NVIDIA: dict[str, str] = {
    "2.0": "GTX 480: 15, GTX 580: 16, C2050: 14, C2075: 14, M2090: 16",
    "3.0": "GTX 680: 8, GTX 770: 8, GTX 660: 5, K10: 8, K2000: 2, K4000: 4, K5000: 8, GTX 760: 6",
    "3.5": "K20: 13, K20c: 13, K20m: 13, K20X: 14, K20Xm: 14, K40: 15, K40c: 15, K40m: 15,"
    "GTX 780: 12, GTX 780 Ti: 15, GTX TITAN: 14, GTX TITAN Black: 15, GTX TITAN Z: 15",
    "3.7": "K80: 13",
    "5.0": "GTX 750: 4, GTX 750 Ti: 5, K2200: 5, M10: 5, GTX 960M: 5",
    "5.2": "GTX 950: 6, GTX 960: 8, GTX 970: 13, GTX 980: 16, GTX 980 Ti: 22, GTX TITAN X: 24,"
    "M4: 8, M40: 24, M60: 16, M4000: 13, M5000: 16, M6000: 24",
    "5.3": "Tegra X1: 2",
    "6.0": "P100: 56, GP100: 56",
    "6.1": "GT 1030: 3, GTX 1050: 5, GTX 1050 Ti: 6, GTX 1060: 10, GTX 1060 3GB: 9,"
    "GTX 1060 6GB: 10, GTX 1070: 15, GTX 1070 Ti: 19, GTX 1080: 20, GTX 1080 Ti: 28, TITAN X: 28,"
    "TITAN X Pascal: 28, TITAN Xp: 30, P4: 20, P40: 30, P2000: 8, P4000: 14, P5000: 20, P6000: 30",
    "6.2": "Tegra X2: 2",
    "7.0": "V100: 80, V100S: 80, TITAN V: 80, GV100: 80",
    "7.5": "T4: 40, GTX 1650: 14, GTX 1650 Super: 20, GTX 1660: 22, GTX 1660 Super: 22,"
    "GTX 1660 Ti: 24, RTX 2060: 30, RTX 2060 Super: 34, RTX 2070: 36, RTX 2070 Super: 40,"
    "RTX 2080: 46, RTX 2080 Super: 48, RTX 2080 Ti: 68, TITAN RTX: 72, RTX 3000: 30, RTX 4000: 36,"
    "RTX 5000: 48, RTX 6000: 72, RTX 8000: 72",
    "8.0": "A100: 108, A30: 56, A800: 108",
    "8.6": "RTX 3050: 20, RTX 3050 6GB: 18, RTX 3050 Laptop: 16, RTX 3050 Ti Laptop: 20,"
    "RTX 3060: 28, RTX 3060 Laptop: 30, RTX 3060 Ti: 38, RTX 3070: 46, RTX 3070 Laptop: 40,"
    "RTX 3070 Ti: 48, RTX 3070 Ti Laptop: 46, RTX 3080: 68, RTX 3080 12GB: 70, RTX 3080 Laptop: 48,"
    "RTX 3080 Ti: 80, RTX 3080 Ti Laptop: 58, RTX 3090: 82, RTX 3090 Ti: 84, RTX A2000: 26,"
    "RTX A4000: 48, RTX A4500: 56, RTX A5000: 64, RTX A5500: 80, RTX A6000: 84, A2: 10, A10: 72,"
    "A10G: 80, A16: 10, A40: 84",
    "8.9": "L4: 58, L20: 92, L40: 142, L40S: 142, RTX 4050 Laptop: 20, RTX 4060: 24,"
    "RTX 4060 Laptop: 24, RTX 4060 Ti: 34, RTX 4070: 46, RTX 4070 Laptop: 36, RTX 4070 Super: 56,"
    "RTX 4070 Ti: 60, RTX 4070 Ti Super: 66, RTX 4080: 76, RTX 4080 Laptop: 58,"
    "RTX 4080 Super: 80, RTX 4090: 128, RTX 4090 D: 114, RTX 4090 Laptop: 76, RTX 2000 Ada: 22,"
    "RTX 4000 Ada: 48, RTX 4000 SFF Ada: 48, RTX 4500 Ada: 60, RTX 5000 Ada: 100,"
    "RTX 6000 Ada: 142",
    "9.0": "H100: 132, H100 SXM5: 132, H100 NVL: 132, H100 PCIe: 114, H20: 78, H200: 132,"
    "H800: 132, H800 PCIe: 114, GH200: 132",
    "10.0": "B200: 148, GB200: 148",
    "10.3": "B300: 160, GB300: 160",
    "12.0": "RTX 5060: 30, RTX 5060 Ti: 36, RTX 5070: 48, RTX 5070 Ti: 70, RTX 5080: 84,"
    "RTX 5090: 170, RTX 5090 D: 170, RTX 5090 Laptop: 82, RTX PRO 6000 Blackwell: 188",
    "12.1": "GB10: 48",
}

#: Threads of a wave → names with compute units.
_AMD: dict[int, str] = {
    32: "W5700: 36, RX 5700 XT: 40, W6600: 28, W6800: 60, W7800: 70, W7900: 96, RX 6600 XT: 32,"
    "RX 6700 XT: 40, RX 6800: 60, RX 6800 XT: 72, RX 6900 XT: 80, RX 7600: 32, RX 7800 XT: 60,"
    "RX 7900 XT: 84, RX 7900 XTX: 96, RX 9070 XT: 64",
    64: "R9 290X: 44, R9 Fury X: 64, RX 480: 36, RX 580: 36, RX Vega 56: 56, RX Vega 64: 64,"
    "Vega Frontier: 64, VII: 60, MI25: 64, MI50: 60, MI60: 64, MI100: 120, MI210: 104, MI250: 104,"
    "MI250X: 110, MI300A: 228, MI300X: 304, MI325X: 304",
}


@lru_cache(maxsize=4096)
def lookup(name: str) -> Device | None:
    """Return the GPU of that name; None if it is unknown.

    Upper and lower case, spaces and underscores do not count, nor do a number in parentheses at the
    end (``GeForce GTX 950 (0)``), the vendor, the family, and editions of memory and slot of the
    same device (``Tesla V100-SXM2-16GB``).
    """
    known = _known()
    words = [
        word
        for word in re.split(r"[^a-z0-9]+", re.sub(r"\(\d+\)\s*$", "", name.lower()))
        if word and word not in _FAMILIES
    ]
    if device := known.get("".join(words)):
        return device
    for edition in _EDITIONS:
        if device := known.get("".join(word for word in words if not edition.fullmatch(word))):
            return device
    return None


@cache
def _known() -> dict[str, Device]:
    devices = [
        Device(name, "NVIDIA", capability, count)
        for capability, text in _NVIDIA.items()
        for name, count in _counts(text)
    ]
    devices += [
        Device(name, "AMD", None, count, warp)
        for warp, text in _AMD.items()
        for name, count in _counts(text)
    ]
    return {re.sub(r"[^a-z0-9]", "", device.name.lower()): device for device in devices}


def _counts(text: str) -> list[tuple[str, int]]:
    pairs = (entry.rpartition(":") for entry in text.split(","))
    return [(name.strip(), int(count)) for name, _, count in pairs]
