"""Modules that a user names: a TVMScript file, a name in a package, a model of a framework."""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
import psutil
import tvm
from tvm import relax, tirx
from tvm.script.parser.core.entry import _default_globals

from ...errors import FormatError, NotFoundError, PluginError, TuneDBError, UsageError
from ...system.files import require_regular
from .compat import relax_type

__all__ = ["FORMS", "load_module"]

#: Inputs of :func:`load_module`, for messages and help.
FORMS = "a TVMScript file (.py), package.module:name, an .onnx or a .pt2 file"

#: Name under which a file runs; not that of a package, so that it hides none.
_MODULE = "__tunedb_module__"


def load_module(spec: str | Path, *, function: str | None = None) -> Any:
    """Return the module that a user names.

    Parameters
    ----------
    spec : str or Path
        One of

        ``FILE.py``
            A TVMScript file. It is **run** as the user's own code; ``I``, ``T``, ``R`` and ``tvm``
            need no import, as in the output of ``IRModule.script()``. The module is the file's
            IRModule, or its PrimFuncs together. ``FILE.py:name`` takes one object.
        ``package.module:name``
            An object of a Python module. The working directory is searched first.
        ``FILE.onnx``
            A model of ONNX, through Relax. Its parameters become constants.
        ``FILE.pt2``
            A program of ``torch.export.save``, through Relax. Only open files that you trust.

        A callable is called without arguments.
    function : str, optional
        Name of the only PrimFunc to keep.

    Returns
    -------
    tvm.IRModule
        PrimFuncs under their own names, or a Relax program.

    Raises
    ------
    NotFoundError
        There is no such file, package, name or function.
    UsageError
        `spec` has another form, or names several modules.
    FormatError
        The file, or the code in it, raises an error, or gives no module.
    PluginError
        A package is missing that reads the file; the message says which. Or the model is larger
        than the memory that is free.
    """
    text = str(spec)
    path, _, name = text.partition(":")
    if Path(path).suffix == ".py":
        mod = _one_of(text, _run_file(Path(path)), name or None)
    elif Path(text).suffix in _READERS:
        mod = _read_model(Path(text))
    elif name and all(part.isidentifier() for part in path.split(".")):
        mod = _one_of(text, _import(path), name)
    else:
        raise UsageError(f"{text}: not a module; give {FORMS}")
    return mod if function is None else _only(mod, function, text)


def as_module(value: Any, name: str = "main") -> Any:
    """Return a function as a module under its own name, and a module unchanged.

    Parameters
    ----------
    value : tvm.IRModule, tirx.PrimFunc or relax.Function
        The module or function.
    name : str
        Name for a function without a global symbol, or with ``main`` only.

    Raises
    ------
    UsageError
        `value` is none of these.
    """
    if isinstance(value, tvm.IRModule):
        return value
    if isinstance(value, tirx.PrimFunc):
        return tvm.IRModule({_symbol(value, name): value})
    if isinstance(value, relax.Function):
        return tvm.IRModule({"main": value})
    raise UsageError(f"a {type(value).__name__} is not an IRModule, PrimFunc or relax.Function")


def is_relax(mod: Any) -> bool:
    """Tell whether a module holds a Relax program."""
    return any(isinstance(func, relax.Function) for func in mod.functions.values())


def prim_funcs(mod: Any) -> dict[str, Any]:
    """Return the PrimFuncs of a module by name, in order of names."""
    found = ((str(var.name_hint), func) for var, func in mod.functions_items())
    return dict(sorted((name, f) for name, f in found if isinstance(f, tirx.PrimFunc)))


def _symbol(func: Any, name: str) -> str:
    """Return a PrimFunc's own name, or another if it has none; TE names all of its ``main``."""
    symbol = str(func.attrs.get("global_symbol", "main")) if func.attrs else "main"
    return name if symbol == "main" else symbol


def _only(mod: Any, function: str, spec: str) -> Any:
    functions = prim_funcs(mod)
    if function not in functions:
        known = ", ".join(functions) or "none"
        raise NotFoundError(f"{spec}: no PrimFunc {function!r}; there are: {known}")
    return tvm.IRModule({function: functions[function]})


def _require_file(path: Path) -> None:
    """Raise NotFoundError if there is no file, and StorageError if it is not regular."""
    try:
        require_regular(path)
    except OSError as error:
        raise NotFoundError(f"{path}: {(error.strerror or 'no such file').lower()}") from None


# ---------------------------------------------------------------------- Python


