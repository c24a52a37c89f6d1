"""Explanation of the record that a module uses, or of the reasons why it has none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm.runtime.script_printer import PrinterConfig, _script
from tvm_ffi.access_path import AccessKind

from ....programs.workload_info import signature_of
from ....programs.workload_info.distance import distances
from ....records import MODULES, Status, Target, Trust
from ....results import Record, WorkloadSummary
from ....storage.store import Store
from ....system.one_line import shorten
from .. import modules
from ..compat import arguments_of, sblock_types
from ..database.handle import Handle
from ..database.workloads import WorkloadTable
from ..modules import modules_equal
from ..targets import as_target
from .apply import Use, find_record, tasks_of, use_of
from .network import Algorithms, Layout, Lowering
from .packing import without_packing

__all__ = [
    "FunctionFinding",
    "ModuleDifference",
    "NearWorkload",
    "NoRecordReason",
    "equal_but_for_attributes",
    "explain",
    "first_difference",
]

# ---- Differences of two modules, in words --------------------------------------------------------

#: Steps that say nothing to a reader; the last three lead to a buffer's type until TVM 0.25.
_UNINFORMATIVE = ("ty", "body", "value", "data", "type_annotation", "element_type")
_MISSING = (
    AccessKind.ATTR_MISSING,
    AccessKind.ARRAY_ITEM_MISSING,
    AccessKind.MAP_ITEM_MISSING,
)

#: Text for a part that one of two modules does not have.
NOTHING = "nothing"

#: Most characters of a value or a line.
_MOST = 160


@dataclass(frozen=True, slots=True)
class ModuleDifference:
    """The first place where two modules are not structurally equal.

    Parameters
    ----------
    where : str
        The place: an argument, an attribute, or TVM's path from the function.
    here, there : str
        Value at the place in either module, or :data:`NOTHING`.
    here_line, there_line : str or None
        Line of TVMScript with the value; None where it has several lines.
    """

    where: str
    here: str
    there: str
    here_line: str | None = None
    there_line: str | None = None


def first_difference(here: Any, there: Any) -> ModuleDifference | None:
    """Return the first place where two modules of one function differ; None if they are equal.

    Attributes of the function come last, because its symbol differs wherever its name does.

    Parameters
    ----------
    here, there : tvm.IRModule
        Modules normalised as by TVM's tuner: their functions are called ``main``.

    Notes
    -----
    The place is that of ``tvm_ffi.get_first_structural_mismatch``. As in TVM's equality, names of
    variables and blocks do not count.
    """
    bare = [_bare(here), _bare(there)]
    for sides in (bare, [here, there]):
        paths = tvm_ffi.get_first_structural_mismatch(*sides)
        if paths is not None:
            return _difference(*(_Side(mod, path) for mod, path in zip(sides, paths, strict=True)))
    return None


def _difference(here: _Side, there: _Side) -> ModuleDifference:
    # The longer path is more precise: the other one may end where something is missing.
    longer = here if len(here.steps) >= len(there.steps) else there
    return ModuleDifference(longer.where(), here.value(), there.value(), here.line(), there.line())


def _bare(mod: Any) -> Any:
    """Return a module whose functions have no attributes."""
    return tvm.IRModule({var: _without_attributes(f) for var, f in mod.functions.items()})


def equal_but_for_attributes(here: Any, there: Any) -> list[ModuleDifference] | None:
    """Return the attributes by which two equal functions differ; None if more differs.

    Attributes are part of TVM's equality, so a fused function with an attribute that the tuned
    function did not have finds no record.

    Parameters
    ----------
    here, there : tvm.IRModule
        Modules of one function each.
    """
    own, other = _only_function(here), _only_function(there)
    if own is None or other is None:
        return None
    if not modules_equal(_without_attributes(own), _without_attributes(other), "structural"):
        return None
    left, right = _attributes(own), _attributes(other)
    return [
        ModuleDifference(f"attribute {key}", left.get(key, NOTHING), right.get(key, NOTHING))
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
    """Return the attributes of a function, without the one that names its dialect."""
    attrs = ((str(key), value) for key, value in (func.attrs or {}).items())
    return {key: shorten(str(value), _MOST) for key, value in attrs if key != "s_tir"}


class _Side:
    """One module and a place in it."""

    def __init__(self, mod: Any, path: Any) -> None:
        self._mod = mod
        self.steps = [(AccessKind(step.kind), step.key) for step in path.to_steps()]
        self._marked = list(_marked(mod, path))

    def value(self) -> str:
        """Return the value at the place."""
        if self.steps and self.steps[-1][0] in _MISSING:
            return NOTHING
        attribute = self._attribute()
        if attribute is not None:
            return _attributes(_only_function(self._mod)).get(attribute, NOTHING)
        if len(self._marked) == 1:
            line, start, stop = self._marked[0]
            return shorten(line[start:stop], _MOST)
        return _first_line(self._walk()[-1])

    def line(self) -> str | None:
        """Return the line of the script with the value; None where it has several."""
        if len(self._marked) != 1:
            return None
        return shorten(self._marked[0][0].strip(), _MOST)

    def where(self) -> str:
        """Return the place in words."""
        attribute = self._attribute()
        if attribute is not None:
            return f"attribute {attribute}"
        match self.steps:
            case [(_, "functions"), _, (_, "params"), (_, index), *rest]:
                return _joined(self._argument(index), rest)
            case [(_, "functions"), _, (_, "buffer_map"), (_, handle), *rest]:  # until 0.25
                params = _only_function(self._mod).params
                index = next(n for n, param in enumerate(params) if param.same_as(handle))
                return _joined(self._argument(index), rest)
            case [(_, "functions"), _, *rest]:
                block = self._innermost_block()
                if block is None:
                    return _dotted(rest) or "function"
                return _joined(f"block {block[0]}", self.steps[block[1] :])
            case _:
                return _dotted(self.steps) or "module"

    def _attribute(self) -> str | None:
        """Return the name of the function's attribute at the place, or None."""
        match self.steps:
            case [(_, "functions"), _, (_, "attrs"), (_, "__dict__"), (_, key), *_] if (
                _only_function(self._mod) is not None
            ):
                return str(key)
        return None

    def _argument(self, index: int) -> str:
        """Return the number and the name of an argument."""
        function = _only_function(self._mod)
        arguments = arguments_of(function) if function else []
        name = f" ({arguments[index].name})" if index < len(arguments) else ""
        return f"argument {index + 1}{name}"

    def _innermost_block(self) -> tuple[str, int] | None:
        """Return the name of the block around the place, and the number of steps to it."""
        block = None
        for number, value in enumerate(self._walk()):
            if isinstance(value, sblock_types()[0]) and value.name_hint != "root":
                block = str(value.name_hint), number
        return block

    def _walk(self) -> list[Any]:
        """Return the module and the value after each step, up to a missing one."""
        values = [self._mod]
        for kind, key in self.steps:
            if kind in _MISSING:
                break
            value = values[-1]
            values.append(getattr(value, str(key)) if kind == AccessKind.ATTR else value[key])
        return values


