"""Why a module finds no record in a database, or which one it finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import tvm
import tvm_ffi
from tvm.runtime.script_printer import PrinterConfig, _script
from tvm.s_tir import SBlock
from tvm_ffi.access_path import AccessKind

from ....programs.workload_info import signature_of
from ....programs.workload_info.distance import distances
from ....records import MODULES, Status, Target, Trust
from ....results import Record, WorkloadSummary
from ....storage.store import Store
from .. import modules
from ..database.handle import Handle
from ..database.workloads import WorkloadTable
from ..modules import modules_equal
from ..targets import as_target
from .apply import find_record, tasks_of
from .network import Layout, Lowering, without_packing

# ---- Where two modules differ, in words ----------------------------------------------------------

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


# ---- Why a module finds no record ----------------------------------------------------------------

__all__ = ["Finding", "Near", "Reason", "explain"]

#: Workloads whose modules are looked at beside the module that is explained.
_MOST_READ = 64


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that keeps records from a module.

    Parameters
    ----------
    code : str
        ``unknown`` (no workload is equal), ``attributes``, ``equality`` (equal under a looser
        equality), ``target``, ``failed``, ``foreign``, ``retracted``, ``empty`` (no record, or
        only such as do nothing), ``broken`` (none replays).
    text : str
        What it is and how to go on, in one line.
    """

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Near:
    """A stored workload that is nearly the module.

    Parameters
    ----------
    workload_id : int
        Its row.
    name : str
        Its name.
    records : int
        How many records it has.
    octaves : float or None
        Distance of the shapes (:mod:`tunedb.programs.workload_info.distance`); None where it is of
        another kind.
    difference : Difference or None
        The first place where they differ; None where TVM can make no module of it.
    """

    workload_id: int
    name: str
    records: int
    octaves: float | None
    difference: Difference | None


@dataclass(frozen=True, slots=True)
class Finding:
    """What a function of the module finds.

    Parameters
    ----------
    function : str
        Its name.
    record : Record or None
        The record that answers for it.
    workload_ids : tuple of int
        Rows of workloads that are equal to it.
    reasons : tuple of Reason
        Why there is none, what says most first; empty where there is one.
    nearest : tuple of Near
        Nearest first, where no workload is equal.
    """

    function: str
    record: Record | None
    workload_ids: tuple[int, ...] = ()
    reasons: tuple[Reason, ...] = ()
    nearest: tuple[Near, ...] = ()


def explain(
    store: Store,
    mod: Any,
    target: Any,
    *,
    fallback: str = "exact",
    module_equality: str = "structural",
    most: int = 3,
    layout: Layout = "auto",
    prepack: bool | None = None,
) -> list[Finding]:
    """Say for each function of a module which record answers for it, or why none does.

    Parameters
    ----------
    store : Store
        The database; it is only read where it was opened so.
    mod : tvm.IRModule
        PrimFuncs, or a Relax program, whose fused functions are asked about.
    target : tvm.target.Target or dict
        For which target.
    fallback, module_equality : str
        As for :class:`~tunedb.plugins.metaschedule.Database`.
    most : int
        How many of the nearest workloads to name.
    layout, prepack
        As for :func:`~.apply.compile`.

    Returns
    -------
    list of Finding
        By name of the function.

    Raises
    ------
    TargetError
        TVM does not know the target.
    PluginError
        TVM cannot extract the functions of a Relax program.
    """
    target = as_target(target)
    handle = Handle(store, target=target, fallback=fallback, module_equality=module_equality)
    search = _Search(handle, target, most)
    tasks = tasks_of(mod, target, Lowering(layout, prepack))
    return [search.finding(name, task) for name, task in sorted(tasks.items())]


