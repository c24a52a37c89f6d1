"""Modules that a user names: a TVMScript file, a name in a package, a model of a framework."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import psutil
import tvm
from tvm import relax, tirx
from tvm.script.parser.core.entry import _default_globals

from ...errors import FormatError, NotFoundError, PluginError, TuneDBError, UsageError
from ...system.files import require_regular
from .frontends.torch_source import read_torch

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
    require_memory(path, path.stat().st_size)
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
        raise FormatError(f"{path}: {error_line(error)}") from error


def error_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def require_memory(path: Path, size: int) -> None:
    """Raise PluginError where a model does not fit into memory: TVM copies what a reader holds."""
    available = psutil.virtual_memory().available
    if 2 * size > available:
        raise PluginError(
            f"{path}: reading the model takes {2 * size / 1e9:.3g} GB of memory, twice its size, "
            f"and {available / 1e9:.3g} GB are free; use a machine with more"
        )


def _read_onnx(_onnx: Any, path: Path) -> Any:
    from .frontends.onnx_source import read_onnx

    return read_onnx(path)


#: File extension → package that reads such files, its installation, and the function that reads.
_READERS = {
    ".onnx": ("onnx", "'tunedb[onnx]'", _read_onnx),
    ".pt2": ("torch", "torch", read_torch),
}