def _joined(start: str, rest: Sequence[tuple[AccessKind, Any]]) -> str:
    """Return a place with the informative steps inside it."""
    informative = [step for step in rest if step[1] not in _UNINFORMATIVE]
    # A type's dtype is in a field of that name.
    inside = _dotted([step for step, _ in groupby(informative)])
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
    return shorten(next((line for line in lines if line and line[0] not in "#@"), ""), _MOST)


# ---- Reasons why a module finds no record --------------------------------------------------------

#: Nearest workloads whose modules are compared with the explained one.
_MOST_READ = 64


@dataclass(frozen=True, slots=True)
class NoRecordReason:
    """A reason why a module finds no record.

    Parameters
    ----------
    code : str
        ``unknown`` (no workload is equal), ``attributes``, ``equality`` (equal under a looser
        equality), ``target``, ``failed``, ``foreign``, ``retracted``, ``empty`` (no record, or
        only records without steps), ``broken`` (none replays).
    text : str
        The reason and the next step, in one line.
    """

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class NearWorkload:
    """A stored workload that is nearly the module.

    Parameters
    ----------
    workload_id : int
        Local number.
    name : str
        Name.
    records : int
        Number of its records.
    octaves : float or None
        Distance of the shapes (:mod:`tunedb.programs.workload_info.distance`); None where it is of
        another kind.
    difference : ModuleDifference or None
        First difference from the module; None where TVM cannot read the workload.
    """

    workload_id: int
    name: str
    records: int
    octaves: float | None
    difference: ModuleDifference | None


