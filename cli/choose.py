"""Options that name workloads, targets and sources, and their completion in shells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..system import text
from .options import reading, settings_of

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ..models.scope import Scope
    from ..records import Target
    from ..results import WorkloadSummary
    from ..storage.store import Store

F = TypeVar("F", bound=Callable[..., Any])


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
    """Add ``--target``, ``--workload`` and ``--source`` to a command, for :func:`find_scope`."""
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
    """Return the scope of records that the options of :func:`scope_options` select.

    Raises
    ------
    NotFoundError, UsageError
        As for the methods of ``store.lookup``.
    """
    from ..models.scope import Scope

    lookup = store.lookup
    workload_ids = sorted({id_ for words in workloads for id_ in lookup.workload(words)})
    source_ids = sorted({lookup.source(words) for words in sources})
    return Scope(workload_ids or None, find_targets(store, target), source_ids or None)


def find_targets(store: Store, words: str | None) -> list[int] | None:
    """Return the ids of the matching targets; None, for all, where `words` is None.

    Raises
    ------
    NotFoundError, UsageError
        As for ``store.lookup.require_targets``.
    """
    return None if words is None else store.lookup.require_targets(words)


def target_label(target: Target) -> str:
    """Return a target's kind, model or architecture, and cores, without control characters."""
    return text.clean(target.full_label)


def complete_workload(
    context: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete names and ids of workloads."""

    def candidates(store: Store) -> Iterable[tuple[str, str]]:
        summaries = store.workloads.find()
        for name in sorted({summary.name for summary in summaries}):
            yield name, _record_count([s for s in summaries if s.name == name])
        for summary in summaries:
            yield str(summary.id), summary.name

    return _complete(context, candidates, incomplete)


def _record_count(summaries: list[WorkloadSummary]) -> str:
    return text.count(sum(summary.records for summary in summaries), "record")


def _complete_target(
    context: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    def candidates(store: Store) -> Iterable[tuple[str, str]]:
        for kind in sorted({summary.target.kind for summary in store.targets.find()}):
            yield kind, ""

    return _complete(context, candidates, incomplete)


def complete_source(
    context: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete names and ids of sources."""

    def candidates(store: Store) -> Iterable[tuple[str, str]]:
        rows = store.sources.numbered()
        yield from sorted({(source.name, source.trust.name.lower()) for _, _, source in rows})
        yield from ((str(id_), source.name) for id_, _, source in rows)

    return _complete(context, candidates, incomplete)


def _complete(context: click.Context, candidates: Any, incomplete: str) -> list[CompletionItem]:
    """Return completions from the database; none if it cannot be read."""
    from click.shell_completion import CompletionItem

    from ..errors import TuneDBError

    try:
        with reading(settings_of(context)) as store:
            return [
                CompletionItem(value, help=help_)
                for value, help_ in candidates(store)
                # A name with a control character cannot be typed; its id can.
                if value.startswith(incomplete) and text.clean(value) == value
            ]
    except TuneDBError:
        return []