class _Loader(SourceFileLoader):
    """Runs a file without storing its compiled form."""

    def path_stats(self, path: Any) -> Any:
        """Raise OSError, so that the import system stores no compiled form."""
        raise OSError(path)


def _run_file(path: Path) -> Mapping[str, Any]:
    """Run a file and return its definitions."""
    _require_file(path)
    module = ModuleType(_MODULE)
    module.__file__ = str(path)
    given = _default_globals()
    module.__dict__.update(given)
    # TVMScript reads the source of classes through it, also when a function makes one later.
    sys.modules[_MODULE] = module
    with _searching(path.parent):
        try:
            _Loader(_MODULE, str(path)).exec_module(module)
        except SyntaxError as error:
            raise FormatError(f"{path}, line {error.lineno}: {error.msg}") from None
        except Exception as error:
            _explain(path, error)
    return {name: value for name, value in vars(module).items() if value is not given.get(name)}


def _import(name: str) -> Mapping[str, Any]:
    """Import a Python module and return its definitions."""
    with _searching(Path.cwd()):
        try:
            return vars(import_module(name))
        except ModuleNotFoundError as error:
            if error.name and (name == error.name or name.startswith(f"{error.name}.")):
                raise NotFoundError(f"{name}: no such module ({error})") from None
            _explain(name, error)
        except Exception as error:
            _explain(name, error)


@contextmanager
def _searching(folder: Path) -> Iterator[None]:
    """Search a folder first, as ``python FILE`` and ``python -m`` do."""
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def _explain(where: object, error: Exception) -> NoReturn:
    """Raise an error of the user's code as one line, with its line in the file."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(where)
    ]
    place = f"{where}, line {lines[-1]}" if lines else str(where)
    words = " ".join(str(error).split())[:300]
    raise FormatError(f"{place}: {type(error).__name__}: {words}") from error


def _one_of(spec: str, names: Mapping[str, Any], name: str | None) -> Any:
    """Return the module to use among the definitions of a Python module."""
    if name is not None:
        if name not in names:
            known = ", ".join(_candidates(names)) or "no module"
            raise NotFoundError(f"{spec}: no {name!r}; there are: {known}")
        return _made(spec, name, names[name])
    found = _candidates(names)
    modules = [key for key, value in found.items() if not isinstance(value, tirx.PrimFunc)]
    if len(modules) == 1:
        return as_module(found[modules[0]], modules[0])
    if modules:
        raise UsageError(
            f"{spec}: it defines {', '.join(modules)}; choose one: {spec}:{modules[0]}"
        )
    if not found:
        raise FormatError(
            f"{spec}: it defines no IRModule and no PrimFunc; for a function that makes one: "
            f"{spec}:NAME"
        )
    functions: dict[str, Any] = {}
    for key, value in found.items():
        symbol = _symbol(value, key)
        functions[key if symbol in functions else symbol] = value
    return tvm.IRModule(functions)


def _candidates(names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the modules and functions among values, each once."""
    kinds = (tvm.IRModule, tirx.PrimFunc, relax.Function)
    found: dict[str, Any] = {}
    for name, value in names.items():
        is_new = isinstance(value, kinds) and not any(value.same_as(v) for v in found.values())
        if is_new and not name.startswith("_"):
            found[name] = value
    return found


def _made(spec: str, name: str, value: Any) -> Any:
    """Return a named value as a module; a callable is called first."""
    if callable(value) and not isinstance(value, tvm.ir.BaseFunc | tvm.IRModule):
        try:
            value = value()
        except Exception as error:
            raise FormatError(
                f"{spec}: {name}() raised {type(error).__name__}: "
                f"{' '.join(str(error).split())[:300]}"
            ) from error
    try:
        return as_module(value, name)
    except UsageError as error:
        raise FormatError(f"{spec}: {error}") from None


# ---------------------------------------------------------------------- models


def _read_model(path: Path) -> Any:
    """Return a model of another framework as a Relax program."""
    _require_file(path)
    _require_memory(path, path.stat().st_size)
    package, install, read = _READERS[path.suffix]
    try:
        found = import_module(package)
    except ImportError as error:
        raise PluginError(
            f"{path}: cannot load {package}, which reads it ({error}); run: pip install {install}"
        ) from None
    try:
        return read(found, path)
    except TuneDBError:
        raise
    except Exception as error:
        raise FormatError(f"{path}: {_words(error)}") from error


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _require_memory(path: Path, size: int) -> None:
    """Raise PluginError where a model does not fit into memory: TVM copies what a reader holds."""
    available = psutil.virtual_memory().available
    if 2 * size > available:
        raise PluginError(
            f"{path}: reading the model takes {2 * size / 1e9:.3g} GB of memory, twice its size, "
            f"and {available / 1e9:.3g} GB are free; use a machine with more"
        )


