import pytest

from tunedb.advisor.devices import _known, lookup
from tunedb.advisor.occupancy import LIMITS


@pytest.mark.parametrize(
    ("name", "capability", "multiprocessors"),
    [
        # As the files of the tools have them.
        ("GeForce GTX 950 (0)", "5.2", 6),
        ("GeForce GTX 1070", "6.1", 15),
        ("NVIDIA GeForce RTX 2080 Ti", "7.5", 68),
        ("NVIDIA TITAN RTX", "7.5", 72),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", "8.6", 30),
        ("NVIDIA GeForce RTX 3090", "8.6", 82),
        ("NVIDIA RTX A4000", "8.6", 48),
        ("NVIDIA RTX 4000 Ada Generation", "8.9", 48),
        ("AMD Radeon PRO W6600", None, 28),
        ("AMD Instinct MI250X", None, 110),
        # As drivers and people write them.
        ("Tesla K40c", "3.5", 15),
        ("Tesla V100-SXM2-16GB", "7.0", 80),
        ("NVIDIA A100-PCIE-40GB", "8.0", 108),
        ("A100", "8.0", 108),
        ("RTX_2080_Ti", "7.5", 68),
        ("rtx2080ti", "7.5", 68),
        ("NVIDIA H100 80GB HBM3", "9.0", 132),
        ("NVIDIA H100 PCIe", "9.0", 114),
        ("NVIDIA H200", "9.0", 132),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "12.0", 188),
        # Editions that are other devices.
        ("NVIDIA GeForce RTX 3060", "8.6", 28),
        ("Quadro RTX 6000", "7.5", 72),
        ("NVIDIA RTX 6000 Ada Generation", "8.9", 142),
        ("NVIDIA GeForce GTX 1060 3GB", "6.1", 9),
        ("NVIDIA GeForce GTX 1060 6GB", "6.1", 10),
        ("NVIDIA GeForce RTX 3080 12GB", "8.6", 70),
        ("NVIDIA GeForce RTX 3080 10GB", "8.6", 68),
    ],
)
def test_lookup_recognises_devices_by_name(name, capability, multiprocessors):
    device = lookup(name)
    assert (device.compute_capability, device.multiprocessors) == (capability, multiprocessors)


def test_lookup_returns_none_for_unknown_names():
    names = ("", "NVIDIA", "Testing", "cuda", "RTX", "GeForce GTX 95", "PRO")
    assert [lookup(name) for name in names] == [None] * 7


def test_devices_are_found_by_their_own_names_and_have_consistent_limits():
    assert len(_known()) > 180
    for device in _known().values():
        assert lookup(device.name) == device
        assert lookup(f"{device.vendor} {device.name.upper()} (0)") == device
        assert (device.vendor == "NVIDIA") == (device.compute_capability is not None)
        assert device.compute_capability is None or device.compute_capability in LIMITS
        assert device.multiprocessors > 0
    assert (lookup("MI250X").warp, lookup("W6600").warp) == (64, 32)
