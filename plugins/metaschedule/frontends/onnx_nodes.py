"""Nodes that define an ONNX operator by others, and what is known of a model's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

__all__ = ["DOMAINS", "Body", "Known", "NoDefinitionError", "graphs_of", "version_of"]

#: Both names of the domain of ONNX's own operators.
DOMAINS = ("", "ai.onnx")

#: Operators by which exporters compute sizes of constants.
_FOLDED = (
    *("Add", "Cast", "Concat", "Div", "Floor", "Gather", "Identity", "Mul", "Reshape", "Slice"),
    *("Squeeze", "Sub", "Unsqueeze"),
)

#: Weights of more elements are not copied to infer shapes; sizes and axes are shorter.
_MOST_ELEMENTS = 1024


def version_of(model: Any) -> int:
    """Return the version of ONNX's own operators in a model."""
    versions = (int(each.version) for each in model.opset_import if each.domain in DOMAINS)
    return next(versions, 1)  # none is there where all operators are of other domains


class NoDefinitionError(Exception):
    """A definition does not hold; the message says why."""


class Known:
    """What is known of a model's tensors before it runs; computed when it is asked for.

    Parameters
    ----------
    model : onnx.ModelProto
        The model.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        #: The nodes before any is replaced; they are not copied.
        self._nodes = list(model.graph.node)

    @cached_property
    def version(self) -> int:
        """The version of ONNX's own operators."""
        return version_of(self._model)

    @cached_property
    def _types(self) -> dict[str, Any]:
        light, whole = onnx.ModelProto(), self._model.graph
        light.ir_version = self._model.ir_version
        light.opset_import.extend(self._model.opset_import)
        light.functions.extend(self._model.functions)
        graph = light.graph
        graph.name = whole.name
        tensors = {weight.name: weight for weight in whole.initializer}
        graph.input.extend(value for value in whole.input if value.name not in tensors)
        graph.output.extend(whole.output)
        graph.value_info.extend(whole.value_info)
        for node in self._nodes:
            if (tensor := _tensor_of(node)) is not None:
                tensors[node.output[0]] = tensor
            else:
                graph.node.append(node)
        for name, tensor in tensors.items():
            kind = helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)
            graph.input.append(kind)
            if np.prod(tensor.dims, dtype="int64") <= _MOST_ELEMENTS:
                graph.initializer.append(tensor)
                graph.initializer[-1].name = name
        inferred = shape_inference.infer_shapes(light).graph
        return {
            value.name: value.type.tensor_type
            for values in (inferred.input, inferred.value_info, inferred.output)
            for value in values
        }

    @cached_property
    def _sources(self) -> dict[str, Any]:
        """The weight or the node that each tensor is made by."""
        sources = {weight.name: weight for weight in self._model.graph.initializer}
        nodes = [*self._nodes, *(n for each in self._nodes for n in _inner_nodes(each))]
        return sources | {output: node for node in nodes for output in node.output}

    def shape(self, name: str) -> list[int]:
        """Return the shape of a tensor; a size that is no number is 0."""
        kind = self._types.get(name)
        if kind is None or not kind.HasField("shape"):
            raise NoDefinitionError(f"the rank of {name} is unknown")
        return [dim.dim_value for dim in kind.shape.dim]

    def sizes(self, name: str, first: int = 0) -> list[int]:
        """Return the sizes of a tensor from an axis on, all of which are numbers."""
        return [self.size(name, axis) for axis in range(first, len(self.shape(name)))]

    def size(self, name: str, axis: int) -> int:
        """Return the size of an axis, which is a number."""
        size = self.shape(name)[axis]
        if not size:
            raise NoDefinitionError(f"axis {axis} of {name} has no fixed size")
        return size

    def dtype(self, name: str) -> str:
        """Return the dtype of a tensor; empty where it is unknown."""
        kind = self._types.get(name)
        if kind is None or not kind.elem_type:
            return ""
        return str(helper.tensor_dtype_to_np_dtype(kind.elem_type))

    def array(self, name: str) -> Any | None:
        """Return a constant, also one of few operators on others; None for other tensors."""
        source = self._sources.get(name)
        if isinstance(source, onnx.NodeProto):
            tensor = _tensor_of(source)
            return self._computed(source, name) if tensor is None else numpy_helper.to_array(tensor)
        return None if source is None else numpy_helper.to_array(source)

    def _computed(self, node: Any, name: str) -> Any | None:
        """Return a result of an operator on constants; None for other nodes."""
        if node.op_type not in _FOLDED or node.domain not in DOMAINS:
            return None
        inputs: dict[str, Any] = {each: self.array(each) for each in node.input if each}
        if any(value is None for value in inputs.values()):
            return None
        kinds = [
            helper.make_tensor_value_info(
                each, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
            )
            for each, value in inputs.items()
        ]
        result = [helper.make_empty_tensor_value_info(name)]
        graph = helper.make_graph([node], "folded", kinds, result)
        opset = [helper.make_opsetid("", self.version)]
        try:
            evaluator = ReferenceEvaluator(helper.make_model(graph, opset_imports=opset))
            (computed,) = evaluator.run(None, inputs)
        except Exception:  # onnx raises any class; TVM may know more
            return None
        return computed


