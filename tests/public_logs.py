"""Real public logs beside the repository; tests over them are skipped where they are not."""

from pathlib import Path

import pytest

#: Their folder, which may be a link.
DATA = (Path(__file__).resolve().parents[2] / "shared" / "data").resolve()

#: Results of tuners and profilers of GPU kernels.
GPU = DATA / "gpu"

#: Records of TVM 0.27 on a processor, a work directory for each workload.
MEASURED = DATA / "measured_cpu"

needs_logs = pytest.mark.skipif(not DATA.is_dir(), reason=f"needs public logs in {DATA}")

needs_gpu_logs = pytest.mark.skipif(
    not GPU.is_dir(), reason=f"needs public logs of GPU kernels in {GPU}"
)
