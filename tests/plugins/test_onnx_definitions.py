"""Definitions of ONNX operators by others: recurrent networks and quantised operators."""

from itertools import product

import networks
import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from raising import raises_line
from tvm import relax

from tunedb import FormatError
from tunedb.plugins.metaschedule.deploy.network import DEFAULT, lower
from tunedb.plugins.metaschedule.frontends.onnx_definitions import define
from tunedb.plugins.metaschedule.module_source import load_module, prim_funcs

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
#: Input, hidden size and batch.
INPUT, HIDDEN, BATCH = 5, 6, 3


def normal(*shape):
    return (np.random.default_rng(sum(shape)).normal(size=shape) * 0.5).astype("float32")


def recurrent(kind, steps, direction="forward", *, opset=17, bias=True, states=False, **attributes):
    """Return a model of one recurrent operator, and its inputs and weights by name."""
    directions, gates = 1 + (direction == "bidirectional"), GATES[kind]
    weights = {
        "W": normal(directions, gates * HIDDEN, INPUT),
        "R": normal(directions, gates * HIDDEN, HIDDEN),
    }
    if bias:
        weights["B"] = normal(directions, 2 * gates * HIDDEN)
    is_lstm, batch_first = kind == "LSTM", attributes.get("layout", 0)
    inputs = {"X": normal(BATCH, steps, INPUT) if batch_first else normal(steps, BATCH, INPUT)}
    if states:
        shape = [BATCH, directions] if batch_first else [directions, BATCH]
        for name in ["initial_h", "initial_c"][: 1 + is_lstm]:
            inputs[name] = normal(*shape, HIDDEN)
    every = {**weights, **inputs}
    arguments = ["X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c"][: 6 + is_lstm]
    node = helper.make_node(
        kind,
        [name if name in every else "" for name in arguments],
        ["Y", "Y_h", "Y_c"][: 2 + is_lstm],
        **{"name": "net", "hidden_size": HIDDEN, "direction": direction},
        **attributes,
    )
    return model_of(node, inputs, weights, {"Y": [None] * 4}, opset), every


def model_of(node, inputs, weights, outputs, opset=17):
    """Return a model of one operator; outputs that are no keys of `outputs` have rank 3.

    Those of `outputs` have a shape and are of float32, or a type and a shape.
    """
    types = {np.dtype("float32"): 1, np.dtype("uint8"): 2, np.dtype("int8"): 3}
    results = {name: outputs.get(name, [None] * 3) for name in node.output}
    results = {k: v if isinstance(v, tuple) else (TensorProto.FLOAT, v) for k, v in results.items()}
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info(k, types[v.dtype], v.shape) for k, v in inputs.items()],
        [helper.make_tensor_value_info(name, *typed) for name, typed in results.items()],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def by_hand(kind, values, direction, *, before=0, batch_first=0):
    """Return the outputs of a recurrent operator by ONNX's equations, in float64."""
    values = {name: value.astype("float64") for name, value in values.items()}
    x = values["X"]
    states = [values.get(name) for name in ("initial_h", "initial_c")]
    if batch_first:
        x, *states = (y if y is None else y.transpose(1, 0, 2) for y in (x, *states))
    reverses = {"forward": [0], "reverse": [1], "bidirectional": [0, 1]}[direction]
    results, last, cells = [], [], []
    for d, reverse in enumerate(reverses):
        size = GATES[kind] * HIDDEN
        w, r = values["W"][d], values["R"][d]
        b = values["B"][d] if "B" in values else np.zeros(2 * size)
        h, c = (np.zeros((BATCH, HIDDEN)) if y is None else y[d] for y in states)
        rows = []
        for row in x[::-1] if reverse else x:
            inputs, hidden = row @ w.T + b[:size], h @ r.T + b[size:]
            i, j = np.split(inputs, GATES[kind], 1), np.split(hidden, GATES[kind], 1)
            if kind == "RNN":
                h = np.tanh(inputs + hidden)
            elif kind == "GRU":
                z, s = sigmoid(i[0] + j[0]), sigmoid(i[1] + j[1])
                after = (s * h) @ r[2 * HIDDEN :].T + b[size + 2 * HIDDEN :]
                h = (1 - z) * np.tanh(i[2] + (s * j[2] if before else after)) + z * h
            else:
                gates = [a + b for a, b in zip(i, j, strict=True)]
                c = sigmoid(gates[2]) * c + sigmoid(gates[0]) * np.tanh(gates[3])
                h = sigmoid(gates[1]) * np.tanh(c)
            rows.append(h)
        results.append(rows[::-1] if reverse else rows)
        last.append(h)
        cells.append(c)
    outputs = [np.stack(results, 1), np.stack(last), np.stack(cells)][: 2 + (kind == "LSTM")]
    if batch_first:
        outputs = [outputs[0].transpose(2, 0, 1, 3), *(y.transpose(1, 0, 2) for y in outputs[1:])]
    return outputs