def _tensor_of(node: Any) -> Any | None:
    """Return the tensor of a constant; None for other nodes."""
    if node.op_type != "Constant":
        return None
    return next((each.t for each in node.attribute if each.name == "value"), None)


def graphs_of(node: Any) -> list[Any]:
    """Return the branches of a node, or the body of a loop."""
    return [each.g for each in node.attribute if each.type == onnx.AttributeProto.GRAPH]


def _inner_nodes(node: Any) -> list[Any]:
    """Return the nodes of a node's branches, those of inner ones included."""
    inner = [each for graph in graphs_of(node) for each in graph.node]
    return [*inner, *(more for each in inner for more in _inner_nodes(each))]


def _schema(kind: str, version: int) -> tuple[list[str], dict[str, Any]]:
    """Return the inputs of an operator and the defaults of its attributes.

    An operator of a later version, as definitions have it, has none.
    """
    try:
        schema = defs.get_schema(kind, version)
    except defs.SchemaError:
        return [], {}
    defaults = {
        name: helper.get_attribute_value(attribute.default_value)
        for name, attribute in schema.attributes.items()
        if attribute.default_value.name
    }
    return [each.name for each in schema.inputs], defaults


class Body:
    """The nodes of a definition.

    Parameters
    ----------
    node : onnx.NodeProto
        The node that is defined.
    known : Known
        What is known of the model.
    """

    def __init__(self, node: Any, known: Known) -> None:
        self.known, self.version = known, known.version
        names, defaults = _schema(node.op_type, self.version)
        #: Attributes that the node has; in `attributes` they have defaults.
        self.own = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        self.attributes = defaults | self.own
        #: Names of the inputs; empty where an optional one is absent.
        self.inputs = [*node.input, *[""] * (len(names) - len(node.input))]
        #: Names of the outputs; empty where one is absent.
        self.outputs = list(node.output)
        self.nodes: list[Any] = []
        # Names of other tools have no colons.
        self._prefix = "tunedb::" + next(filter(None, node.output))
        self._constants: dict[tuple[str, str], str] = {}

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Append a node; return the name of its output."""
        return self.several(kind, inputs, 1, **attributes)[0]

    def several(self, kind: str, inputs: Sequence[str], count: int, **attributes: Any) -> list[str]:
        """Append a node; return the names of its outputs."""
        names = [f"{self._prefix}/{len(self.nodes)}/{k}" for k in range(count)]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names

    def constant(self, values: Any, dtype: str = "int64") -> str:
        """Append a constant, once."""
        array = np.asarray(values, dtype)
        key = (str(array.tolist()), dtype)
        if key not in self._constants:
            self._constants[key] = self.add("Constant", value=numpy_helper.from_array(array))
        return self._constants[key]

    def cast(self, x: str, dtype: str) -> str:
        """Append a conversion."""
        return self.add("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

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
        if self.version < 13:
            return self.several("Split", [x], count, axis=0, split=sizes)
        return self.several("Split", [x, self.constant(sizes)], count, axis=0)

    def reduce(self, kind: str, x: str, *axes: int) -> str:
        """Append a reduction of axes, which stay with one element."""
        if self.version < 18:
            return self.add(kind, x, axes=axes)
        return self.add(kind, x, self.constant(axes))

    def unsqueeze(self, x: str, axis: int) -> str:
        """Append a new axis."""
        if self.version < 13:
            return self.add("Unsqueeze", x, axes=[axis])
        return self.add("Unsqueeze", x, self.constant([axis]))

    def concat(self, parts: Sequence[str], axis: int) -> str:
        """Append a concatenation."""
        return self.add("Concat", *parts, axis=axis) if len(parts) > 1 else parts[0]
