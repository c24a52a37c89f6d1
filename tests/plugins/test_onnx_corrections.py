"""Operators of ONNX that TVM converts wrongly, or not in all of their forms."""

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from raising import raises_line
from tvm import relax

from tunedb import FormatError
from tunedb.plugins.metaschedule.frontends.onnx_definitions import define
from tunedb.plugins.metaschedule.module_source import load_module

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.normal(size=shape).astype("float32")


def f32(*numbers):
    return np.array(numbers, "float32")


def i64(*numbers):
    return np.array(numbers, "int64")


def model_of(kind, opset, values, attributes):
    """Return a model of one operator; values but the first are constants, None is absent."""
    names = [f"x{k}" if value is not None else "" for k, value in enumerate(values)]
    attributes = dict(attributes)
    results = [f"y{k}" for k in range(attributes.pop("outputs", 1))]
    weights = [
        numpy_helper.from_array(value, name)
        for name, value in zip(names[1:], values[1:], strict=True)
        if name
    ]
    kinds = [helper.np_dtype_to_tensor_dtype(values[0].dtype), values[0].shape]
    graph = helper.make_graph(
        [helper.make_node(kind, names, results, name="net", **attributes)],
        "graph",
        [helper.make_tensor_value_info("x0", *kinds)],
        [helper.make_empty_tensor_value_info(name) for name in results],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def by_definition(model, value):
    """Return the results of a model whose operators are defined."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return ReferenceEvaluator(define(copy, frozenset())).run(None, {"x0": value})


def close(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


IMAGE = floats(1, 2, 5, 7)


def resize(opset=18, scales=None, sizes=None, value=IMAGE, **attributes):
    return ("Resize", opset, [value, None, scales, sizes], attributes)


LINEAR = resize(13, f32(1, 1, 1.5, 2), mode="linear")
#: Operators, the version of ONNX, inputs and attributes; all have other nodes than before.
DEFINED = {
    "scales that do not divide": resize(13, f32(1, 1, 0.75, 1.5), mode="linear"),
    "antialiasing": resize(scales=f32(1, 1, 0.5, 0.25), mode="cubic", antialias=1),
    "channels": resize(13, f32(1, 2, 1, 2), mode="nearest"),
    "two axes": resize(13, f32(2, 1.5), value=IMAGE[0, 0], mode="linear"),
    "named axes": resize(scales=f32(2, 3), axes=[3, 2], mode="nearest"),
    "not larger": resize(sizes=i64(8, 9), axes=[2, 3], keep_aspect_ratio_policy="not_larger"),
    "not smaller": resize(sizes=i64(8, 9), axes=[2, 3], keep_aspect_ratio_policy="not_smaller"),
    "symmetric": resize(
        19, f32(1, 1, 1.5, 1), mode="linear", coordinate_transformation_mode="half_pixel_symmetric"
    ),
    "integers": resize(13, f32(1, 1, 1.5, 1.5), value=(IMAGE * 9).astype("uint8")),
    "one infinity": ("IsInf", 10, [f32(1, np.inf, -np.inf, np.nan)], {"detect_negative": 0}),
    "the other infinity": ("IsInf", 10, [f32(1, np.inf, -np.inf)], {"detect_positive": 0}),
    "no infinity": ("IsInf", 20, [f32(np.inf)], {"detect_positive": 0, "detect_negative": 0}),
    "integer powers": ("Pow", 13, [np.arange(-3, 4), i64(3)], {}),
    "powers of integers": ("Pow", 13, [np.arange(5), f32(1.5)], {}),
    "integer exponents": ("Pow", 13, [floats(4), i64(2)], {}),
    "classes": ("OneHot", 11, [i64(0, 3, -1, 7), np.array(5), f32(2, 3)], {}),
    "classes on an axis": (
        *("OneHot", 13, [RNG.integers(0, 6, (2, 3)), np.array(6), i64(0, 1)]),
        {"axis": 1},
    ),
    "moments of a norm": (
        *("LayerNormalization", 17, [IMAGE, floats(5, 7), floats(5, 7)]),
        {"axis": 2, "outputs": 3},
    ),
    "a mask": ("Dropout", 13, [f32(1, np.nan)], {"outputs": 2}),
}


@pytest.mark.parametrize("name", DEFINED)
def test_definitions_equal_the_operator(name):
    model, value = model_of(*DEFINED[name]), DEFINED[name][2][0]
    close(by_definition(model, value), ReferenceEvaluator(model).run(None, {"x0": value}))
    assert len(define(model, frozenset()).graph.node) > 1


#: Operators that stay as they are.
KEPT = {
    "scales that divide": resize(13, f32(1, 1, 2, 2), mode="linear"),
    "sizes": resize(sizes=i64(1, 2, 8, 9), mode="cubic"),
    "aligned corners": resize(
        13, f32(1, 1, 1.5, 1.5), mode="linear", coordinate_transformation_mode="align_corners"
    ),
    "a part of the image": (
        *("Resize", 13, [IMAGE, f32(0, 0, 0.1, 0.1, 1, 1, 0.9, 0.9), f32(1, 1, 1, 1), None]),
        {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"},
    ),
    "pads": ("MaxPool", 12, [IMAGE], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    "powers of floats": ("Pow", 13, [floats(4), f32(2)], {}),
    "both infinities": ("IsInf", 10, [floats(4)], {}),
    "bounds as inputs": ("Slice", 13, [IMAGE, i64(0), i64(3), i64(2)], {}),
    "one result": ("LayerNormalization", 17, [IMAGE, floats(7)], {}),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_tvm_converts_rightly_stays(name):
    model = model_of(*KEPT[name])
    before = list(model.graph.node)
    assert list(define(model, frozenset()).graph.node) == before


def test_sizes_of_images_of_unknown_size_stay():
    for case, names in ((resize(sizes=i64(1, 2, 8, 9)), "bchw"), (KEPT["scales that divide"], "b")):
        model = model_of(*case)
        for axis, name in enumerate(names):
            model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
        assert len(define(model, frozenset()).graph.node) == 1


@pytest.fixture
def computed(tmp_path):
    """A function that reads a model from its file and returns its results by TVM."""

    def compute(model, value):
        onnx.save(model, str(tmp_path / "m.onnx"))
        mod = load_module(tmp_path / "m.onnx")
        main = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())["main"]
        found = main(tvm.runtime.tensor(value))
        return [one.numpy() for one in ([found] if hasattr(found, "numpy") else found)]

    return compute


def repeated(times):
    return IMAGE.repeat(times, 2).repeat(times, 3)


def whole(*case):
    """Return the result of an operator as ONNX computes it."""
    return ReferenceEvaluator(model_of(*case)).run(None, {"x0": case[2][0]})[0]


SPREAD = [IMAGE, floats(2, 3, 3, 3)]
NINE = np.arange(9, dtype="float32").reshape(1, 1, 3, 3)
#: Operators of earlier versions, and those that TVM's own operator computes, and the results.
READ = {
    "enlarged by an attribute": (
        ("Upsample", 7, [IMAGE], {"scales": [1.0, 1.0, 3.0, 3.0]}),
        [repeated(3)],
    ),
    "enlarged by an input": (("Upsample", 9, [IMAGE, f32(1, 1, 2, 2)], {}), [repeated(2)]),
    "resized by scales": (("Resize", 10, [IMAGE, f32(1, 1, 2, 2)], {}), [repeated(2)]),
    "reduced by scales": (
        ("Resize", 10, [IMAGE, f32(1, 1, 0.6, 1)], {}),
        [IMAGE[:, :, [0, 2, 4]]],
    ),
    "reduced and enlarged by scales": (
        ("Resize", 10, [IMAGE, f32(1, 1, 0.7, 1.5)], {}),
        [IMAGE[:, :, [0, 2, 3]][..., [0, 0, 1, 2, 2, 3, 4, 4, 5, 6]]],
    ),
    "bounds as attributes": (
        ("Slice", 9, [IMAGE], {"starts": [1, 0], "ends": [3, -2], "axes": [2, 3]}),
        [IMAGE[:, :, 1:3, :-2]],
    ),
    "the largest": (
        ("TopK", 10, [f32(3, 1, 4, 1, 5), i64(2)], {"outputs": 2}),
        [f32(5, 4), i64(4, 2)],
    ),
    "windows from below": (
        ("MaxPool", 12, [NINE], {"kernel_shape": [2, 2], "auto_pad": "SAME_LOWER"}),
        [NINE],
    ),
    "windows apart": (
        (
            *("MaxPool", 12, [floats(1, 1, 1, 1).repeat(4, 2).repeat(4, 3)]),
            {"kernel_shape": [1, 1], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
        ),
        None,
    ),
    # One row is too many, and two columns, of which each side loses one.
    "the shape of a transposed convolution": (
        ("ConvTranspose", 11, SPREAD, {"strides": [2, 2], "output_shape": [10, 13]}),
        [whole("ConvTranspose", 11, SPREAD, {"strides": [2, 2]})[:, :, 1:, 1:-1]],
    ),
    "regions": (
        (
            *("RoiAlign", 16),
            [floats(2, 3, 9, 9), f32(1, 1, 6, 7, 0, 2, 8, 5).reshape(2, 4), i64(0, 1)],
            {"output_height": 3, "output_width": 2, "spatial_scale": 0.8, "sampling_ratio": 2},
        ),
        None,
    ),
}


def say_results(model, expected):
    """Give the results of a model the types and shapes that they will have."""
    for result, array in zip(model.graph.output, expected, strict=True):
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        result.CopyFrom(helper.make_tensor_value_info(result.name, dtype, array.shape))


@pytest.mark.parametrize("name", READ)
def test_models_compute_what_onnx_says(name, computed):
    case, expected = READ[name]
    model, value = model_of(*case), case[2][0]
    if expected is None:
        expected = ReferenceEvaluator(model).run(None, {"x0": value})
    say_results(model, expected)
    close(computed(model, value), expected)


@pytest.mark.parametrize("name", [*DEFINED, *READ])
def test_definitions_are_not_defined_again(name):
    """A model is read in several passes, the nodes of which stand beside earlier ones."""
    model = define(model_of(*(DEFINED.get(name) or READ[name][0])), frozenset())
    nodes = list(model.graph.node)
    assert list(define(model, frozenset()).graph.node) == nodes


def test_operators_that_tvm_lacks_stand_beside_corrected_ones(computed):
    """The second pass, for the network, meets the nodes of the first one in an old model."""
    hidden = 3
    values = [IMAGE[0].transpose(1, 0, 2), floats(1, hidden, 7), floats(1, hidden, hidden)]
    model = model_of("RNN", 9, values, {"hidden_size": hidden})
    expected = define(model_of("RNN", 9, values, {"hidden_size": hidden}), {"RNN"})
    (expected,) = ReferenceEvaluator(expected).run(None, {"x0": values[0]})[:1]
    expected = [expected.repeat(2, 3)[1:]]
    model.graph.initializer.append(numpy_helper.from_array(f32(1, 1, 1, 2), "scales"))
    model.graph.node.append(helper.make_node("Upsample", ["y0", "scales"], ["y1"]))
    model.graph.node.append(helper.make_node("Slice", ["y1"], ["y2"], starts=[1], ends=[9]))
    model.graph.output[0].name = "y2"
    say_results(model, expected)
    close(computed(model, values[0]), expected)


def test_operators_in_functions_are_corrected(computed):
    """PyTorch's exporter writes functions, which are inlined."""
    value, expected = f32(np.inf, -np.inf, 0), [np.array([True, False, False])]
    model = model_of("IsInf", 20, [value], {"detect_negative": 0})
    domains = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    body = helper.make_function("own", "Own", ["x0"], ["y0"], list(model.graph.node), domains[:1])
    model.functions.append(body)
    model.opset_import.append(domains[1])
    del model.graph.node[:]
    model.graph.node.append(helper.make_node("Own", ["x0"], ["y0"], domain="own"))
    say_results(model, expected)
    close(computed(model, value), expected)


def test_scales_may_be_computed():
    model, parts = model_of(*LINEAR), [f32(1, 1), f32(1.5, 2)]
    expected = by_definition(model, IMAGE)
    graph = model.graph
    del graph.initializer[:]
    graph.initializer.extend(
        numpy_helper.from_array(part, f"part{k}") for k, part in enumerate(parts)
    )
    graph.node.insert(0, helper.make_node("Concat", ["part0", "part1"], ["whole"], axis=0))
    graph.node.insert(1, helper.make_node("Identity", ["whole"], ["x2"]))
    close(by_definition(model, IMAGE), expected)


@pytest.mark.parametrize(
    "case",
    [
        READ["the shape of a transposed convolution"][0],
        READ["windows from below"][0],
        DEFINED["scales that do not divide"],
    ],
)
def test_the_batch_may_be_unknown(case):
    model, value = model_of(*case), case[2][0]
    expected = by_definition(model, value)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "b"
    close(by_definition(model, value), expected)


def test_a_model_of_unknown_ranks_is_simplified(computed):
    """Exporters compute shapes by operators, which ONNX's shape inference does not follow."""
    nodes = [
        helper.make_node("Shape", ["x0"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["floats"], to=1),
        helper.make_node("Mul", ["floats", "half"], ["halves"]),
        helper.make_node("Add", ["halves", "halves"], ["sums"]),
        helper.make_node("Floor", ["sums"], ["floors"]),
        helper.make_node("Cast", ["floors"], ["sizes"], to=7),
        helper.make_node("Reshape", ["x0", "sizes"], ["image"]),
    ]
    model = model_of(*LINEAR)
    expected = by_definition(model, IMAGE)
    model.graph.node[0].input[0] = "image"
    for place, node in enumerate(nodes):
        model.graph.node.insert(place, node)
    model.graph.initializer.append(numpy_helper.from_array(f32(0.5), "half"))
    say_results(model, expected)
    close(computed(model, IMAGE), expected)


def test_operators_in_branches_are_refused():
    model = model_of(*LINEAR)
    branch = helper.make_graph(list(model.graph.node), "branch", [], [model.graph.output[0]])
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "condition"))
    del model.graph.node[:]
    node = helper.make_node("If", ["condition"], ["y0"], then_branch=branch, else_branch=branch)
    model.graph.node.append(node)
    line = r"TVM would not compute Resize \(node net\), and it stands in a branch or loop"
    with raises_line(FormatError, match=line):
        define(model, frozenset())


