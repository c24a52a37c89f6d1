"""Definitions of ONNX operators by other operators, where neither TVM nor ONNX has one.

Recurrent networks are unrolled: a product for the inputs of all steps, and a product and gates for
each step, which are the same functions in every step and thus few tasks. Operators on quantised
tensors compute with the integers as float32, so sums beyond 2**24 are rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any

import numpy as np
from onnx import TensorProto, defs, helper, numpy_helper, shape_inference

from ...errors import FormatError

__all__ = ["DOMAINS", "define", "version_of"]

#: Both names of the domain of ONNX's own operators.
DOMAINS = ("", "ai.onnx")


def version_of(model: Any) -> int:
    """Return the version of ONNX's own operators in a model."""
    (version,) = (int(each.version) for each in model.opset_import if each.domain in DOMAINS)
    return version


def define(model: Any, kinds: Set[str]) -> Any:
    """Replace the nodes of some kinds by their definitions, where there are any here.

    Parameters
    ----------
    model : onnx.ModelProto
        The model; its graph changes.
    kinds : set of str
        Kinds of nodes.

    Returns
    -------
    onnx.ModelProto
        The model.

    Raises
    ------
    FormatError
        The definition does not hold for a node; the message names it and the reason.
    """
    nodes, chosen = list(model.graph.node), kinds & _DEFINITIONS.keys()
    if not any(_is_one_of(node, chosen) for node in nodes):
        return model
    version = version_of(model)
    shapes = _shapes(model)
    del model.graph.node[:]
    for node in nodes:
        if not _is_one_of(node, chosen):
            model.graph.node.append(node)
            continue
        body = _Body(node, shapes, version)
        try:
            results = _DEFINITIONS[node.op_type](body)
        except _NoDefinitionError as error:
            name = node.name or node.output[0]
            raise FormatError(f"TVM has no {node.op_type} (node {name}), and {error}") from None
        for output, result in zip(node.output, results, strict=False):
            if output:
                body.nodes.append(helper.make_node("Identity", [result], [output]))
        model.graph.node.extend(body.nodes)
    return model


def _is_one_of(node: Any, kinds: Set[str]) -> bool:
    """Tell whether a node is an operator of ONNX of one of the kinds."""
    return node.op_type in kinds and node.domain in DOMAINS


class _NoDefinitionError(Exception):
    """A definition does not hold; the message says why."""


def _shapes(model: Any) -> dict[str, list[int]]:
    """Return the shape of each tensor of known rank; a size that is no number is 0."""
    graph = shape_inference.infer_shapes(model).graph
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for values in (graph.input, graph.value_info, graph.output)
        for value in values
        if value.type.tensor_type.HasField("shape")
    }
    return shapes | {weight.name: list(weight.dims) for weight in graph.initializer}