def close(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-6)


def inputs_of(model, values):
    return {each.name: values[each.name] for each in model.graph.input}


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_recurrent_operators_are_unrolled_by_their_equations(kind, direction):
    befores = (0, 1) if kind == "GRU" else (0,)
    for steps, (opset, batch_first), bias, states, before in product(
        (1, 3), ((11, 0), (17, 0), (17, 1)), (False, True), (False, True), befores
    ):
        attributes = {"linear_before_reset": before} if kind == "GRU" else {}
        if opset >= 14:
            attributes["layout"] = batch_first
        model, values = recurrent(
            kind, steps, direction, opset=opset, bias=bias, states=states, **attributes
        )
        defined = define(model, {kind})
        assert kind not in {node.op_type for node in defined.graph.node}
        onnx.checker.check_model(defined)
        found = ReferenceEvaluator(defined).run(None, inputs_of(defined, values))
        close(found, by_hand(kind, values, direction, before=before, batch_first=batch_first))


def test_recurrent_operators_without_known_batch_and_with_other_activations():
    model, values = recurrent("RNN", 3, activations=["Relu"])
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "batch"
    (found, _) = ReferenceEvaluator(define(model, {"RNN"})).run(None, inputs_of(model, values))
    hidden, rows = np.zeros((BATCH, HIDDEN)), []
    bias = values["B"][0].reshape(2, HIDDEN).sum(0)
    for row in values["X"]:
        hidden = np.maximum(row @ values["W"][0].T + hidden @ values["R"][0].T + bias, 0)
        rows.append(hidden)
    close([found[:, 0]], [np.stack(rows)])


def compiled(mod):
    """Return a function that runs a Relax program with arrays."""
    machine = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())

    def run(arrays):
        found = machine["main"](*map(tvm.runtime.tensor, arrays))
        return [one.numpy() for one in ([found] if hasattr(found, "numpy") else found)]

    return run


@pytest.fixture
def read(tmp_path):
    """A function that reads a model from its file."""

    def read(model):
        onnx.save(model, str(tmp_path / "m.onnx"))
        return load_module(tmp_path / "m.onnx")

    return read


@pytest.mark.parametrize(
    ("kind", "direction"), [("LSTM", "bidirectional"), ("GRU", "forward"), ("RNN", "reverse")]
)
def test_models_with_recurrent_operators_are_read(kind, direction, read):
    model, values = recurrent(kind, 4, direction, states=True)
    found = compiled(read(model))(inputs_of(model, values).values())
    close(found, by_hand(kind, values, direction))


def test_steps_are_calls_of_the_same_functions(read):
    target = tvm.target.Target(networks.LLVM)
    few, many = (
        prim_funcs(lower(read(recurrent("LSTM", steps)[0]), target, DEFAULT).mod)
        for steps in (4, 9)
    )
    assert len(few) == len(many) <= 10


def attribute(name, value):
    """Return a change of a model that gives its node an attribute."""
    return lambda _, node: node.attribute.append(helper.make_attribute(name, value))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda model, _: model.graph.input[0].type.tensor_type.shape.dim[0].Clear(),
            "its number of steps is no number; export the model with a fixed length",
        ),
        (
            lambda _, node: node.input.__setitem__(4, "lengths"),
            "sequence_lens is not unrolled; export the model without it",
        ),
        (lambda _, node: node.input.append("P"), "peepholes are not unrolled"),
        (attribute("clip", 1.0), "clip is not unrolled"),
        (
            attribute("activations", ["Sigmoid", "Affine", "Tanh"]),
            "its activation Affine is not unrolled",
        ),
    ],
)
def test_recurrent_operators_that_are_not_unrolled_are_named_with_the_reason(change, reason, read):
    model, _ = recurrent("LSTM", 3, states=True)
    constants = {"lengths": np.full(BATCH, 3, "int32"), "P": normal(1, 3 * HIDDEN)}
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in constants.items())
    change(model, model.graph.node[0])
    with raises_line(FormatError, match=rf"m\.onnx: TVM has no LSTM \(node net\), and {reason}"):
        read(model)