@dataclass(frozen=True, slots=True)
class FunctionFinding:
    """The record for a function of a module, or the reasons why there is none.

    Parameters
    ----------
    function : str
        Name of the function.
    use : Use or None
        Record that answers for it; None where there is none.
    workload_ids : tuple of int
        Local numbers of equal workloads.
    reasons : tuple of NoRecordReason
        The most important first; empty where there is a record.
    nearest : tuple of NearWorkload
        Nearest first; empty where some workload is equal.
    """

    function: str
    use: Use | None
    workload_ids: tuple[int, ...] = ()
    reasons: tuple[NoRecordReason, ...] = ()
    nearest: tuple[NearWorkload, ...] = ()


def explain(
    store: Store,
    mod: Any,
    target: Any,
    *,
    fallback: str = "exact",
    module_equality: str = "structural",
    layers: Sequence[str | Path] = (),
    prior: str | Path = "none",
    most: int = 3,
    layout: Layout = "auto",
    prepack: bool | None = None,
    bind: Mapping[str, int] | None = None,
    algorithms: Algorithms = "exact",
) -> list[FunctionFinding]:
    """Return the record for each function of a module, or the reasons why there is none.

    Parameters
    ----------
    store : Store
        Store of the database, which may be read-only.
    mod : tvm.IRModule
        PrimFuncs, or a Relax program, whose fused functions are explained.
    target : tvm.target.Target or dict
        Target of the module.
    fallback, module_equality, layers, prior
        As for :class:`~tunedb.plugins.metaschedule.Database`; by default the store alone answers.
    most : int
        Most of the nearest workloads to name.
    layout, prepack, bind, algorithms
        As for :func:`~.apply.compile`.

    Returns
    -------
    list of FunctionFinding
        By name of the function.

    Raises
    ------
    TargetError
        TVM does not know the target.
    UsageError
        A symbolic size has no number.
    PluginError
        TVM cannot extract the functions of a Relax program.
    """
    target = as_target(target)
    handle = Handle(
        store,
        target=target,
        fallback=fallback,
        module_equality=module_equality,
        layers=layers,
        prior=prior,
    )
    try:
        explainer = _Explainer(handle, target, most)
        tasks = tasks_of(mod, target, Lowering(layout, prepack, bind, algorithms))
        return [explainer.finding(name, task) for name, task in sorted(tasks.items())]
    finally:
        handle.close_others()