class _Search:
    """A database that is asked about one function after another."""

    def __init__(self, handle: Handle, target: Any, most: int) -> None:
        self._handle = handle
        self._store = handle.store
        self._target = target
        self._stored = handle.targets.stored(target)
        self._most = most

    def finding(self, name: str, mod: Any) -> Finding:
        """Return what a function finds, with its weights packed, or else as they are."""
        found = find_record(self._handle, mod, self._target)
        plain = without_packing(mod)
        if found is None and plain is not None:
            found = find_record(self._handle, plain, self._target)
            mod = mod if found is None else plain
        ids = tuple(self._equal(mod))
        if found is not None:
            return Finding(name, self._store.records.get(found.id), ids)
        if ids:
            return Finding(name, None, ids, tuple(self._of_known(ids)))
        nearest = self._nearest(mod)
        reasons = tuple(self._of_unknown(mod, nearest))
        return Finding(name, None, (), reasons, nearest)

    def _equal(self, mod: Any) -> list[int]:
        """Return the rows of equal workloads, also of those that TVM never gets."""
        known = self._handle.workloads.find(mod)
        ids = set() if known is None else set(self._handle.workloads.equal_ids(known))
        # One that only foreign sources have is under no name.
        exact = self._store.workloads.id_of(modules.to_workload(mod).digest)
        return sorted(ids if exact is None else ids | {exact})

    # ------------------------------------------------------------------ an equal workload

    def _of_known(self, ids: Sequence[int]) -> Iterator[Reason]:
        """Yield why none of the records of equal workloads answers."""
        for group in self._handle.targets.groups(self._stored):
            yield from self._of_target(ids, group)
        targets = [self._store.targets.get(id_) for id_ in self._store.answers.targets(ids)]
        others = [one for one in targets if one.digest != self._stored.digest]
        for other in others:
            yield Reason("target", self._other_target(other))
        if not self._store.programs.targets(ids):
            yield Reason("empty", "its workload has no record; tune it")

    def _of_target(self, ids: Sequence[int], target_ids: Sequence[int]) -> Iterator[Reason]:
        """Yield what became of the records for the target."""
        if not target_ids:
            return
        counts: Counter[str] = Counter()
        causes: Counter[str] = Counter()
        for id_ in ids:
            for record in self._store.records.iterate(id_, target_ids):
                code = _code_of(record)
                counts[code] += 1
                if code == "failed":
                    failure = record.measurement.failure
                    causes[failure.kind.value if failure else "unknown"] += 1
        for code, number in counts.most_common():
            yield Reason(code, _words(code, number, causes))

    def _other_target(self, other: Target) -> str:
        """Return in words that there are records for another target, and how it differs."""
        mine, theirs = self._stored.attributes or {}, other.attributes or {}
        differing = [
            f"{key} {mine.get(key, 'not given')} here, {theirs.get(key, 'not given')} there"
            for key in sorted(mine.keys() | theirs.keys())
            if mine.get(key) != theirs.get(key)
        ]
        words = f"there are records for {other.label}: {'; '.join(differing)}"
        if other.kind != self._stored.kind:
            return f"{words}; programs for another kind of device are never served"
        if other.architecture != self._stored.architecture:
            return words
        return f'{words}; fallback="compatible" (--compatible) serves them'

    # ------------------------------------------------------------------ no equal workload

    def _of_unknown(self, mod: Any, nearest: Sequence[Near]) -> Iterator[Reason]:
        if nearest and nearest[0].difference is not None:
            other = self._handle.workloads.get(nearest[0].workload_id)
            found_in = other and equal_but_for_attributes(mod, other.workload.mod)
            if found_in:
                told = "; ".join(
                    f"{one.where} is {one.here} here, {one.there} there" for one in found_in
                )
                yield Reason(
                    "attributes",
                    f"workload {nearest[0].workload_id} differs only in attributes of the "
                    f"function, which TVM compares too: {told}",
                )
        for equality in modules.EQUALITIES:
            if (found := WorkloadTable(self._handle.store, equality).find(mod)) is not None:
                yield Reason(
                    "equality",
                    f'workload {found.id} is equal only under module_equality="{equality}"; '
                    "pass it to Database",
                )
                break
        yield Reason("unknown", "no stored workload is equal to it; tune it: tunedb tune")

    def _nearest(self, mod: Any) -> tuple[Near, ...]:
        """Return the workloads that are most like a module, those first that TVM can read."""
        signature = signature_of(modules.to_workload(mod))
        known = [
            one for one in self._store.workloads.find() if one.format in MODULES and one.records
        ]
        octaves = distances(signature, [one.signature for one in known])
        order = sorted(range(len(known)), key=lambda i: (octaves[i], known[i].id))[:_MOST_READ]
        near = [self._near(mod, known[i], float(octaves[i])) for i in order]
        return tuple(sorted(near, key=_rank)[: self._most])

    def _near(self, mod: Any, summary: WorkloadSummary, octaves: float) -> Near:
        found = self._handle.workloads.get(summary.id) if summary.best is not None else None
        difference = None if found is None else first_difference(mod, found.workload.mod)
        finite = octaves if octaves != float("inf") else None
        return Near(summary.id, summary.name, summary.records, finite, difference)


def _rank(near: Near) -> tuple[bool, bool, float]:
    """Return what orders the nearest workloads.

    One that differs in nothing but an attribute comes first: shapes and operator are the same.
    """
    difference = near.difference
    only_attribute = difference is not None and difference.where.startswith("attribute")
    octaves = float("inf") if near.octaves is None else near.octaves
    return (difference is None, not (only_attribute and octaves == 0), octaves)


def _code_of(record: Record) -> str:
    """Return why a record does not answer."""
    measurement = record.measurement
    if record.retracted:
        return "retracted"
    if measurement.status is not Status.OK:
        return "failed"
    if record.source.trust < Trust.VERIFIED:
        return "foreign"
    return "empty" if measurement.program.trace.is_empty else "broken"


def _words(code: str, number: int, causes: Counter[str]) -> str:
    """Return in words what became of records, and how to go on."""
    records = f"{number:,} record{'' if number == 1 else 's'} for this target"
    match code:
        case "failed":
            told = ", ".join(f"{count:,} {kind}" for kind, count in causes.most_common())
            return f"{records} failed ({told}); tune it longer"
        case "foreign":
            return (
                f"{records} of foreign sources, which TVM never gets; to try them on this machine: "
                "tunedb revalidate --foreign"
            )
        case "retracted":
            return f"{records} retracted; tunedb show RECORD says so of each"
        case "empty":
            return f"{records} without any step; tune it"
    return f"{records} cannot be replayed by this TVM; see: tunedb quarantine"
