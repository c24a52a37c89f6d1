"""Lowering of a Relax program to the functions that are tuned.

``tune``, ``compile``, ``schedule``, ``explain`` and ``revalidate`` share this lowering, so that
they look up the tuned functions. It folds batch norms, converts layouts, and then runs the passes
of TVM's ``static_shape_tuning_pipeline`` (``relax/pipeline.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

import tvm
from tvm import relax
from tvm.relax import pipeline
from tvm.s_tir import meta_schedule as ms

from ....errors import UsageError
from ..activations import define_activations
from ..compat import symbols_of
from ..modules import is_scheduled
from ..targets import is_cpu
from ..winograd import TILES, Convolution, convolutions_of, with_winograd
from .batch_norms import fold_batch_norms
from .copies import copy_many
from .folding import fold_all_constants, fold_constants
from .half_precision import widen_halves
from .importer_functions import restore_operators
from .layouts import convert_layouts, operators_of
from .norms import divide_groups, sum_by_channels
from .packing import mark_weights, without_preparations
from .simplify import simplify
from .transposed import interleave_transposed

__all__ = [
    "DEFAULT",
    "Algorithms",
    "Layout",
    "Lowered",
    "Lowering",
    "bind_sizes",
    "bindings",
    "lower",
    "lower_algorithms",
    "lower_winograd",
    "symbolic_sizes",
]

#: ``auto``, ``keep``, or what TVM's ``ConvertLayout`` takes.
Layout = Literal["auto", "keep"] | Mapping[str, Sequence[str]]

#: ``exact``, or ``winograd`` where it is faster.
Algorithms = Literal["exact", "winograd"]

#: MetaSchedule's rules for CPUs vectorise the innermost axis, which should be the channels.
_CPU_LAYOUT = {
    "relax.nn.conv1d": ["NWC", "WIO"],
    "relax.nn.conv2d": ["NHWC", "HWIO"],
    "relax.nn.conv3d": ["NDHWC", "DHWIO"],
}


@dataclass(frozen=True, slots=True)
class Lowering:
    """Options for the lowering of a Relax program.

    Parameters
    ----------
    layout : {"auto", "keep"} or mapping
        Layout of activations and weights. ``auto``: channels last for convolutions on CPUs, no
        change elsewhere. A mapping is that of TVM's ``ConvertLayout``, e.g.
        ``{"relax.nn.conv2d": ["NHWC", "HWIO"]}``.
    prepack : bool or None
        Whether the tuner chooses the layout of weights, which are packed when the program is
        compiled. None: on CPUs.
    bind : mapping of str to int, optional
        Number of each symbolic size of the program.
    algorithms : {"exact", "winograd"}
        Algorithms of operators. ``winograd``: those 3x3 convolutions on CPUs that it makes faster
        are computed by Winograd's minimal filtering (:mod:`~..winograd`).

    Raises
    ------
    UsageError
        The layout or the algorithms are unknown, or a size is not a positive number.
    """

    layout: Layout = "auto"
    prepack: bool | None = None
    bind: Mapping[str, int] | None = None
    algorithms: Algorithms = "exact"

    def __post_init__(self) -> None:
        if self.algorithms not in ("exact", "winograd"):
            raise UsageError(f"algorithms must be exact or winograd, not {self.algorithms!r}")
        if not (self.layout in ("auto", "keep") or isinstance(self.layout, Mapping)):
            raise UsageError(
                f"layout must be auto, keep or a mapping of operators, not {self.layout!r}"
            )
        for name, size in (self.bind or {}).items():
            if not isinstance(size, int):
                raise UsageError(f"bind: one number is expected for {name}, not {size!r}")
            if size < 1:
                raise UsageError(f"bind: {name} must be 1 or more, not {size}")

    def layouts(self, target: Any) -> dict[str, list[str]]:
        """Return the layouts of operators for a target, as ``ConvertLayout`` takes them."""
        if self.layout == "keep":
            return {}
        if isinstance(self.layout, Mapping):
            return {name: list(layouts) for name, layouts in self.layout.items()}
        return dict(_CPU_LAYOUT) if is_cpu(target) else {}

    def packs(self, target: Any) -> bool:
        """Return whether weights are packed for a target."""
        return is_cpu(target) if self.prepack is None else self.prepack


#: Lowering of ``tune`` and ``compile`` by default.
DEFAULT = Lowering()


@dataclass(frozen=True, slots=True, eq=False)
class Lowered:
    """A Relax program whose operators are PrimFuncs.

    Parameters
    ----------
    mod : tvm.IRModule
        The program: fused functions, and Relax functions that call them.
    notes : tuple of str
        Layouts that TVM rejected, and algorithms without an operator, in one line each.
    lowering : Lowering
        Options of the lowering.
    unfused : tvm.IRModule
        The program before its operators become PrimFuncs.
    convolutions : tuple of Convolution
        Convolutions for which Winograd's algorithm is a choice.
    """

    mod: Any
    notes: tuple[str, ...]
    lowering: Lowering
    unfused: Any
    convolutions: tuple[Convolution, ...] = ()

    def tasks(self, target: Any, module_equality: str = "structural") -> tuple[Any, ...]:
        """Return TVM's tasks of the unscheduled functions that each run of the program calls."""
        extracted = ms.relax_integration.extract_tasks(
            without_preparations(self.mod), target, module_equality=module_equality
        )
        return tuple(
            task for task in extracted if not all(map(is_scheduled, task.mod.functions.values()))
        )