REFUSED = {
    "its training mode is not computed; export it for inference": (
        *("BatchNormalization", 15, [IMAGE, *[f32(1, 2)] * 4]),
        {"training_mode": 1, "outputs": 3},
    ),
    "its training mode is not computed; export": (
        *("Dropout", 13, [IMAGE, np.float32(0.5), np.array(True)]),
        {},
    ),
    "its maxima are not computed": (
        *("RoiAlign", 16, [IMAGE, f32(0, 0, 1, 1).reshape(1, 4), i64(0)]),
        {"mode": "max"},
    ),
    "its ceil_mode is not computed": (
        *("LpPool", 18, [IMAGE]),
        {"ceil_mode": 1, "kernel_shape": [2, 2], "strides": [2, 2]},
    ),
    "its output_shape is larger than its input fills": (
        *("ConvTranspose", 11, [IMAGE, floats(2, 3, 3, 3)]),
        {"strides": [2, 2], "output_shape": [14, 20]},
    ),
    "linear interpolation of uint8 is not computed": resize(
        13, f32(1, 1, 1.5, 1.5), value=IMAGE.astype("uint8"), mode="linear"
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_computed_is_named_with_the_reason(reason):
    line = rf"TVM would not compute {REFUSED[reason][0]} \(node net\), and {reason}"
    with raises_line(FormatError, match=line):
        define(model_of(*REFUSED[reason]), frozenset())


def test_a_scale_of_unknown_size_is_named():
    model = model_of(*LINEAR)
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "h"
    with raises_line(FormatError, match=r"\(node net\), and axis 2 of x0 has no fixed size"):
        define(model, frozenset())
