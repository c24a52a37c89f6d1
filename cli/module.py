"""Options and targets of the commands that take a module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..system import text
from .choose import find_targets, target_label

if TYPE_CHECKING:
    from ..records import Target
    from ..storage.store import Store

F = TypeVar("F", bound=Callable[..., Any])


def compile_target_option(function: F) -> F:
    """Add ``--target`` and ``--compatible`` to a command, for :func:`one_target`."""
    target = click.option(
        "--target",
        metavar="TARGET",
        help="Target: its id or kind (tunedb targets), or JSON. Default: the only one "
        "that has records.",
    )
    compatible = click.option(
        "--compatible",
        is_flag=True,
        help="Use programs of targets of the same kind and architecture where there are none "
        "for this one.",
    )
    return target(compatible(function))


def lowering_options(function: F) -> F:
    """Add the options of the lowering of a network, for :func:`lowering_of`."""
    layout = click.option(
        "--layout",
        type=click.Choice(["auto", "keep"]),
        default="auto",
        show_default=True,
        help="Layout of a network's operators: auto puts channels last on CPUs.",
    )
    prepack = click.option(
        "--no-prepack", is_flag=True, help="Keep weights of a network in their layout."
    )
    bind = click.option(
        "--bind",
        metavar="NAME=NUMBER",
        multiple=True,
        callback=_sizes,
        help="Number of a symbolic size of a network; one --bind for each size.",
    )
    algorithms = click.option(
        "--algorithms",
        type=click.Choice(["exact", "winograd"]),
        default="exact",
        show_default=True,
        help="winograd: compute a network's 3x3 convolutions on CPUs with fewer multiplications "
        "and a larger error, where that is faster.",
    )
    return layout(prepack(bind(algorithms(function))))


def _sizes(
    _context: click.Context, _option: click.Parameter, words: tuple[str, ...]
) -> dict[str, int | list[int]]:
    """Return the sizes of ``--bind``: a number, or a list where a name has several."""
    sizes: dict[str, list[int]] = {}
    for word in words:
        name, equals, number = word.rpartition("=")
        if not (equals and name and number.isdecimal()):
            raise click.BadParameter(f"{word!r} is not NAME=NUMBER, e.g. batch=1")
        sizes.setdefault(name, []).append(int(number))
    return {name: several[0] if len(several) == 1 else several for name, several in sizes.items()}


def lowering_of(
    layout: str, no_prepack: bool, bind: Mapping[str, int | list[int]], algorithms: str
) -> dict[str, Any]:
    """Return the arguments of ``tune`` and ``compile`` for the lowering of a network."""
    return {
        "layout": layout,
        "prepack": False if no_prepack else None,
        "bind": bind,
        "algorithms": algorithms,
    }


def lowering_words(layout: str, *, no_prepack: bool, algorithms: str) -> str:
    """Return the options of a lowering for the command that a message names, each after a space."""
    words = "" if layout == "auto" else f" --layout {layout}"
    words += " --no-prepack" if no_prepack else ""
    return words + ("" if algorithms == "exact" else f" --algorithms {algorithms}")


def bind_words(bind: Mapping[str, int]) -> str:
    """Return the options ``--bind`` for the command that a message names, with a space before."""
    return "".join(f" --bind {name}={number}" for name, number in bind.items())


def one_target(
    store: Store,
    words: str | None,
    workload_ids: Iterable[int] | None = None,
    *,
    foreign: bool = False,
) -> Target:
    """Return the one target that `words` select.

    Parameters
    ----------
    store : Store
        The database.
    words : str or None
        An id, a kind, or JSON; JSON with a kind may describe a target that is not stored. None
        selects the only target with records to serve.
    workload_ids : iterable of int or None
        Count records of these workloads; None for all workloads that are modules.
    foreign : bool
        Count all records, not only those that are served.

    Raises
    ------
    NotFoundError
        No target matches.
    UsageError
        Several targets match.
    """
    from ..errors import NotFoundError, UsageError
    from ..records import MODULES

    if words is None:
        if workload_ids is None:
            workload_ids = [w.id for w in store.workloads.find() if w.format in MODULES]
        workload_ids = list(workload_ids)
        ids = (store.programs.targets if foreign else store.answers.targets)(workload_ids)
        if not ids:
            raise NotFoundError(f"no record to serve{_how_to_serve(store, workload_ids)}")
    else:
        target = _unstored_target(store, words)
        if target is not None:
            return target
        ids = find_targets(store, words) or []
    if len(ids) > 1:
        listed = ", ".join(f"{id_} ({target_label(store.targets.get(id_))})" for id_ in ids)
        raise UsageError(f"several targets; choose one with --target: {listed}")
    return store.targets.get(ids[0])


def _how_to_serve(store: Store, workload_ids: Sequence[int]) -> str:
    """Return the end of the message that these workloads have no record to serve."""
    if store.answers.foreign(workload_ids):
        return (
            ", only records of sources that you do not trust (tunedb sources); measure them: "
            "tunedb revalidate --foreign --module MODULE; or trust one: tunedb trust SOURCE "
            "verified"
        )
    return (
        "; measure some: tunedb tune MODULE; or measure nothing: "
        "tunedb apply MODULE -o FILE --predict"
    )


def _unstored_target(store: Store, words: str) -> Target | None:
    """Return the target of a JSON configuration that no stored target matches."""
    import orjson

    from ..records import Target

    if store.lookup.targets(words) or not words.lstrip().startswith("{"):
        return None
    config = orjson.loads(words)
    return Target.from_config(config) if "kind" in config else None


def label(target: Target) -> str:
    """Return a target's short label."""
    return text.clean(target_label(target))