def bindings(bind: Mapping[str, int | Sequence[int]] | None) -> list[dict[str, int]]:
    """Return each combination of the symbolic sizes, for which a name may have several numbers.

    Raises
    ------
    UsageError
        A name has no number.

    Examples
    --------
    >>> bindings({"batch": 1, "length": [128, 256]})
    [{'batch': 1, 'length': 128}, {'batch': 1, 'length': 256}]
    """
    bind = bind or {}
    sizes = [dict.fromkeys([size] if isinstance(size, int) else size) for size in bind.values()]
    if not all(sizes):
        raise UsageError("bind: a name without a number")
    return [dict(zip(bind, chosen, strict=True)) for chosen in product(*sizes)]


def symbolic_sizes(mod: Any) -> set[str]:
    """Return the names of the symbolic sizes of a Relax program's parameters."""
    return {
        str(symbol.name)
        for func in mod.functions.values()
        if isinstance(func, relax.Function)
        for param in func.params
        for symbol in symbols_of(param)
    }


def bind_sizes(mod: Any, bind: Mapping[str, int] | None) -> Any:
    """Return a program whose symbolic sizes are replaced by numbers.

    Parameters
    ----------
    mod : tvm.IRModule
        A Relax program, or PrimFuncs, which stay unchanged.
    bind : mapping of str to int, optional
        Number of each symbolic size of the program's parameters.

    Raises
    ------
    UsageError
        A symbolic size has no number, or a name is not that of a symbolic size.
    """
    symbols, bind = symbolic_sizes(mod), bind or {}
    names = ", ".join(sorted(symbols)) or "none"
    if unknown := sorted(bind.keys() - symbols):
        raise UsageError(
            f"bind: the program has no symbolic size {unknown[0]!r}; there are: {names}"
        )
    if missing := sorted(symbols - bind.keys()):
        raise UsageError(
            f"the program has symbolic sizes: {names}; give a number for "
            f"{' and '.join(missing)}, e.g. --bind {missing[0]}=1, in Python bind={{...}}"
        )
    return relax.transform.BindSymbolicVars(dict(bind))(mod) if bind else mod