# ---------------------------------------------------------------------- quantised


def integers(*shape, dtype="uint8"):
    numbers, limits = np.random.default_rng(len(shape)), np.iinfo(dtype)
    return numbers.integers(limits.min, limits.max + 1, shape).astype(dtype)


def number(value, dtype="float32"):
    return np.asarray(value, dtype)


SCALES = np.linspace(0.001, 0.01, 6, dtype="float32")
CONVOLVED = [integers(1, 4, 7, 7), number(0.02), number(120, "uint8")]
QUANTISED = {
    "QLinearConv": (
        [
            *(*CONVOLVED, integers(6, 4, 3, 3, dtype="int8"), SCALES, np.zeros(6, "int8")),
            *(number(0.07), number(11, "uint8"), np.arange(-3, 3, dtype="int32") * 900),
        ],
        (TensorProto.UINT8, [1, 6, 4, 4]),
        {"pads": [1, 1, 1, 1], "strides": [2, 2]},
    ),
    "QLinearConv by groups": (
        [
            *(*CONVOLVED, integers(4, 1, 3, 3), number(0.004), number(130, "uint8")),
            *(number(0.1), number(99, "uint8")),
        ],
        (TensorProto.UINT8, [1, 4, 5, 5]),
        {"group": 4},
    ),
    "QLinearMatMul": (
        [
            *(integers(5, 12, dtype="int8"), number(0.02), number(-3, "int8")),
            *(integers(12, 6, dtype="int8"), SCALES, np.arange(6, dtype="int8")),
            *(number(0.3), number(5, "int8")),
        ],
        (TensorProto.INT8, [5, 6]),
        {},
    ),
    "ConvInteger": (
        [integers(1, 4, 7, 7), integers(6, 4, 3, 3), number(120, "uint8")],
        (TensorProto.INT32, [1, 6, 5, 5]),
        {},
    ),
}


@pytest.mark.parametrize(("p", "opset"), [(1, 17), (2, 17), (2, 18)])
def test_norms_of_zeros_are_zeros(p, opset, read):
    values = normal(4, 6)
    values[2] = 0
    node = helper.make_node("LpNormalization", ["x"], ["y"], name="net", p=p, axis=1)
    model = model_of(node, {"x": values}, {}, {"y": [4, 6]}, opset)
    (found,) = compiled(read(model))([values])
    norms = np.linalg.norm(values.astype("float64"), p, axis=1, keepdims=True)
    close([found], [values / np.where(norms == 0, 1, norms)])


def quantised(kind, values, output, **attributes):
    """Return a model of one quantised operator, whose first value is its input."""
    names = [f"input_{k}" for k in range(len(values))]
    node = helper.make_node(kind, names, ["y"], name="net", **attributes)
    weights = dict(zip(names[1:], values[1:], strict=True))
    return model_of(node, {names[0]: values[0]}, weights, {"y": output}, 14)


@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_operators_equal_their_definition_in_integers(name, read):
    values, output, attributes = QUANTISED[name]
    kind = name.split()[0]
    model = quantised(kind, values, output, **attributes)
    (expected,) = ReferenceEvaluator(model).run(None, {"input_0": values[0]})
    (found,) = compiled(read(model))([values[0]])
    assert found.dtype == expected.dtype
    assert len(np.unique(found)) > 5
    # Rounding in the reference is of other products of the scales.
    most = 0 if kind == "ConvInteger" else 1
    difference = np.abs(found.astype("int64") - expected.astype("int64"))
    assert difference.max() <= most
    assert (difference == 0).mean() > 0.97


def test_scales_of_rows_are_named(read):
    values, output, _ = QUANTISED["QLinearMatMul"]
    values = [values[0], np.full(5, 0.02, "float32"), *values[2:]]
    reason = "input_1 has a number for each row"
    with raises_line(FormatError, match=rf"TVM has no QLinearMatMul \(node net\), and {reason}"):
        read(quantised("QLinearMatMul", values, output))