class _Body:
    """The nodes of a definition.

    Parameters
    ----------
    node : onnx.NodeProto
        The node that is defined.
    shapes : dict of str to list of int
        Shapes of the model's tensors.
    version : int
        Version of ONNX's operators.
    """

    def __init__(self, node: Any, shapes: dict[str, list[int]], version: int) -> None:
        schema = defs.get_schema(node.op_type, version)
        self.attributes = {
            name: helper.get_attribute_value(attribute.default_value)
            for name, attribute in schema.attributes.items()
            if attribute.default_value.name
        }
        for attribute in node.attribute:
            self.attributes[attribute.name] = helper.get_attribute_value(attribute)
        #: Names of the inputs; empty where an optional one is absent.
        self.inputs = [*node.input, *[""] * (len(schema.inputs) - len(node.input))]
        self.nodes: list[Any] = []
        self._prefix = next(filter(None, node.output))
        self._shapes, self._version = shapes, version
        self._constants: dict[tuple[str, str], str] = {}

    def shape(self, name: str) -> list[int]:
        """Return the shape of a tensor of the model."""
        if name not in self._shapes:
            raise _NoDefinitionError(f"the rank of {name} is unknown")
        return self._shapes[name]

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Append a node; return the name of its output."""
        return self._several(kind, inputs, 1, **attributes)[0]

    def _several(
        self, kind: str, inputs: Sequence[str], count: int, **attributes: Any
    ) -> list[str]:
        names = [f"{self._prefix}/{len(self.nodes)}/{k}" for k in range(count)]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names

    def constant(self, values: float | Sequence[int], dtype: str = "int64") -> str:
        """Append a constant, once."""
        key = (str(values), dtype)
        if key not in self._constants:
            tensor = numpy_helper.from_array(np.asarray(values, dtype))
            self._constants[key] = self.add("Constant", value=tensor)
        return self._constants[key]

    def reshape(self, x: str, *shape: int) -> str:
        """Append a reshape; a size may be -1."""
        return self.add("Reshape", x, self.constant(shape))

    def slice(self, x: str, start: int, stop: int, axis: int) -> str:
        """Append a slice."""
        bounds = [self.constant([number]) for number in (start, stop, axis)]
        return self.add("Slice", x, *bounds)

    def split(self, x: str, count: int, size: int) -> list[str]:
        """Append a split of the first axis into parts of a size."""
        if count == 1:
            return [x]
        sizes = [size] * count
        if self._version < 13:
            return self._several("Split", [x], count, axis=0, split=sizes)
        return self._several("Split", [x, self.constant(sizes)], count, axis=0)

    def reduce(self, kind: str, x: str, axis: int) -> str:
        """Append a reduction of one axis, which stays with one element."""
        if self._version < 18:
            return self.add(kind, x, axes=[axis])
        return self.add(kind, x, self.constant([axis]))

    def concat(self, parts: Sequence[str], axis: int) -> str:
        """Append a concatenation."""
        return self.add("Concat", *parts, axis=axis) if len(parts) > 1 else parts[0]


# ------------------------------------------------------------------- recurrent networks

#: Activations without parameters.
_ACTIVATIONS = {name.lower(): name for name in ("Relu", "Tanh", "Sigmoid", "Softsign", "Softplus")}


class _Direction:
    """Weights and activations of one direction of a recurrent network.

    Parameters
    ----------
    body : _Body
        The definition.
    number : int
        Number of the direction.
    gates : int
        Number of gates, whose weights stand one after the other.
    activations : sequence of str
        The default activations.
    """

    def __init__(self, body: _Body, number: int, gates: int, activations: Sequence[str]) -> None:
        w, r, b = body.inputs[1:4]
        directions, rows, self.size = body.shape(r)
        if not self.size or rows != gates * self.size:
            raise _NoDefinitionError(f"the shape of {r} is unknown")
        self.body, self.columns = body, rows
        self._number, self._directions = number, directions
        self.activations = self._chosen(activations)
        self.weights = body.add("Transpose", self.own(w, rows, -1), perm=[1, 0])
        self.recurrent = body.add("Transpose", self.own(r, rows, self.size), perm=[1, 0])
        bias = self.own(b, -1) if b else ""
        #: Biases of the inputs and of the hidden state; empty where there are none.
        self.biases = [body.slice(bias, k * rows, (k + 1) * rows, 0) if b else "" for k in range(2)]

    def _chosen(self, activations: Sequence[str]) -> list[str]:
        """Return the activations as operators."""
        every = self.body.attributes.get("activations") or [*activations] * self._directions
        first, names = self._number * len(activations), []
        for name in every[first : first + len(activations)]:
            text = name.decode() if isinstance(name, bytes) else name
            if text.lower() not in _ACTIVATIONS:
                raise _NoDefinitionError(f"its activation {text} is not unrolled")
            names.append(_ACTIVATIONS[text.lower()])
        return names

    def own(self, x: str, *shape: int) -> str:
        """Return the part of a tensor that is of this direction, without the first axis."""
        if self._directions > 1:
            x = self.body.slice(x, self._number, self._number + 1, 0)
        return self.body.reshape(x, *shape)

    def gate(self, x: str, number: int, count: int = 1) -> str:
        """Return gates of a tensor with the columns of all gates."""
        return self.body.slice(x, number * self.size, (number + count) * self.size, -1)

    def with_state(self, x: str, hidden: str, weights: str) -> str:
        """Return a sum with the product of the hidden state, which is zero where it is empty."""
        if not hidden:
            return x
        return self.body.add("Add", self.body.add("MatMul", hidden, weights), x)


def _rnn_step(direction: _Direction, x: str, hidden: str, _cell: str) -> tuple[str, str]:
    (f,) = direction.activations
    return direction.body.add(f, direction.with_state(x, hidden, direction.recurrent)), ""


def _lstm_step(direction: _Direction, x: str, hidden: str, cell: str) -> tuple[str, str]:
    (f, g, h), add = direction.activations, direction.body.add
    gates = direction.with_state(x, hidden, direction.recurrent)
    i, o, forget, new = (direction.gate(gates, number) for number in range(4))
    product = add("Mul", add(f, i), add(g, new))
    cell = add("Add", add("Mul", add(f, forget), cell), product) if cell else product
    return add("Mul", add(f, o), add(h, cell)), cell


def _gru_step(direction: _Direction, x: str, hidden: str, _cell: str) -> tuple[str, str]:
    (f, g), add, gate = direction.activations, direction.body.add, direction.gate
    if direction.body.attributes["linear_before_reset"]:
        state = direction.biases[1]
        if hidden:
            state = add("MatMul", hidden, direction.recurrent)
            state = add("Add", state, direction.biases[1]) if direction.biases[1] else state
        gates = add("Add", gate(x, 0, 2), gate(state, 0, 2)) if state else gate(x, 0, 2)
        gates = add(f, gates)
        reset = add("Mul", gate(gates, 1), gate(state, 2)) if state else ""
        new = add("Add", gate(x, 2), reset) if state else gate(x, 2)
    else:
        weights = gate(direction.recurrent, 0, 2)
        gates = add(f, direction.with_state(gate(x, 0, 2), hidden, weights))
        reset = add("Mul", gate(gates, 1), hidden) if hidden else ""
        new = direction.with_state(gate(x, 2), reset, gate(direction.recurrent, 2))
    new, update = add(g, new), gate(gates, 0)
    if not hidden:
        return add("Sub", new, add("Mul", update, new)), ""
    return add("Add", new, add("Mul", update, add("Sub", hidden, new))), ""


#: A direction, products of the inputs, hidden state and cell state → both states; empty: zero.
_Step = Callable[[_Direction, str, str, str], tuple[str, str]]


def _run(
    direction: _Direction, step: _Step, rows: str, states: Sequence[str], order: range, batch: int
) -> tuple[list[str], list[str]]:
    """Return the hidden state after each step, by its number, and the last states.

    `rows` are the inputs of all steps; `batch` is 0 where it is unknown.
    """
    body, columns, steps = direction.body, direction.columns, len(order)
    products = body.add("MatMul", rows, direction.weights)
    for bias in direction.biases[: 1 if body.attributes.get("linear_before_reset") else 2]:
        products = body.add("Add", products, bias) if bias else products
    if batch:
        inputs = body.split(products, steps, batch)
    else:
        inputs = body.split(body.reshape(products, steps, -1, columns), steps, 1)
        inputs = [body.reshape(y, -1, columns) for y in inputs]
    (hidden, cell), every = (*states, "")[:2], [""] * steps
    for number in order:
        hidden, cell = step(direction, inputs[number], hidden, cell)
        every[number] = hidden
    return every, [hidden, cell] if cell else [hidden]


def _unrolled(body: _Body, step: _Step, gates: int, activations: Sequence[str]) -> list[str]:
    """Return all hidden states, the last one, and the last cell state if there is one.

    Source: ONNX's operators RNN, GRU and LSTM (``docs/Operators.md``).
    """
    x, lengths, states = body.inputs[0], body.inputs[4], body.inputs[5:7]
    batch_first = bool(body.attributes.get("layout"))
    steps, batch = body.shape(x)[1::-1] if batch_first else body.shape(x)[:2]
    for refused, reason in (
        (not steps, "its number of steps is no number; export the model with a fixed length"),
        (lengths, "sequence_lens is not unrolled; export the model without it"),
        (any(body.inputs[7:]), "peepholes are not unrolled"),
        (body.attributes.get("clip"), "clip is not unrolled"),
        (body.attributes.get("input_forget"), "input_forget is not unrolled"),
    ):
        if refused:
            raise _NoDefinitionError(reason)
    size = body.shape(x)[2] or -1
    if batch_first:
        x, *states = (body.add("Transpose", y, perm=[1, 0, 2]) if y else "" for y in (x, *states))
    rows = body.reshape(x, -1, size)

    forward, backward = range(steps), range(steps - 1, -1, -1)
    orders = {
        b"forward": [forward],
        b"reverse": [backward],
        b"bidirectional": [forward, backward],
    }[body.attributes["direction"]]
    every, last = [], []
    for number, order in enumerate(orders):
        direction = _Direction(body, number, gates, activations)
        own = [direction.own(y, -1, direction.size) if y else "" for y in states]
        hidden, ends = _run(direction, step, rows, own, order, batch)
        every.append(body.reshape(body.concat(hidden, 0), steps, 1, -1, direction.size))
        last.append([body.reshape(y, 1, -1, direction.size) for y in ends])
    results = [body.concat(every, 1), *(body.concat(ends, 0) for ends in zip(*last, strict=True))]
    if batch_first:
        axes = ([2, 0, 1, 3], [1, 0, 2], [1, 0, 2])
        results = [
            body.add("Transpose", y, perm=perm) for y, perm in zip(results, axes, strict=False)
        ]
    return results


# ------------------------------------------------------------------- quantised operators


def _centred(body: _Body, x: str, zero: str) -> str:
    """Return quantised activations less their zero point, as float32."""
    one = body.constant(1, "float32")
    return body.add("DequantizeLinear", *filter(None, (x, one, zero)))


def _weights(body: _Body, w: str, zero: str, *shape: int) -> str:
    """Return quantised weights less their zero points, which have a shape, as float32."""
    w = body.add("Cast", w, to=TensorProto.FLOAT)
    if not zero:
        return w
    zero = body.add("Cast", zero, to=TensorProto.FLOAT)
    return body.add("Sub", w, body.reshape(zero, *shape))


def _convolved(body: _Body, x: str, x_zero: str, w: str, w_zero: str, bias: str = "") -> str:
    """Return a convolution of integers, as float32."""
    shape = [-1, *[1] * (len(body.shape(w)) - 1)]
    inputs = [_centred(body, x, x_zero), _weights(body, w, w_zero, *shape)]
    if bias:
        inputs.append(body.add("Cast", bias, to=TensorProto.FLOAT))
    return body.add("Conv", *inputs, **body.attributes)


def _quantised(body: _Body, total: str, scales: Sequence[str], zero: str, *shape: int) -> str:
    """Return sums of integers as quantised numbers; the scale of weights has a shape."""
    x, w, y = scales
    scale = body.add("Div", body.add("Mul", x, body.reshape(w, *shape)), y)
    one = body.constant(1, "float32")
    return body.add("QuantizeLinear", body.add("Mul", total, scale), one, zero)


def _qlinear_conv(body: _Body) -> list[str]:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = body.inputs
    total = _convolved(body, x, x_zero, w, w_zero, bias)
    shape = [-1, *[1] * (len(body.shape(w)) - 2)]
    return [_quantised(body, total, [x_scale, w_scale, y_scale], y_zero, *shape)]


def _conv_integer(body: _Body) -> list[str]:
    x, w, x_zero, w_zero = body.inputs
    return [body.add("Cast", _convolved(body, x, x_zero, w, w_zero), to=TensorProto.INT32)]


def _qlinear_matmul(body: _Body) -> list[str]:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = body.inputs
    if any(body.shape(name) not in ([], [1]) for name in (a_scale, a_zero)):
        raise _NoDefinitionError(f"{a_scale} has a number for each row")
    total = body.add("MatMul", _centred(body, a, a_zero), _weights(body, b, b_zero, -1))
    return [_quantised(body, total, [a_scale, b_scale, y_scale], y_zero, -1)]


def _lp_normalization(body: _Body) -> list[str]:
    x, axis = body.inputs[0], body.attributes["axis"]
    kind = {1: "ReduceL1", 2: "ReduceL2"}[body.attributes["p"]]
    norm = body.reduce(kind, x, axis)
    # A norm of zero, of zeros alone, gives zeros.
    least = body.constant(float(np.finfo("float32").tiny), "float32")
    return [body.add("Div", x, body.add("Max", norm, least))]


_DEFINITIONS: dict[str, Callable[[_Body], list[str]]] = {
    "RNN": lambda body: _unrolled(body, _rnn_step, 1, ["Tanh"]),
    "GRU": lambda body: _unrolled(body, _gru_step, 3, ["Sigmoid", "Tanh"]),
    "LSTM": lambda body: _unrolled(body, _lstm_step, 4, ["Sigmoid", "Tanh", "Tanh"]),
    "ConvInteger": _conv_integer,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "LpNormalization": _lp_normalization,
}
