import copy

import gpu_logs
import orjson
import pytest

from tunedb.errors import FormatError
from tunedb.formats.gpu.t1 import T1Format, read_t1, t1_input
from tunedb.formats.importer import import_log
from tunedb.records import Workload

SIZES_X = {"Name": "block_size_x", "Type": "int", "Values": "[16*i for i in range(1,9)]"}
SIZES_Y = {"Name": "block_size_y", "Type": "int", "Values": "[1, 2, 4, 32]", "Default": 4}
FITS = {
    "Expression": "block_size_x*block_size_y <= 1024",
    "Parameters": ["block_size_x", "block_size_y"],
}
INPUT = {
    "General": {"BenchmarkName": "conv"},
    "ConfigurationSpace": {
        "TuningParameters": [
            *(SIZES_X | {"Default": 16}, SIZES_Y),
            {"Name": "tile", "Type": "int", "Values": [1, 2], "Default": [1]},
            {"Name": "width", "Type": "int", "Values": "[15]", "Default": 15},
        ],
        "Conditions": [FITS, {"Expression": "tile < width", "Parameters": ["tile", "width"]}],
    },
    "KernelSpecification": {
        **{"Language": "CUDA", "KernelName": "convolution_kernel", "ProblemSize": [4096, 4096]},
        "LocalSize": {"X": "block_size_x", "Y": "block_size_y * 2 // 2", "Z": "1"},
    },
}


def changed(**parts):
    """Return the input with other parts; ``a__0__b`` is the path of one."""
    document = copy.deepcopy(INPUT)
    for path, value in parts.items():
        place = document
        *way, last = (int(name) if name.isdigit() else name for name in path.split("__"))
        for name in way:
            place = place[name]
        place[last] = value
    return document


def test_t1_input_returns_parameters_defaults_and_block():
    found = t1_input(INPUT)
    assert (found.kernel, found.problem) == ("convolution_kernel", [4096, 4096])
    assert found.parameters == {
        "block_size_x": [16, 32, 48, 64, 80, 96, 112, 128],
        **{"block_size_y": [1, 2, 4, 32], "tile": [1, 2], "width": [15]},
    }
    assert found.defaults == {"block_size_x": 16, "block_size_y": 4, "width": 15}
    assert found.block_parameters == ("block_size_x", "block_size_y")
    assert found.block({"block_size_x": 64, "block_size_y": 4}) == (64, 4, 1)
    assert found.block({"block_size_x": 64}) is None
    assert read_t1(orjson.dumps(INPUT)) == found


def test_is_legal_checks_values_and_conditions():
    found = t1_input(INPUT)
    assert found.is_legal({"block_size_x": 32, "block_size_y": 32, "tile": 1, "width": 15})
    assert not found.is_legal({"block_size_x": 64, "block_size_y": 32, "tile": 1})
    assert not found.is_legal({"block_size_x": 17, "block_size_y": 1})
    # Unknown parameters, and conditions without all of their parameters, forbid nothing.
    assert found.is_legal({"block_size_x": 128, "other": 7})


def test_block_accepts_names_that_are_not_parameters():
    """Inputs of CLBlast name the block by parameters of another tool."""
    found = t1_input(changed(KernelSpecification__LocalSize={"X": "bx", "Y": 8}))
    assert found.local_size == ("bx", "8", "1")
    assert found.block_parameters == ()
    assert found.block({"bx": 4}) == (4, 8, 1)
    assert found.block({"bx": 0}) is None
    assert t1_input(changed(KernelSpecification__LocalSize=None)).local_size == ()


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (changed(ConfigurationSpace__TuningParameters=[]), "without TuningParameters"),
        (
            changed(ConfigurationSpace__TuningParameters__0__Values="__import__('os').getcwd()"),
            "holds Call, which is never evaluated",
        ),
        (changed(ConfigurationSpace__Conditions__0__Expression="open('x')"), "calls 'open'"),
        (changed(KernelSpecification__LocalSize={"X": "x.y"}), "holds Attribute"),
        (changed(KernelSpecification__LocalSize={"X": None}), "an extent of LocalSize"),
        (changed(KernelSpecification__LocalSize="x"), "LocalSize is 'x'"),
        (changed(ConfigurationSpace__TuningParameters__0__Values=3), "no expression"),
        (changed(ConfigurationSpace__TuningParameters__0__Name=3), "which is not text"),
        (changed(ConfigurationSpace__TuningParameters={"a": 1}), "not a list of objects"),
        (changed(ConfigurationSpace=[]), "is not an object"),
        ([], "is not an object"),
        ({**INPUT, "KernelSpecification": {}, "General": {}}, "without KernelSpecification"),
    ],
)
def test_invalid_inputs_are_refused(document, reason):
    with pytest.raises(FormatError, match=reason) as caught:
        t1_input(document)
    assert "\n" not in str(caught.value)


def test_condition_that_divides_by_zero_fails_only_when_evaluated():
    found = t1_input(changed(ConfigurationSpace__Conditions__0__Expression="width % (tile - 1)"))
    with pytest.raises(FormatError, match=r"modulo by zero|division"):
        found.is_legal({"tile": 1, "width": 15})


def test_an_input_is_imported_as_a_workload(tmp_path, memory):
    file = gpu_logs.write(tmp_path, INPUT, "conv__T1.json")
    for _ in range(2):
        report = import_log(memory, file, source="x")
        assert (report.refused, report.workloads, report.total.read) == (None, 1, 0)
    ((name, body),) = memory.training.t1_inputs()
    assert name == "convolution_kernel"
    assert read_t1(body) == t1_input(INPUT)


def test_option_names_the_kernel_of_an_input(tmp_path):
    (item,) = T1Format().read_file(gpu_logs.write(tmp_path, INPUT, "input.json", kernel="mine"))
    assert isinstance(item, Workload)
    assert item.name == "mine"
