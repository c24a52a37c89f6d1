import pytest

from tunedb.advisor.collect import cuda_detection as detection
from tunedb.advisor.collect.configuration import GPU
from tunedb.errors import UsageError


def test_parse_devices_reads_output_of_nvidia_smi_and_looks_up_missing_capabilities():
    listed = "0, Tesla K40c, 3.5\n1, NVIDIA GeForce RTX 2080 Ti, 7.5\n\nNo devices were found\n"
    found = detection.parse_devices(f"{listed}2, Tesla K40c\n3, Future GPU\n")
    assert found == (
        GPU("Tesla K40c", 0, "3.5"),
        GPU("NVIDIA GeForce RTX 2080 Ti", 1, "7.5"),
        GPU("Tesla K40c", 2, "3.5"),
        GPU("Future GPU", 3, None),
    )


def smi(folder, text):
    path = folder / "nvidia-smi"
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(folder)


def test_detect_devices_accepts_old_and_failing_nvidia_smi(tmp_path):
    path = smi(tmp_path, 'case "$1" in *compute_cap*) exit 2;; esac\necho "1, Tesla K40c"\n')
    assert detection.detect_devices(path) == (GPU("Tesla K40c", 1, "3.5"),)
    assert detection.detect_devices(smi(tmp_path, "exit 9\n")) == ()


def test_find_programs_finds_tools_on_the_path(tmp_path):
    path = smi(tmp_path, "true\n")
    assert detection.find_programs(path)["nvidia-smi"] == tmp_path / "nvidia-smi"
    assert str(tmp_path) not in detection.missing_folders(path)


def test_parse_device_reads_name_and_capability():
    for text, name, capability in (
        ("Tesla K40c", "Tesla K40c", "3.5"),
        ("My GPU:8.6", "My GPU", "8.6"),
        ("Tesla K40c:3.7", "Tesla K40c", "3.7"),
    ):
        assert detection.parse_device(text, 2) == GPU(name, 2, capability)


@pytest.mark.parametrize("text", ["My GPU", "My GPU:new", ":7.5"])
def test_parse_device_rejects_unknown_device_without_capability(text):
    with pytest.raises(UsageError, match="is not a device that tunedb knows; give its compute"):
        detection.parse_device(text)
