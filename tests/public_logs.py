"""Real public logs beside the repository; without them their tests are skipped."""

from pathlib import Path

import pytest

#: Their folder, which may be a link.
DATA = (Path(__file__).resolve().parents[2] / "shared" / "data").resolve()

#: Results of tuners and profilers of GPU kernels.
GPU = DATA / "gpu"

#: Records of TVM 0.27 on a processor, a work directory for each workload.
MEASURED = DATA / "measured_cpu"


def sources():
    """Yield ``(section, subsection, cells)`` of each row of the tables in SOURCES.md."""
    section = subsection = ""
    for line in (DATA / "SOURCES.md").read_text().splitlines():
        if line.startswith("# "):
            section, subsection = line.removeprefix("# ").strip(), ""
        elif line.startswith("#"):
            subsection = line.strip("# ")
        elif line.startswith("| ") and not set(line) <= set("|- "):
            yield section, subsection, [cell.strip() for cell in line.strip("|").split("|")]


needs_logs = pytest.mark.skipif(not DATA.is_dir(), reason=f"needs public logs in {DATA}")

needs_gpu_logs = pytest.mark.skipif(
    not GPU.is_dir(), reason=f"needs public logs of GPU kernels in {GPU}"
)