def _read_onnx(onnx: Any, path: Path) -> Any:
    # Names the node; TVM's frontend names an operator at most, and takes an empty file.
    try:
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        words = _words(error).rstrip(".")
        raise FormatError(
            f"{path}: {words}; export it again, with its external data beside it"
        ) from error
    model = onnx.load(str(path), load_external_data=False)
    newest = onnx.defs.onnx_opset_version()
    for opset in model.opset_import:
        if opset.domain in ("", "ai.onnx") and opset.version > newest:
            raise FormatError(
                f"{path}: opset {opset.version} is newer than {newest}, the newest of onnx "
                f"{onnx.__version__}; export the model with opset {newest} or an earlier one"
            )
    _require_memory(path, path.stat().st_size + _external_bytes(onnx, model))
    onnx.load_external_data_for_model(model, str(path.parent))
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_value <= 0 and dim.dim_param in ("", "?"):
                dim.dim_param = f"{value.name}_{axis}"
    return _from_onnx(onnx, path, model)


def _external_bytes(onnx: Any, model: Any) -> int:
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


def _from_onnx(onnx: Any, path: Path, model: Any) -> Any:
    """Return a model of ONNX as a Relax program.

    Functions of the model are inlined. A model that TVM refuses, or of whose tensors it does not
    know the shape, is simplified: exporters compute sizes from the shapes of tensors by operators,
    of which TVM folds some. Operators that it refuses then are replaced by ONNX's own definitions.

    Raises
    ------
    FormatError
        TVM lacks an operator, or cannot convert a node.
    """
    refusals: list[Exception] = []
    kinds, inlined = frozenset(function.name for function in model.functions), frozenset[str]()
    shapeless = None
    while True:
        model = _with_tensors(onnx, _inlined(onnx, model, kinds))
        inlined |= kinds
        for form in _forms(model):
            try:
                mod = _converted(onnx, path, form)
            except Exception as error:  # TVM raises any class
                refusals.append(error)
                kinds |= getattr(error, "kinds", frozenset())
                continue
            if shapeless is not None or _has_shapes(mod):
                return mod
            shapeless = mod
        if shapeless is not None:
            return shapeless
        if kinds <= inlined:
            break
    refusal = refusals[0]
    if isinstance(refusal, FormatError) and find_spec("onnxsim") is None:
        raise FormatError(
            f"{refusal}; onnxsim simplifies some of these models: pip install 'tunedb[onnx]'"
        ) from refusal
    raise refusal


def _forms(model: Any) -> Iterator[Any]:
    """Yield a model, and its simplified form, if there is one."""
    yield model
    simplified = _simplified(model)
    if simplified is not None:
        yield simplified


def _inlined(onnx: Any, model: Any, kinds: Set[str]) -> Any:
    """Return a model with the definitions of some operators; itself where ONNX has none."""
    nodes = [node for node in model.graph.node if node.op_type in kinds]
    if not nodes:
        return model
    try:
        inline = import_module("onnx.inliner").inline_selected_functions
        (version,) = (each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
        for node in nodes:
            if node.domain in ("", "ai.onnx"):
                _set_defaults(node, onnx.defs.get_schema(node.op_type, version))
        typed = onnx.shape_inference.infer_shapes(model)
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


def _with_tensors(onnx: Any, model: Any) -> Any:
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


def _converted(onnx: Any, path: Path, model: Any) -> Any:
    """Return a model as TVM's frontend converts it; FormatError as :func:`_from_onnx`."""
    from tvm.relax.frontend.onnx import from_onnx

    try:
        with redirect_stdout(io.StringIO()):  # TVM prints the inputs of a node that it refuses
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
            f"{_words(error)}",
            [node.op_type],
        ) from error


def _read_torch(torch: Any, path: Path) -> Any:
    from tvm.relax.frontend.torch import from_exported_program

    return from_exported_program(torch.export.load(str(path)))


#: File extension → package that reads such files, its installation, and the function that reads.
_READERS = {
    ".onnx": ("onnx", "'tunedb[onnx]'", _read_onnx),
    ".pt2": ("torch", "torch", _read_torch),
}
