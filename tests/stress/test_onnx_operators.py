"""Operators of ONNX are computed right, or refused in one line; none is computed wrongly.

The models and results are those of the package ``onnx``, one operator each.
"""

import warnings
from functools import cache

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax

from tunedb import FormatError
from tunedb.plugins.metaschedule.deploy.apply import compile_lowered
from tunedb.plugins.metaschedule.deploy.network import Lowering, lower
from tunedb.plugins.metaschedule.module_source import load_module

pytestmark = pytest.mark.stress

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2, "mcpu": "x86-64-v3", "opt-level": 1})
CHUNKS = 40
#: Parts of the names of cases whose shapes are not known before they run: a size of zero, which
#: means an unknown one, and results whose size is an input.
_WITHOUT_SHAPES = (
    *("empty_set", "allowzero", "tril_zero", "triu_zero", "split_zero_size"),
    *("axis_zero", "window", "test_range_"),
)
#: Parts of the names of cases whose results differ, and why.
_DIFFERENT = {
    "bitshift_left_int32": "shifts by less than zero or more than all bits are undefined in C",
    "bitshift_right_int32": "shifts by less than zero or more than all bits are undefined in C",
    "mod_float_edge_cases": "remainders of infinity, and the sign of zero",
    "iou_threshold_boundary": "boxes that overlap by the very threshold",
    "cubic_align_corners": "corners are aligned as in PyTorch and ONNX Runtime",
    "scales_linear_align_corners": "corners are aligned as in PyTorch and ONNX Runtime",
    "start_greater_than_end": "a shape of no axes",
    "if_seq": "results of this test are no sequences",
    "split_to_sequence": "results of this test are no sequences",
}


@cache
def every_case():
    """Return the cases whose inputs are arrays, in the order of their names."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = sorted(collect_testcases(None), key=lambda case: case.name)
    return [
        case
        for case in cases
        if case.data_sets[0][0]
        and all(
            getattr(each, "dtype", np.dtype("O")).kind in "fiub" for each in case.data_sets[0][0]
        )
        and not any(word in case.name for word in _WITHOUT_SHAPES)
    ]


def with_constants(case):
    """Return a model whose inputs but the first are constants, as they are in networks."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.ir_version = max(model.ir_version, 4)  # before it constants are inputs, too
    graph, arrays = model.graph, [np.asarray(each) for each in case.data_sets[0][0]]
    for number in range(len(arrays) - 1, 0, -1):
        name = graph.input[number].name
        graph.initializer.append(onnx.numpy_helper.from_array(arrays[number], name))
        del graph.input[number]
    return model, arrays[:1]


def results(executable, arrays):
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    found = main(*(tvm.runtime.tensor(np.array(each, order="C")) for each in arrays))
    return [each.numpy() for each in ([found] if hasattr(found, "numpy") else found)]


def is_right(case, found):
    expected = [np.asarray(each) for each in case.data_sets[0][1]]
    return len(found) == len(expected) and all(
        one.shape == other.shape
        and np.allclose(
            one.astype("float64"),
            other.astype("float64"),
            rtol=max(case.rtol, 5e-3 if one.dtype == "float16" else 1e-3),
            atol=max(case.atol, 1e-5),
            equal_nan=True,
        )
        for one, other in zip(found, expected, strict=True)
    )


def outcome(case, compute, arrays):
    """Return whether a computation is right; a line where it raises."""
    try:
        return is_right(case, results(compute(), arrays))
    except Exception as error:  # TVM raises any class, some without a word
        return (str(error).strip().splitlines() or ["no reason"])[-1]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_operators_are_computed_right_or_refused(chunk, tmp_path):
    faults, right, path = {}, 0, tmp_path / "m.onnx"
    for case in every_case()[chunk::CHUNKS]:
        model, arrays = with_constants(case)
        onnx.save(model, str(path))
        try:
            mod = load_module(path)
        except FormatError as error:
            if "\n" in str(error):
                faults[case.name] = str(error)
            continue
        lowered = outcome(
            case,
            lambda mod=mod: (
                compile_lowered(lower(mod, TARGET, Lowering()), None, TARGET).executable
            ),
            arrays,
        )
        if lowered is True:
            right += 1
        elif not any(name in case.name for name in _DIFFERENT) and (
            lowered is False
            or outcome(case, lambda mod=mod: tvm.compile(mod, target=TARGET), arrays) is True
        ):
            faults[case.name] = lowered
    assert not faults
    assert right > 20
