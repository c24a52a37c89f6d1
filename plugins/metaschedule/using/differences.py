"""Where two modules differ, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import tvm
import tvm_ffi
from tvm.runtime.script_printer import PrinterConfig, _script
from tvm.s_tir import SBlock
from tvm_ffi.access_path import AccessKind

from ..modules import modules_equal

__all__ = ["Difference", "equal_but_for_attributes", "first_difference"]

_MISSING = (
    AccessKind.ATTR_MISSING,
    AccessKind.ARRAY_ITEM_MISSING,
    AccessKind.MAP_ITEM_MISSING,
)

#: What stands for a part that one of two modules does not have.
NOTHING = "nothing"

_MOST = 160  # characters of a value or a line


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two modules are not structurally equal.

    Parameters
    ----------
    where : str
        The place: an argument, an attribute, or TVM's path from the function.
    here, there : str
        What stands there in either module, or :data:`NOTHING`.
    here_line, there_line : str or None
        The line of TVMScript that has it, where it is one line.
    """

    where: str
    here: str
    there: str
    here_line: str | None = None
    there_line: str | None = None


def first_difference(here: Any, there: Any) -> Difference | None:
    """Return the first place where two modules of one function differ; None if they are equal.

    Attributes of the function come last: its symbol differs wherever its name does.

    Parameters
    ----------
    here, there : tvm.IRModule
        Normalised as TVM's tuner does: their functions are called ``main``.

    Notes
    -----
    Found by ``tvm_ffi.get_first_structural_mismatch``. Names of variables and blocks are no part
    of it, as in TVM's equality.
    """
    bare = [_bare(here), _bare(there)]
    for sides in (bare, [here, there]):
        found = tvm_ffi.get_first_structural_mismatch(*sides)
        if found is not None:
            return _told(*(_Side(mod, path) for mod, path in zip(sides, found, strict=True)))
    return None


def _told(here: _Side, there: _Side) -> Difference:
    # The longer path says more: the other one may end where something is missing.
    longer = here if len(here.steps) >= len(there.steps) else there
    return Difference(longer.where(), here.value(), there.value(), here.line(), there.line())


def _bare(mod: Any) -> Any:
    """Return a module whose functions have no attributes."""
    return tvm.IRModule({var: _without_attributes(f) for var, f in mod.functions.items()})


def equal_but_for_attributes(here: Any, there: Any) -> list[Difference] | None:
    """Return the attributes by which two equal functions differ; None where more differs.

    Attributes are part of TVM's equality, so a fused function with one that the tuned function did
    not have finds no record.

    Parameters
    ----------
    here, there : tvm.IRModule
        With one function each.
    """
    mine, theirs = _only_function(here), _only_function(there)
    if mine is None or theirs is None:
        return None
    if not modules_equal(_without_attributes(mine), _without_attributes(theirs), "structural"):
        return None
    left, right = _attributes(mine), _attributes(theirs)
    return [
        Difference(f"attribute {key}", left.get(key, NOTHING), right.get(key, NOTHING))
        for key in sorted(left.keys() | right.keys())
        if left.get(key) != right.get(key)
    ]


def _only_function(mod: Any) -> Any:
    functions = list(mod.functions.values())
    return functions[0] if len(functions) == 1 else None


def _without_attributes(func: Any) -> Any:
    for key in _attributes(func):
        func = func.without_attr(key)
    return func


def _attributes(func: Any) -> dict[str, str]:
    """Return the attributes of a function, but for the one that says which dialect it is."""
    attrs = ((str(key), value) for key, value in (func.attrs or {}).items())
    return {key: _cut(str(value)) for key, value in attrs if key != "s_tir"}


class _Side:
    """One module and the place in it."""

    def __init__(self, mod: Any, path: Any) -> None:
        self._mod = mod
        self.steps = [(AccessKind(step.kind), step.key) for step in path.to_steps()]
        self._marked = list(_marked(mod, path))

    def value(self) -> str:
        """Return what stands there."""
        if self.steps and self.steps[-1][0] in _MISSING:
            return NOTHING
        attribute = self._attribute()
        if attribute is not None:
            return _attributes(_only_function(self._mod)).get(attribute, NOTHING)
        if len(self._marked) == 1:
            line, start, stop = self._marked[0]
            return _cut(line[start:stop])
        return _first_line(self._walk()[-1])

    def line(self) -> str | None:
        """Return the line of the script that has it, where it is one."""
        if len(self._marked) != 1:
            return None
        return _cut(self._marked[0][0].strip())

    def where(self) -> str:
        """Return the place in words."""
        attribute = self._attribute()
        if attribute is not None:
            return f"attribute {attribute}"
        match self.steps:
            case [(_, "functions"), _, (_, "params"), (_, index), *rest]:
                return _joined(f"argument {index + 1}{self._parameter(index)}", rest)
            case [(_, "functions"), _, *rest]:
                found = self._innermost_block()
                if found is None:
                    return _dotted(rest) or "function"
                return _joined(f"block {found[0]}", self.steps[found[1] :])
            case _:
                return _dotted(self.steps) or "module"

    def _attribute(self) -> str | None:
        """Return the name of the function's attribute that the path leads to."""
        match self.steps:
            case [(_, "functions"), _, (_, "attrs"), (_, "__dict__"), (_, key), *_] if (
                _only_function(self._mod) is not None
            ):
                return str(key)
        return None

    def _parameter(self, index: int) -> str:
        """Return the name of an argument in brackets."""
        params = _only_function(self._mod).params if _only_function(self._mod) else []
        return f" ({params[index].name})" if index < len(params) else ""

    def _innermost_block(self) -> tuple[str, int] | None:
        """Return the name of the block that the place is in, and how many steps lead to it."""
        found = None
        for number, value in enumerate(self._walk()):
            if isinstance(value, SBlock) and value.name_hint != "root":
                found = str(value.name_hint), number
        return found

    def _walk(self) -> list[Any]:
        """Return the module and what each step leads to, up to what is missing."""
        values = [self._mod]
        for kind, key in self.steps:
            if kind in _MISSING:
                break
            value = values[-1]
            values.append(getattr(value, str(key)) if kind == AccessKind.ATTR else value[key])
        return values


def _joined(start: str, rest: Sequence[tuple[AccessKind, Any]]) -> str:
    """Return a place and what is inside of it, without steps that say nothing to people."""
    told = [step for step in rest if step[1] not in ("ty", "body", "value")]
    # A type's dtype is in a field of that name.
    inside = _dotted([step for step, _ in groupby(told)])
    return f"{start}, {inside}" if inside else start


def _dotted(steps: Sequence[tuple[AccessKind, Any]]) -> str:
    text = ""
    for kind, key in steps:
        if kind in (AccessKind.ATTR, AccessKind.ATTR_MISSING):
            text += f".{key}"
        else:
            text += f"[{key}]"
    return text.removeprefix(".")


def _marked(mod: Any, path: Any) -> Iterator[tuple[str, int, int]]:
    """Yield the lines of a module's script that TVM underlines for a path, with from and to."""
    config = PrinterConfig(path_to_underline=[path], num_context_lines=0)
    lines = _script(mod, config).splitlines()
    for line, under in pairwise(lines):
        if under.strip() and not under.strip("^ "):
            start = under.index("^")
            yield line, start, start + under.count("^")


def _first_line(value: Any) -> str:
    """Return the first line of a value's script that is no comment."""
    lines = (line.strip() for line in str(value).splitlines())
    return _cut(next((line for line in lines if line and line[0] not in "#@"), ""))


def _cut(text: str) -> str:
    return text if len(text) <= _MOST else text[: _MOST - 1] + "…"
