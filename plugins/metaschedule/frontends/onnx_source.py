"""Models of ONNX, read by TVM's frontend.

Exporters write more than TVM reads. A model that it refuses is simplified by onnxsim, and operators
that it lacks are replaced by ONNX's own definitions, or by those of :mod:`.onnx_definitions`.
"""

from __future__ import annotations

import io
import traceback
import warnings
from collections.abc import Iterable, Set
from contextlib import redirect_stdout
from importlib import import_module
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from ....errors import FormatError
from ..compat import relax_type
from ..module_source import error_line, require_memory
from .onnx_definitions import DEFINED, NotDefinedError, define
from .onnx_nodes import DOMAINS, version_of

__all__ = ["read_onnx"]


def read_onnx(path: Path) -> Any:
    """Return a model of ONNX as a Relax program whose parameters are constants.

    Raises
    ------
    FormatError
        The file is broken, its opset too new, or TVM lacks an operator or cannot convert a node.
    PluginError
        The model is larger than the memory that is free.
    """
    # Names the node; TVM's frontend names an operator at most, and takes an empty file.
    try:
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        words = error_line(error).rstrip(".")
        raise FormatError(
            f"{path}: {words}; export it again, with its external data beside it"
        ) from error
    model = onnx.load(str(path), load_external_data=False)
    newest = onnx.defs.onnx_opset_version()
    for opset in model.opset_import:
        if opset.domain in DOMAINS and opset.version > newest:
            raise FormatError(
                f"{path}: opset {opset.version} is newer than {newest}, the newest of onnx "
                f"{onnx.__version__}; export the model with opset {newest} or an earlier one"
            )
    require_memory(path, path.stat().st_size + _external_bytes(model))
    onnx.load_external_data_for_model(model, str(path.parent))
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_value <= 0 and dim.dim_param in ("", "?"):
                dim.dim_param = f"{value.name}_{axis}"
    return _from_onnx(path, model)


def _external_bytes(model: Any) -> int:
    """Return the bytes of a model's weights in other files."""
    sizes = onnx.helper.tensor_dtype_to_np_dtype
    return sum(
        prod(weight.dims) * sizes(weight.data_type).itemsize
        for weight in model.graph.initializer
        if onnx.external_data_helper.uses_external_data(weight)
    )


class _RefusedError(FormatError):
    """TVM lacks operators, or cannot convert one.

    Parameters
    ----------
    message : str
        The message for the user.
    kinds : iterable of str
        Kinds of the nodes.
    """

    def __init__(self, message: str, kinds: Iterable[str]) -> None:
        super().__init__(message)
        self.kinds = frozenset(kinds)


def _from_onnx(path: Path, model: Any) -> Any:
    """Return a model of ONNX as a Relax program.

    Functions of the model are inlined. A model that TVM refuses, or of whose tensors it does not
    know the shape, is simplified: exporters compute sizes from the shapes of tensors by operators,
    of which TVM folds some. Operators that it refuses then are replaced by their definitions.

    Raises
    ------
    FormatError
        TVM lacks an operator, or cannot convert a node, and there is no definition.
    """
    refusals: list[Exception] = []
    kinds, inlined = frozenset(function.name for function in model.functions), frozenset[str]()
    shapeless = None
    while True:
        model = _with_tensors(_inlined(model, kinds - DEFINED))
        inlined |= kinds
        nodes, wanted = list(model.graph.node), kinds
        for simplifies in (False, True):
            try:
                form = _simplified(model) if simplifies else model
                mod = form and _converted(path, _defined(path, form, wanted))
            except Exception as error:  # TVM raises any class
                refusals.append(error)
                kinds |= getattr(error, "kinds", frozenset())
                mod = None
            if mod is not None and (shapeless is not None or _has_shapes(mod)):
                return mod
            shapeless = shapeless if mod is None else mod
            # Definitions replaced them; onnxsim takes nodes of one version of ONNX alone.
            del model.graph.node[:]
            model.graph.node.extend(nodes)
        if shapeless is not None:
            return shapeless
        if kinds <= inlined:
            break
    reasons = [error for error in refusals if isinstance(error, NotDefinedError)]
    refusal = [*reasons, *refusals][0]
    if isinstance(refusal, FormatError) and find_spec("onnxsim") is None:
        raise FormatError(
            f"{refusal}; onnxsim simplifies some of these models: pip install 'tunedb[onnx]'"
        ) from refusal
    raise refusal