class _Explainer:
    """Findings of a database for one function after another."""

    def __init__(self, handle: Handle, target: Any, most: int) -> None:
        self._handle = handle
        self._store = handle.store
        self._target = target
        self._stored = handle.targets.stored(target)
        self._most = most

    def finding(self, name: str, mod: Any) -> FunctionFinding:
        """Return the finding for a function with packed weights, or else for it as it is."""
        served = find_record(self._handle, mod, self._target)
        plain = without_packing(mod)
        if served is None and plain is not None:
            served = find_record(self._handle, plain, self._target)
            mod = mod if served is None else plain
        ids = tuple(self._equal_ids(mod))
        if served is not None:
            return FunctionFinding(name, use_of(self._handle, name, served), ids)
        if ids:
            return FunctionFinding(name, None, ids, tuple(self._reasons_of_known(ids)))
        nearest = self._nearest(mod)
        reasons = tuple(self._reasons_of_unknown(mod, nearest))
        return FunctionFinding(name, None, (), reasons, nearest)

    def _equal_ids(self, mod: Any) -> list[int]:
        """Return the rows of equal workloads, also of those that TVM must not read."""
        known = self._handle.workloads.find(mod)
        ids = set() if known is None else set(self._handle.workloads.equal_ids(known))
        # A workload of foreign sources alone has no names that count.
        exact = self._store.workloads.id_of(modules.to_workload(mod).digest)
        return sorted(ids if exact is None else ids | {exact})

    # ------------------------------------------------------------------ an equal workload

    def _reasons_of_known(self, ids: Sequence[int]) -> Iterator[NoRecordReason]:
        """Yield the reasons why no record of the equal workloads answers."""
        for group in self._handle.targets.groups(self._stored):
            yield from self._reasons_for_targets(ids, group)
        for id_ in self._store.answers.targets(ids):
            target = self._store.targets.get(id_)
            if target.digest != self._stored.digest:
                yield NoRecordReason("target", self._target_difference(target))
        if not self._store.programs.targets(ids):
            yield NoRecordReason("empty", "its workload has no record; tune it")

    def _reasons_for_targets(
        self, ids: Sequence[int], target_ids: Sequence[int]
    ) -> Iterator[NoRecordReason]:
        """Yield the reasons why records for some targets do not answer, the most frequent first."""
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
            yield NoRecordReason(code, _reason_text(code, number, causes))

    def _target_difference(self, target: Target) -> str:
        """Return the sentence for records of another target, with its differences."""
        here, there = self._stored.attributes or {}, target.attributes or {}
        differing = [
            f"{key} {here.get(key, 'not given')} here, {there.get(key, 'not given')} there"
            for key in sorted(here.keys() | there.keys())
            if here.get(key) != there.get(key)
        ]
        sentence = f"there are records for {target.label}: {'; '.join(differing)}"
        if target.kind != self._stored.kind:
            return f"{sentence}; programs for another kind of device are never served"
        if target.architecture != self._stored.architecture:
            return sentence
        return f'{sentence}; fallback="compatible" (--compatible) serves them'

    # ------------------------------------------------------------------ no equal workload

    def _reasons_of_unknown(
        self, mod: Any, nearest: Sequence[NearWorkload]
    ) -> Iterator[NoRecordReason]:
        if nearest and nearest[0].difference is not None:
            other = self._handle.workloads.get(nearest[0].workload_id)
            attributes = other and equal_but_for_attributes(mod, other.workload.mod)
            if attributes:
                differences = "; ".join(
                    f"{each.where} is {each.here} here, {each.there} there" for each in attributes
                )
                yield NoRecordReason(
                    "attributes",
                    f"workload {nearest[0].workload_id} differs only in attributes of the "
                    f"function, which TVM compares too: {differences}",
                )
        for equality in modules.EQUALITIES:
            known = WorkloadTable(self._handle.store, equality).find(mod)
            if known is not None:
                yield NoRecordReason(
                    "equality",
                    f'workload {known.id} is equal only under module_equality="{equality}"; '
                    "pass it to Database",
                )
                break
        yield NoRecordReason("unknown", "no stored workload is equal to it; tune it: tunedb tune")

    def _nearest(self, mod: Any) -> tuple[NearWorkload, ...]:
        """Return the workloads that are most like a module, those first that TVM can read."""
        signature = signature_of(modules.to_workload(mod))
        known = [
            summary
            for summary in self._store.workloads.find()
            if summary.format in MODULES and summary.records
        ]
        octaves = distances(signature, [summary.signature for summary in known])
        order = sorted(range(len(known)), key=lambda i: (octaves[i], known[i].id))[:_MOST_READ]
        near = [self._near(mod, known[i], float(octaves[i])) for i in order]
        return tuple(sorted(near, key=_rank)[: self._most])

    def _near(self, mod: Any, summary: WorkloadSummary, octaves: float) -> NearWorkload:
        known = self._handle.workloads.get(summary.id) if summary.best is not None else None
        difference = None if known is None else first_difference(mod, known.workload.mod)
        finite = octaves if octaves != float("inf") else None
        return NearWorkload(summary.id, summary.name, summary.records, finite, difference)


def _rank(near: NearWorkload) -> tuple[bool, bool, float]:
    """Return the sort key of a near workload."""
    # One that differs only in an attribute comes first: shapes and operator are the same.
    difference = near.difference
    only_attribute = difference is not None and difference.where.startswith("attribute")
    octaves = float("inf") if near.octaves is None else near.octaves
    return (difference is None, not (only_attribute and octaves == 0), octaves)


def _code_of(record: Record) -> str:
    """Return the code of the reason why a record does not answer."""
    measurement = record.measurement
    if record.retracted:
        return "retracted"
    if measurement.status is not Status.OK:
        return "cut" if measurement.status is Status.CUT_SHORT else "failed"
    if record.source.trust < Trust.VERIFIED:
        return "foreign"
    return "empty" if measurement.program.trace.is_empty else "broken"


def _reason_text(code: str, number: int, causes: Counter[str]) -> str:
    """Return the reason of some records and the next step, in one line."""
    records = f"{number:,} record{'' if number == 1 else 's'} for this target"
    match code:
        case "failed":
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in causes.most_common())
            return f"{records} failed ({kinds}); tune it longer"
        case "cut":
            return f"{records} cut short, because others are faster; see: tunedb show RECORD"
        case "foreign":
            return (
                f"{records} of foreign sources, which TVM never gets; to try them on this machine: "
                "tunedb revalidate --foreign"
            )
        case "retracted":
            return f"{records} retracted; see: tunedb show RECORD"
        case "empty":
            return f"{records} without any step; tune it"
    return f"{records} cannot be replayed by this TVM; see: tunedb quarantine"