def lower(mod: Any, target: Any, lowering: Lowering) -> Lowered:
    """Lower a Relax program to the functions that are tuned; all operators are exact.

    Parameters
    ----------
    mod : tvm.IRModule
        A Relax program.
    target : tvm.target.Target
        Target of the compilation.
    lowering : Lowering
        Layout, packing, sizes and algorithms.

    Raises
    ------
    UsageError
        As :func:`bind_sizes`.
    Exception
        A pass of TVM fails; it may raise any class.
    """
    given, transform = mod, relax.transform
    mod, notes = widen_halves(bind_sizes(mod, lowering.bind), target)
    with target, tvm.transform.PassContext(opt_level=3):
        mod = tvm.transform.Sequential(
            [
                restore_operators,
                fold_constants,
                simplify,
                fold_all_constants,
                divide_groups,
                transform.CanonicalizeBindings(),
                fold_batch_norms,
                transform.DecomposeOpsForInference(),
                transform.CanonicalizeBindings(),
                fold_all_constants,
            ]
        )(mod)
        mod, rejected = convert_layouts(mod, lowering.layouts(target))
        notes += rejected
        mod = interleave_transposed(mod)
        if is_cpu(target):
            mod = sum_by_channels(mod)
        # Transposed weights.
        mod = tvm.transform.Sequential([transform.CanonicalizeBindings(), fold_all_constants])(mod)
    convolutions: list[Convolution] = []
    if lowering.algorithms == "winograd":
        convolutions = convolutions_of(mod) if is_cpu(target) else []
        if not convolutions:
            notes.append("winograd: no 3x3 convolution for it, all operators are exact")
    fused = _fused(mod, target, lowering)
    if lowering.layouts(target) and (names := _not_lowered(fused)):
        kept = lower(given, target, replace(lowering, layout="keep"))
        note = f"layouts are kept: TVM has no code for {names[0]} in others"
        return replace(kept, notes=(note, *kept.notes), lowering=lowering)
    return Lowered(fused, tuple(notes), lowering, mod, tuple(convolutions))


def _not_lowered(mod: Any) -> list[str]:
    """Return the names of operators with a layout that are no PrimFuncs yet."""
    names = operators_of(mod)
    return sorted(name for name in names if name.startswith(("relax.nn.", "relax.image.")))


def lower_winograd(lowered: Lowered, target: Any, tiles: Mapping[Convolution, int]) -> Lowered:
    """Lower a program with Winograd's algorithm for some convolutions.

    Parameters
    ----------
    lowered : Lowered
        The program, lowered with exact operators.
    target : tvm.target.Target
        Target of the compilation.
    tiles : mapping of Convolution to int
        Size of the tiles of each convolution that changes.
    """
    mod = with_winograd(lowered.unfused, tiles)
    return replace(lowered, mod=_fused(mod, target, lowered.lowering))


def lower_algorithms(lowered: Lowered, target: Any) -> dict[Convolution, dict[int, Lowered]]:
    """Lower a program once more for each algorithm of each convolution that has several.

    Parameters
    ----------
    lowered : Lowered
        The program, lowered with exact operators.
    target : tvm.target.Target
        Target of the compilation.

    Returns
    -------
    dict of Convolution to dict of int to Lowered
        For each convolution of `lowered` and each size of Winograd's tiles, the program in which
        this convolution alone is computed with them.
    """
    return {
        each: {tile: lower_winograd(lowered, target, {each: tile}) for tile in TILES}
        for each in lowered.convolutions
    }


def _fused(mod: Any, target: Any, lowering: Lowering) -> Any:
    """Return a program whose operators are fused PrimFuncs."""
    transform = relax.transform
    try:
        dispatch = pipeline.library_dispatch_passes(target)
    except (ValueError, AttributeError):  # a target without libraries
        dispatch = []
    if target.kind.name == "llvm":
        dispatch += [copy_many, define_activations]
    with target, tvm.transform.PassContext(opt_level=3):
        mod = tvm.transform.Sequential(
            [
                *dispatch,
                transform.LegalizeOps(),
                transform.AnnotateTIROpPattern(),
                transform.FoldConstant(),
                transform.FuseOps(),
                transform.FuseTIR(),
            ]
        )(mod)
        return mark_weights(mod) if lowering.packs(target) else mod