def _defined(path: Path, model: Any, kinds: Set[str]) -> Any:
    """Return a model as :func:`define` does; the error names the file."""
    try:
        return define(model, kinds)
    except NotDefinedError as error:
        raise NotDefinedError(f"{path}: {error}") from error


def _inlined(model: Any, kinds: Set[str]) -> Any:
    """Return a model with the definitions of some operators; itself where ONNX has none."""
    nodes = [node for node in model.graph.node if node.op_type in kinds]
    if not nodes:
        return model
    try:
        inline = import_module("onnx.inliner").inline_selected_functions
        version = version_of(model)
        for node in nodes:
            if node.domain in DOMAINS:
                _set_defaults(node, onnx.defs.get_schema(node.op_type, version))
        typed = onnx.shape_inference.infer_shapes(model)
        # Definitions depend on the types of all inputs, weights included.
        typed.graph.value_info.extend(
            onnx.helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims)
            for weight in typed.graph.initializer
        )
        names = sorted({(node.domain, node.op_type) for node in nodes})
        return inline(typed, names, inline_schema_functions=True)
    except Exception:  # its C++ raises any class; ONNX 1.18 lacks definitions of operators
        return model


def _set_defaults(node: Any, schema: Any) -> None:
    """Give a node the attributes that it lacks; ONNX's definitions refer to them."""
    own = {attribute.name for attribute in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in own and attribute.default_value.name:
            node.attribute.append(attribute.default_value)


#: Attributes of ONNX's ``Constant`` that hold no tensor, which TVM does not read, and their dtypes.
_NUMBERS = {"value_float": "f", "value_floats": "f", "value_int": "i8", "value_ints": "i8"}


def _with_tensors(model: Any) -> Any:
    """Return a model whose constants are tensors."""
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and (dtype := _NUMBERS.get(attribute.name)):
                numbers = np.asarray(onnx.helper.get_attribute_value(attribute), dtype)
                tensor = onnx.numpy_helper.from_array(numbers)
                attribute.CopyFrom(onnx.helper.make_attribute("value", tensor))
    return model


def _has_shapes(mod: Any) -> bool:
    """Return whether TVM knows the shape of each tensor, in numbers or symbols."""
    unknown: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, relax.Call) and getattr(relax_type(node), "shape", 0) is None:
            unknown.append(node)

    relax.analysis.post_order_visit(mod["main"], visit)
    return not unknown


def _simplified(model: Any) -> Any | None:
    """Return a model whose constants are computed; None without onnxsim, or where it fails."""
    try:
        simplified, _ = import_module("onnxsim").simplify(model)
    except Exception:  # its C++ raises any class
        return None
    return simplified


def _converted(path: Path, model: Any) -> Any:
    """Return a model as TVM's frontend converts it; FormatError as :func:`_from_onnx`."""
    try:
        # TVM prints the inputs of a node that it refuses. It warns of a model with nodes of two
        # versions of ONNX, as definitions make it; read_onnx has checked the model.
        with redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return from_onnx(model)
    except tvm.error.OpNotImplemented as error:
        missing = str(error).rpartition(": ")[2].split(", ")
        nodes = {n.op_type: n.name or n.output[0] for n in reversed(model.graph.node)}
        names = ", ".join(f"{kind} (node {nodes.get(kind)})" for kind in sorted(missing))
        raise _RefusedError(
            f"{path}: TVM has no operator {names}; export the model without it", missing
        ) from None
    except Exception as error:
        # Frames of TVM's frontend hold the node; the error does not name it.
        frames = [frame.f_locals.get("node") for frame, _ in traceback.walk_tb(error.__traceback__)]
        found = [node for node in frames if isinstance(node, onnx.NodeProto)]
        if not found:
            raise
        node = found[-1]
        raise _RefusedError(
            f"{path}: TVM cannot convert {node.op_type} (node {node.name or node.output[0]}): "
            f"{error_line(error)}",
            [node.op_type],
        ) from error
