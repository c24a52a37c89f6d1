"""Finding the workloads, targets, sources and record that a user's words mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from . import text
from .options import reading, settings_of

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ..models.scope import Scope
    from ..records import Target
    from ..results import WorkloadSummary
    from ..storage.store import Store

F = TypeVar("F", bound=Callable[..., Any])

_MOST_NAMED = 8


def workload_argument(*, required: bool) -> Callable[[F], F]:
    """Return the argument ``WORKLOAD``, whose values complete from the database."""
    return click.argument("workload", required=required, shell_complete=complete_workload)


def target_option() -> Callable[[F], F]:
    """Return the option ``--target``."""
    return click.option(
        "--target",
        metavar="TARGET",
        shell_complete=_complete_target,
        help="Only this target: its id, kind (llvm), or JSON of some attributes.",
    )


def scope_options(function: F) -> F:
    """Give a command ``--target``, ``--workload`` and ``--source``, for :func:`find_scope`."""
    options = (
        target_option(),
        click.option(
            *("--workload", "workloads"),
            metavar="WORKLOAD",
            multiple=True,
            shell_complete=complete_workload,
            help="Only this workload: its id, name or digest; may be repeated.",
        ),
        click.option(
            *("--source", "sources"),
            metavar="SOURCE",
            multiple=True,
            shell_complete=complete_source,
            help="Only records of this source: its id or name (tunedb sources); may be repeated.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def find_scope(
    store: Store, target: str | None, workloads: Sequence[str], sources: Sequence[str]
) -> Scope:
    """Return which records are meant.

    Raises
    ------
    NotFoundError, UsageError
        As :func:`find_workload`, :func:`find_targets` and :func:`find_source`.
    """
    from ..models.scope import Scope

    of_workloads = sorted({id_ for words in workloads for id_ in find_workload(store, words)})
    of_sources = sorted({find_source(store, words) for words in sources})
    return Scope(of_workloads or None, find_targets(store, target), of_sources or None)


def find_source(store: Store, words: str) -> int:
    """Return the id of the source that is meant: by its id, its name or its digest's beginning.

    A path may be given by its last parts, as tables print it.

    Raises
    ------
    NotFoundError
        None is meant.
    UsageError
        Several are meant: sources of two databases may have one name.
    """
    from ..errors import NotFoundError, UsageError

    known = store.sources.numbered()
    found = (
        [one for one in known if words == str(one[0])]
        or [one for one in known if words == one[2].name]
        or [one for one in known if words and one[2].name.endswith(f"/{words}")]
        or [one for one in known if len(words) >= 4 and one[1].hex().startswith(words.lower())]
    )
    if not found:
        listed = _listed(f"{id_} ({source.name})" for id_, _, source in known) or "none"
        raise NotFoundError(f"no source {words!r}; there are: {listed}; see: tunedb sources")
    if len(found) > 1:
        listed = _listed(
            f"{id_} ({source.name}, {source.trust.name.lower()})" for id_, _, source in found
        )
        raise UsageError(
            f"{words!r} means {len(found)} sources; give an id: {listed}; see: tunedb sources"
        )
    return found[0][0]


def find_session(store: Store, words: str) -> int:
    """Return the id of the session that is meant: by its key, its id or its digest's beginning.

    Raises
    ------
    NotFoundError
        None is meant.
    UsageError
        Several are meant.
    """
    return _only(
        store.sessions.find(words),
        f"no session {words!r}; give a key or id of tunedb sessions --json or "
        "tunedb show list them",
        f"{words!r} means several sessions; give an id",
    )


def find_workload(store: Store, words: str) -> list[int]:
    """Return the ids of the one workload that is meant, those equal to it included.

    Raises
    ------
    NotFoundError
        None is meant; the nearest names are in the message.
    UsageError
        Several are meant.
    """
    from ..errors import NotFoundError, UsageError

    found = store.workloads.find(words)
    if not found:
        names = {summary.name for summary in store.workloads.summaries()}
        raise NotFoundError(
            f"no workload {words!r}; {_nearest(words, names)}list them: tunedb workloads"
        )
    groups = {tuple(store.workloads.equivalent(id_)) for id_ in found}
    if len(groups) > 1:
        # The first of each group: an id or digest names a workload, a name need not.
        shown = [min(set(group) & set(found)) for group in sorted(groups)]
        summaries = {summary.id: summary for summary in store.workloads.summaries()}
        listed = _listed(f"{id_} ({_in_short(summaries[id_])})" for id_ in shown)
        raise UsageError(
            f"{words!r} means {len(groups)} workloads; give an id: {listed}; see: tunedb workloads"
        )
    return list(groups.pop())


def _in_short(summary: WorkloadSummary) -> str:
    """Return what tells a workload from others of its name."""
    from .steps import described

    arguments = described(summary.signature)
    return summary.name if arguments is None else text.arguments(arguments)


def find_targets(store: Store, words: str | None) -> list[int] | None:
    """Return the ids of the targets that are meant; None for all.

    Raises
    ------
    NotFoundError
        None is meant.
    """
    from ..errors import NotFoundError

    if words is None:
        return None
    found = store.targets.find(words)
    if not found:
        known = store.targets.summaries()
        near = _nearest(words, {summary.target.kind for summary in known})
        listed = _listed(f"{summary.id} ({target_label(summary.target)})" for summary in known)
        listed = f"there are: {listed}; " if known else ""
        raise NotFoundError(f"no target {words!r}; {near}{listed}see: tunedb targets")
    return found


def find_record(store: Store, words: str) -> int:
    """Return the id of the record that is meant.

    Raises
    ------
    NotFoundError
        None is meant.
    UsageError
        The beginning of a digest fits several.
    """
    return _only(
        store.records.find(words),
        f"no record {words!r}; give an id or four and more digits of a digest, "
        "as tunedb top lists them",
        f"{words!r} means several records; give more digits, or an id",
    )


def _only(found: Sequence[int], none: str, several: str) -> int:
    """Return the one id that was found, or raise with these words."""
    from ..errors import NotFoundError, UsageError

    if not found:
        raise NotFoundError(none)
    if len(found) > 1:
        raise UsageError(f"{several}: {_listed(map(str, found))}")
    return found[0]


def target_label(target: Target) -> str:
    """Return a target in few words: its kind, its model or architecture, and its cores."""
    cores = (target.attributes or {}).get("num-cores")
    return text.clean(f"{target.label} {cores} cores" if cores else target.label)


def _nearest(words: str, names: Iterable[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(words, sorted(names), n=3, cutoff=0.5)
    return f"nearest: {', '.join(near)}; " if near else ""


def _listed(items: Iterable[str]) -> str:
    values = list(items)
    rest = len(values) - _MOST_NAMED
    more = f" and {rest} more" if rest > 0 else ""
    return ", ".join(values[:_MOST_NAMED]) + more


def complete_workload(
    context: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete names and ids of workloads."""

    def items(store: Store) -> Iterable[tuple[str, str]]:
        summaries = store.workloads.summaries()
        for name in sorted({summary.name for summary in summaries}):
            yield name, _numbers([s for s in summaries if s.name == name])
        for summary in summaries:
            yield str(summary.id), summary.name

    return _complete(context, items, incomplete)


def _numbers(summaries: list[WorkloadSummary]) -> str:
    return text.count(sum(summary.records for summary in summaries), "record")


def _complete_target(
    context: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    def items(store: Store) -> Iterable[tuple[str, str]]:
        for kind in sorted({summary.target.kind for summary in store.targets.summaries()}):
            yield kind, ""

    return _complete(context, items, incomplete)


def complete_source(
    context: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete names and ids of sources."""

    def items(store: Store) -> Iterable[tuple[str, str]]:
        known = store.sources.numbered()
        yield from sorted({(source.name, source.trust.name.lower()) for _, _, source in known})
        yield from ((str(id_), source.name) for id_, _, source in known)

    return _complete(context, items, incomplete)


def _complete(context: click.Context, items: Any, incomplete: str) -> list[CompletionItem]:
    """Return completions from the database, or none where it cannot be read."""
    from click.shell_completion import CompletionItem

    from ..errors import TuneDBError

    try:
        with reading(settings_of(context)) as store:
            return [
                CompletionItem(value, help=help_)
                for value, help_ in items(store)
                # A name with a control character cannot be typed; its id can.
                if value.startswith(incomplete) and text.clean(value) == value
            ]
    except TuneDBError:
        return []
