"""How much memory this process has, as Linux counts it.

Not by ``getrusage``: a program begins with the peak of the process that started it.
"""

from pathlib import Path


def reset_peak():
    """Let the peak begin anew with what this process holds."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_bytes():
    """Return the most memory that this process has held."""
    return _field("VmHWM")


def resident_bytes():
    """Return the memory that this process holds."""
    return _field("VmRSS")


def _field(name):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {name}")
