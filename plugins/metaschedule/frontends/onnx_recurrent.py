"""Recurrent operators of ONNX, unrolled.

A network is a product for the inputs of all steps, and a product and gates for each step, which are
the same functions in every step and thus few tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .onnx_nodes import Body, NoDefinitionError

__all__ = ["RECURRENT"]

#: Activations without parameters.
_ACTIVATIONS = {name.lower(): name for name in ("Relu", "Tanh", "Sigmoid", "Softsign", "Softplus")}


class _Direction:
    """Weights and activations of one direction of a recurrent network.

    Parameters
    ----------
    body : Body
        The definition.
    number : int
        Number of the direction.
    gates : int
        Number of gates, whose weights stand one after the other.
    activations : sequence of str
        The default activations.
    """

    def __init__(self, body: Body, number: int, gates: int, activations: Sequence[str]) -> None:
        w, r, b = body.inputs[1:4]
        directions, rows, self.size = body.known.shape(r)
        if not self.size or rows != gates * self.size:
            raise NoDefinitionError(f"the shape of {r} is unknown")
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
                raise NoDefinitionError(f"its activation {text} is not unrolled")
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


def _unrolled(body: Body, step: _Step, gates: int, activations: Sequence[str]) -> list[str]:
    """Return all hidden states, the last one, and the last cell state if there is one.

    Source: ONNX's operators RNN, GRU and LSTM (``docs/Operators.md``).
    """
    x, lengths, states = body.inputs[0], body.inputs[4], body.inputs[5:7]
    batch_first = bool(body.attributes.get("layout"))
    steps, batch = body.known.shape(x)[1::-1] if batch_first else body.known.shape(x)[:2]
    for refused, reason in (
        (not steps, "its number of steps is no number; export the model with a fixed length"),
        (lengths, "sequence_lens is not unrolled; export the model without it"),
        (any(body.inputs[7:]), "peepholes are not unrolled"),
        (body.attributes.get("clip"), "clip is not unrolled"),
        (body.attributes.get("input_forget"), "input_forget is not unrolled"),
    ):
        if refused:
            raise NoDefinitionError(reason)
    size = body.known.shape(x)[2] or -1
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


#: Definitions by the kinds of operators.
RECURRENT: dict[str, Callable[[Body], list[str]]] = {
    "RNN": lambda body: _unrolled(body, _rnn_step, 1, ["Tanh"]),
    "GRU": lambda body: _unrolled(body, _gru_step, 3, ["Sigmoid", "Tanh"]),
    "LSTM": lambda body: _unrolled(body, _lstm_step, 4, ["Sigmoid", "Tanh", "Tanh"]),
}
